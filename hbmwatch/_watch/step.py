"""From a function to a watched function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax

from hbmwatch._explain.failure import FailedCall, Settings
from hbmwatch._jax.compiles import since_lowering
from hbmwatch._watch.guard import CompileHistory, wrap_call
from hbmwatch._watch.jitted import function_name, holds_jitted, is_traced, lower_of
from hbmwatch._watch.stages import Lowered, Traced, explaining, watched_stage
from hbmwatch._watch.switch import is_disabled


def watch_function(
    fun: Callable[..., Any], settings: Settings, jit: bool, jit_kwargs: Mapping[str, Any]
) -> Any:
    """The function watched, and jitted where it is not yet; watch_hbm has the arguments.

    Raises:
        TypeError: The function cannot be watched, or the keywords of jit would have no effect.
    """
    name = getattr(fun, "__name__", type(fun).__name__)
    if not callable(fun):
        raise TypeError(f"watch_hbm takes a function or a folder, not {type(fun).__name__}")
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(is_kind(fun) for is_kind in kinds):
        raise TypeError(
            f"{name} is a generator or coroutine function, and calling it only starts it; "
            "use `with watch_hbm():` inside its body instead"
        )
    unchanged = not jit or holds_jitted(fun)
    if unchanged and jit_kwargs:
        reason = "is already jitted" if jit else "is not jitted with jit=False"
        raise TypeError(f"{name} {reason}, so {quoted(jit_kwargs)} would have no effect")
    target = fun if unchanged else jax.jit(fun, **jit_kwargs)
    return target if is_disabled() else _watched(fun, target, settings)


def quoted(names: Iterable[str]) -> str:
    """Names of keywords, for an error."""
    return ", ".join(repr(name) for name in sorted(names))


def _watched(fun: Callable[..., Any], target: Any, settings: Settings) -> Any:
    """The watched function, with the attributes of the jitted one."""
    name = function_name(fun)
    lower = lower_of(target)
    watched = wrap_call(target, functools.partial(_failed_call, name, target, lower), settings)
    functools.update_wrapper(watched, target)
    watched.__name__, watched.__wrapped__ = name, fun
    known = FailedCall(name, target)
    if hasattr(target, "trace"):
        watched.trace = watched_stage(target.trace, Traced, known, settings)
    if lower is not None:
        watched.lower = watched_stage(lower, Lowered, known, settings)
    if hasattr(target, "eval_shape"):
        watched.eval_shape = explaining(target.eval_shape, settings)
    if hasattr(target, "clear_cache"):
        watched.clear_cache = target.clear_cache
    watched.watched_alike = functools.partial(_watched, fun, settings=settings)
    return watched


def _failed_call(
    name: str,
    target: Any,
    lower: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: Any,
    history: CompileHistory,
) -> FailedCall:
    """What is known of a failed call of a function that JAX compiles when it is called."""
    jitted = holds_jitted(target) and not getattr(jax.config, "jax_disable_jit", False)
    known = FailedCall(
        name,
        target,
        jitted,
        args=args,
        kwargs=kwargs,
        outputs=outputs,
        compile_seconds=history.seconds,
        since_lowering_seconds=since_lowering(),
        previous=tuple(history.shapes),
    )
    if isinstance(target, jax.stages.Compiled):
        return replace(known, compile=lambda _: target)
    if lower is None or not jitted or is_traced(args, kwargs):
        return known
    lower = functools.partial(lower, *args, **kwargs)
    return replace(known, lower=lower, compile=lambda lowered: lowered.compile())
