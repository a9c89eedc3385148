"""Small HLO programs, made by hand: a few instructions, and the buffers live at the peak."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax.lowered import CallInfo
from hbmwatch._records.message import OomMessage
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.protos import HloProto, message_class
from hbmwatch._xla.types import HeapEventKind, PrimitiveType, ShardingType, element_bits

MIB = 2**20
F16, F32, F64, BF16 = (
    PrimitiveType.F16,
    PrimitiveType.F32,
    PrimitiveType.F64,
    PrimitiveType.BF16,
)
F8, S8, U32, S32, PRED = (
    PrimitiveType.F8E4M3FN,
    PrimitiveType.S8,
    PrimitiveType.U32,
    PrimitiveType.S32,
    PrimitiveType.PRED,
)
# From one event of the heap trace to another; None for a buffer that is never freed.
Span = tuple[int, int | None]
REPLICATED = {"type": ShardingType.REPLICATED}


def tiled(*parts: int) -> dict[str, Any]:
    """A sharding that divides each dimension into so many parts."""
    return {"type": ShardingType.OTHER, "tile_assignment_dimensions": parts}


def shape_of(*dims: int, dtype: int = F32, minor_to_major: Sequence[int] = ()) -> dict[str, Any]:
    """A shape; its layout is row major where none is given."""
    order = minor_to_major or tuple(reversed(range(len(dims))))
    return {"element_type": dtype, "dimensions": dims, "layout": {"minor_to_major": order}}


def size_of(shape: Mapping[str, Any]) -> int:
    """Bytes of a shape without padding; of a tuple, of its entries."""
    if shape["element_type"] == PrimitiveType.TUPLE:
        return sum(map(size_of, shape["tuple_shapes"]))
    bits = element_bits(shape["element_type"]) or 8
    return math.prod(map(int, shape["dimensions"])) * bits // 8


class Computation:
    """A computation that takes instructions; the last one is its root."""

    def __init__(self, ids: Iterator[int], known: dict[int, dict[str, Any]]) -> None:
        self.id = next(ids)
        self.ids = ids
        self.known = known
        self.instructions: list[dict[str, Any]] = []
        self.parameters = 0

    def add(
        self,
        opcode: str,
        *operands: int,
        dims: Sequence[int] = (),
        dtype: int = F32,
        name: str = "",
        calls: Computation | None = None,
        **fields: Any,
    ) -> int:
        """Append an instruction; gives its id. A tuple's shape follows from its operands.

        Args:
            name: Its op_name.
            calls: The computation that it runs.
        """
        number = next(self.ids)
        shape = fields.pop("shape", None) or shape_of(*dims, dtype=dtype)
        if opcode == "tuple":
            parts = [self.known[operand]["shape"] for operand in operands]
            shape = {"element_type": PrimitiveType.TUPLE, "tuple_shapes": parts}
        self.known[number] = {
            "id": number,
            "name": f"{opcode}.{number}",
            "opcode": opcode,
            "shape": shape,
            "operand_ids": operands,
            "metadata": {"op_name": name},
            "called_computation_ids": [calls.id] if calls is not None else [],
            **fields,
        }
        self.instructions.append(self.known[number])
        return number

    def parameter(self, *dims: int, dtype: int = F32, path: str = "", **fields: Any) -> int:
        """Append the next parameter; path is its op_name."""
        number, self.parameters = self.parameters, self.parameters + 1
        return self.add(
            "parameter", dims=dims, dtype=dtype, name=path, parameter_number=number, **fields
        )

    @property
    def proto(self) -> dict[str, Any]:
        """The computation's fields."""
        root = self.instructions[-1]["id"]
        return {"id": self.id, "root_id": root, "instructions": self.instructions}


class Hlo(Computation):
    """A program: its entry computation, the others that it runs, and the live buffers."""

    def __init__(self) -> None:
        super().__init__(itertools.count(1), {})
        self.others: list[Computation] = []

    def inner(self) -> Computation:
        """Another computation, for a fusion or a loop."""
        self.others.append(Computation(self.ids, self.known))
        return self.others[-1]

    def fusion(self, *operands: int, dims: Sequence[int], inside: Computation, **rest: Any) -> int:
        """Append a fusion."""
        return self.add("fusion", *operands, dims=dims, calls=inside, **rest)

    def program(
        self,
        live: Sequence[int] = (),
        outputs: Sequence[int] = (),
        constants: Sequence[int] = (),
        sizes: Mapping[int, int] | None = None,
        spans: Mapping[int, Span] | None = None,
        **module: Any,
    ) -> Program:
        """The program, compiled: every parameter, output and constant has its own allocation.

        Args:
            live: The temporaries at the peak.
            outputs: The results; the root becomes a tuple of them.
            constants: The constants that have a buffer.
            sizes: Bytes of buffers, where they are more than those of the elements.
            spans: The events of temporaries: first and last, or None if they stay; all others stay.
            module: Further fields of the module: shardings, aliases, donors.
        """
        if outputs:
            self.add("tuple", *outputs)
        parameters = [i["id"] for i in self.instructions if i["opcode"] == "parameter"]
        bytes_of = {
            number: (sizes or {}).get(number, size_of(self.known[number]["shape"]))
            for number in {*parameters, *live, *outputs, *constants}
        }
        flags = [(n, {"is_entry_computation_parameter": True}) for n in parameters]
        flags += [(n, {"maybe_live_out": True}) for n in outputs]
        flags += [(n, {"is_constant": True}) for n in constants]
        allocations: list[dict[str, Any]] = [
            {
                "size": bytes_of[n],
                "assigned": [{"logical_buffer_id": n}],
                "color": self.known[n]["shape"].get("layout", {}).get("memory_space", 0),
                **flag,
            }
            for n, flag in flags
        ]
        if live:
            assigned = [{"logical_buffer_id": n} for n in live]
            allocations.append({"size": sum(bytes_of[n] for n in live), "assigned": assigned})
        for index, allocation in enumerate(allocations):
            allocation["index"] = index
        proto = message_class(HloProto)(
            hlo_module={
                "name": "jit_f",
                "entry_computation_id": self.id,
                "computations": [self.proto, *(inner.proto for inner in self.others)],
                **module,
            },
            buffer_assignment={
                "logical_buffers": [
                    {"id": n, "size": size, "defined_at": {"instruction_id": n}}
                    for n, size in bytes_of.items()
                ],
                "buffer_allocations": allocations,
                "heap_simulator_traces": [{"events": _events(live, spans or {})}],
            },
        )
        return parse_program(proto.SerializeToString(), "jit_f(1)")

    def facts(
        self,
        live: Sequence[int] = (),
        message: OomMessage = OomMessage("RESOURCE_EXHAUSTED"),  # noqa: B008 (frozen)
        call: CallInfo | None = None,
        **program: Any,
    ) -> ProgramFacts:
        """The facts of the program; see `program` for the arguments."""
        made = self.program(live, **program)
        return ProgramFacts(made, peak_summary(made), message, call)


def _events(live: Sequence[int], spans: Mapping[int, Span]) -> list[dict[str, int]]:
    """The heap trace: those without a span first; none of these is freed."""
    timed = [(start, HeapEventKind.ALLOC, n) for n, (start, _) in spans.items()]
    timed += [(end, HeapEventKind.FREE, n) for n, (_, end) in spans.items() if end is not None]
    lasting = [{"kind": HeapEventKind.ALLOC, "buffer_id": n} for n in live if n not in spans]
    return lasting + [{"kind": kind, "buffer_id": n} for _, kind, n in sorted(timed)]
