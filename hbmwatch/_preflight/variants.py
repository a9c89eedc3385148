"""A step with one thing changed, lowered from shapes: what verify compiles.

jax is imported in functions, so that `import hbmwatch` stays light.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hbmwatch._analysis.facts import Argument, ProgramFacts
from hbmwatch._findings.donation import undonated
from hbmwatch._jax.lowered import CallInfo, Leaf, call_info
from hbmwatch._jax.lowering import lowering_details, plain_lowered
from hbmwatch._xla.shardings import is_replicated


@dataclass(frozen=True, slots=True)
class Untraceable:
    """Why a step could not be traced with a change."""

    error: str


class NothingToChange(Exception):
    """The program has nothing that the change could apply to."""


@dataclass(frozen=True, slots=True)
class ShapedCall:
    """A call by shapes: which leaves are arrays, and what is known of them.

    Attributes:
        step: The step.
        leaves: All leaves of the call; arrays as jax.ShapeDtypeStructs.
        arrays: The positions of the arrays among them.
        tree: How the leaves make (args, kwargs).
        lowered: The step lowered for them.
        info: What is known of the arrays, one argument leaf for each.
    """

    step: Any
    leaves: tuple[Any, ...]
    arrays: tuple[int, ...]
    tree: Any
    lowered: Any
    info: CallInfo

    @property
    def shapes(self) -> list[Any]:
        """The array leaves, as jax.ShapeDtypeStructs."""
        return [self.leaves[i] for i in self.arrays]


# --- the call -------------------------------------------------------------------------------------


def shaped_call(step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ShapedCall:
    """The call by shapes, and the step lowered for it."""
    import jax

    if not hasattr(step, "lower"):
        raise TypeError(
            "verify needs a jitted function, or one that watch_hbm returned (it has no .lower)"
        )
    given, tree = jax.tree.flatten((args, kwargs))
    leaves = [_shape(leaf) for leaf in given]
    shaped_args, shaped_kwargs = jax.tree.unflatten(tree, leaves)
    lowered = step.lower(*shaped_args, **shaped_kwargs)
    lowered = plain_lowered(lowered)
    info = call_info(lowered)
    arrays = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct))
    places = _aligned([leaves[i] for i in arrays], info.arguments)
    placed = _placed(leaves, arrays, _in_shardings(lowered, info, places))
    info = dataclasses.replace(info, arguments=tuple(info.arguments[i] for i in places))
    return ShapedCall(step, tuple(placed), arrays, tree, lowered, info)


def _aligned(arrays: Sequence[Any], arguments: Sequence[Leaf]) -> list[int]:
    """The argument leaf of each array; empty if arrays and leaves do not match.

    Numbers among the arguments are leaves as well, unless they are static.
    """
    found: list[int] = []
    for array in arrays:
        start = found[-1] + 1 if found else 0
        alike = (i for i in range(start, len(arguments)) if arguments[i].shape == array.shape)
        place = next(alike, None)
        if place is None:
            return []
        found.append(place)
    return found


def _in_shardings(lowered: Any, info: CallInfo, places: Sequence[int]) -> list[Any]:
    """The shardings that the step gives its arrays; None where it gives none."""
    given = iter(lowering_details(lowered).in_shardings)
    by_leaf = [next(given, None) if leaf.used else None for leaf in info.arguments]
    return [by_leaf[place] for place in places]


def _shape(leaf: Any) -> Any:
    """An array by its shape, dtype and sharding; anything else as it is."""
    import jax

    if isinstance(leaf, jax.ShapeDtypeStruct) or not (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ):
        return leaf
    committed = isinstance(leaf, jax.Array) and getattr(leaf, "committed", True)
    sharding = leaf.sharding if committed else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _placed(leaves: list[Any], arrays: Sequence[int], shardings: Sequence[Any]) -> list[Any]:
    """The leaves; arrays without a sharding get the one that the step gives them."""
    import jax

    placed = list(leaves)
    for index, sharding in zip(arrays, shardings):
        leaf = leaves[index]
        if leaf.sharding is None and isinstance(sharding, jax.sharding.Sharding):
            placed[index] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return placed


def _donated(call: ShapedCall) -> set[int]:
    """The positions among the arrays that the step donates already."""
    return {i for i, leaf in enumerate(call.info.arguments) if leaf.donated}


def _lower(
    call: ShapedCall,
    fun: Callable[..., Any],
    shapes: Sequence[Any],
    donate: set[int],
    out_shardings: Any,
) -> Any:
    """A function lowered for the array leaves; it closes over the other leaves."""
    import jax

    def flat(*arrays: Any) -> Any:
        leaves = list(call.leaves)
        for index, array in zip(call.arrays, arrays):
            leaves[index] = array
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        return fun(*args, **kwargs)

    flat.__name__ = getattr(call.step, "__name__", "step")
    options: dict[str, Any] = {"donate_argnums": tuple(sorted(donate))}
    wanted: Any = jax.tree.structure(out_shardings, is_leaf=lambda leaf: leaf is None)
    if wanted == jax.tree.structure(jax.eval_shape(flat, *shapes)):
        options["out_shardings"] = out_shardings
    return jax.jit(flat, **options).lower(*shapes)


def _out_shardings(call: ShapedCall) -> Any:
    """The shardings of the step's outputs, in their tree; None for those that are not given."""
    import jax

    given = lowering_details(call.lowered).out_shardings
    known = [s if isinstance(s, jax.sharding.Sharding) else None for s in given]
    structure: Any = jax.tree.structure(call.lowered.out_info)
    return jax.tree.unflatten(structure, known) if structure.num_leaves == len(known) else None


