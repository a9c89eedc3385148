"""A step with changes, that runs: jitted, and called as the step is."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hbmwatch._jax.device import buffer_address
from hbmwatch._jax.inner_jits import WithInner, inner_jit
from hbmwatch._jax.jit_options import jit_options
from hbmwatch._jax.request import lowerable
from hbmwatch._preflight.changes.call import Call, Leaf, NothingToChange
from hbmwatch._preflight.changes.change import Edit
from hbmwatch._preflight.changes.tracing import call_of


def apply(step: Callable[..., Any], edits: tuple[Edit, ...]) -> Any:
    """The step with changes, watched if it was.

    Raises:
        ValueError: One of the changes cannot be applied to a step.
        TypeError: The step is jitted by a library other than jax, flax nnx and equinox.
    """
    for edit in edits:
        if edit.unapplied:
            raise ValueError(f"{edit.what} cannot be applied: {edit.unapplied}")
    owner, args, kwargs = lowerable(step, (), {})
    if _is_inside(owner, step):
        raise TypeError(
            f"{getattr(step, '__name__', 'the step')} wraps a jitted function, and a change "
            "would leave out what the wrapper does: apply it to the jitted function"
        )
    # The watched function may be inside of partials; `owner` is then the function itself.
    watched_alike = getattr(step, "watched_alike", None) or getattr(owner, "watched_alike", None)
    if hasattr(owner, "watched_alike"):
        owner = owner.__wrapped__
    if inner_jit(owner) is None:
        applied: Any = Applied(step, edits)
    else:
        changed = AppliedInside(owner, edits)
        applied = functools.partial(changed, *args, **kwargs) if args or kwargs else changed
    return applied if watched_alike is None else watched_alike(applied)


class Applied:
    """A step with changes. Each signature of its arguments is traced and changed once.

    It pickles if the step does.
    """

    def __init__(self, step: Callable[..., Any], edits: tuple[Edit, ...]) -> None:
        owner, self._args, self._kwargs = lowerable(step, (), {})
        options = jit_options(owner)
        if options is None:
            code = "; ".join(edit.code for edit in edits)
            raise TypeError(
                "a change can be applied to a function, or to what jax.jit, flax.nnx.jit or "
                f"equinox.filter_jit returned, not to {type(owner).__name__}: write it into the "
                f"step ({code})"
            )
        self._given, self._edits = step, edits
        self._owner, self._options = owner, options
        self._programs: dict[Any, _Program] = {}
        self._lock = threading.RLock()
        # Not what `step` has in its __dict__: there are its own `lower` and `trace`.
        functools.update_wrapper(self, step, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the step returns."""
        program, leaves = self._program(args, kwargs)
        return program.run(leaves)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The jax.stages.Lowered of the changed step, whose arguments and outputs are flat."""
        program, leaves = self._program(args, kwargs)
        return program.jitted.lower(*program.call.constants, *leaves)

    def clear_cache(self) -> None:
        """Forget the programs of all signatures."""
        with self._lock:
            self._programs.clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where the changed step is the attribute of a class."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return Applied, (self._given, self._edits)

    def _program(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[_Program, list[Any]]:
        """The program for a call, and its flat arguments."""
        args, kwargs = (*self._args, *args), {**self._kwargs, **kwargs}
        leaves, tree = jax.tree.flatten(self._options.dynamic(args, kwargs))
        static = self._options.static(args, kwargs)
        kinds = tuple(map(type, jax.tree.leaves(static)))  # 1, 1.0 and True are equal
        key = (tree, static, kinds, tuple(map(_kind, leaves)))
        program = self._programs.get(key)
        if program is None:
            with self._lock:
                program = self._programs.get(key) or _Program(self._changed(args, kwargs))
                if not program.is_of_outer_trace:
                    self._programs[key] = program
        return program, leaves

    def _changed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call with the changes.

        Raises:
            ValueError: One of them cannot be made for these arguments.
        """
        call = call_of(self._owner, args, kwargs, None)
        for edit in self._edits:
            try:
                call = edit.on(call)
            except NothingToChange as reason:
                raise ValueError(
                    f"{edit.what} does not work for these arguments: {reason}"
                ) from reason
        return call


class AppliedInside(WithInner):
    """A step of flax.nnx.jit or equinox.filter_jit with changes. It pickles if the step does."""

    def __init__(self, step: Any, edits: tuple[Edit, ...]) -> None:
        super().__init__(step, Applied(inner_jit(step), edits))
        self._edits = edits

    def __reduce__(self) -> Any:
        return AppliedInside, (self.step, self._edits)


def _is_inside(owner: Any, step: Callable[..., Any]) -> bool:
    """Whether what would be changed is inside of a function that a user wrote around it."""
    wraps = isinstance(step, types.FunctionType) and hasattr(step, "__wrapped__")
    return wraps and owner is not step and getattr(owner, "__wrapped__", None) is not step


class _Program:
    """The changed program of one signature."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.jitted = call.jitted()
        self._moved = [(i, leaf) for i, leaf in enumerate(call.arguments) if leaf.moved]
        self._donated = frozenset(i for i, leaf in enumerate(call.arguments) if leaf.donated)

    @property
    def is_of_outer_trace(self) -> bool:
        """Whether the step closes over values that exist in one outer trace only."""
        return any(isinstance(each, jax.core.Tracer) for each in self.call.constants)

    def run(self, leaves: list[Any]) -> Any:
        """The outputs, as the step gives them."""
        for i, leaf in self._moved:
            leaves[i] = _put(leaves[i], leaf)
        if self._donated:
            _separate(leaves, self._donated)
        outputs = self.jitted(*self.call.constants, *leaves)
        return jax.tree.unflatten(self.call.out_tree, outputs)


def _separate(leaves: list[Any], donated: frozenset[int]) -> None:
    """Copy arrays that are donated and passed a second time, such as an average at its start.

    XLA refuses a donated buffer that the call uses twice.
    """
    seen: set[int] = set()
    arrays = (i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    for i in sorted(arrays, key=lambda i: i in donated):
        address = buffer_address(leaves[i])
        buffer = id(leaves[i]) if address is None else address
        if i in donated and buffer in seen:
            leaves[i] = leaves[i].copy()
        seen.add(buffer)


def _put(array: Any, leaf: Leaf) -> Any:
    """The array as the program takes it. After the first step it is like that already."""
    if getattr(array, "dtype", leaf.shape.dtype) != leaf.shape.dtype:
        array = array.astype(leaf.shape.dtype)
    sharding = leaf.sharding
    if sharding is None or isinstance(array, jax.core.Tracer):
        return array
    if not isinstance(array, jax.Array):
        return jax.device_put(array, sharding)
    is_there = array.sharding.is_equivalent_to(sharding, array.ndim)
    is_same_memory = array.sharding.memory_kind == sharding.memory_kind
    if is_there and is_same_memory:
        return array
    # JAX donates nothing to another memory.
    return jax.device_put(array, sharding, donate=leaf.donated and is_same_memory)


def _kind(leaf: Any) -> Any:
    """The properties of a leaf that the program depends on."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return tuple(leaf.shape), leaf.dtype, bool(getattr(leaf, "weak_type", False))
    return type(leaf)
