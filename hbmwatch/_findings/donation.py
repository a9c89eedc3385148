"""Arguments that are returned updated but not donated, so that old and new values coexist."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument, Output
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import DONATION, largest_paths, list_some
from hbmwatch._findings.rows import rows_of
from hbmwatch._records.paths import path_prefix
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

_OUTER = "An outer jit without donate_argnums undoes the donation of an inner jit"
ADVICE = Advice(
    slug="donation",
    prior_weight=3.0,
    link=DONATION,
    will_not_help=f"jax.checkpoint or a smaller batch: neither changes these bytes. {_OUTER}",
    without_batch=f"jax.checkpoint: it does not change these bytes. {_OUTER}",
    change="donation",
)
# An argument with a hundredth of the bytes of all (a step, a hidden state) is not named.
LEAST_SHARE = 1 / 100
_UPDATED = ("updated and returned", "the old and new values exist at the same time")
_UNCHANGED = ("returned unchanged", "each exists twice")
# What equinox.filter_jit calls the arrays that it does not donate.
_EQUINOX = "dynamic_nodonate["
_LEAVE_OUT = "Return only what changes, also from the body of a scan."


def find(facts: ProgramFacts) -> Finding | None:
    """Arguments that are returned updated, and not donated."""
    pairs = undonated(facts)
    pairs = _large(pairs)
    if not pairs:
        return None
    unchanged = [argument for argument, output in pairs if _is_returned(facts, argument, output)]
    updated = [argument for argument, _ in pairs if argument not in unchanged]
    larger = max(unchanged, updated, key=_bytes)
    some = list_some(largest_paths(larger))
    what = f"Do not return {some} unchanged" if larger is unchanged else f"Donate {some}"
    nameless = any(a.leaf is not None and a.leaf.positional for a, _ in pairs)
    keyword = f"jax.jit(..., {donate_keyword([a.path for a, _ in pairs], nameless)})"
    if any(a.leaf is not None and a.leaf.path.startswith(_EQUINOX) for a, _ in pairs):
        keyword = 'equinox.filter_jit(..., donate="all")'
    state = "the state" if facts.buffers.differentiated else "it" if len(pairs) == 1 else "them"
    remedy = [_LEAVE_OUT] if unchanged else []
    remedy.append(
        f"{'Or donate' if unchanged else 'Donate'} {state} with {keyword}, and use "
        "only the returned value afterwards."
    )
    return ADVICE.finding(
        title=f"{what}: {format_size(_bytes(larger))} is held twice",
        evidence=" ".join(
            _evidence(some, *how)
            for some, how in sorted(
                ((updated, _UPDATED), (unchanged, _UNCHANGED)), key=lambda part: -_bytes(part[0])
            )
            if some
        ),
        remedy=" ".join(remedy),
        saves_bytes=_bytes(unchanged) + _bytes(updated),
        buffers=rows_of(facts, (argument for argument, _ in pairs)),
    )


def _large(pairs: Sequence[tuple[Argument, Output]]) -> list[tuple[Argument, Output]]:
    """The pairs without those of arguments of the function that are small beside the others."""
    roots = [path_prefix(argument.path, 1) for argument, _ in pairs]
    sizes = dict.fromkeys(roots, 0)
    for root, (argument, _) in zip(roots, pairs):
        sizes[root] += argument.size_bytes
    least = LEAST_SHARE * sum(sizes.values())
    return [pair for root, pair in zip(roots, pairs) if sizes[root] >= least]


def _is_returned(facts: ProgramFacts, argument: Argument, output: Output) -> bool:
    """Whether an output is a copy of an argument."""
    value = facts.buffers.graph.copied(output.instruction)
    return value is not None and facts.buffers.graph.argument_ids.get(value.id) == argument.number


def _evidence(arguments: Sequence[Argument], how: str, why: str) -> str:
    """How many arguments are returned, how, and why they exist twice."""
    paths = list_some(largest_paths(arguments))
    are, their = ("is", "its") if len(arguments) == 1 else ("are", "their")
    return (
        f"{plural(len(arguments), 'argument leaf')} ({format_size(_bytes(arguments))}: {paths}) "
        f"{are} {how}, but no output reuses {their} memory, so {why}."
    )


def _bytes(arguments: Sequence[Argument]) -> int:
    """The bytes of all arguments."""
    return sum(argument.size_bytes for argument in arguments)


def undonated(facts: ProgramFacts) -> list[tuple[Argument, Output]]:
    """Arguments that could be donated, each with an output that could reuse its memory.

    An argument is returned updated if an output of its shape is computed from it element by
    element. XLA may have given that output the memory of another donated argument; then another
    output of this shape is free.
    """
    donated = {a.number for a in facts.arguments if a.leaf is not None and a.leaf.donated}
    donated |= {donor.parameter_number for donor in facts.program.donors}
    updated = facts.buffers.updated - donated
    kept: dict[tuple[tuple[int, ...], int], list[Argument]] = {}
    for argument in facts.arguments:
        if argument.number in updated and argument.in_hbm and not argument.aliased:
            kept.setdefault((argument.dims, argument.element_type), []).append(argument)
    free: dict[tuple[tuple[int, ...], int], list[Output]] = {}
    for output in facts.outputs:
        if output.in_hbm and not output.aliased:
            free.setdefault((output.dims, output.element_type), []).append(output)
    return [pair for form in kept for pair in zip(kept[form], free.get(form, []))]


def donate_keyword(paths: Sequence[str], nameless: bool = False) -> str:
    """The keyword of jit that donates what the paths begin with: donate_argnames='state'.

    Args:
        paths: The paths of arguments.
        nameless: Whether one of them can only be passed by position.
    """
    names = list(dict.fromkeys(path_prefix(path, 1) for path in paths))
    # JAX calls the arguments of a function without names "args".
    if nameless or not all(name.isidentifier() and name != "args" for name in names):
        return "donate_argnums=..."
    return f"donate_argnames={names[0]!r}" if len(names) == 1 else f"donate_argnames={tuple(names)}"