# --- the changes ----------------------------------------------------------------------------------


def changed(
    call: ShapedCall,
    evidence: ProgramFacts | None,
    wanted: str,
    paths: tuple[str, ...],
    axis: str | None,
) -> tuple[str, Any]:
    """What was changed, and the changed program lowered (or why it could not be)."""
    makers: dict[str, Callable[[], tuple[str, Callable[[], Any]]]] = {
        "donation": lambda: _donation(call, evidence, paths),
        "half-batch": lambda: _half_batch(call, evidence),
        "bfloat16": lambda: _bfloat16(call, paths),
        "sharding": lambda: _sharding(call, evidence, paths, axis),
    }
    what, lower = makers[wanted]()
    return what, _attempt(lower)


def varied(call: ShapedCall, variant: Callable[..., Any]) -> tuple[str, Any]:
    """The user's variant, lowered by its own jit or with the step's donation and shardings."""
    import jax

    name = f"the variant {getattr(variant, '__name__', type(variant).__name__)}"
    if hasattr(variant, "lower"):
        args, kwargs = jax.tree.unflatten(call.tree, call.leaves)
        return name, _attempt(lambda: variant.lower(*args, **kwargs))
    donate = _donated(call)
    out = _out_shardings(call)
    return name, _attempt(lambda: _lower(call, variant, call.shapes, donate, out))


def _attempt(lower: Callable[[], Any]) -> Any:
    """The lowered program, or why it cannot be traced with the change."""
    try:
        return lower()
    except Exception as error:  # the user's code may not take other shapes or dtypes
        lines = str(error).splitlines() or [""]
        return Untraceable(f"{type(error).__name__}: {lines[0]}")


def _donation(
    call: ShapedCall, evidence: ProgramFacts | None, paths: tuple[str, ...]
) -> tuple[str, Callable[[], Any]]:
    """Donate the arguments that are returned updated."""
    pairs = undonated(evidence) if evidence is not None else []
    advised = {argument.leaf.path for argument, _ in pairs if argument.leaf is not None}
    chosen = (
        _chosen(call, paths)
        if paths
        else {i for i, leaf in enumerate(call.info.arguments) if leaf.path in advised}
    )
    if not chosen:
        if paths:
            raise NothingToChange(f"no argument has a path that starts with {' or '.join(paths)}")
        raise NothingToChange("nothing to donate: no undonated argument is returned updated")
    shapes, donate, out = call.shapes, _donated(call) | chosen, _out_shardings(call)
    return f"donating {_names(call, chosen)}", lambda: _lower(call, call.step, shapes, donate, out)


