"""Findings on argument and output leaves: donation, replication, gathers, too many arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hbmwatch._analysis.facts import Argument, Output, ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.phrases import DONATION, ERROR_1000, SHARDING, counted, lines, some
from hbmwatch._records.paths import path_prefix
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.shardings import is_replicated, tiles
from hbmwatch._xla.types import type_name

_GATHERS = frozenset(
    "all-gather all-gather-start all-gather-done all-reduce all-reduce-done".split()
)
# What the axis of tensor parallelism is called.
_MODEL_AXES = frozenset("model mdl mp tp tensor tensor_parallel".split())

Form = tuple[tuple[int, ...], int]


def donation(evidence: ProgramFacts) -> Finding | None:
    """Arguments that come back updated in an output of their own, and are not donated."""
    pairs = undonated(evidence)
    saves = sum(argument.size_bytes for argument, _ in pairs)
    if not pairs:
        return None
    paths = _roots([argument.path for argument, _ in pairs])
    return Finding(
        slug="donation",
        title=f"donate {some(paths, 2)}: {format_size(saves)} are kept twice",
        evidence=f"{counted(len(pairs), 'argument leaf')}, {format_size(saves)} ({some(paths)}), "
        "with an output of the same shape and dtype that is computed from them and not aliased: "
        "the old and the new value are both kept",
        remedy=f"Donate the state, jax.jit(..., {_donate(paths)}), and use the returned value from "
        "then on.",
        saves_bytes=saves,
        certainty="derived",
        link=DONATION,
        will_not_help="jax.checkpoint and a smaller batch do not touch these bytes; an outer jit "
        "without donate_argnums undoes the donation of an inner one",
    )


def undonated(evidence: ProgramFacts) -> list[tuple[Argument, Output]]:
    """Arguments that could be donated, each with an output that could take its memory.

    An argument comes back updated if an output of its shape is computed from it element by
    element; XLA may have given that output another donated argument's memory, and then another
    output of this shape is free.
    """
    donated = {a.number for a in evidence.arguments if a.leaf is not None and a.leaf.donated}
    donated |= {donor.parameter_number for donor in evidence.program.donors}
    updated = evidence.flow.updated - donated
    kept: dict[Form, list[Argument]] = {}
    for argument in evidence.arguments:
        if argument.number in updated and argument.in_hbm:
            if not argument.aliased:
                kept.setdefault((argument.dims, argument.element_type), []).append(argument)
    free: dict[Form, list[Output]] = {}
    for output in evidence.outputs:
        if not output.aliased:
            free.setdefault((output.dims, output.element_type), []).append(output)
    return [pair for form in kept for pair in zip(kept[form], free.get(form, []))]


def _same_leaf(argument: str, output: str) -> bool:
    """Whether two paths end in the same keys ("state['mu']" and "result[0]['mu']")."""
    mine, theirs = argument.split("["), output.split("[")
    same = 0
    for a, b in zip(reversed(mine[1:]), reversed(theirs[1:])):
        if a != b:
            break
        same += 1
    return same >= max(1, len(mine) - 1) and same > 0 and not mine[-1][:1].isdigit()


def donation_unusable(evidence: ProgramFacts) -> Finding | None:
    """Arguments that are donated and whose memory no output can take."""
    unused = _unused_donations(evidence)
    if not unused:
        return None
    reasons = [(argument, *_reason(evidence, argument)) for argument in unused]
    saves = sum(output.size_bytes for _, _, output in reasons if output is not None)
    first, why, _ = max(reasons, key=lambda row: row[0].size_bytes)
    lost = sum(argument.size_bytes for argument in unused)
    return Finding(
        slug="donation-unusable",
        title=f"the donation of {some([first.path])} is not usable: {why}",
        evidence=f"{counted(len(unused), 'donated leaf')}, {format_size(lost)}, without an output "
        f"that could take their memory; {first.path}: {why}",
        remedy="Return the donated leaves with the dtype, shape and sharding in which they came "
        "in (cast the update back, give out_shardings), so that donate_argnums takes effect.",
        saves_bytes=saves or lost,
        certainty="derived",
        link=DONATION,
        will_not_help='more donate_argnums: JAX only warns "Some donated buffers were not '
        'usable" and goes on with both copies',
    )


def _unused_donations(evidence: ProgramFacts) -> list[Argument]:
    """The donated arguments in whose memory no output lies."""
    donors = {donor.parameter_number for donor in evidence.program.donors}
    return [
        argument
        for argument in evidence.arguments
        if not argument.aliased
        and argument.size_bytes > 0
        and (argument.number in donors or (argument.leaf is not None and argument.leaf.donated))
    ]


def _reason(evidence: ProgramFacts, argument: Argument) -> tuple[str, Output | None]:
    """Why a donated argument found no output, and the output that it missed."""
    free = [output for output in evidence.outputs if not output.aliased]
    same = [o for o in free if o.leaf is not None and _same_leaf(argument.path, o.path)]
    for output in [*same, *free]:
        if output.dims == argument.dims and output.element_type != argument.element_type:
            mine, theirs = type_name(argument.element_type), type_name(output.element_type)
            return f"{output.path} has the dtype {theirs}, it came in as {mine}", output
    for output in [*same, *free]:
        whole = _global(output)
        if whole == argument.global_dims and output.dims != argument.dims:
            return (
                f"{output.path} has another sharding: {list(output.dims)} a device, it came in "
                f"as {list(argument.dims)}"
            ), output
    for output in [*same, *free]:
        alike = output.dims == argument.dims and output.element_type == argument.element_type
        if alike:
            return f"{output.path} has another layout or sharding", output
    if same:
        theirs = f"{same[0].path} has the shape {list(same[0].dims)}"
        return f"{theirs}, not {list(argument.dims)}", same[0]
    return f"no output has the shape {list(argument.dims)}", None


def _global(output: Output) -> tuple[int, ...]:
    """The dimensions of a whole output."""
    if output.leaf is not None and len(output.leaf.shape) == len(output.dims):
        return output.leaf.shape
    return tuple(d * t for d, t in zip(output.dims, tiles(output.sharding, len(output.dims))))


def _roots(paths: Sequence[str]) -> list[str]:
    """Paths shortened to their first key, as far as they differ there ("state['params']")."""
    return list(dict.fromkeys(path_prefix(path, 2) for path in paths))


def _donate(paths: Sequence[str]) -> str:
    """How jit is told to donate what paths begin with: donate_argnames='state'."""
    tops = list(dict.fromkeys(path_prefix(path, 1) for path in paths))
    if not all(top.isidentifier() for top in tops):
        return "donate_argnums=..."
    return f"donate_argnames={tops[0]!r}" if len(tops) == 1 else f"donate_argnames={tuple(tops)}"


# --- a mesh ---------------------------------------------------------------------------------------


def replication(evidence: ProgramFacts) -> Finding | None:
    """Arguments and outputs that every device of a mesh keeps whole."""
    if evidence.device_count < 2:
        return None
    rows = _replicated_rows(evidence)
    batch = _replicated_batch(evidence)
    if not rows and batch is None:
        return None
    direct = sum(saves for _, _, saves, _ in rows)
    if batch is not None and batch[1] > direct:
        return _batch_finding(evidence, *batch)
    return _rows_finding(evidence, rows) if rows else None


def _replicated_rows(evidence: ProgramFacts) -> list[tuple[str, int, int, str]]:
    """Path, bytes, saving and how to shard, for each replicated leaf worth a 200th of the peak."""
    rows = []
    for argument in evidence.arguments:
        if argument.in_hbm and is_replicated(argument.sharding, len(argument.dims)):
            rows.append(_row(evidence, argument.path, argument.dims, argument.size_bytes))
    for output in evidence.outputs:
        if not output.aliased and is_replicated(output.sharding, len(output.dims)):
            rows.append(_row(evidence, output.path, output.dims, output.size_bytes))
    floor = evidence.worth_bytes
    small = sum(size for _, size, _, _ in rows) < floor
    return [] if small else [row for row in rows if row[1] * len(rows) * 4 > floor]


def _row(
    evidence: ProgramFacts, path: str, dims: tuple[int, ...], size: int
) -> tuple[str, int, int, str]:
    """What sharding a leaf over the largest axis that divides it would free, and along what."""
    axes = sorted(evidence.axes.items(), key=lambda axis: -axis[1])
    for axis, parts in axes:
        fitting = [length for length in dims if length % parts == 0]
        if fitting:
            dimension = dims.index(max(fitting))
            over = f"over {axis!r}" if axis else f"over the {parts} devices"
            how = f"dimension {dimension} ({dims[dimension]}) can be sharded {over}"
            return path, size, size - size // parts, how
    parts = axes[0][1] if axes else evidence.device_count
    how = f"no dimension of {list(dims)} divides by {parts}, so one has to be padded first"
    return path, size, size - size // parts, how


def _rows_finding(evidence: ProgramFacts, rows: Sequence[tuple[str, int, int, str]]) -> Finding:
    """The finding on replicated leaves."""
    total = sum(size for _, size, _, _ in rows)
    saves = sum(saves for _, _, saves, _ in rows) + _made_for(evidence)
    paths = _roots([path for path, _, _, _ in rows])
    largest = max(rows, key=lambda row: row[1])
    return Finding(
        slug="replication",
        title=f"shard {some(paths, 2)}: replicated, whole on each of {evidence.device_count} "
        "devices",
        evidence=f"{counted(len(rows), 'leaf')}, {format_size(total)} a device ({some(paths)}), "
        f"with the global shape on every one of {evidence.device_count} devices; {largest[0]}: "
        f"{largest[3]}",
        remedy="Give them a NamedSharding over the mesh (in_shardings and out_shardings, or "
        "device_put before the call) instead of leaving them replicated.",
        saves_bytes=saves,
        certainty="derived",
        link=SHARDING,
        will_not_help="more devices do not help while these leaves are replicated",
    )


def _made_for(evidence: ProgramFacts) -> int:
    """What temporaries would be less that are made, or gathered, for replicated outputs."""
    counts = {
        math.prod(o.dims)
        for o in evidence.outputs
        if is_replicated(o.sharding, len(o.dims)) and o.dims
    }
    parts = max(evidence.axes.values(), default=1)
    freed = 0
    for live in evidence.live:
        if live.op.kind == "temporary" and math.prod(live.dims) in counts:
            gathered = live.op.opcode.startswith("all-gather")
            freed += live.size_bytes - (0 if gathered else live.size_bytes // parts)
    return freed


def _replicated_batch(evidence: ProgramFacts) -> tuple[tuple[Argument, ...], int, str] | None:
    """The batch's arguments if they are replicated, what sharding would free, and along what.

    That every device of a tensor parallel axis has the whole batch is meant; an axis without a
    name over which anything is laid may be one.
    """
    arguments, length, scaling = evidence.batch
    whole = [a for a in arguments if is_replicated(a.sharding, len(a.dims))]
    laid = any(math.prod(a.tiles) > 1 for a in evidence.arguments)
    free = {axis for axis in evidence.axes if axis not in _MODEL_AXES and (axis or not laid)}
    axes = {
        axis: size for axis, size in evidence.axes.items() if length % size == 0 and axis in free
    }
    axis = max(axes, key=axes.__getitem__, default=None)
    if axis is None or not whole or len(whole) < len(arguments) or not scaling:
        return None
    return arguments, scaling - scaling // axes[axis], axis


def _batch_finding(
    evidence: ProgramFacts, arguments: tuple[Argument, ...], saves: int, axis: str
) -> Finding:
    """The finding on a batch of which every device does all."""
    paths = [argument.path for argument in arguments]
    _, length, scaling = evidence.batch
    spec = f": NamedSharding(mesh, P({axis!r}))" if axis else ""
    return Finding(
        slug="replication",
        title=f"shard the batch: {some(paths)} is replicated, every device does all of it",
        evidence=f"{some(paths)} has its global length {length} on each of "
        f"{evidence.device_count} devices, and {format_size(scaling)} at the peak scale with it",
        remedy=f"Shard the batch over the mesh{spec}, by in_shardings or device_put.",
        saves_bytes=saves,
        certainty="derived",
        link=SHARDING,
        will_not_help="jax.checkpoint, though most of these bytes are made by jvp",
    )


def gather(evidence: ProgramFacts) -> Finding | None:
    """Whole copies of sharded arguments that the partitioner made on each device."""
    if evidence.device_count < 2:
        return None
    returned = {o.dims for o in evidence.outputs if is_replicated(o.sharding, len(o.dims))}
    found = [
        (live, argument)
        for live in evidence.live
        if live.dims not in returned and (argument := _gathered(evidence, live)) is not None
    ]
    total = sum(live.size_bytes for live, _ in found)
    if total < evidence.worth_bytes:
        return None
    biggest, argument = max(found, key=lambda row: row[0].size_bytes)
    where = lines([live for live, _ in found])
    parts = max(math.prod(argument.tiles), 2)
    return Finding(
        slug="gather",
        title=f"{some([argument.path])} is sharded, but gathered whole onto every device"
        f"{' at ' + where if where else ''}",
        evidence=f"{counted(len(found), 'buffer')}, {format_size(total)}, with all of "
        f"{some([a.path for _, a in found])} {list(argument.global_dims)}, replicated on each of "
        f"{evidence.device_count} devices; the partitioner put in {biggest.op.opcode} for "
        f"{biggest.name or 'an operation'}",
        remedy="Keep it sharded: do not index, permute or scan along the sharded axis (shard "
        "another dimension, use shard_map, or jax.lax.with_sharding_constraint on the result), "
        "so that no all-gather is needed.",
        saves_bytes=total - total // parts,
        certainty="derived",
        link=SHARDING,
        will_not_help="jax.checkpoint: the replicated copy is made again each time",
    )


def _gathered(evidence: ProgramFacts, live: LiveBuffer) -> Argument | None:
    """The sharded argument of which a temporary holds all; None where it holds none."""
    if live.op.kind not in ("temporary", "output") or live.size_bytes < evidence.worth_bytes // 8:
        return None
    whole = sorted(size for size in live.dims if size > 1)
    sharded = [a for a in evidence.arguments if math.prod(a.tiles) > 1]
    for argument in sharded:
        if whole == sorted(size for size in argument.global_dims if size > 1):
            return argument
    if live.op.opcode in _GATHERS and "reduce" not in live.op.opcode:
        path = evidence.flow.argument_of(live.instruction)
        return next((argument for argument in sharded if argument.path == path), None)
    return None


def arguments_alone(evidence: ProgramFacts) -> Finding | None:
    """Arguments that are more than the device has, whatever the program does."""
    limit = evidence.limit_bytes
    total = evidence.summary.parameter_bytes
    if limit is None or total <= limit:
        return None
    largest = sorted(evidence.arguments, key=lambda a: -a.size_bytes)
    return Finding(
        slug="arguments",
        title=f"the arguments alone take {format_size(total)}, the device offers "
        f"{format_size(limit)}",
        evidence=f"{counted(len(largest), 'argument leaf')}, {format_size(total)} a device "
        f"({some(_roots([a.path for a in largest]))}), before the program makes anything",
        remedy="Shard the arguments over more devices (NamedSharding, FSDP), keep them in a "
        "narrower dtype, or offload optimizer state to host memory.",
        saves_bytes=total - limit,
        certainty="derived",
        link=ERROR_1000,
        will_not_help="jax.checkpoint or a smaller batch: neither makes these arguments smaller",
    )
