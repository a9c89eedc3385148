"""How a sharding divides an array: tiles, named axes, tuples."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._xla.protos import OpSharding, message_class
from hbmwatch._xla.shardings import is_replicated, part_of, spread_over, tiles
from hbmwatch._xla.types import ShardingType

MESH = {"axes": [{"name": "data", "size": 4}, {"name": "model", "size": 2}]}


def sharding(kind: int = ShardingType.REPLICATED, **fields: Any) -> OpSharding:
    """An OpSharding."""
    made: OpSharding = message_class(OpSharding)(type=kind, **fields)
    return made


def named(*dimensions: list[dict[str, Any]]) -> OpSharding:
    """A sharding over the axes of MESH, by dimension."""
    shardings = [{"axes": axes} for axes in dimensions]
    return sharding(named_sharding={"mesh": MESH, "dim_shardings": shardings})


DATA, MODEL = {"mesh_axis_index": 0}, {"mesh_axis_index": 1}
HALF_OF_DATA = {"mesh_axis_index": 0, "sub_axis_info": {"size": 2}}


@pytest.mark.parametrize(
    ("given", "parts", "devices", "replicated"),
    [
        pytest.param(sharding(), (1, 1), 1, True, id="replicated"),
        pytest.param(
            sharding(ShardingType.OTHER, tile_assignment_dimensions=[4, 1]),
            (4, 1),
            4,
            False,
            id="tiles",
        ),
        pytest.param(
            sharding(ShardingType.OTHER, tile_assignment_dimensions=[1, 1, 4]),
            (1, 1),
            4,
            True,
            id="tiles that repeat the array",
        ),
        pytest.param(named([DATA], [MODEL]), (4, 2), 8, False, id="named axes"),
        pytest.param(named([DATA, MODEL]), (8, 1), 8, False, id="two axes of one dimension"),
        pytest.param(named([HALF_OF_DATA]), (2, 1), 8, False, id="a part of an axis"),
        pytest.param(named(), (1, 1), 8, True, id="a mesh without a dimension"),
        pytest.param(named([{"mesh_axis_index": 9}]), (1, 1), 8, True, id="an unknown axis"),
        pytest.param(sharding(ShardingType.MAXIMAL), (1, 1), 1, False, id="one device"),
    ],
)
def test_a_sharding_divides_dimensions(
    given: OpSharding, parts: tuple[int, ...], devices: int, replicated: bool
) -> None:
    """The parts of each dimension, over how many devices, and whether each has the whole."""
    assert (tiles(given, 2), spread_over(given), is_replicated(given, 2)) == (
        parts,
        devices,
        replicated,
    )


def test_without_a_sharding_an_array_is_on_one_device() -> None:
    """One part for each dimension, and not replicated over a mesh."""
    assert (tiles(None, 3), is_replicated(None, 3), part_of(None, 0)) == ((1, 1, 1), False, None)


def test_a_tuple_of_shardings_has_one_for_each_output() -> None:
    """An output beyond the tuple has no sharding; a sharding that is no tuple is every output's."""
    first = sharding(ShardingType.OTHER, tile_assignment_dimensions=[4])
    both = sharding(ShardingType.TUPLE, tuple_shardings=[first, sharding()])
    parts = [part_of(both, index) for index in range(3)]
    assert parts == [first, sharding(), None]
    assert part_of(first, 5) == first
