"""Arguments, outputs or a batch that every device of a mesh holds in full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.fitting_batch import is_training_batch
from hbmwatch._findings.phrases import SHARDING, largest_paths, list_some
from hbmwatch._findings.rows import rows_of, rows_of_outputs
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.shapes import element_count
from hbmwatch._xla.shardings import is_replicated

ADVICE = Advice(
    slug="replication",
    prior_weight=3.0,
    link=SHARDING,
    will_not_help="more devices, while each of them holds the full array",
    change="sharding",
)
# Common names of the tensor-parallel mesh axis, along which the batch is replicated on purpose.
_MODEL_AXES = frozenset("model mdl mp tp tensor tensor_parallel".split())
# A leaf below a quarter of the average share of the minimum is a bias or a scale among weights.
LEAST_SHARE_OF_MINIMUM = 1 / 4


class ReplicatedLeaf(NamedTuple):
    """An argument or output that every device holds in full.

    Attributes:
        path: Its pytree path.
        size_bytes: Its bytes on each device.
        freed_bytes: The bytes that sharding it frees on each device.
        how: How it can be sharded.
        rows: Its instructions in the summary.
        is_output: Whether it is an output.
    """

    path: str
    size_bytes: int
    freed_bytes: int
    how: str
    rows: Sequence[str] = ()
    is_output: bool = False


class ReplicatedBatch(NamedTuple):
    """A batch that every device computes in full, and what sharding it over an axis frees."""

    axis: str
    freed_bytes: int


def find(facts: ProgramFacts) -> Finding | None:
    """Replicated leaves, or the replicated batch, whichever takes more."""
    if facts.device_count < 2:
        return None
    leaves = replicated_leaves(facts)
    batch = replicated_batch(facts)
    if batch is not None and batch.freed_bytes > sum(leaf.freed_bytes for leaf in leaves):
        return _batch_finding(facts, batch)
    return _leaves_finding(facts, leaves) if leaves else None


# --- leaves ---------------------------------------------------------------------------------------


def replicated_leaves(facts: ProgramFacts) -> list[ReplicatedLeaf]:
    """The replicated arguments and outputs, without tiny ones; none below the minimum."""
    leaves = []
    for argument in facts.arguments:
        if argument.in_hbm and is_replicated(argument.sharding, len(argument.dims)):
            leaf = _leaf(facts, argument.path, argument.dims, argument.size_bytes)
            leaves.append(leaf._replace(rows=rows_of(facts, [argument])))
    for output in facts.outputs:
        if not output.aliased and is_replicated(output.sharding, len(output.dims)):
            leaf = _leaf(facts, output.path, output.dims, output.size_bytes)
            leaves.append(leaf._replace(rows=rows_of_outputs(facts, [output]), is_output=True))
    minimum = facts.minimum_saving_bytes
    if sum(leaf.size_bytes for leaf in leaves) < minimum:
        return []
    least = LEAST_SHARE_OF_MINIMUM * minimum / max(len(leaves), 1)
    return [leaf for leaf in leaves if leaf.size_bytes > least]


def _leaf(facts: ProgramFacts, path: str, dims: tuple[int, ...], size: int) -> ReplicatedLeaf:
    """A replicated leaf, and how to shard it: over the largest axis that divides a dimension.

    That is the dimension along which an argument of as many dimensions is sharded, else the
    largest.
    """
    axes = sorted(facts.axes.items(), key=lambda axis: -axis[1])
    for axis, parts in axes:
        divisible = [i for i, length in enumerate(dims) if length and length % parts == 0]
        if divisible:
            as_argument = _sharded_like(facts, dims) or _axes_of_weights(facts, dims, parts)
            natural = [i for i in divisible if i in as_argument]
            dimension = min(natural) if natural else max(divisible, key=lambda i: (dims[i], -i))
            over = f"over {axis!r}" if axis else f"over the {parts} devices"
            how = f"dimension {dimension} ({dims[dimension]}) can be sharded {over}"
            how += ", as an argument is" if natural else ""
            uneven = max(dims)
            if dimension not in natural and uneven % parts:
                how += f". {parts} does not divide dimension {dims.index(uneven)} ({uneven}): a "
                how += "sharding constraint along it leaves a result replicated, unless it is "
                how += f"padded to a multiple of {parts}"
            return ReplicatedLeaf(path, size, size - size // parts, how)
    parts = axes[0][1] if axes else facts.device_count
    how = f"{parts} divides no dimension of {list(dims)}, so one has to be padded first"
    return ReplicatedLeaf(path, size, size - size // parts, how)


def _sharded_like(facts: ProgramFacts, dims: tuple[int, ...]) -> set[int]:
    """The dimensions along which arguments of this shape are sharded.

    Of those of another shape, the first one counts alone: experts, layers or rows.
    """
    return {
        i
        for argument in facts.arguments
        if len(argument.dims) == len(dims)
        for i, parts in enumerate(argument.tiles)
        if parts > 1 and argument.global_dims[i] == dims[i]
        if i == 0 or argument.global_dims == dims
    }


def _axes_of_weights(facts: ProgramFacts, dims: tuple[int, ...], parts: int) -> set[int]:
    """The dimension of a leaf that weights of another rank have as a sharded one.

    The heads of a cache [batch, length, heads, features] are those of its projection, [width,
    heads, features] or [width, heads * features].
    """
    ends = {
        argument.global_dims[i:]
        for argument in facts.arguments
        if len(argument.dims) > 1
        for i, count in enumerate(argument.tiles)
        if count == parts
    }
    found = {i for i in range(1, len(dims) - 1) if dims[i:] in ends}
    merged = {i for i in range(1, len(dims) - 1) if (math.prod(dims[i:]),) in ends}
    return found or merged


def _leaves_finding(facts: ProgramFacts, leaves: Sequence[ReplicatedLeaf]) -> Finding:
    """The finding on replicated leaves."""
    total = sum(leaf.size_bytes for leaf in leaves)
    temporaries = _made_for_outputs(facts)
    freed = sum(leaf.freed_bytes for leaf in leaves) + sum(temporaries.values())
    rows = [row for leaf in leaves for row in leaf.rows]
    paths = list_some(largest_paths(leaves))
    largest = max(leaves, key=lambda leaf: leaf.size_bytes)
    how = "in_shardings and out_shardings, or device_put before the call"
    only_outputs = all(leaf.is_output for leaf in leaves)
    how = "out_shardings" if only_outputs else how
    return ADVICE.finding(
        title=f"Shard {paths}: fully replicated on all {facts.device_count} devices",
        evidence=f"Each of the {facts.device_count} devices holds {plural(len(leaves), 'leaf')} "
        f"in full ({format_size(total)} per device: {paths}). For "
        f"{largest.path}, {largest.how}.",
        remedy=f"Give them a NamedSharding over the mesh ({how}).",
        saves_bytes=freed,
        change="" if only_outputs else None,  # verify shards arguments
        buffers=dict.fromkeys([*rows, *temporaries]),
    )


def _made_for_outputs(facts: ProgramFacts) -> dict[str, int]:
    """The bytes that sharding frees in temporaries computed or gathered for the outputs."""
    counts = {
        element_count(o.dims)
        for o in facts.outputs
        if is_replicated(o.sharding, len(o.dims)) and o.dims
    }
    parts = max(facts.axes.values(), default=1)
    freed = {}
    for live in facts.live:
        if live.op.kind == "temporary" and element_count(live.dims) in counts:
            gathered = live.op.opcode.startswith("all-gather")
            kept = 0 if gathered else live.size_bytes // parts
            freed[live.op.instruction] = live.size_bytes - kept
    return freed


# --- the batch ------------------------------------------------------------------------------------


def replicated_batch(facts: ProgramFacts) -> ReplicatedBatch | None:
    """The batch, if all its arguments are replicated along an axis where that is a mistake.

    Every device of a tensor parallel axis computes the whole batch on purpose; a nameless axis may
    be tensor parallel if any argument is sharded over it.
    """
    batch = facts.batch
    if not (batch.arguments and batch.scaling_bytes):
        return None
    if not all(is_replicated(a.sharding, len(a.dims)) for a in batch.arguments):
        return None
    sharded = any(math.prod(a.tiles) > 1 for a in facts.arguments)
    axes = {
        axis: size
        for axis, size in facts.axes.items()
        if batch.length % size == 0 and axis not in _MODEL_AXES and (axis or not sharded)
    }
    if not axes:
        return None
    axis = max(axes, key=axes.__getitem__)
    return ReplicatedBatch(axis, batch.scaling_bytes - batch.scaling_bytes // axes[axis])


def _batch_finding(facts: ProgramFacts, replicated: ReplicatedBatch) -> Finding:
    """The finding on a batch that every device computes in full."""
    batch = facts.batch
    paths = list_some(argument.path for argument in batch.arguments)
    sharding = f": NamedSharding(mesh, P({replicated.axis!r}))" if replicated.axis else ""
    several = len(batch.arguments) > 1
    is_batch = is_training_batch(facts)
    rows = "all of their rows" if several else "all of its rows"
    what, whole = ("the batch", "the whole batch") if is_batch else (paths, rows)
    it = paths if is_batch else "they" if several else "it"
    are, have = ("are", "have their") if several else ("is", "has its")
    computed = any(_is_computed(facts, live) for live in facts.scaling)
    return ADVICE.finding(
        title=f"Shard {what}: {it} {are} replicated, so every device "
        f"{'computes' if computed else 'holds'} {whole}",
        evidence=f"{paths} {have} global length {batch.length} on each of "
        f"{facts.device_count} devices, and {format_size(batch.scaling_bytes)} of the peak scales "
        "with it.",
        remedy=f"Shard {what} over the mesh{sharding}, by in_shardings or device_put.",
        saves_bytes=replicated.freed_bytes,
        buffers=facts.scaling,
        will_not_help=f"jax.checkpoint: every device would still compute {whole}"
        if computed
        else None,
    )


def _is_computed(facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a buffer is no argument and no copy of one: each device computes its rows."""
    graph = facts.buffers.graph
    return live.op.kind != "parameter" and not graph.is_argument(source_of(graph, live.instruction))
