"""How a sharding divides an array over the devices of a mesh."""

from __future__ import annotations

import math

from hbmwatch._xla.protos import AxisRefProto, NamedShardingProto, OpSharding
from hbmwatch._xla.types import ShardingType


def tiles(sharding: OpSharding | None, rank: int) -> tuple[int, ...]:
    """Into how many parts a sharding divides each dimension."""
    if sharding is None:
        return (1,) * rank
    named = sharding.named_sharding
    parts = [
        math.prod(_axis_size(named, axis) for axis in dimension.axes)
        for dimension in named.dim_shardings
    ]
    if sharding.type == ShardingType.OTHER:
        parts = list(sharding.tile_assignment_dimensions)
    return tuple((parts + [1] * rank)[:rank])


def _axis_size(named: NamedShardingProto, axis: AxisRefProto) -> int:
    """The size of an axis of a mesh, or of the part of the axis that a sharding uses."""
    if axis.HasField("sub_axis_info"):
        return axis.sub_axis_info.size
    axes = named.mesh.axes
    return axes[axis.mesh_axis_index].size if axis.mesh_axis_index < len(axes) else 1


def spread_over(sharding: OpSharding) -> int:
    """Over how many devices a sharding divides an array; 1 if it does not say."""
    if sharding.type == ShardingType.OTHER:
        return math.prod(sharding.tile_assignment_dimensions)
    return math.prod(axis.size for axis in sharding.named_sharding.mesh.axes)


def part_of(sharding: OpSharding | None, index: int) -> OpSharding | None:
    """The sharding of one entry of a tuple; of no tuple, the sharding itself."""
    if sharding is None or sharding.type != ShardingType.TUPLE:
        return sharding
    parts = sharding.tuple_shardings
    return parts[index] if index < len(parts) else None


def is_replicated(sharding: OpSharding | None, rank: int) -> bool:
    """Whether every device of a mesh holds the full array."""
    known = sharding is not None and sharding.type in (ShardingType.REPLICATED, ShardingType.OTHER)
    return known and math.prod(tiles(sharding, rank)) == 1
