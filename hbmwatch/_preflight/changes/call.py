"""A call of a step as a flat program: what changes are made to."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding

from hbmwatch._jax.lowered import CallInfo, call_info
from hbmwatch._jax.request import lower_for
from hbmwatch._preflight.changes.streaming import streamed

_KEY = re.compile(r"\w+")
# The memory of the host that a device can read and write.
HOST = "pinned_host"


class NothingToChange(Exception):
    """The program has nothing that a change could apply to; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An array that goes into the program, or comes out of it.

    Attributes:
        path: Its pytree path ("state['params']").
        user_path: The path in what the user passed, where a library passes a tree of its own to
            jit; "" where it is `path`.
        positional: Whether its argument is known to be passed by position only.
        shape: Its shape, dtype and sharding; None for a sharding that is not given.
        donated: Whether it is donated; of an output False.
        moved: Whether a change has placed it elsewhere than the caller's array may be.
    """

    path: str
    shape: jax.ShapeDtypeStruct
    donated: bool = False
    moved: bool = False
    user_path: str = ""
    positional: bool = False

    @property
    def name(self) -> str:
        """Its path as the user writes it."""
        return self.user_path or self.path

    @property
    def sharding(self) -> Any:
        """Its sharding; None where it is not given."""
        return self.shape.sharding

    @property
    def is_on_host(self) -> bool:
        """Whether it is in the memory of the host."""
        return getattr(self.sharding, "memory_kind", None) == HOST

    @property
    def nbytes(self) -> int:
        """Its size in bytes, on all devices together, if each element exists once."""
        return nbytes(self.shape)

    def at(self, sharding: Any) -> Leaf:
        """The same leaf in another place."""
        return dataclasses.replace(self, shape=typed(self.shape, sharding), moved=True)


class Given(Protocol):
    """The user's step and arguments that a call was traced from."""

    @property
    def step(self) -> Any:
        """What has the step's `.lower`."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Its positional arguments, arrays by shapes."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Its keyword arguments, arrays by shapes."""

    @property
    def memo(self) -> dict[str, Any]:
        """What takes long to find out of the step, by a name."""

    def retraced(self, shapes: Sequence[jax.ShapeDtypeStruct]) -> Call:
        """The call for arguments of other shapes or dtypes.

        Raises:
            NothingToChange: It is not known which of the user's arguments these are.
        """

    def varied(self, variant: Callable[..., Any]) -> Call:
        """The call of another function with the same arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A step with its arguments, by shapes, as a flat program that a change can rewrite.

    Attributes:
        name: The name of the step.
        jaxpr: The closed jaxpr: its inputs are the constants and the arguments, in this order.
        arguments: The dynamic arguments, flat.
        outputs: The outputs, flat.
        out_tree: How the outputs make the step's result.
        platform: What it is lowered for; None: the devices that it is on.
        devices: The devices that the step runs on.
        compiler_options: The options for XLA of the step's own jit.
        constants: Arrays that the step closes over, where they have become inputs.
        given: What it was traced from, to be traced again with other arguments; None where the
            program is not the user's function any more.
        lowered: The step's own jax.stages.Lowered; None after a change.
    """

    name: str
    jaxpr: Any
    arguments: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    out_tree: Any
    platform: str | None
    devices: tuple[Any, ...] = ()
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()
    given: Given | None = None
    lowered: Any = None

    @property
    def mesh(self) -> Any:
        """The mesh of the step, if it has one of several devices."""
        leaves = (*self.arguments, *self.outputs)
        meshes = (leaf.sharding.mesh for leaf in leaves if isinstance(leaf.sharding, NamedSharding))
        return next((mesh for mesh in meshes if mesh.size > 1), None)

    @property
    def donated(self) -> tuple[int, ...]:
        """The donated inputs of the program, whose constants come first."""
        first = len(self.constants)
        return tuple(first + i for i, leaf in enumerate(self.arguments) if leaf.donated)

    def lower(self) -> Any:
        """The program's jax.stages.Lowered."""
        if self.lowered is not None:
            return self.lowered
        shapes = [shape_of(constant) for constant in self.constants]
        shapes += [argument.shape for argument in self.arguments]
        return lower_for(self.jitted(), tuple(shapes), {}, self.platform)

    def info(self, lowered: Any) -> CallInfo:
        """What is known of the arrays of `lower()`, under the user's paths."""
        found = call_info(lowered)
        paths = [(f"constant {number}", "") for number in range(len(self.constants))]
        paths += [(argument.path, argument.user_path) for argument in self.arguments]
        inputs = zip(found.arguments, paths, strict=True)
        outputs = zip(found.outputs, self.outputs, strict=True)
        return dataclasses.replace(
            found,
            arguments=tuple(
                dataclasses.replace(leaf, path=path, user_path=own) for leaf, (path, own) in inputs
            ),
            outputs=tuple(dataclasses.replace(leaf, path=own.path) for leaf, own in outputs),
        )

    def jitted(self) -> Any:
        """A jitted function of the constants and the arguments that returns the outputs, flat."""
        sent = {o: leaf.sharding for o, leaf in enumerate(self.outputs) if leaf.is_on_host}

        def run(*arrays: Any) -> tuple[Any, ...]:
            return tuple(streamed(self.jaxpr, arrays, sent))

        run.__name__ = run.__qualname__ = self.name
        options: dict[str, Any] = {"donate_argnums": self.donated}
        if any(output.sharding is not None for output in self.outputs):
            options["out_shardings"] = tuple(output.sharding for output in self.outputs)
        if self.compiler_options:
            options["compiler_options"] = dict(self.compiler_options)
        return jax.jit(run, **options)

    def changed(self, **changes: Any) -> Call:
        """The call with some fields changed."""
        return dataclasses.replace(self, lowered=None, **changes)

    def rewritten(self, jaxpr: Any) -> Call:
        """The call with another program that has the same inputs and outputs."""
        return self.changed(jaxpr=jaxpr, given=None)

    def retraced(self, shapes: Sequence[jax.ShapeDtypeStruct]) -> Call:
        """The call for arguments of other shapes or dtypes, donated and placed as before.

        Raises:
            NothingToChange: It cannot be traced again.
        """
        if self.given is None:
            raise NothingToChange(
                "an earlier change rewrote the program, so it cannot be traced again with other "
                "shapes or dtypes"
            )
        new = self.given.retraced(shapes)
        if len(new.outputs) != len(self.outputs):
            raise NothingToChange("with other shapes or dtypes the step returns other arrays")
        return new.changed(
            arguments=tuple(map(_placed_as, new.arguments, self.arguments)),
            outputs=tuple(map(_placed_as, new.outputs, self.outputs)),
        )

    def with_arguments(self, changes: Mapping[int, Leaf]) -> Call:
        """The call with some arguments changed."""
        return self.changed(arguments=replaced_leaves(self.arguments, changes))

    def with_outputs(self, changes: Mapping[int, Leaf]) -> Call:
        """The call with some outputs changed."""
        return self.changed(outputs=replaced_leaves(self.outputs, changes))

    def updated(self) -> dict[int, int]:
        """Arguments that are returned updated, each with its output.

        An output belongs to an argument of its shape and dtype. Where several do, the end of the
        pytree path decides, then the order.
        """
        by_type: dict[Any, list[tuple[int, tuple[str, ...]]]] = {}
        for o, output in enumerate(self.outputs):
            by_type.setdefault(type_of(output), []).append((o, path_keys(output.path)))
        alike = []
        for i, argument in enumerate(self.arguments):
            ways = [path_keys(path) for path in {argument.path, argument.name}]
            for o, other in by_type.get(type_of(argument), ()):
                alike.append((-max(_common_end(keys, other) for keys in ways), i, o))
        found: dict[int, int] = {}
        taken: set[int] = set()
        for _, i, o in sorted(alike):
            if i not in found and o not in taken:
                found[i] = o
                taken.add(o)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class AroundGiven:
    """What a call was traced from, for a change that is made again when it is traced again."""

    given: Given

    @property
    def step(self) -> Any:
        """As of the step without the change."""
        return self.given.step

    @property
    def args(self) -> tuple[Any, ...]:
        """As of the step without the change."""
        return self.given.args

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """As of the step without the change."""
        return self.given.kwargs

    @property
    def memo(self) -> dict[str, Any]:
        """As of the step without the change."""
        return self.given.memo


