"""The heap of a program over time, as XLA's heap traces tell it and as XProf reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.program import Buffer, Program
from hbmwatch._xla.protos import BufferAllocationProto, HeapEvent
from hbmwatch._xla.types import HeapEventKind

_ALLOC, _FREE, _SHARE_WITH = HeapEventKind


def has_indefinite_lifetime(allocation: BufferAllocationProto) -> bool:
    """Whether it lives through the whole program: XProf's "indefinite"."""
    return (
        allocation.is_thread_local
        or allocation.is_entry_computation_parameter
        or allocation.is_constant
        or allocation.maybe_live_out
    )


def heap_trace(program: Program, color: int) -> Sequence[HeapEvent]:
    """The events of the one heap trace that tells of this memory space; empty where none does.

    It is the trace of a temporary allocation (a trace belongs to the allocation of its first
    event's buffer; what it says itself is not to be trusted), else the one with most events.
    """
    traces = program.proto.buffer_assignment.heap_simulator_traces
    owners = {}
    for trace in traces:
        if trace.events and (first := program.buffer(trace.events[0].buffer_id)):
            owners[first.allocation.index] = trace
    for allocation in program.allocations:
        if (
            allocation.color == color
            and not has_indefinite_lifetime(allocation)
            and allocation.index in owners
        ):
            return owners[allocation.index].events
    colored = {buffer.proto.id for buffer in program.buffers() if buffer.proto.color == color}
    counts = [sum(event.buffer_id in colored for event in trace.events) for trace in traces]
    return traces[counts.index(max(counts))].events if any(counts) else ()


class Replay(NamedTuple):
    """A heap trace, run through.

    Attributes:
        sizes: Bytes live before each event, and after the last; empty without a trace.
        live: The buffers live at the peak, in order of allocation, as (the buffer whose memory it
            is, the buffer that lies in it at that time).
        spans: The events at which a buffer comes to life and is freed, by its id.
    """

    sizes: list[int]
    live: list[tuple[Buffer, Buffer]]
    spans: dict[int, tuple[int, int]]


def replay(program: Program, events: Sequence[HeapEvent]) -> Replay:
    """Run through a heap trace, as XProf does."""
    heap = _Heap(program, len(events))
    sizes = [0] if events else []
    for event in events:
        if heap.knows(event.buffer_id):
            heap.step(event)
        heap.position += 1
        sizes.append(heap.size_bytes)
    if events and len(heap.allocations) != 1:
        raise ProfileError(
            f"the heap trace of {program.name} runs through {len(heap.allocations)} allocations, "
            f"not one"
        )
    peak = sizes.index(max(sizes)) if sizes else 0
    live: dict[int, int] = {}
    for position, buffer, shown in heap.changes:
        if position >= peak:
            break
        if shown is None:
            live.pop(buffer, None)
        else:
            live[buffer] = shown
    buffers = [(heap.buffers[whose], heap.buffers[shown]) for whose, shown in live.items()]
    return Replay(sizes, buffers, heap.spans)


class _Heap:
    """The state of a heap while its trace runs; buffers are counted as often as they are shared."""

    def __init__(self, program: Program, events: int) -> None:
        self.program = program
        self.buffers: dict[int, Buffer] = {}
        self.last = events - 1
        self.position = 0
        self.size_bytes = 0
        self.references: dict[int, int] = {}
        self.canonical: dict[int, int] = {}
        self.reused: set[int] = set()
        self.spans: dict[int, tuple[int, int]] = {}
        self.changes: list[tuple[int, int, int | None]] = []
        self.allocations: set[int] = set()

    def knows(self, buffer_id: int) -> bool:
        """Whether a buffer has a place; it is in `buffers` then."""
        buffer = self.program.buffer(buffer_id)
        if buffer is not None:
            self.buffers[buffer_id] = buffer
        return buffer is not None

    def step(self, event: HeapEvent) -> None:
        """One event of a buffer that is known."""
        buffer = event.buffer_id
        self.allocations.add(self.buffers[buffer].allocation.index)
        if event.kind == _ALLOC:
            self._refer(self._root(buffer))
            self._grow(buffer, buffer)
        elif event.kind == _FREE:
            self._free(buffer)
        elif event.kind == _SHARE_WITH:
            self._share(buffer, event.share_with_canonical_id)
        else:
            raise ProfileError(
                f"the heap trace of {self.program.name} has an event of kind {event.kind}, which "
                f"this version of hbmwatch does not know"
            )

    def _root(self, buffer: int) -> int:
        """The buffer whose memory this one lies in."""
        while buffer in self.canonical:
            buffer = self.canonical[buffer]
        return buffer

    def _refer(self, root: int) -> int:
        """Count a user of a buffer's memory; returns how many there are."""
        self.references[root] = self.references.get(root, 0) + 1
        return self.references[root]

    def _grow(self, buffer: int, shown: int) -> None:
        """A buffer's memory is taken, for the buffer that shows."""
        self.size_bytes += self.buffers[buffer].proto.size
        if self.size_bytes >= 2**62:
            raise ProfileError(f"the heap trace of {self.program.name} adds up to no memory's size")
        self.changes.append((self.position, buffer, shown))
        self.spans[shown] = (self.position, self.last)

    def _free(self, buffer: int) -> None:
        """A buffer goes; its memory is free when nobody shares it any more."""
        root = self._root(buffer)
        self.references[root] = self.references.get(root, 0) - 1
        if self.references[root] < 0:
            raise ProfileError(
                f"the heap trace of {self.program.name} frees buffer {buffer} more than once"
            )
        if self.references[root] == 0:
            self.size_bytes -= self.buffers[root].proto.size
            self.changes.append((self.position, root, None))
            if root not in self.reused:
                self._end(root)
        if buffer != root:
            self._end(buffer)

    def _end(self, buffer: int) -> None:
        """A buffer's span ends here, where it has one."""
        if buffer in self.spans:
            self.spans[buffer] = (self.spans[buffer][0], self.position)

    def _share(self, buffer: int, canonical: int) -> None:
        """A buffer lies down in the memory of another, which may have been freed before."""
        if not self.knows(canonical):
            return
        root = self._root(canonical)
        if root == buffer:
            raise ProfileError(
                f"in the heap trace of {self.program.name} buffer {buffer} shares with itself"
            )
        self.canonical[buffer] = root  # no chain grows long, and none comes round again
        if self._refer(root) == 1:
            self.reused.add(root)
            self._grow(root, buffer)
