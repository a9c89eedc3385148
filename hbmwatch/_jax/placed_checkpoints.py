"""Places jax.checkpoint in a step without a change of the user's code.

All reverse differentiation of JAX goes through `ad.linearize` when it is called: that of grad, vjp,
linearize, jacrev and hessian, however they were imported, and that of equinox and flax. There the
forward pass is traced to a jaxpr, in which the equations of each call of a function become one
equation of jax.checkpoint, and the result is differentiated. Forward mode (jvp, jacfwd) keeps
nothing for a backward pass and is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import jax
from jax._src import linear_util
from jax._src.interpreters import ad
from jax.extend.core import jaxpr_as_fun

from hbmwatch._jax.calls import Function, recorded
from hbmwatch._jax.checkpointing import checkpointed
from hbmwatch._jax.forward import SCAN_BODY, Body, forward
from hbmwatch._jax.intercept import replaced
from hbmwatch._jax.request import lower_for, lower_of
from hbmwatch._jax.residuals import Effect, Estimate
from hbmwatch._jax.trace_keys import TraceKey

# `ad.linearize` is private, and `linear_util` is how jax 0.6.2 hands it a function.

_MOST = 8
# A place that saves less than this share of what is kept is not worth a compile.
_LEAST_SHARE = 0.03
_SAME_SHARE = 0.02
# Groups compute most of the forward pass once more, so they must free this share of what is left.
_LEAST_GAIN_OF_GROUPS = 0.05
_LEAST_NESTED = 9


@dataclass(frozen=True, slots=True)
class Placement:
    """A place for jax.checkpoint.

    Attributes:
        name: "Block.__call__", or "the body of the scan".
        where: "model.py:40", where the function is defined; of a scan the line that scans.
        calls: How often it is called in one forward pass, steps of scans counted.
        group: How many calls in a row are in one more checkpoint; 1 places none.
        each: Whether each call gets one; False where the user has placed it already.
        saves_bytes: By how much it lowers the memory between forward and backward pass: an
            estimate from shapes, to rank places.
        function: The function, by its file and line.
    """

    name: str
    where: str
    calls: int
    group: int
    each: bool
    saves_bytes: int
    function: Function

    @property
    def what(self) -> str:
        """What is changed, in a few words."""
        what = f"{self.name}, {self.where}"
        if not self.each:
            return f"jax.checkpoint around each {self.group} in a row of {what}"
        groups = f" and around each {self.group} in a row" if self.group > 1 else ""
        return f"jax.checkpoint around {what}{groups}"

    @property
    def code(self) -> str:
        """What to write, in words."""
        name = self.name if self.name == SCAN_BODY else f"`{self.name}`"
        runs = "which runs" if self.name == SCAN_BODY else "called"
        if not self.each:
            return (
                f"wrap each {self.group} calls in a row of {name}, {self.where}, {runs} "
                f"{self.calls} times, in one more jax.checkpoint"
            )
        text = f"wrap {name}, {self.where}, {runs} {self.calls} times, in jax.checkpoint"
        if self.group == 1:
            return text
        return f"{text}, and each {self.group} of them in a row in one more jax.checkpoint"


def candidates(step: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Placement]:
    """The places for jax.checkpoint in a step, the one that saves most first.

    The step is traced for these arguments and is not run. A function that is called once has no
    place of its own: to compute the whole forward pass again saves nothing.

    Args:
        step: A function, jitted or not, or whatever has `.lower`.
        args: Its arguments, as arrays or jax.ShapeDtypeStructs.
        kwargs: Its keyword arguments.
    """
    estimates: list[Estimate] = []

    def look(body: Body) -> Any:
        estimates.append(Estimate(body))
        return body.closed

    with _differentiated(look, TraceKey()):
        _trace(step, args, kwargs)
    return _ranked(estimates)


def placed(step: Callable[..., Any], placement: Placement) -> Placed:
    """The step with jax.checkpoint at a place: whatever it differentiates has it.

    It takes what the step takes and gives what the step gives, with the same jit, donation and
    static arguments.
    """
    return Placed(step, placement)


class Placed:
    """A step with jax.checkpoint at a place. It can be called, traced and lowered as the step."""

    def __init__(self, step: Callable[..., Any], placement: Placement) -> None:
        self._step = step
        self._placement = placement
        self._key = TraceKey()
        self._made: list[Placement] = []  # one list for the function inside of a jit, too
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the step returns."""
        return self._under(self._step)(*args, **kwargs)

    @property
    def is_made(self) -> bool:
        """Whether the place was found in what a trace of the step differentiated."""
        return bool(self._made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__wrapped__"):
            raise AttributeError(name)
        found = lower_of(self._step) if name == "lower" else getattr(self._step, name)
        if name == "__wrapped__":
            inner = Placed(found, self._placement)
            inner._made = self._made
            return inner
        return self._under(found) if name in ("lower", "trace", "eval_shape") else found

    def __reduce__(self) -> tuple[Any, ...]:
        return placed, (self._step, self._placement)

    def _under(self, function: Callable[..., Any]) -> Callable[..., Any]:
        placement = self._placement

        def change(body: Body) -> Any:
            new = checkpointed(body, placement.function, placement.group, placement.each)
            if new is not body.closed:
                self._made.append(placement)
            return new

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _differentiated(change, self._key):
                return function(*args, **kwargs)

        return called


@contextlib.contextmanager
def _differentiated(change: Callable[[Body], Any], key: TraceKey) -> Iterator[None]:
    """In the body, what this thread differentiates is changed first."""
    inside = False

    def linearize(real: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:  # the derivative of a derivative is part of the outer forward pass
            return real(function, *args, **kwargs)
        inside = True
        try:
            return real(_changed(function, change), *args, **kwargs)
        finally:
            inside = False

    with replaced(ad, "linearize", linearize), key.active():
        yield


def _changed(function: Any, change: Callable[[Body], Any]) -> Any:
    """The function that is differentiated, as JAX passes it, with the change."""
    if isinstance(function, linear_util.WrappedFun):
        new = functools.partial(_run, function.call_wrapped, change)
        return linear_util.wrap_init(new, debug_info=function.debug_info)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return _run(function, change, *args, **kwargs)

    return called


def _run(
    function: Callable[..., Any], change: Callable[[Body], Any], *args: Any, **kwargs: Any
) -> Any:
    """The function's outputs, from its changed jaxpr."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]
    outputs: list[Any] = []
    out_tree: Any = None

    def flat(*values: Any) -> list[Any]:
        nonlocal out_tree, outputs
        all_leaves = list(leaves)
        for index, value in zip(traced, values):
            all_leaves[index] = value
        given, named = jax.tree.unflatten(tree, all_leaves)
        outputs, out_tree = jax.tree.flatten(function(*given, **named))
        recording.forget_frames()
        arrays = [output for output in outputs if isinstance(output, jax.Array)]
        outputs = [None if isinstance(output, jax.Array) else (output,) for output in outputs]
        return arrays

    with recorded() as recording:
        depth = len(recording.now().calls)
        closed = jax.make_jaxpr(flat)(*(leaves[index] for index in traced))
    new = change(forward(closed, recording, depth))
    arrays = iter(jaxpr_as_fun(new)(*(leaves[index] for index in traced)))
    return jax.tree.unflatten(
        out_tree, [next(arrays) if other is None else other[0] for other in outputs]
    )


def _trace(step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Trace the step, by the shortest way that it has."""
    if callable(getattr(step, "trace", None)):
        step.trace(*args, **kwargs)  # type: ignore[attr-defined]
    else:
        lower_for(step, args, kwargs, None)


def _ranked(estimates: list[Estimate]) -> list[Placement]:
    """The places of all forward passes of a step: the user's functions first, then libraries'."""
    total = sum(estimate.total for estimate in estimates)
    found: list[list[Placement]] = []
    for function, effect in _effects(estimates):
        others = [place for places in found for place in places]
        places = []
        one = _placement(function, effect)
        if effect.saves > _LEAST_SHARE * total:
            if any(_is_same(one, other) for other in others):
                continue
            places.append(one)
        # Groups of a part of each layer keep no less than groups of whole layers.
        of_layers = any(place.group > 1 and place.calls == effect.calls for place in others)
        gain = effect.nested() - max(effect.saves, 0)
        left = total - max(effect.saves, 0)
        group = 1 if of_layers else _group_of(effect.in_a_row)
        if group > 1 and gain > _LEAST_GAIN_OF_GROUPS * left:
            places.append(_placement(function, effect, group, each=bool(places)))
        found += [places] if places else []
    found.sort(key=lambda places: (not places[0].function.is_users, -places[0].saves_bytes))
    return [place for places in found for place in places][:_MOST]


def _effects(estimates: list[Estimate]) -> list[tuple[Function, Effect]]:
    """What a checkpoint of each function does; scans come last, after what they run."""
    merged: dict[Function, Effect] = {}
    for estimate in estimates:
        for function, effect in estimate.effects.items():
            old = merged.get(function)
            merged[function] = effect if old is None else old.with_another(effect)
    kept = [one for one in merged.items() if one[0].is_users or _is_public(one[0])]
    return sorted(kept, key=lambda one: (not one[0].is_users, one[0].name == SCAN_BODY))


def _group_of(calls: int) -> int:
    """The size of groups that keeps the fewest inputs; 1 where groups save next to nothing."""
    fitting = [n for n in range(2, calls) if calls % n == 0 and calls >= _LEAST_NESTED]
    return min(fitting, key=lambda n: n + calls // n, default=1)


def _placement(function: Function, effect: Effect, group: int = 1, each: bool = True) -> Placement:
    return Placement(
        name=function.name,
        where=f"{PurePath(function.file).name}:{function.line}",
        calls=effect.calls,
        group=group,
        each=each,
        saves_bytes=effect.saves if group == 1 else effect.nested(),
        function=function,
    )


def _is_same(one: Placement, other: Placement) -> bool:
    """Whether two places of as many calls save the same, such as a function and its only callee."""
    near = abs(one.saves_bytes - other.saves_bytes) <= _SAME_SHARE * other.saves_bytes
    return near and one.calls == other.calls


def _is_public(function: Function) -> bool:
    """Whether a function of a library is one that a user can wrap, and no wrapper of it."""
    names = [name for name in function.name.split(".") if name != "__call__"]
    return not any(name.startswith("_") or "wrap" in name for name in names)
