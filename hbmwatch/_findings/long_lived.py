"""Temporaries that are kept through most of the program between their first and last use."""

from __future__ import annotations

from hbmwatch._analysis import live_buffers
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.advice import Advice, all_bytes
from hbmwatch._findings.phrases import ERROR_1000, at_line
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

ADVICE = Advice(slug="long-lived", prior_weight=0.8, link=ERROR_1000)
# In a shorter program every buffer lives through most of it.
LEAST_POINTS = 10
# The buffer lives, and is not read, through most of the program.
LEAST_IDLE_SHARE = 0.6


def find(facts: ProgramFacts) -> Finding | None:
    """Temporaries that wait idle, other than residuals."""
    residuals = {id(live) for live in facts.buffers.saved}
    idle = [live for live in facts.live if id(live) not in residuals and is_idle(facts, live)]
    # The program does not make an argument in another layout or type: the compiler does.
    idle = [live for live in idle if facts.buffers.graph.given(live.instruction, ()) is None]
    if not idle:
        return None
    total = all_bytes(idle)
    first = max(idle, key=lambda live: live.size_bytes)
    around = ""
    if facts.buffers.differentiated:
        around = " (or put jax.checkpoint around the part that makes it)"
    lives, it, which = ("lives", "it", "It") if len(idle) == 1 else ("live", "them", "The largest")
    return ADVICE.finding(
        title=f"A temporary is created early and used late{at_line(idle)}",
        evidence=f"{plural(len(idle), 'buffer')} ({format_size(total)}) {lives} through most of "
        f"the program, but the program reads {it} only near both ends. {which} lives from "
        f"program point {first.op.start} to {first.op.end} of {len(facts.summary.heap_bytes)}.",
        remedy=f"Recompute it where it is used late{around}, or move the two uses together.",
        saves_bytes=total,
        buffers=idle,
    )


def is_idle(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a temporary lives long, and is read only in the first and last part of its life."""
    points = len(facts.summary.heap_bytes)
    if live.op.kind != "temporary" or live.loop_buffer is not None or points < LEAST_POINTS:
        return False
    start, end = live.op.start or 0, live.op.end if live.op.end is not None else points
    if end - start < LEAST_IDLE_SHARE * points:
        return False
    if live.size_bytes < facts.least_part_bytes:
        return False
    order = facts.buffers.order
    made = order.get(live.instruction.id)
    readers = facts.buffers.readers(live)
    if len(readers) >= live_buffers.MOST_VISITS:  # the search was cut, and may have missed some
        return False
    if any(reader.opcode == "while" for reader in readers):
        return False
    read = sorted(order[reader.id] for reader in readers if reader.id in order)
    if made is None or not read:
        return False
    gaps = [later - earlier for earlier, later in zip([made, *read], read)]
    return max(gaps) >= LEAST_IDLE_SHARE * (read[-1] - made)
