"""Arrays of the rest of the program, which are on the device while the call runs."""

from __future__ import annotations

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import list_some
from hbmwatch._records.report import Finding, LiveArrays
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

ADVICE = Advice(
    slug="live-arrays",
    prior_weight=2.0,
    link="https://docs.jax.dev/en/latest/device_memory_profiling.html",
    will_not_help="donation or jax.checkpoint: these arrays are not arguments of the call",
)


def find(facts: ProgramFacts) -> Finding | None:
    """Live arrays that are not arguments of the call, where they are worth freeing."""
    live = facts.device.live if facts.device is not None else ()
    total = sum(group.size_bytes for group in live)
    if not total or total < facts.minimum_saving_bytes:
        return None
    limit = facts.device.limit_bytes if facts.device is not None else None
    of_limit = f" of the device's {format_size(limit)}" if limit else ""
    return ADVICE.finding(
        title=f"Free {list_some([_holder(group) for group in live], 2)}: {format_size(total)}"
        f"{of_limit} is in arrays that this call does not use",
        evidence=f"On the fullest device: {list_some(map(_described, live))}.",
        remedy="Drop the references to what is no longer needed (del, or a smaller scope), keep "
        "metrics and histories as Python floats or NumPy arrays (jax.device_get), and pass what "
        "is updated as a donated argument.",
        saves_bytes=total,
    )


def _holder(group: LiveArrays) -> str:
    """The variable that holds a group, or its shape where none is known."""
    return group.held_by[0].partition(" ")[0] if group.held_by else plural(group.count, "array")


def _described(group: LiveArrays) -> str:
    """A group as "3 x float32[8, 8] (1 MiB, held by history in main(), train.py)"."""
    held = f", held by {list_some(group.held_by, 2)}" if group.held_by else ""
    size = format_size(group.size_bytes)
    return f"{group.count} x {group.dtype}{list(group.shape)} ({size}{held})"
