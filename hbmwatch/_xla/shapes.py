"""XLA's shapes: their text as XLA prints it, and the bytes of their elements without padding."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from hbmwatch._xla.protos import LayoutProto, ShapeProto, TileProto
from hbmwatch._xla.types import PrimitiveType, element_bits, type_name

_NO_ARRAYS: dict[int, str] = {PrimitiveType.OPAQUE: "opaque", PrimitiveType.TOKEN: "token"}
# An element type that hbmwatch does not know, as type_name writes it.
UNKNOWN = re.compile(r"\btype(-?\d+)\[")
_UNBOUNDED = _COMBINED = -(2**63)
# No memory holds as many elements, and a product of thousands of dimensions takes hours.
_MOST_ELEMENTS = 2**63


def element_count(dimensions: Iterable[int]) -> int:
    """How many elements an array of these dimensions has; at most 2**63."""
    sizes = list(dimensions)
    count = int(0 not in sizes)
    for size in sizes:
        count = min(count * size, _MOST_ELEMENTS)
    return count


def subshape(shape: ShapeProto, index: Sequence[int]) -> ShapeProto:
    """The shape at a tuple index, as XProf takes it: the last number, into the outermost tuple."""
    if index and 0 <= index[-1] < len(shape.tuple_shapes):
        return shape.tuple_shapes[index[-1]]
    return shape


def unpadded_bytes(shape: ShapeProto) -> int | None:
    """Bytes of the elements alone; a tuple counts 8 bytes an entry, as its index table does.

    Elements below 8 bits take a byte each unless the layout packs them. None if the element type
    is unknown, a dimension has no bound, or no memory could hold so many elements.
    """
    kind = shape.element_type
    if kind == PrimitiveType.TUPLE:
        return 8 * len(shape.tuple_shapes)
    if kind == PrimitiveType.BUFFER:
        return unpadded_bytes(shape.tuple_shapes[0]) if shape.tuple_shapes else 0
    if kind in _NO_ARRAYS:
        return 0 if kind == PrimitiveType.TOKEN else 8
    width = element_bits(kind)
    if width is None or any(size < 0 for size in shape.dimensions):
        return None
    count = element_count(shape.dimensions)
    bits = shape.layout.element_size_in_bits or -(-width // 8) * 8
    return -(-count * bits // 8) if count < _MOST_ELEMENTS else None


def shape_text(shape: ShapeProto) -> str:
    """The shape as XLA prints it: "f32[8192,8192]{1,0:T(8,128)}".

    An unknown element type prints as its number: "type99[8192]".
    """
    kind = shape.element_type
    if kind == PrimitiveType.TUPLE:
        return f"({', '.join(_tuple_entry(*entry) for entry in enumerate(shape.tuple_shapes))})"
    if kind == PrimitiveType.BUFFER:
        return f"b({', '.join(map(shape_text, shape.tuple_shapes))})"
    if kind in _NO_ARRAYS:
        return f"{_NO_ARRAYS[kind]}[]"
    text = f"{type_name(kind)}[{','.join(_dimensions(shape))}]"
    layout = _layout(shape.layout) if shape.HasField("layout") else "{}"
    return text if layout == "{}" else text + layout


def _tuple_entry(position: int, shape: ShapeProto) -> str:
    """An entry of a tuple; XLA numbers every fifth."""
    number = f"/*index={position}*/" if position and position % 5 == 0 else ""
    return number + shape_text(shape)


def _dimensions(shape: ShapeProto) -> Iterator[str]:
    """The dimensions; "<=8" if 8 is a bound, "?" if there is no bound."""
    sizes, dynamic = list(shape.dimensions), list(shape.is_dynamic_dimension)
    for size, is_dynamic in itertools.zip_longest(sizes, dynamic[: len(sizes)]):
        bound = "?" if size == _UNBOUNDED else f"<={size}"
        yield bound if is_dynamic else str(size)


def _layout(layout: LayoutProto) -> str:
    """A layout: "{1,0:T(8,128)(2,1)S(5)}"."""
    padding = layout.tail_padding_alignment_in_elements
    prefix = layout.dynamic_shape_metadata_prefix_bytes
    after = [
        "T" + "".join(map(_tile, layout.tiles)) if layout.tiles else "",
        f"L({padding})" if padding > 1 else "",
        f"E({layout.element_size_in_bits})" if layout.element_size_in_bits else "",
        f"S({layout.memory_space})" if layout.memory_space else "",
        "".join(
            f"SC({split.dimension}:{','.join(map(str, split.split_indices))})"
            for split in layout.split_configs
        ),
        f"M({prefix})" if prefix > 0 else "",
    ]
    text = "".join(after)
    return f"{{{','.join(map(str, layout.minor_to_major))}{':' if text else ''}{text}}}"


def _tile(tile: TileProto) -> str:
    """A tile: "(8,128)"; "*" joins a dimension with the next."""
    return f"({','.join('*' if size == _COMBINED else str(size) for size in tile.dimensions)})"