def _half_batch(call: ShapedCall, evidence: ProgramFacts | None) -> tuple[str, Callable[[], Any]]:
    """Halve the first dimension of the arguments that hold the batch."""
    import jax

    arguments: tuple[Argument, ...] = evidence.batch.arguments if evidence is not None else ()
    advised = {argument.leaf.path for argument in arguments if argument.leaf is not None}
    chosen = {i for i, leaf in enumerate(call.info.arguments) if leaf.path in advised}
    if not chosen:
        raise NothingToChange("no argument has an identifiable batch dimension")
    shapes = call.shapes
    for i in chosen:
        old = shapes[i]
        halved = (max(1, old.shape[0] // 2), *old.shape[1:])
        shapes[i] = jax.ShapeDtypeStruct(halved, old.dtype, sharding=old.sharding)
    donate, out = _donated(call), _out_shardings(call)
    return f"halving the batch of {_names(call, chosen)}", lambda: _lower(
        call, call.step, shapes, donate, out
    )


def _bfloat16(call: ShapedCall, paths: tuple[str, ...]) -> tuple[str, Callable[[], Any]]:
    """Replace wider float arguments by bfloat16."""
    import jax
    import jax.numpy as jnp

    shapes = call.shapes
    among = _chosen(call, paths) if paths else set(range(len(shapes)))
    wide = {
        i
        for i in among
        if jnp.issubdtype(shapes[i].dtype, jnp.floating) and shapes[i].dtype.itemsize > 2
    }
    if not wide:
        raise NothingToChange("no argument is a float wider than bfloat16")
    for i in wide:
        old = shapes[i]
        shapes[i] = jax.ShapeDtypeStruct(old.shape, jnp.bfloat16, sharding=old.sharding)
    donate, out = _donated(call), _out_shardings(call)
    return f"casting {_names(call, wide)} to bfloat16", lambda: _lower(
        call, call.step, shapes, donate, out
    )


def _sharding(
    call: ShapedCall, evidence: ProgramFacts | None, paths: tuple[str, ...], axis: str | None
) -> tuple[str, Callable[[], Any]]:
    """Shard replicated arguments, and their updated outputs, over one axis of the mesh."""
    import jax

    mesh = next((m for s in call.shapes if (m := getattr(s.sharding, "mesh", None))), None)
    sizes = dict(mesh.shape) if mesh is not None else {}
    over = axis or max(sizes, key=lambda name: sizes[name], default="")
    if mesh is None or over not in sizes:
        raise NothingToChange(f"no argument is on a mesh with an axis named {over!r}")
    whole = {
        a.leaf.path
        for a in (evidence.arguments if evidence is not None else ())
        if a.leaf is not None and is_replicated(a.sharding, len(a.dims))
    }
    among = (
        _chosen(call, paths)
        if paths
        else {i for i, leaf in enumerate(call.info.arguments) if leaf.path in whole}
    )
    shapes, moved = call.shapes, {}
    for i in among:
        spec = _spread(shapes[i].shape, over, sizes[over])
        if spec is not None:
            sharding = jax.sharding.NamedSharding(mesh, spec)
            moved[i] = sharding
            shapes[i] = jax.ShapeDtypeStruct(shapes[i].shape, shapes[i].dtype, sharding=sharding)
    if not moved:
        raise NothingToChange(f"no replicated argument has a dimension that {over!r} divides")
    alike = {(shapes[i].shape, shapes[i].dtype): sharding for i, sharding in moved.items()}
    out = _out_shardings(call)
    if out is not None:
        out = jax.tree.map(
            lambda info, given: alike.get((tuple(info.shape), info.dtype), given),
            call.lowered.out_info,
            out,
            is_leaf=lambda leaf: leaf is None,
        )
    fun, donate = _unjitted(call.step), _donated(call)
    return f"sharding {_names(call, set(moved))} over {over!r}", lambda: _lower(
        call, fun, shapes, donate, out
    )


def _spread(shape: tuple[int, ...], axis: str, parts: int) -> Any:
    """A PartitionSpec of the largest dimension that the axis divides; None where there is none."""
    from jax.sharding import PartitionSpec

    fitting = [length for length in shape if length % parts == 0 and length >= parts]
    if not fitting:
        return None
    dimension = shape.index(max(fitting))
    return PartitionSpec(*[axis if i == dimension else None for i in range(len(shape))])


def _unjitted(step: Any) -> Callable[..., Any]:
    """The plain function in a jitted one, without its out_shardings."""
    found: Callable[..., Any] = inspect.unwrap(step)
    return found


def _chosen(call: ShapedCall, paths: tuple[str, ...]) -> set[int]:
    """The positions of the leaves whose paths begin with one of these."""
    return {i for i, leaf in enumerate(call.info.arguments) if leaf.path.startswith(paths)}


def _names(call: ShapedCall, chosen: set[int]) -> str:
    """The paths of a few leaves, and how many more."""
    paths = [call.info.arguments[i].path for i in sorted(chosen)]
    more = len(paths) - 2
    return ", ".join(paths[:2]) + (f" and {more} more" if more > 0 else "")
