"""What is known of a call before it is compiled: its argument and output leaves, without arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
        shard_shape: The shape on one device; None where it is not known.
        spec: The mesh axes over which each dimension is laid; None where it is not known.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    donated: bool = False
    used: bool = True
    shard_shape: tuple[int, ...] | None = None
    spec: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call of a jitted function, by shapes.

    Attributes:
        arguments: The leaves of the arguments, in order, unused ones included.
        outputs: The leaves of the outputs, in order.
        mesh: The axes of the mesh and their sizes; empty where there is none.
        device_count: On how many devices the program runs; None where it is not known.
        platform: "tpu", "cuda", "cpu", ...; "" where it is not known.
        callbacks: How many host callbacks the function makes; None where it is not known.
        previous: The argument leaves of earlier compiles of the same function, oldest first.
    """

    arguments: tuple[Leaf, ...] = ()
    outputs: tuple[Leaf, ...] = ()
    mesh: Mapping[str, int] = field(default_factory=dict)
    device_count: int | None = None
    platform: str = ""
    callbacks: int | None = None
    previous: tuple[tuple[Leaf, ...], ...] = ()


def call_info(lowered: Any, previous: Sequence[tuple[Leaf, ...]] = ()) -> CallInfo:
    """What a jax.stages.Lowered tells about its call; what cannot be had is empty or None.

    Paths, shardings and the mesh come from private parts of JAX (present in 0.6.2 to 0.12);
    without them the paths are "args[0]['w']" and the shardings None.

    Args:
        lowered: The jax.stages.Lowered.
        previous: `arguments` of the CallInfos of earlier compiles of this function.
    """
    details = getattr(getattr(lowered, "_lowering", None), "compile_args", None)
    details = details if isinstance(details, Mapping) else {}
    arguments = _arguments(lowered, details)
    outputs = _outputs(lowered, details)
    shardings = [*_sequence(details.get("in_shardings")), *_sequence(details.get("out_shardings"))]
    platform = getattr(details.get("backend"), "platform", "")
    callbacks = details.get("host_callbacks")
    return CallInfo(
        arguments=arguments,
        outputs=outputs,
        mesh=_mesh(shardings),
        device_count=_device_count(details, shardings),
        platform=platform if isinstance(platform, str) else "",
        callbacks=len(callbacks) if isinstance(callbacks, Sequence) else None,
        previous=tuple(previous),
    )


def _arguments(lowered: Any, details: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The argument leaves, from args_info for what is public and compile_args for the rest."""
    import jax

    tree = getattr(lowered, "args_info", None)
    found = jax.tree_util.tree_flatten_with_path(tree)[0] if tree is not None else []
    infos = [(path, info) for path, info in found if hasattr(info, "donated")]
    debug = getattr(details.get("all_args_info"), "debug_info", None)
    names = _names(getattr(debug, "arg_names", None), [path for path, _ in infos], "args")
    kept = details.get("kept_var_idx")
    used = sorted(kept) if isinstance(kept, (set, frozenset)) else list(range(len(infos)))
    shardings = dict(zip(used, _sequence(details.get("in_shardings"))))
    leaves = []
    for position, (_, info) in enumerate(infos):
        aval = getattr(info, "aval", None) or getattr(info, "_aval", None)
        leaf = _leaf(names[position], aval, shardings.get(position), bool(info.donated))
        leaves.append(Leaf(**{**leaf, "used": position in set(used)}))
    return tuple(leaves)


def _outputs(lowered: Any, details: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The output leaves, from out_info."""
    import jax

    try:
        out_info = lowered.out_info
    except (AttributeError, KeyError):  # jax 0.6.2 has none of a pmapped function
        out_info = None
    found = jax.tree_util.tree_flatten_with_path(out_info)[0]
    infos = [(path, info) for path, info in found if hasattr(info, "shape")]
    debug = getattr(details.get("all_args_info"), "debug_info", None)
    names = _names(getattr(debug, "result_paths", None), [path for path, _ in infos], "result")
    shardings = list(_sequence(details.get("out_shardings")))
    shardings += [None] * (len(infos) - len(shardings))
    return tuple(
        Leaf(**_leaf(name, info, sharding or getattr(info, "sharding", None), False))
        for name, (_, info), sharding in zip(names, infos, shardings)
    )


def _names(given: Any, paths: Sequence[Any], root: str) -> list[str]:
    """JAX's own names of the leaves, where they are there and as many as the leaves."""
    import jax

    known = list(_sequence(given))
    if len(known) == len(paths) and all(isinstance(name, str) for name in known):
        return known
    return [root + jax.tree_util.keystr(path) for path in paths]


def _leaf(path: str, aval: Any, sharding: Any, donated: bool) -> dict[str, Any]:
    """The fields of a leaf."""
    shape = tuple(int(size) for size in getattr(aval, "shape", ()) if isinstance(size, int))
    dtype = getattr(getattr(aval, "dtype", None), "name", "")
    return {
        "path": path,
        "shape": shape,
        "dtype": str(dtype),
        "donated": donated,
        "shard_shape": _shard_shape(sharding, shape),
        "spec": _spec(sharding, len(shape)),
    }


def _shard_shape(sharding: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape on one device; None where the sharding is not known, or does not fit."""
    if not hasattr(sharding, "shard_shape"):
        return None
    try:
        return tuple(sharding.shard_shape(shape))
    except (TypeError, ValueError, NotImplementedError):
        return None


def _spec(sharding: Any, rank: int) -> tuple[tuple[str, ...], ...] | None:
    """The mesh axes of each dimension."""
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return None
    axes = [
        (entry,) if isinstance(entry, str) else tuple(map(str, _sequence(entry))) for entry in spec
    ]
    return tuple(axes + [()] * (rank - len(axes)))[:rank]


def _mesh(shardings: Iterable[Any]) -> Mapping[str, int]:
    """The first mesh among the shardings, as axis -> size."""
    for sharding in shardings:
        shape = getattr(getattr(sharding, "mesh", None), "shape", None)
        if isinstance(shape, Mapping) and shape:
            return {str(axis): int(size) for axis, size in shape.items()}
    return {}


def _device_count(details: Mapping[str, Any], shardings: Iterable[Any]) -> int | None:
    """How many devices the program is partitioned over."""
    count = details.get("num_devices")
    if isinstance(count, int):
        return count
    sets = (getattr(sharding, "device_set", None) for sharding in shardings)
    return next((len(found) for found in sets if found), None)


def _sequence(value: Any) -> Sequence[Any]:
    """The value where it is a list or a tuple, else nothing."""
    return value if isinstance(value, (list, tuple)) else ()


def array_leaves(
    fun: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Leaf, ...]:
    """The array leaves of a call's arguments, by shapes: also of arrays that are deleted now."""
    leaves = named_leaves(fun, args, kwargs)
    arrays = [(path, leaf) for path, leaf in leaves if hasattr(leaf, "shape")]
    return tuple(
        Leaf(path, tuple(leaf.shape), str(getattr(leaf, "dtype", ""))) for path, leaf in arrays
    )


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
