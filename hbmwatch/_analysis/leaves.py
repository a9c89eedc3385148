"""The arguments and outputs of a program, and the arguments that have its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hbmwatch._jax.lowered import Leaf
from hbmwatch._xla.protos import HloInstructionProto, OpSharding, ShapeProto
from hbmwatch._xla.shapes import unpadded_bytes
from hbmwatch._xla.shardings import tiles
from hbmwatch._xla.types import MemoryColor


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the program.

    Attributes:
        number: Its number in the program; jit drops arguments that nothing reads.
        path: Its pytree path; "parameter 3" where the program does not name it.
        dims: The dimensions on one device.
        element_type: XLA's number of the element type.
        size_bytes: Bytes of its allocation on one device.
        sharding: Its sharding over the mesh; None on one device.
        leaf: The pytree leaf of the call; None where the call is not known.
        aliased: Whether an output reuses its memory.
        in_hbm: Whether it is in the device's main memory.
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
        """The number of shards along each dimension."""
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
        sharding: Its sharding over the mesh; None on one device.
        leaf: The pytree leaf of the call; None where the call is not known.
        aliased: Whether it reuses an argument's memory.
        instruction: The instruction that computes it, alone or (a fusion) with other outputs; None
            where the program does not say.
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
    def in_hbm(self) -> bool:
        """Whether it is in the device's main memory."""
        return self.shape.layout.memory_space == MemoryColor.HBM

    @property
    def size_bytes(self) -> int:
        """Bytes without padding, on one device."""
        return unpadded_bytes(self.shape) or 0


class Batch(NamedTuple):
    """The batch of a program.

    Attributes:
        arguments: The arguments whose first dimension is the batch; none where there is no batch.
        length: The length of that dimension on one device.
        scaling_bytes: Bytes at the peak that scale with it.
    """

    arguments: tuple[Argument, ...]
    length: int
    scaling_bytes: int
