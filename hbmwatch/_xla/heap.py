"""The heap of a program over time, read from XLA's heap traces as XProf reads them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.program import Buffer, Program
from hbmwatch._xla.protos import BufferAllocationProto, HeapEvent
from hbmwatch._xla.types import HeapEventKind

_ALLOC, _FREE, _SHARE_WITH = HeapEventKind
LARGEST_TOTAL_BYTES = 2**62


def has_indefinite_lifetime(allocation: BufferAllocationProto) -> bool:
    """Whether an allocation lives through the whole program: XProf's "indefinite"."""
    return (
        allocation.is_thread_local
        or allocation.is_entry_computation_parameter
        or allocation.is_constant
        or allocation.maybe_live_out
    )


def heap_trace(program: Program, color: int) -> Sequence[HeapEvent]:
    """The events of the heap trace of a memory space; empty if the space has no trace.

    XProf takes the trace of a temporary allocation, else the trace with the most events in the
    space. A trace belongs to the allocation of its first event's buffer: XProf does not read the
    allocation index that the trace itself names.
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
    """The result of running through a heap trace.

    Attributes:
        sizes: Bytes live before each event, and after the last; empty without a trace.
        live: The buffers live at the peak, in order of allocation, as (the canonical buffer, which
            owns the memory; the buffer that uses the memory at that time).
        spans: The events at which a buffer is allocated and freed, by its id.
        others: The buffers that use memory at other times only, in order of allocation, with the
            events at which that begins and ends.
    """

    sizes: list[int]
    live: list[tuple[Buffer, Buffer]]
    spans: dict[int, tuple[int, int]]
    others: list[tuple[Buffer, int, int]]


def replay(program: Program, events: Sequence[HeapEvent]) -> Replay:
    """Run through a heap trace, as XProf does.

    Raises:
        ProfileError: The trace is inconsistent.
    """
    heap = _Heap(program, len(events))
    sizes = [0] if events else []
    for event in events:
        if heap.has_place(event.buffer_id):
            heap.step(event)
        heap.position += 1
        sizes.append(heap.size_bytes)
    if events and len(heap.allocations) != 1:
        raise ProfileError(
            f"the heap trace of {program.name} runs through {len(heap.allocations)} allocations, "
            f"not one"
        )
    peak = sizes.index(max(sizes)) if sizes else 0
    return Replay(sizes, heap.live_before(peak), heap.spans, heap.not_live_before(peak))


# Buffers at the peak and at other points need the same one. A Program does not change.
_REPLAYS: WeakKeyDictionary[Program, dict[int, Replay]] = WeakKeyDictionary()


def heap_of(program: Program, color: int) -> Replay:
    """The result of the heap trace of a memory space; the trace is run through once.

    Raises:
        ProfileError: The trace is inconsistent.
    """
    known = _REPLAYS.setdefault(program, {})
    if color not in known:
        known[color] = replay(program, heap_trace(program, color))
    return known[color]


class _Heap:
    """The state of a heap while its trace runs.

    A buffer that shares the memory of another refers to it as its canonical buffer. The memory is
    free when nothing refers to it any more.
    """

    def __init__(self, program: Program, events: int) -> None:
        self.program = program
        self.buffers: dict[int, Buffer] = {}
        self.last = events - 1
        self.position = 0
        self.size_bytes = 0
        self.references: dict[int, int] = {}
        self.canonical: dict[int, int] = {}
        self.reallocated: set[int] = set()
        self.spans: dict[int, tuple[int, int]] = {}
        # (event, owner, the buffer that uses the memory from then on; None where it is freed)
        self.changes: list[tuple[int, int, int | None]] = []
        self.allocations: set[int] = set()

    def has_place(self, buffer_id: int) -> bool:
        """Whether a buffer is in an allocation; then `buffers` holds it."""
        buffer = self.program.buffer(buffer_id)
        if buffer is not None:
            self.buffers[buffer_id] = buffer
        return buffer is not None

    def step(self, event: HeapEvent) -> None:
        """Take one event, of a buffer that has a place."""
        buffer = event.buffer_id
        self.allocations.add(self.buffers[buffer].allocation.index)
        if event.kind == _ALLOC:
            self._add_reference(self._canonical_buffer(buffer))
            self._allocate(buffer, buffer)
        elif event.kind == _FREE:
            self._free(buffer)
        elif event.kind == _SHARE_WITH:
            self._share(buffer, event.share_with_canonical_id)
        else:
            raise ProfileError(
                f"the heap trace of {self.program.name} has an event of kind {event.kind}, which "
                f"this version of hbmwatch does not know"
            )

    def live_before(self, position: int) -> list[tuple[Buffer, Buffer]]:
        """The owners and users of the memory that is live before an event."""
        live: dict[int, int] = {}
        for event, owner, user in self.changes:
            if event >= position:
                break
            if user is None:
                live.pop(owner, None)
            else:
                live[owner] = user
        return [(self.buffers[owner], self.buffers[user]) for owner, user in live.items()]

    def not_live_before(self, position: int) -> list[tuple[Buffer, int, int]]:
        """The uses of memory that is free before an event: buffer, first and last event.

        XProf ends the span of a buffer that uses another's freed memory when that buffer is freed,
        even if a third one still uses the memory: what is left of the use counts as one of its own.
        """
        begun: dict[int, tuple[int, int]] = {}
        uses: list[tuple[int, int, int]] = []
        for event, owner, user in self.changes:
            if user is not None:
                begun[owner] = user, event
            elif owner in begun:
                uses.append((*begun.pop(owner), event))
        uses += [(user, event, self.last + 1) for user, event in begun.values()]
        others = []
        for user, start, end in sorted(uses, key=operator.itemgetter(1)):
            spanned = self.spans[user][1]
            if not start < position <= end:
                others.append((self.buffers[user], start, end))
            elif spanned < min(end, self.last):
                others.append((self.buffers[user], spanned, end))
        return others

    def _canonical_buffer(self, buffer: int) -> int:
        """The buffer that owns the memory of a buffer."""
        while buffer in self.canonical:
            buffer = self.canonical[buffer]
        return buffer

    def _add_reference(self, owner: int) -> int:
        """Count one more user of a buffer's memory; returns how many there are."""
        self.references[owner] = self.references.get(owner, 0) + 1
        return self.references[owner]

    def _allocate(self, owner: int, user: int) -> None:
        """Allocate the memory of one buffer, for it or for another."""
        self.size_bytes += self.buffers[owner].proto.size
        if self.size_bytes >= LARGEST_TOTAL_BYTES:
            raise ProfileError(
                f"the heap trace of {self.program.name} is inconsistent: its buffers add up to "
                "more than 2**62 bytes"
            )
        self.changes.append((self.position, owner, user))
        self.spans[user] = (self.position, self.last)

    def _free(self, buffer: int) -> None:
        """Free a buffer; its memory is free when no other buffer shares it."""
        owner = self._canonical_buffer(buffer)
        self.references[owner] = self.references.get(owner, 0) - 1
        if self.references[owner] < 0:
            raise ProfileError(
                f"the heap trace of {self.program.name} frees buffer {buffer} more than once"
            )
        if self.references[owner] == 0:
            self.size_bytes -= self.buffers[owner].proto.size
            self.changes.append((self.position, owner, None))
            if owner not in self.reallocated:
                self._end_span(owner)
        if buffer != owner:
            self._end_span(buffer)

    def _end_span(self, buffer: int) -> None:
        """End the span of a buffer at this event, if the buffer has one."""
        if buffer in self.spans:
            self.spans[buffer] = (self.spans[buffer][0], self.position)

    def _share(self, buffer: int, canonical: int) -> None:
        """Let a buffer share the memory of another, which may be free by now."""
        if not self.has_place(canonical):
            return
        owner = self._canonical_buffer(canonical)
        if owner == buffer:
            raise ProfileError(
                f"in the heap trace of {self.program.name} buffer {buffer} shares with itself"
            )
        self.canonical[buffer] = owner  # the owner itself: chains stay short, and form no circle
        if self._add_reference(owner) == 1:
            self.reallocated.add(owner)
            self._allocate(owner, buffer)
