"""The memory peak of a program."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hbmwatch._records import text
from hbmwatch._records.buffer_table import buffer_rows
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.sizes import format_size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_OTHER_OPS = 10_000  # it bounds the time and the size of a report on a very long program


@dataclass(frozen=True, slots=True, eq=False)
class PeakSummary:
    """XProf's "HLO Ops at Peak Memory Allocation" of one HLO module, in one memory space.

    The figures equal those of XProf's Memory Viewer to the byte
    (https://openxla.org/xprof/memory_viewer). All are per device.

    Attributes:
        module: The HLO module ("jit_train_step").
        program_id: The number in the profile's "jit_train_step(12)".
        memory_space: "hbm" (the main memory of a GPU and a CPU, too), "vmem", "sflag", "cmem",
            "smem", "host" or "sparsecore"; on a GPU also "collective" or "temp".
        peak_bytes: Bytes live at the peak.
        peak_unpadded_bytes: The same without padding, as XProf counts it.
        peak_position: The program point of the peak, an index into heap_bytes; None if the
            profile has no heap trace of this memory space.
        heap_bytes: Bytes live at each program point, int64 of shape (points,), read-only.
        parameter_bytes: Arguments, aliased ones included: argument_size_in_bytes of
            jax.stages.Compiled.memory_analysis().
        output_bytes: Outputs that reuse no argument's memory: output_size_in_bytes -
            alias_size_in_bytes.
        aliased_bytes: Arguments whose memory an output reuses (donated ones): alias_size_in_bytes.
        temporary_bytes: The compiler's temporary allocations, fragmentation included:
            temp_size_in_bytes.
        total_allocation_bytes: The sum of the compiler's allocations, thread-local ones excluded.
        fragmentation_bytes: total_allocation_bytes - peak_bytes.
        ops: The buffers live at the peak, in program order; their sizes sum to peak_bytes. The
            last row combines all buffers smaller than 16 KiB; its instruction is "".
        other_ops: The buffers of 16 KiB or more that are live at other program points only, in
            program order, the MOST_OTHER_OPS largest of them; None if unknown. They do not count
            for equality.
    """

    __module__ = "hbmwatch"

    module: str
    program_id: int | None
    memory_space: str
    peak_bytes: int
    peak_unpadded_bytes: int
    peak_position: int | None
    heap_bytes: npt.NDArray[np.int64]
    parameter_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    total_allocation_bytes: int
    fragmentation_bytes: int
    ops: tuple[PeakOp, ...]
    other_ops: tuple[PeakOp, ...] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        module = text.clean(self.module, 60)
        return f"<PeakSummary of {module}: {self._size()}, {text.plural(len(self.ops), 'buffer')}>"

    def _size(self) -> str:
        """The peak with its memory space; "hbm" is the main memory of a GPU and a CPU, too."""
        space = self.memory_space
        name = "memory" if space == "hbm" else text.memory_space_name(space)
        return f"{format_size(self.peak_bytes)} of {name}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How IPython shows it."""
        printer.text(repr(self) if cycle else self.text())

    def by_program_order(self) -> tuple[PeakOp, ...]:
        """The buffers in the order in which the program allocates them."""
        return self.ops

    def by_size(self) -> tuple[PeakOp, ...]:
        """The buffers, largest first; equal ones in program order."""
        return tuple(sorted(self.ops, key=lambda op: -op.size_bytes))

    def by_padding(self) -> tuple[PeakOp, ...]:
        """The buffers, most padding bytes first; equal ones in program order."""
        return tuple(sorted(self.ops, key=lambda op: -op.padding_bytes))

    def longest_lived(self) -> tuple[PeakOp, ...]:
        """The buffers, longest lifetime in program points first; larger ones first among equals."""
        points = len(self.heap_bytes)

        def lifetime(op: PeakOp) -> int:
            end = points if op.end is None else op.end
            return end - (op.start or 0)

        return tuple(sorted(self.ops, key=lambda op: (-lifetime(op), -op.size_bytes)))

    def grouped(self) -> tuple[tuple[int, PeakOp], ...]:
        """Equal buffers folded, as (count, the first of them), most bytes first.

        Buffers are equal when size, shape, kind, source and, but for its numbers, op_name are:
        "p[0]" and "p[7]" are equal, as arguments of one size and shape.
        """
        groups: dict[tuple[object, ...], list[PeakOp]] = {}
        for op in self.ops:
            name = text.unnumbered(op.shown_name)
            key = (op.size_bytes, op.shape, op.kind, name, op.shown_source, bool(op.instruction))
            groups.setdefault(key, []).append(op)
        folded = [(len(ops), ops[0]) for ops in groups.values()]
        return tuple(sorted(folded, key=lambda row: -row[0] * row[1].size_bytes))

    def text(self, *, top: int = 10) -> str:
        """The peak as a table.

        Args:
            top: How many rows it has at most; the others are one line.
        """
        head = (
            f"Peak of {text.clean(self.module, 60)}: {self._size()}"
            f"{text.program_point(self.peak_position, len(self.heap_bytes))}"
        )
        kinds = text.packed(text.by_kind(self.ops), indent=2)
        return "\n".join([head, *kinds, *buffer_rows(self.grouped(), top)])

    def __str__(self) -> str:
        return self.text()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PeakSummary):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((self.module, self.program_id, self.memory_space, self.peak_bytes))


def _values(summary: PeakSummary) -> list[Any]:
    """The fields that count for equality, the array as a list."""
    named = ((f.name, getattr(summary, f.name)) for f in fields(PeakSummary) if f.compare)
    return [value.tolist() if name == "heap_bytes" else value for name, value in named]
