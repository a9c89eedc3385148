"""The heap of small programs made by hand, event by event."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.heap import heap_of, heap_trace, replay
from hbmwatch._xla.peak import other_ops, peak_summary
from hbmwatch._xla.program import Program
from hbmwatch._xla.terms import memory_color
from hbmwatch._xla.types import HeapEventKind, MemoryColor
from tests import programs
from tests.xla.support import made

ALLOC, FREE, SHARE = HeapEventKind
Events = tuple[tuple[int, ...], ...]
SIZES = {1: 100, 2: 200, 3: 50}


def run_through(
    *events: tuple[int, ...],
) -> tuple[list[int], list[tuple[str, str]], dict[int, str]]:
    """The sizes, the live buffers as (owner, user), and the spans that a trace of SIZES gives."""
    program = made({"buffers": SIZES}, traces=(events,))
    sizes, live, spans, _ = replay(program, heap_trace(program, MemoryColor.HBM))
    names = [(owner.instruction.name, user.instruction.name) for owner, user in live]
    return sizes, names, {buffer: f"{start}-{end}" for buffer, (start, end) in spans.items()}


@pytest.mark.parametrize(
    ("events", "sizes", "live", "spans"),
    [
        pytest.param((), [], [], {}, id="no events"),
        pytest.param(
            ((ALLOC, 1), (ALLOC, 2), (FREE, 1), (ALLOC, 3), (FREE, 2), (FREE, 3)),
            [0, 100, 300, 200, 250, 50, 0],
            [("i1", "i1"), ("i2", "i2")],
            {1: "0-2", 2: "1-4", 3: "3-5"},
            id="one after another",
        ),
        pytest.param(
            ((ALLOC, 1), (ALLOC, 3)),
            [0, 100, 150],
            [("i1", "i1"), ("i3", "i3")],
            {1: "0-1", 3: "1-1"},
            id="never freed",
        ),
        pytest.param(
            ((ALLOC, 1), (SHARE, 3, 1), (FREE, 1), (ALLOC, 2), (FREE, 3), (FREE, 2)),
            [0, 100, 100, 100, 300, 200, 0],
            [("i1", "i1"), ("i2", "i2")],
            {1: "0-4", 2: "3-5"},
            id="shared memory is free after its last user",
        ),
        pytest.param(
            ((ALLOC, 1), (FREE, 1), (SHARE, 3, 1), (ALLOC, 2), (FREE, 3)),
            [0, 100, 0, 100, 300, 200],
            [("i1", "i3"), ("i2", "i2")],
            {1: "0-1", 3: "2-4", 2: "3-4"},
            id="memory that is free again, for a buffer that shares it",
        ),
        pytest.param(
            ((ALLOC, 1), (SHARE, 2, 1), (SHARE, 3, 2), (FREE, 1), (FREE, 2), (FREE, 3)),
            [0, 100, 100, 100, 100, 100, 0],
            [("i1", "i1")],
            {1: "0-5"},
            id="sharing with a buffer that shares",
        ),
        pytest.param(
            ((ALLOC, 1), (ALLOC, 99), (SHARE, 2, 99), (FREE, 99)),
            [0, 100, 100, 100, 100],
            [("i1", "i1")],
            {1: "0-3"},
            id="buffers that do not exist",
        ),
    ],
)
def test_a_heap_trace_is_run_through(
    events: Events, sizes: list[int], live: list[tuple[str, str]], spans: dict[int, str]
) -> None:
    """Bytes before each event, what is live at the first maximum, and each buffer's lifetime."""
    assert run_through(*events) == (sizes, live, spans)


def test_what_is_not_live_at_the_peak_has_the_time_of_its_memory() -> None:
    """A buffer freed before the peak, one made after it, and a use that outlives its span."""
    reused = ((ALLOC, 1), (FREE, 1), (SHARE, 3, 1), (ALLOC, 2), (SHARE, 4, 3), (FREE, 3))
    events = (*reused, (FREE, 2), (FREE, 4), (ALLOC, 2))
    program = made({"buffers": SIZES | {4: 10}}, traces=(events,))
    found = replay(program, heap_trace(program, MemoryColor.HBM))

    assert found.sizes == [0, 100, 0, 100, 300, 300, 300, 100, 0, 200]
    others = [(buffer.instruction.name, start, end) for buffer, start, end in found.others]
    assert others == [("i1", 0, 1), ("i3", 5, 7), ("i2", 8, 9)]


