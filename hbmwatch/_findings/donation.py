"""Arguments that are returned updated but not donated, so that old and new values coexist."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import Argument, Output, ProgramFacts
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import DONATION, list_some, plural, short_paths
from hbmwatch._findings.rows import rows_of
from hbmwatch._records.paths import path_prefix
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

ADVICE = Advice(
    slug="donation",
    prior_weight=3.0,
    link=DONATION,
    will_not_help="jax.checkpoint or a smaller batch: neither changes these bytes. An outer jit "
    "without donate_argnums undoes the donation of an inner jit",
    change="donation",
)


def find(facts: ProgramFacts) -> Finding | None:
    """Arguments that are returned updated, and not donated."""
    pairs = undonated(facts)
    if not pairs:
        return None
    saves = sum(argument.size_bytes for argument, _ in pairs)
    paths = short_paths(argument.path for argument, _ in pairs)
    leaves = plural(len(pairs), "argument leaf")
    are, their = ("is", "its") if len(pairs) == 1 else ("are", "their")
    return ADVICE.finding(
        title=f"Donate {list_some(paths)}: {format_size(saves)} is held twice",
        evidence=f"{leaves} ({format_size(saves)}: {list_some(paths)}) {are} updated and returned, "
        f"but no output reuses {their} memory, so the old and new values exist at the same time.",
        remedy=f"Donate the state with jax.jit(..., {donate_keyword(paths)}), and use only the "
        "returned value afterwards.",
        saves_bytes=saves,
        buffers=rows_of(facts, (argument for argument, _ in pairs)),
    )


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
        if not output.aliased:
            free.setdefault((output.dims, output.element_type), []).append(output)
    return [pair for form in kept for pair in zip(kept[form], free.get(form, []))]


def donate_keyword(paths: Sequence[str]) -> str:
    """The keyword of jit that donates what the paths begin with: donate_argnames='state'."""
    names = list(dict.fromkeys(path_prefix(path, 1) for path in paths))
    if not all(name.isidentifier() for name in names):
        return "donate_argnums=..."
    return f"donate_argnames={names[0]!r}" if len(names) == 1 else f"donate_argnames={tuple(names)}"