def _placed_as(new: Leaf, old: Leaf) -> Leaf:
    """A leaf that is donated and placed as another one."""
    shape = typed(new.shape, old.sharding)
    return dataclasses.replace(old, path=new.path, shape=shape)


def replaced_leaves(leaves: Sequence[Leaf], changes: Mapping[int, Leaf]) -> tuple[Leaf, ...]:
    """The leaves, some of them changed."""
    return tuple(changes.get(i, leaf) for i, leaf in enumerate(leaves))


def nbytes(shape: Any) -> int:
    """The size of an array in bytes. Of a PRNG key 8 for each element."""
    try:
        bits = jax.dtypes.itemsize_bits(shape.dtype)
    except (AttributeError, TypeError, ValueError):  # an older jax, or a PRNG key
        bits = 8 * int(getattr(shape.dtype, "itemsize", 8))
    return -(-int(math.prod(shape.shape)) * bits // 8)


def names(leaves: Sequence[Leaf]) -> str:
    """The paths of a few leaves, as the user writes them, and how many more."""
    more = len(leaves) - 2
    shown = ", ".join(leaf.name for leaf in leaves[:2])
    return shown + (f" and {more} more" if more > 0 else "")


def path_keys(path: str) -> tuple[str, ...]:
    """The keys of a pytree path; the first is the name of the argument, or "result"."""
    return tuple(_KEY.findall(path))


def type_of(leaf: Leaf) -> Any:
    """What an array has to share with another one to have its memory."""
    return leaf.shape.shape, leaf.shape.dtype


def _common_end(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many keys two pytree paths have in common at their ends."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count


def typed(aval: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    """The shape, dtype and weak type of a value, in a place."""
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=weak)


def shape_of(leaf: Any) -> Any:
    """An array by its shape, dtype and committed sharding; anything else as it is."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or not (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ):
        return leaf
    is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    committed = is_array and getattr(leaf, "committed", True)
    return typed(leaf, leaf.sharding if committed else None)
