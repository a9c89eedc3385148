"""A call as it is lowered: its argument and output leaves by shapes, without arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hbmwatch._jax.lowering import LoweringDetails, lowering_details, shape_of
from hbmwatch._records.paths import path_prefix


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the arguments or of the outputs.

    Attributes:
        path: Its pytree path as HLO names parameters ("state.params['w']"); of an output, the
            path in the result ("result['params']['w']").
        shape: The global shape.
        dtype: The dtype's name ("float32").
        donated: Whether it was donated.
        used: Whether the program takes it; jit drops the arguments that nothing reads.
        user_path: The path in what the user passed, where a library passes a tree of its own to
            jit; "" where it is `path`.
        positional: Whether its argument is known to be passed by position only, as by `*batches`:
            no keyword of jit names it.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    donated: bool = False
    used: bool = True
    user_path: str = ""
    positional: bool = False


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call of a jitted function, by shapes.

    Attributes:
        arguments: The leaves of the arguments, in order, unused ones included.
        outputs: The leaves of the outputs, in order.
        mesh: The axes of the mesh and their sizes; empty where there is none.
        device_count: On how many devices the program runs; None where it is not known.
        previous: The argument leaves of earlier compiles of the same function, oldest first.
    """

    arguments: tuple[Leaf, ...] = ()
    outputs: tuple[Leaf, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict)
    device_count: int | None = None
    previous: tuple[tuple[Leaf, ...], ...] = ()


def call_info(lowered: Any, previous: Sequence[tuple[Leaf, ...]] = ()) -> CallInfo:
    """The call of a jax.stages.Lowered; anything unknown is empty or None.

    Args:
        lowered: The jax.stages.Lowered.
        previous: `arguments` of the CallInfos of earlier compiles of this function.
    """
    details = lowering_details(lowered)
    shardings = (*details.in_shardings, *details.out_shardings)
    return CallInfo(
        arguments=_arguments(lowered, details),
        outputs=_outputs(lowered, details),
        mesh=_mesh(shardings),
        device_count=_device_count(details, shardings),
        previous=tuple(previous),
    )


def _arguments(lowered: Any, details: LoweringDetails) -> tuple[Leaf, ...]:
    """The argument leaves: shapes and donation are public, the rest is private to JAX."""
    import jax

    tree = getattr(lowered, "args_info", None)
    found = jax.tree_util.tree_flatten_with_path(tree)[0] if tree is not None else []
    infos = [(path, info) for path, info in found if hasattr(info, "donated")]
    names = _names(details.argument_names, [path for path, _ in infos], "args")
    kept = details.kept_arguments
    return tuple(
        _leaf(name, shape_of(info), bool(info.donated), kept is None or position in kept)
        for position, (name, (_, info)) in enumerate(zip(names, infos, strict=True))
    )


def _outputs(lowered: Any, details: LoweringDetails) -> tuple[Leaf, ...]:
    """The output leaves, from out_info."""
    import jax

    try:
        out_info = lowered.out_info
    except (AttributeError, KeyError):  # jax 0.6.2 has none of a pmapped function
        out_info = None
    found = jax.tree_util.tree_flatten_with_path(out_info)[0]
    infos = [(path, info) for path, info in found if hasattr(info, "shape")]
    names = _names(details.output_names, [path for path, _ in infos], "result")
    return tuple(_leaf(name, info) for name, (_, info) in zip(names, infos, strict=True))


def _names(known: Sequence[str], paths: Sequence[Any], root: str) -> Sequence[str]:
    """JAX's own names of the leaves if it has one for each, else names from the paths."""
    import jax

    if len(known) == len(paths):
        return known
    return [root + jax.tree_util.keystr(path) for path in paths]


def _leaf(path: str, shaped: Any, donated: bool = False, used: bool = True) -> Leaf:
    """The leaf for an object that has a shape and a dtype."""
    shape = tuple(int(size) for size in getattr(shaped, "shape", ()) if isinstance(size, int))
    dtype = str(getattr(getattr(shaped, "dtype", None), "name", ""))
    return Leaf(path, shape, dtype, donated, used)


def _mesh(shardings: Iterable[Any]) -> Mapping[str, int]:
    """The first mesh among the shardings, as axis -> size."""
    for sharding in shardings:
        shape = getattr(getattr(sharding, "mesh", None), "shape", None)
        if isinstance(shape, Mapping) and shape:
            return {str(axis): int(size) for axis, size in shape.items()}
    return {}


def _device_count(details: LoweringDetails, shardings: Iterable[Any]) -> int | None:
    """How many devices the program is partitioned over."""
    if details.device_count is not None:
        return details.device_count
    sets = (getattr(sharding, "device_set", None) for sharding in shardings)
    return next((len(found) for found in sets if found), None)


def array_leaves(
    fun: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Leaf, ...]:
    """The array leaves of a call's arguments, by shapes; deleted arrays have shapes, too."""
    leaves = named_leaves(fun, args, kwargs)
    arrays = [(path, leaf) for path, leaf in leaves if hasattr(leaf, "shape")]
    nameless = _nameless(fun)
    return tuple(
        Leaf(
            path,
            tuple(leaf.shape),
            str(getattr(leaf, "dtype", "")),
            positional=path_prefix(path, 1) in nameless,
        )
        for path, leaf in arrays
    )


def _nameless(fun: Callable[..., Any] | None) -> set[str]:
    """The names of the parameters of a function that nobody can pass by keyword."""
    try:
        parameters = inspect.signature(fun).parameters.values() if fun is not None else ()
    except (TypeError, ValueError):
        return set()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in kinds}


def named_leaves(
    fun: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The leaves of a call's arguments with their paths, as JAX names them in HLO."""
    import jax

    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, value in _named_arguments(fun, args, kwargs).items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


def _named_arguments(
    fun: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    numbered = {f"args[{n}]": value for n, value in enumerate(args)}
    if fun is None:
        return {**numbered, **kwargs}
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {**numbered, **kwargs}
    return dict(bound.arguments)
