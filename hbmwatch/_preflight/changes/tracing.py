"""From a step of the user and its arguments to a call that changes are made to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding

from hbmwatch._jax.jit_options import JitOptions, jit_options
from hbmwatch._jax.lowered import CallInfo, call_info
from hbmwatch._jax.lowering import closed_over, lowering_details
from hbmwatch._jax.request import lowerable, traced_for
from hbmwatch._jax.user_paths import user_call_info
from hbmwatch._preflight.changes.call import Call, Leaf, NothingToChange, shape_of, typed


def call_of(
    step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], platform: str | None
) -> Call:
    """The call of a step, traced and lowered for a platform.

    Args:
        step: A function, jitted or not, watched or not, or what has `.lower`.
        args: Its positional arguments, as arrays or jax.ShapeDtypeStructs.
        kwargs: Its keyword arguments.
        platform: "tpu", "cuda", "cpu"; None: that of the arrays' devices.

    Raises:
        TypeError: JAX gives no jaxpr of the step's program.
    """
    step, args, kwargs = lowerable(step, args, kwargs)
    args, kwargs = jax.tree.map(shape_of, (args, dict(kwargs)))
    traced, lowered = traced_for(step, args, kwargs, platform)
    if traced is None:
        raise TypeError("the step is not compiled by jax.jit, so there is no jaxpr to change")
    options = jit_options(step)
    details = lowering_details(lowered)
    constants = closed_over(traced)
    avals = tuple(traced.jaxpr.in_avals)[len(constants) :]
    shardings = () if constants else details.in_shardings
    return Call(
        name=str(traced.fun_name),
        jaxpr=traced.jaxpr,
        arguments=_arguments(avals, user_call_info(lowered, step, args, kwargs), shardings),
        outputs=_outputs(traced, lowered, details.out_shardings),
        out_tree=jax.tree.structure(traced.out_info),
        platform=platform,
        devices=details.devices,
        compiler_options=options.compiler_options if options is not None else {},
        constants=constants,
        given=_Given(step, args, kwargs, platform, options, avals),
        lowered=None if constants else lowered,
    )


def _arguments(avals: Sequence[Any], call: CallInfo, shardings: Sequence[Any]) -> tuple[Leaf, ...]:
    """The flat arguments; the shardings are those of the arguments that the program takes."""
    infos, given = call.arguments, iter(shardings)
    by_leaf = [next(given, None) if info.used else None for info in infos]
    return tuple(
        Leaf(
            info.path,
            typed(aval, _known(sharding)),
            info.donated,
            user_path=info.user_path,
            positional=info.positional,
        )
        for info, aval, sharding in zip(infos, avals, by_leaf, strict=True)
    )


def _outputs(traced: Any, lowered: Any, shardings: Sequence[Any]) -> tuple[Leaf, ...]:
    avals = traced.jaxpr.out_avals
    paths = [info.path for info in call_info(lowered).outputs]
    paths = paths if len(paths) == len(avals) else [f"result[{i}]" for i in range(len(avals))]
    given = list(shardings) if len(shardings) == len(avals) else [None] * len(avals)
    return tuple(
        Leaf(path, typed(aval, _known(sharding)))
        for path, aval, sharding in zip(paths, avals, given, strict=True)
    )


def _known(sharding: Any) -> Any:
    """A sharding that the user gave; None for one that XLA chooses."""
    return sharding if isinstance(sharding, (NamedSharding, SingleDeviceSharding)) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """The user's step and arguments; `options` is None if another library jits the step."""

    step: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    platform: str | None
    options: JitOptions | None
    avals: tuple[Any, ...]
    memo: dict[str, Any] = field(default_factory=dict)

    def retraced(self, shapes: Sequence[jax.ShapeDtypeStruct]) -> Call:
        options = self.options or JitOptions()
        leaves, tree = jax.tree.flatten(options.dynamic(self.args, self.kwargs))
        for place, shape in zip(self._places(leaves), shapes, strict=True):
            # A number stays a number: the step may choose a branch by it.
            leaves[place] = shape if hasattr(leaves[place], "shape") else leaves[place]
        new = jax.tree.unflatten(tree, leaves)
        args, kwargs = options.filled(self.args, self.kwargs, new)
        return call_of(self.step, args, kwargs, self.platform)

    def _places(self, leaves: Sequence[Any]) -> list[int]:
        """Which of the user's leaves are the arguments of the program."""
        places = list(range(len(leaves)))
        if self.options is None:  # the other library takes the arrays, and keeps the rest
            places = [i for i in places if hasattr(leaves[i], "shape")]
        shapes = [tuple(getattr(leaves[i], "shape", ())) for i in places]
        if shapes != [tuple(aval.shape) for aval in self.avals]:
            raise NothingToChange("the step cannot be traced again with other arguments")
        return places

    def varied(self, variant: Callable[..., Any]) -> Call:
        if hasattr(variant, "lower"):
            return call_of(variant, self.args, self.kwargs, self.platform)
        options = self.options or JitOptions()
        numbers, named = options.static_argnums, options.static_argnames
        jitted = jax.jit(variant, static_argnums=numbers, static_argnames=named)
        return call_of(jitted, self.args, self.kwargs, self.platform)


def varied(call: Call, variant: Callable[..., Any]) -> Call:
    """The call of a variant of the step.

    A jitted variant keeps its own options; any other gets the donation and the shardings of the
    step.
    """
    if call.given is None:
        raise NothingToChange(
            "an earlier change rewrote the program, so a variant cannot replace the step"
        )
    new = call.given.varied(variant)
    if hasattr(variant, "lower") or len(new.arguments) != len(call.arguments):
        return new
    arguments = tuple(
        dataclasses.replace(own, shape=typed(own.shape, old.sharding), donated=old.donated)
        for own, old in zip(new.arguments, call.arguments, strict=True)
    )
    outputs = new.outputs
    if new.out_tree == call.out_tree:
        outputs = tuple(
            dataclasses.replace(own, shape=typed(own.shape, old.sharding))
            for own, old in zip(new.outputs, call.outputs, strict=True)
        )
    return new.changed(arguments=arguments, outputs=outputs)
