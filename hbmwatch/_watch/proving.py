"""What a plan finds for a call that did not compile, for `watch_hbm(..., prove=...)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from hbmwatch._explain.failure import FailedCall, Proved

if TYPE_CHECKING:
    from hbmwatch._preflight.plans import Plan

Given = tuple[tuple[Any, ...], Mapping[str, Any]]


def prover(seconds: float | None) -> Callable[[FailedCall], Proved] | None:
    """Makes the sentence for a failed call, in at most so many seconds; None without seconds.

    Raises:
        ValueError: The seconds are not a number above 0.
    """
    if seconds is None:
        return None
    if not (isinstance(seconds, (int, float)) and seconds > 0):
        raise ValueError(f"prove must be a number of seconds above 0, not {seconds!r}")
    return functools.partial(_proved, seconds=seconds)


def _proved(failed: FailedCall, seconds: float) -> Proved:
    """The best change that a plan finds, or that it found none.

    Raises:
        KeyboardInterrupt: The plan was interrupted; a note has what it had found.
    """
    # They load what only a plan needs.
    from hbmwatch._preflight.measured import measured
    from hbmwatch._preflight.plan import plan
    from hbmwatch._preflight.planning import INTERRUPTED

    given = failed.given or shapes_of(failed.args, failed.kwargs)
    if failed.function_object is None or not jax.tree.leaves(given):
        return Proved()
    args, kwargs = given
    found = plan(failed.function_object, *args, seconds=seconds, **kwargs)
    sentence = _sentence(found)
    if found.error == INTERRUPTED:  # Ctrl-C asks the program to stop, and not only the plan
        interrupt = KeyboardInterrupt()
        interrupt.add_note(f"hbmwatch: plan: {sentence}")
        raise interrupt
    return Proved(sentence, lambda findings: measured(findings, found.before, found.rows))


def _sentence(found: Plan) -> str:
    from hbmwatch._preflight.plans import none_fits

    row = found.best or next((row for row in found.rows if row.fits), None)
    if row is None:
        ended = f"; the search ended early: {found.error}" if found.error else ""
        tried = "1 change was" if len(found.rows) == 1 else f"{len(found.rows)} changes were"
        return f"{tried} tried; {none_fits(found.rows)}{ended}"
    code = "; ".join(row.code.splitlines())
    return f"{' + '.join(row.changes)} {row.fit}. Write: {code}. Values: {row.values}"


def shapes_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
    """The arguments of a call with arrays by their shapes, so that nothing holds the arrays."""
    from hbmwatch._preflight.changes.call import shape_of

    shaped: Given = jax.tree.map(shape_of, (args, dict(kwargs)))
    return shaped
