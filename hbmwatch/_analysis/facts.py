"""The facts that findings and roles follow from: the failing program, its arguments and outputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from hbmwatch._analysis.graph import Parameter
from hbmwatch._analysis.leaves import Argument, Batch, Output
from hbmwatch._analysis.live_buffers import LiveBuffer, PeakBuffers, is_backward
from hbmwatch._analysis.no_batch import added_by_index, looped_over
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import DeviceMemory
from hbmwatch._records.roles import OPTIMIZER, argument_role
from hbmwatch._xla.peak import row_name
from hbmwatch._xla.program import Program
from hbmwatch._xla.protos import OpSharding
from hbmwatch._xla.shapes import element_count
from hbmwatch._xla.shardings import part_of, spread_over
from hbmwatch._xla.types import float_bits

T = TypeVar("T")
# Roles of arguments whose first dimension is layers, experts or features.
_WEIGHTS = frozenset(("parameters", OPTIMIZER))
_NO_BATCH = _WEIGHTS | {"cache"}
# A remedy that frees less than a twentieth of the bytes over the limit leaves the program failing.
SHARE_OF_OVER_LIMIT = 0.05
# The compiler's scheduler alone moves a peak by up to 2%, so a smaller saving may not show.
SHARE_OF_PEAK = 0.02
# Several buffers may reach the minimum together, but nobody looks for a dozen tiny ones.
LEAST_SHARE_OF_MINIMUM = 1 / 4
# Up to here, another dimension of a buffer (heads, kernels) may have the length of the batch.
MOST_BY_CHANCE = 8


@dataclass(frozen=True)
class ProgramFacts:
    """The facts of a failing program; derived properties are computed on demand.

    Attributes:
        program: The failing program.
        summary: Its memory peak in HBM.
        message: The error message, for the limit.
        call: The failing call; without it the paths of arguments come from the program.
        device: The device at run time: what other arrays leave of its memory.
    """

    program: Program
    summary: PeakSummary
    message: OomMessage = OomMessage("")
    call: CallInfo | None = None
    device: DeviceMemory | None = None

    @functools.cached_property
    def buffers(self) -> PeakBuffers:
        """The buffers at the peak, and the dataflow around them."""
        return PeakBuffers(self.program, self.summary)

    def elsewhere(self, summary: PeakSummary) -> ProgramFacts:
        """The facts of the program with other buffers; what does not depend on them is kept."""
        facts = dataclasses.replace(self, summary=summary)
        kept = {"arguments": self.arguments, "outputs": self.outputs, "state": self.state}
        graph = self.buffers.graph
        vars(facts).update(kept, buffers=PeakBuffers(self.program, summary, graph))
        return facts

    @property
    def live(self) -> tuple[LiveBuffer, ...]:
        """The buffers at the peak."""
        return self.buffers.live

    @property
    def peak_bytes(self) -> int:
        """Bytes live at the peak."""
        return self.summary.peak_bytes

    @functools.cached_property
    def limit_bytes(self) -> int | None:
        """The memory for the program: the message's limit, else what other arrays leave."""
        limit, device = self.message.limit_bytes, self.device
        if limit is not None or device is None or device.limit_bytes is None:
            return limit
        return max(0, device.limit_bytes - sum(group.size_bytes for group in device.live))

    @functools.cached_property
    def over_limit_bytes(self) -> int | None:
        """How far the program is over its limit; None where that is not known."""
        if self.message.exceeded_by_bytes is not None:
            return max(self.message.exceeded_by_bytes, 0)
        used = self.message.used_bytes or self.summary.total_allocation_bytes
        if self.limit_bytes is None or used <= self.limit_bytes:
            return None
        return used - self.limit_bytes

    @property
    def minimum_saving_bytes(self) -> int:
        """The least that a remedy must free to be worth reporting, or to be enough by itself."""
        of_peak, over = SHARE_OF_PEAK * self.peak_bytes, self.over_limit_bytes
        if not over:
            return int(of_peak)
        return int(max(SHARE_OF_OVER_LIMIT * over, min(over, of_peak)))

    @property
    def least_part_bytes(self) -> float:
        """The least that one of several buffers must have to count toward that minimum."""
        return LEAST_SHARE_OF_MINIMUM * self.minimum_saving_bytes

    @functools.cached_property
    def device_count(self) -> int:
        """The number of devices that the program is partitioned over, as far as is known.

        A program with shardings is partitioned over at least two, even where all are replicated.
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
        every = [*self.program.parameter_shardings, *([output] if output is not None else [])]
        return tuple(part for whole in every for part in (whole.tuple_shardings or [whole]))

    @property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh with their sizes; one nameless axis where no mesh is known."""
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
                number=known.number,
                path=self._path_of(known, leaves.get(known.number)),
                dims=known.dims,
                element_type=known.element_type,
                size_bytes=known.size_bytes,
                sharding=shardings[known.number] if 0 <= known.number < len(shardings) else None,
                leaf=leaves.get(known.number),
                aliased=known.number in aliased,
                in_hbm=known.in_hbm,
            )
            for known in self.buffers.graph.parameters
        )

    @functools.cached_property
    def argument_rows(self) -> dict[str, Argument]:
        """The arguments by their rows in the summary, as it names these.

        The row of a donated argument has the name of a later value where one reuses its memory.
        """
        parameters = self.buffers.graph.parameters
        by_id = {p.instruction.id: a for p, a in zip(parameters, self.arguments, strict=True)}
        rows = {p.instruction.name: a for p, a in zip(parameters, self.arguments, strict=True)}
        for allocation in self.program.allocations:
            if not allocation.is_entry_computation_parameter:
                continue
            places = [self.program.buffer(a.logical_buffer_id) for a in allocation.assigned]
            held = [place for place in places if place is not None]
            argument = next(
                (by_id[b.instruction.id] for b in held if b.instruction.id in by_id), None
            )
            if argument is not None:
                rows |= dict.fromkeys(map(row_name, held), argument)
        return rows

    @staticmethod
    def _path_of(parameter: Parameter, leaf: Leaf | None) -> str:
        """The path of an argument; that of the leaf where XLA named the parameter for its user."""
        if leaf is not None and leaf.user_path:
            return leaf.user_path
        named = parameter.path and "/" not in parameter.path.partition("[")[0]
        if named or leaf is None:
            return parameter.path if named else f"parameter {parameter.number}"
        return leaf.path

    def _leaves(self) -> dict[int, Leaf]:
        """The call's leaves by parameter number, matched by path, else by order."""
        if self.call is None:
            return {}
        used = [leaf for leaf in self.call.arguments if leaf.used]
        by_path = {leaf.path: leaf for leaf in used}
        parameters = self.buffers.graph.parameters
        in_order = {}
        if len(used) == len(parameters):
            in_order = {p.number: leaf for p, leaf in zip(parameters, used)}
        found = ((p.number, by_path.get(p.path, in_order.get(p.number))) for p in parameters)
        return {number: leaf for number, leaf in found if leaf is not None}

    @functools.cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The results of the program, in order."""
        results = self.buffers.graph.results
        aliased = {tuple(entry.output_shape_index) for entry in self.program.aliases}
        leaves = self.call.outputs if self.call is not None else ()
        leaves = leaves if len(leaves) == len(results) else ()
        sharding = self.program.output_sharding
        return tuple(
            Output(
                index=index,
                path=(leaves[index].user_path or leaves[index].path)
                if leaves
                else f"output {index}",
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

    def once(self, find: Callable[[ProgramFacts], T]) -> T:
        """What a function finds in these facts; it is called once."""
        if find not in self._found:
            self._found[find] = find(self)
        found: T = self._found[find]
        return found

    @functools.cached_property
    def _found(self) -> dict[Any, Any]:
        """What `once` has found, by function."""
        return {}

    @functools.cached_property
    def state(self) -> frozenset[int]:
        """The numbers of the arguments that the program returns updated."""
        return self.buffers.updated | {a.number for a in self.arguments if a.aliased}

    @functools.cached_property
    def batch(self) -> Batch:
        """The batch: the first dimension of some arguments, by these rules.

        1. The argument is not returned updated, no gradient of its shape is an output, and its
           path does not say that it is parameters, an optimizer's state or a cache.
        2. No argument has the length as another dimension, and no state or parameter has it as any
           dimension: it would count layers, experts or features as the batch.
        3. The argument is not a table, whose rows are looked up.
        4. No loop reads an argument of the length row by row: the rows are layers or steps.
        5. The forward pass does not add so many rows by index: they are the edges of a graph.
        6. A vector alone is no batch unless something with more dimensions has its length first.
        7. Of several lengths, the one with the most bytes at the peak that scale with it.
        """
        fixed = self._fixed_lengths
        gradients = self.gradients
        by_length: dict[int, list[Argument]] = {}
        for argument in self.arguments:
            if argument.number in self.state or argument.dims in gradients:
                continue
            if argument_role(argument.path) in _NO_BATCH:
                continue
            first = argument.dims[0] if argument.dims else 0
            if first > 1 and first not in fixed:
                by_length.setdefault(first, []).append(argument)
        rows = [Batch(tuple(a), n, self._scaling_bytes(a[0])) for n, a in by_length.items()]
        for row in sorted(rows, key=lambda row: -row.scaling_bytes):
            table = len(row.arguments) == 1 and self._is_table(row.arguments[0])
            if row.scaling_bytes and not table and self._has_examples(row):
                return row
        return Batch((), 0, 0)

    @functools.cached_property
    def gradients(self) -> frozenset[tuple[int, ...]]:
        """The dimensions of the outputs that are gradients."""
        outputs = (live for live in self.live if live.op.kind == "output")
        return frozenset(live.dims for live in outputs if is_backward(live.context))

    @functools.cached_property
    def _fixed_lengths(self) -> frozenset[int]:
        """The lengths of dimensions that no batch has: features, layers, and those of the state."""
        looped = looped_over(self.buffers.graph)
        lengths = {a.dims[0] for a in self.arguments if a.number in looped and a.dims}
        for argument in self.arguments:
            weights = argument_role(argument.path) in _WEIGHTS or argument.dims in self.gradients
            lengths.update(argument.dims[not (argument.number in self.state or weights) :])
        return frozenset(lengths)

    def _batch_lengths(self, argument: Argument) -> frozenset[int]:
        """The lengths that show the batch: of an argument's first dimension, or its first two.

        Batch times sequence may be as large as a dimension of the weights (4 x 1024 = 4096), and
        then says nothing.
        """
        first, both = (element_count(argument.dims[:n]) for n in (1, 2))
        return frozenset({first} | ({both} - self._fixed_lengths))

    def _has_examples(self, row: Batch) -> bool:
        """Whether the rows of some arguments may be examples: neither edges nor one vector."""
        integers = {a.dims[0] for a in self.arguments if a.dims and not float_bits(a.element_type)}
        if row.length in added_by_index(self.buffers.graph, integers):
            return False
        vectors = all(len(a.dims) == 1 for a in row.arguments)
        return not vectors or any(
            len(live.dims) > 1 and live.dims[0] % row.length == 0 for live in self.live
        )

    def _is_table(self, argument: Argument) -> bool:
        """Whether the program looks up rows of an argument, as of an embedding."""
        graph = self.buffers.graph
        instructions = (p.instruction for p in graph.parameters if p.number == argument.number)
        readers = [user for instruction in instructions for user in graph.users(instruction)]
        inside = [inner for user in readers for inner in (user, *graph.everything_in(user))]
        count = element_count(argument.dims)
        return any(
            element_count(table.shape.dimensions) == count
            for gather in inside
            if gather.opcode == "gather"
            if (table := graph.first(gather)) is not None
        )

    @functools.cached_property
    def _sizes(self) -> dict[tuple[tuple[int, ...], bool], int]:
        """The bytes at the peak by dimensions and by whether a loop stacks them; no constants."""
        sizes: dict[tuple[tuple[int, ...], bool], int] = {}
        for live in self.live:
            if live.op.kind != "constant":
                key = live.dims, live.loop_buffer is not None
                sizes[key] = sizes.get(key, 0) + live.size_bytes
        return sizes

    @functools.cached_property
    def scaling(self) -> tuple[LiveBuffer, ...]:
        """The buffers at the peak that scale with the batch."""
        if not self.batch.arguments:
            return ()
        lengths = self._batch_lengths(self.batch.arguments[0])
        candidates = (live for live in self.live if live.op.kind != "constant")
        return tuple(
            live for live in candidates if _scales(live.dims, live.loop_buffer is not None, lengths)
        )

    def _scaling_bytes(self, argument: Argument) -> int:
        """The bytes at the peak that scale with the first dimension of an argument."""
        lengths = self._batch_lengths(argument)
        return sum(size for key, size in self._sizes.items() if _scales(*key, lengths))

    def scaled_bytes(self, share: float) -> float:
        """What the bytes that scale with the batch become at a share of its length.

        A buffer that has the length twice (all pairs) scales with its square.
        """
        squares = sum(
            size for (dims, _), size in self._sizes.items() if dims.count(self.batch.length) > 1
        )
        return share * (self.batch.scaling_bytes - squares) + share**2 * squares


def _scales(dims: Sequence[int], stacked: bool, lengths: Set[int]) -> bool:
    """Whether a dimension has one of the lengths of a batch; for a short one, that of the batch."""
    first = dims[: 1 + stacked]  # a loop stacks a batch for each step
    return any(n in (dims if n > MOST_BY_CHANCE else first) for n in lengths)