def test_a_peak_and_its_other_buffers_need_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace of a space is run through once for a program, which this does not keep alive."""
    runs = []

    def counted(*args: Any) -> Any:
        runs.append(len(args))
        return replay(*args)

    monkeypatch.setattr("hbmwatch._xla.heap.replay", counted)
    program = made({"buffers": SIZES}, traces=(((ALLOC, 1), (FREE, 1), (ALLOC, 2)),))
    assert peak_summary(program).peak_bytes == 200
    assert other_ops(program) == ()  # all are smaller than 16 KiB
    assert heap_of(program, MemoryColor.HBM).sizes == [0, 100, 0, 200]
    assert len(runs) == 1
    alive = weakref.ref(program)
    del program
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (((ALLOC, 1), (FREE, 1), (FREE, 1)), r"of jit_f\(7\) frees buffer 1 more than once"),
        (((FREE, 1),), r"of jit_f\(7\) frees buffer 1 more than once"),
        (((ALLOC, 1), (SHARE, 1, 1)), r"of jit_f\(7\) buffer 1 shares with itself"),
        (((SHARE, 2, 1), (SHARE, 1, 2)), r"of jit_f\(7\) buffer 1 shares with itself"),
        (((9, 1),), r"of jit_f\(7\) has an event of kind 9, which this version of hbmwatch"),
        (((ALLOC, 1), (ALLOC, 4)), r"of jit_f\(7\) runs through 2 allocations, not one"),
        (((ALLOC, 99),), r"of jit_f\(7\) runs through 0 allocations, not one"),
    ],
)
def test_an_inconsistent_trace_is_a_sentence(events: Events, sentence: str) -> None:
    """The error names the program and what is wrong."""
    program = made({"buffers": SIZES}, {"buffers": {4: 1}}, traces=(events,))
    trace = program.proto.buffer_assignment.heap_simulator_traces[0].events
    with pytest.raises(ProfileError, match=sentence):
        replay(program, trace)


def test_sizes_that_no_memory_has_are_a_sentence() -> None:
    """Buffers of 2**60 bytes each, until their sum is out of every range."""
    buffers = dict.fromkeys(range(1, 6), 2**60)
    program = made({"buffers": buffers}, traces=(tuple((ALLOC, n) for n in buffers),))
    sentence = r"of jit_f\(7\) is inconsistent: its buffers add up to more than 2\*\*62 bytes"
    with pytest.raises(ProfileError, match=sentence):
        replay(program, heap_trace(program, MemoryColor.HBM))


def first_buffers(program: Program) -> dict[str, int | None]:
    """The buffer of the first event of each memory space's trace."""
    traces = {space: heap_trace(program, memory_color(space)) for space in ("hbm", "vmem", "host")}
    return {space: trace[0].buffer_id if trace else None for space, trace in traces.items()}


def test_a_memory_space_has_the_trace_of_its_temporary_allocation() -> None:
    """Outputs have no trace, even where one begins in them; a space without buffers has none."""
    program = made(
        {"buffers": {1: 8}, "maybe_live_out": True},
        {"buffers": {2: 8}},
        {"buffers": {3: 8}, "color": MemoryColor.VMEM},
        traces=(((ALLOC, 1),), ((ALLOC, 3),), ((ALLOC, 2),)),
    )
    assert first_buffers(program) == {"hbm": 2, "vmem": 3, "host": None}


def test_without_a_temporary_allocation_the_longest_trace_counts() -> None:
    """Of the traces with buffers of the space, the one with most events on them."""
    program = made(
        {"buffers": {1: 8, 2: 8}, "maybe_live_out": True},
        traces=(((ALLOC, 1),), ((ALLOC, 2), (FREE, 2))),
    )
    assert first_buffers(program) == {"hbm": 2, "vmem": None, "host": None}


@pytest.mark.slow
@pytest.mark.tpu
def test_the_trace_of_a_space_is_found_by_its_first_buffer() -> None:
    """XProf does not use the allocation that a trace names, and neither does hbmwatch."""
    program = programs.compiled("small", "tpu").program
    vmem = memory_color("vmem")
    events = heap_trace(program, vmem)
    buffers = (program.buffer(event.buffer_id) for event in events)
    assert {buffer and buffer.allocation.color for buffer in buffers} == {vmem}
