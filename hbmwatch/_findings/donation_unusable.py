"""Donated arguments whose memory no output can reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument, Output
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import DONATION, list_some
from hbmwatch._findings.rows import rows_of, rows_of_outputs
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.shardings import tiles
from hbmwatch._xla.types import float_bits, type_name

ADVICE = Advice(
    slug="donation-unusable",
    prior_weight=3.0,
    link=DONATION,
    will_not_help='more donate_argnums: JAX only warns "Some donated buffers were not usable" and '
    "keeps both copies",
)
_RETURN = (
    "Return the donated leaves with the dtype, shape and sharding that they had as arguments (cast "
    "the update back, set out_shardings), so that donate_argnums takes effect."
)
_CONVERT = (
    "An output of another dtype cannot reuse this memory. Convert one layer or module at a time, "
    "in a call of its own, and delete the old arrays (x.delete(), or drop all references) before "
    "the next call: then only one layer exists in both dtypes."
)


class Mismatch(NamedTuple):
    """Why no output reuses the memory of a donated argument.

    Attributes:
        argument: The argument.
        reason: Why, in words.
        output: The output that could have reused its memory; None where there is no such output.
    """

    argument: Argument
    reason: str
    output: Output | None


def find(facts: ProgramFacts) -> Finding | None:
    """Arguments that are donated without effect."""
    mismatches: list[Mismatch] = []
    free = [output for output in facts.outputs if not output.aliased]
    for argument in _unused_donations(facts):
        mismatches.append(_mismatch(facts, free, argument))
        free = [output for output in free if output is not mismatches[-1].output]
    if not mismatches:
        return None
    saves = sum(m.output.size_bytes for m in mismatches if m.output is not None)
    total = sum(m.argument.size_bytes for m in mismatches)
    first = max(mismatches, key=lambda m: m.argument.size_bytes)
    converted = [m for m in mismatches if _is_conversion(facts, m)]
    most = 2 * sum(m.argument.size_bytes for m in converted) > total
    if most and len(converted) > 1:
        # The layer that is converted exists in both dtypes.
        saves -= max(m.output.size_bytes for m in converted if m.output is not None)
    return ADVICE.finding(
        title=f"Donating {list_some([first.argument.path])} has no effect: {first.reason}",
        evidence=f"No output can reuse the memory of {plural(len(mismatches), 'donated leaf')} "
        f"({format_size(total)}). The largest is {first.argument.path}: {first.reason}.",
        remedy=_CONVERT if most else _RETURN,
        saves_bytes=saves or total,
        buffers=[
            *rows_of_outputs(facts, (m.output for m in mismatches if m.output is not None)),
            *rows_of(facts, (m.argument for m in mismatches if m.output is None)),
        ],
    )


def _is_conversion(facts: ProgramFacts, mismatch: Mismatch) -> bool:
    """Whether the program is there to change the dtype, as one that quantizes weights is.

    A training step may narrow its state by mistake, but not to integers.
    """
    if mismatch.output is None:
        return False
    before = float_bits(mismatch.argument.element_type) or 0
    after = float_bits(mismatch.output.element_type) or 0
    if bool(before) != bool(after):
        return True
    return 0 < after < before and not facts.buffers.differentiated


def _unused_donations(facts: ProgramFacts) -> list[Argument]:
    """The donated arguments whose memory no output reuses."""
    donors = {donor.parameter_number for donor in facts.program.donors}
    return [
        argument
        for argument in facts.arguments
        if not argument.aliased
        and argument.size_bytes > 0
        and (argument.number in donors or (argument.leaf is not None and argument.leaf.donated))
    ]


def _mismatch(facts: ProgramFacts, free: Sequence[Output], argument: Argument) -> Mismatch:
    """Why no output reuses the memory of an argument: the first of these reasons that holds.

    Args:
        facts: The failing program.
        free: The outputs that could: they reuse no argument's memory.
        argument: The argument.
    """
    same = [o for o in free if o.leaf is not None and same_leaf(argument.path, o.path)]
    for output in [*same, *free]:
        if output.dims == argument.dims and output.element_type != argument.element_type:
            theirs, ours = type_name(output.element_type), type_name(argument.element_type)
            # Another output may reuse the memory of its own argument, as JAX pairs them by shape.
            own = (a for a in facts.arguments if same_leaf(a.path, output.path))
            alike = (a for a in own if a.element_type == argument.element_type)
            named = next((a for a in alike if a.dims == argument.dims), argument)
            reason = f"{output.path} is {theirs}, but {named.path} is {ours}"
            return Mismatch(named, reason, output)
    for output in [*same, *free]:
        if _global_dims(output) == argument.global_dims and output.dims != argument.dims:
            reason = (
                f"{output.path} has another sharding ({list(output.dims)} per device, but "
                f"{argument.path} has {list(argument.dims)})"
            )
            return Mismatch(argument, reason, output)
    for output in [*same, *free]:
        if output.dims == argument.dims and output.element_type == argument.element_type:
            return Mismatch(argument, f"{output.path} has another layout or sharding", output)
    if same:
        reason = (
            f"{same[0].path} has the shape {list(same[0].dims)}, but {argument.path} has "
            f"{list(argument.dims)}"
        )
        return Mismatch(argument, reason, same[0])
    return Mismatch(argument, f"no output has the shape {list(argument.dims)}", None)


def same_leaf(argument: str, output: str) -> bool:
    """Whether two paths end in the same keys ("state['mu']" and "result[0]['mu']")."""
    ours, theirs = argument.split("["), output.split("[")
    same = []
    for a, b in zip(reversed(ours[1:]), reversed(theirs[1:])):
        if a != b:
            break
        same.append(a)
    named = any(not key[:1].isdigit() for key in same)  # an index alone says nothing
    return named and len(same) >= len(ours) - 1


def _global_dims(output: Output) -> tuple[int, ...]:
    """The dimensions of the whole output."""
    if output.leaf is not None and len(output.leaf.shape) == len(output.dims):
        return output.leaf.shape
    return tuple(d * t for d, t in zip(output.dims, tiles(output.sharding, len(output.dims))))
