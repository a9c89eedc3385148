"""What findings are made of: the failing program's figures, and its argument and output leaves."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from hbmwatch._analysis.live_buffers import LiveBuffer, PeakBuffers, is_backward
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import DeviceMemory
from hbmwatch._xla.program import Program
from hbmwatch._xla.protos import HloInstructionProto, OpSharding, ShapeProto
from hbmwatch._xla.shapes import unpadded_bytes
from hbmwatch._xla.shardings import part_of, spread_over, tiles

# HBM is color 0. A finding below a tenth of what is missing, or a fiftieth of the peak, is noise.
_HBM = 0
_SHARE_OF_MISSING, _SHARE_OF_PEAK = 0.1, 0.02


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the program.

    Attributes:
        number: Its number in the program; jit drops arguments that nothing reads.
        path: Its pytree path; "parameter 3" where the program does not name it.
        dims: The dimensions on one device.
        element_type: XLA's number of the element type.
        size_bytes: Bytes of its allocation on one device.
        sharding: How it is laid over the mesh; None on one device.
        leaf: What the call knows of it; None where it is not known.
        aliased: Whether an output lies in its memory.
        in_hbm: Whether it lies in the device's main memory.
    """

    number: int
    path: str
    dims: tuple[int, ...]
    element_type: int
    size_bytes: int
    sharding: OpSharding | None
    leaf: Leaf | None
    aliased: bool
    in_hbm: bool

    @property
    def tiles(self) -> tuple[int, ...]:
        """Into how many parts each dimension is laid out over the mesh."""
        return tiles(self.sharding, len(self.dims))

    @property
    def global_dims(self) -> tuple[int, ...]:
        """The dimensions of the whole array."""
        if self.leaf is not None and len(self.leaf.shape) == len(self.dims):
            return self.leaf.shape
        return tuple(size * parts for size, parts in zip(self.dims, self.tiles))


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the program.

    Attributes:
        index: Its position among the outputs.
        path: Its pytree path; "output 3" where it is not known.
        dims: The dimensions on one device.
        element_type: XLA's number of the element type.
        shape: Its shape on one device.
        sharding: How it is laid over the mesh; None on one device.
        leaf: What the call knows of it; None where it is not known.
        aliased: Whether it lies in an argument's memory.
        instruction: What computes it, alone or (a fusion) with the others; None where the program
            does not say.
    """

    index: int
    path: str
    dims: tuple[int, ...]
    element_type: int
    shape: ShapeProto
    sharding: OpSharding | None
    leaf: Leaf | None
    aliased: bool
    instruction: HloInstructionProto | None

    @property
    def size_bytes(self) -> int:
        """Bytes without padding, on one device."""
        return _bytes(self.shape)


@dataclass(frozen=True)
class ProgramFacts:
    """What findings and roles follow from; everything derived is made on demand.

    Attributes:
        program: The failing program.
        summary: Its memory peak in HBM.
        message: The error's text, for the limit.
        call: What is known of the call; paths of arguments come from the program without it.
        device: What else was on the device, for the room that the program had at run time.
    """

    program: Program
    summary: PeakSummary
    message: OomMessage = OomMessage("")
    call: CallInfo | None = None
    device: DeviceMemory | None = None

    @functools.cached_property
    def flow(self) -> PeakBuffers:
        """The dataflow around the peak."""
        return PeakBuffers(self.program, self.summary)

    @property
    def live(self) -> tuple[LiveBuffer, ...]:
        """The buffers at the peak."""
        return self.flow.live

    @property
    def peak_bytes(self) -> int:
        """Bytes live at the peak."""
        return self.summary.peak_bytes

    @functools.cached_property
    def limit_bytes(self) -> int | None:
        """What the device has for the program: the message's limit, or what others leave of it."""
        said, device = self.message.limit_bytes, self.device
        if said is not None or device is None or device.limit_bytes is None:
            return said
        return max(0, device.limit_bytes - sum(group.size_bytes for group in device.live))

    @functools.cached_property
    def missing_bytes(self) -> int | None:
        """By how much the program is over what the device offers; None where that is not known."""
        if self.message.exceeded_by_bytes is not None:
            return max(self.message.exceeded_by_bytes, 0)
        used = self.message.used_bytes or self.summary.total_allocation_bytes
        if self.limit_bytes is None or used <= self.limit_bytes:
            return None
        return used - self.limit_bytes

    @property
    def worth_bytes(self) -> int:
        """What a remedy must free to be worth saying."""
        of_peak = _SHARE_OF_PEAK * self.peak_bytes
        return int(max(of_peak, _SHARE_OF_MISSING * (self.missing_bytes or 0)))

    @functools.cached_property
    def device_count(self) -> int:
        """Over how many devices the program is partitioned, as far as is known.

        A program with shardings is partitioned over two at least, even where all are replicated.
        """
        counts = [spread_over(sharding) for sharding in self._shardings]
        counts.append((self.call.device_count or 1) if self.call is not None else 1)
        counts.append((self.message.partition or 0) + 1)
        counts.append(2 if self._shardings else 1)
        return max(counts)

    @functools.cached_property
    def _shardings(self) -> tuple[OpSharding, ...]:
        """The shardings of all parameters and outputs."""
        output = self.program.output_sharding
        given = [*self.program.parameter_shardings, *([output] if output is not None else [])]
        return tuple(part for whole in given for part in (whole.tuple_shardings or [whole]))

    @property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh; one of all devices where no mesh is known."""
        named = dict(self.call.mesh) if self.call is not None else {}
        for sharding in self._shardings if not named else ():
            named = named or {a.name: a.size for a in sharding.named_sharding.mesh.axes}
        named = {axis: size for axis, size in named.items() if size > 1}
        return named or ({"": self.device_count} if self.device_count > 1 else {})

    @functools.cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The parameters of the program, by number."""
        aliased = {entry.parameter_number for entry in self.program.aliases}
        leaves = self._leaves()
        shardings = list(self.program.parameter_shardings)
        return tuple(
            Argument(
                number=given.number,
                path=given.path or f"parameter {given.number}",
                dims=given.dims,
                element_type=given.element_type,
                size_bytes=given.size_bytes,
                sharding=shardings[given.number] if 0 <= given.number < len(shardings) else None,
                leaf=leaves.get(given.number),
                aliased=given.number in aliased,
                in_hbm=given.in_hbm,
            )
            for given in self.flow.graph.parameters
        )

    def _leaves(self) -> dict[int, Leaf]:
        """The call's leaves by parameter number: by path, where those agree, else by order."""
        if self.call is None:
            return {}
        used = [leaf for leaf in self.call.arguments if leaf.used]
        by_path = {leaf.path: leaf for leaf in used}
        given = self.flow.graph.parameters
        in_order = dict(zip((p.number for p in given), used)) if len(used) == len(given) else {}
        found = ((p.number, by_path.get(p.path, in_order.get(p.number))) for p in given)
        return {number: leaf for number, leaf in found if leaf is not None}

    @functools.cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The results of the program, in order."""
        results = self.flow.graph.results
        aliased = {tuple(entry.output_shape_index) for entry in self.program.aliases}
        leaves = self.call.outputs if self.call is not None else ()
        leaves = leaves if len(leaves) == len(results) else ()
        sharding = self.program.output_sharding
        return tuple(
            Output(
                index=index,
                path=leaves[index].path if leaves else f"output {index}",
                dims=result.dims,
                element_type=result.element_type,
                shape=result.shape,
                sharding=part_of(sharding, index),
                leaf=leaves[index] if leaves else None,
                aliased=(index,) in aliased or (len(results) == 1 and () in aliased),
                instruction=result.instruction,
            )
            for index, result in enumerate(results)
        )

    @functools.cached_property
    def state(self) -> frozenset[int]:
        """The numbers of the arguments that come back, updated."""
        return self.flow.updated | {a.number for a in self.arguments if a.aliased}

    @functools.cached_property
    def batch(self) -> tuple[tuple[Argument, ...], int, int]:
        """The arguments of the batch, its length on one device, and the bytes that scale with it.

        The length is the first dimension of arguments that are no state; no argument may have it
        as another dimension, nor the state as any, and it is no table's that is looked up. Of
        several the one with the most bytes.
        """
        fixed = {size for a in self.arguments for size in a.dims[a.number not in self.state :]}
        # What has a gradient of its form among the results is a weight.
        grads = {
            live.dims
            for live in self.live
            if live.op.kind == "output" and is_backward(live.context)
        }
        given: dict[int, list[Argument]] = {}
        for argument in self.arguments:
            sizes = argument.dims[:1]
            if argument.number in self.state or argument.dims in grads:
                continue
            if sizes and sizes[0] > 1 and sizes[0] not in fixed:
                given.setdefault(sizes[0], []).append(argument)
        rows = [(self._scaling(arguments[0]), length) for length, arguments in given.items()]
        for scaling, length in sorted(rows, key=lambda row: -row[0]):
            arguments = given[length]
            if scaling and not (len(arguments) == 1 and self._is_table(arguments[0])):
                return tuple(arguments), length, scaling
        return (), 0, 0

    def _is_table(self, argument: Argument) -> bool:
        """Whether rows of an argument are looked up, as of an embedding."""
        graph = self.flow.graph
        own = (p.instruction for p in graph.parameters if p.number == argument.number)
        readers = [user for instruction in own for user in graph.users(instruction)]
        read = [inside for user in readers for inside in (user, *graph.everything_in(user))]
        count = math.prod(argument.dims)
        return any(
            math.prod(table.shape.dimensions) == count
            for gather in read
            if gather.opcode == "gather"
            if (table := graph.first(gather)) is not None
        )

    @functools.cached_property
    def _sizes(self) -> dict[tuple[int, ...], int]:
        """The bytes at the peak by dimensions, but for constants."""
        sizes: dict[tuple[int, ...], int] = {}
        for live in self.live:
            if live.op.kind != "constant":
                sizes[live.dims] = sizes.get(live.dims, 0) + live.size_bytes
        return sizes

    def _scaling(self, argument: Argument) -> int:
        """The bytes at the peak that scale with the first dimension of an argument."""
        lengths = {math.prod(argument.dims[:n]) for n in (1, 2)}
        return sum(size for dims, size in self._sizes.items() if not lengths.isdisjoint(dims))

    def scaled(self, length: int, share: float) -> float:
        """What the bytes that scale with the batch are, if its length is this share of it.

        Buffers that have the length twice, all pairs, go with its square.
        """
        _, _, scaling = self.batch
        squares = sum(size for dims, size in self._sizes.items() if dims.count(length) > 1)
        return share * (scaling - squares) + share**2 * squares


def _bytes(shape: ShapeProto) -> int:
    """Bytes of the elements of a shape; 0 where they are not known."""
    return unpadded_bytes(shape) or 0
