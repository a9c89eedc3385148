"""The decorator and the context manager."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    overload,
)

import jax

from hbmwatch._explain.failure import Capture, FailedCall, Settings, Sync
from hbmwatch._explain.raising import raise_explained
from hbmwatch._jax.compiles import since_lowering
from hbmwatch._watch.guard import CompileHistory, guarded
from hbmwatch._watch.stages import Lowered, Traced, watched_stage

if TYPE_CHECKING:
    from hbmwatch._report.report import OomReport

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
Logdir = str | os.PathLike[str]
# As of a bucket; pathlib makes one slash of two, and drives of Windows have one letter.
_ADDRESS = re.compile(r"[a-z][a-z0-9]+:/")


class Watched(Protocol[P, R]):
    """A watched function: called like the bare one, and a jax.stages.Wrapped unless jit=False."""

    __name__: str
    __wrapped__: Callable[..., Any]
    lower: Callable[..., jax.stages.Lowered]
    trace: Callable[..., jax.stages.Traced]
    eval_shape: Callable[..., Any]
    clear_cache: Callable[[], None]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Watched[P, R]: ...

    @overload
    def __get__(
        self: Watched[Concatenate[Any, Q], S], instance: object, owner: type | None = None
    ) -> Callable[Q, S]: ...


class WatchContext:
    """What `watch_hbm(...)` without a function gives: a decorator and a context manager.

    Attributes:
        report: The last report of a `with` block; None as long as nothing has failed in one.
    """

    def __init__(self, settings: Settings, jit: bool, jit_kwargs: Mapping[str, Any]) -> None:
        self.report: OomReport | None = None
        self._disabled = False
        self._settings = settings
        self._jit = jit
        self._jit_kwargs = jit_kwargs

    def __call__(self, fun: Callable[P, R], /) -> Watched[P, R]:
        watched: Watched[P, R] = _decorate(fun, self._settings, self._jit, self._jit_kwargs)
        return watched

    def __enter__(self) -> WatchContext:
        if self._jit_kwargs:
            raise TypeError(f"a `with` block takes no jit keywords: {_listed(self._jit_kwargs)}")
        self._disabled = _disabled()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception) or self._disabled:
            return
        settings = replace(self._settings, on_oom=self._remember)
        report = raise_explained(error, FailedCall, settings)
        self.report = self.report if report is None else report

    def _remember(self, report: OomReport) -> None:
        """Keep the report before HbmOomError is raised, and pass it on."""
        self.report = report
        if self._settings.on_oom is not None:
            self._settings.on_oom(report)


@overload
def watch_hbm(
    fun: Callable[P, R],
    /,
    *,
    logdir: Logdir | None = None,
    capture: Capture = "on_oom",
    sync: Sync = "compile",
    jit: bool = True,
    top: int = 10,
    on_oom: Callable[[OomReport], object] | None = None,
    **jit_kwargs: Any,
) -> Watched[P, R]: ...


@overload
def watch_hbm(
    fun: Logdir | None = None,
    /,
    *,
    logdir: Logdir | None = None,
    capture: Capture = "on_oom",
    sync: Sync = "compile",
    jit: bool = True,
    top: int = 10,
    on_oom: Callable[[OomReport], object] | None = None,
    **jit_kwargs: Any,
) -> WatchContext: ...


def watch_hbm(
    fun: Callable[..., Any] | Logdir | None = None,
    /,
    *,
    logdir: Logdir | None = None,
    capture: Capture = "on_oom",
    sync: Sync = "compile",
    jit: bool = True,
    top: int = 10,
    on_oom: Callable[[OomReport], object] | None = None,
    **jit_kwargs: Any,
) -> Any:
    """Watch a step for device memory: when it runs out, HbmOomError says what filled it.

    As `@watch_hbm`, `@watch_hbm(donate_argnums=0)`, `@watch_hbm("/tmp/xprof")`, `watch_hbm(fun)`,
    and as `with watch_hbm("/tmp/xprof") as watch:` around any code (`watch.report` is the last
    report). A plain function is jitted with `jit_kwargs`; one that is jitted already, however
    wrapped, is watched as it is. A call that succeeds costs what a bare try/except costs.

    Args:
        fun: The step; or the folder for profiles, as in jax.profiler.trace(folder); or None.
        logdir: The folder in which the profile of a failing program is kept, for
            `xprof --logdir`. None, and an address as of a bucket: a folder under the system's
            temporary folder, made on failure, of which the last 8 profiles are kept.
        capture: "on_oom" costs nothing before the failure. "always" puts jax.profiler.trace around
            every call, for a timeline as well. "never" reports from the error's text alone.
        sync: When to wait for the outputs, so that an asynchronous failure appears in the call:
            "compile": the first call, each that compiled something, and each after a failure until
            one has succeeded; "always"; "never".
        jit: False watches any callable as it is, such as a host step that calls jitted functions.
        top: How many buffers the report's text shows.
        on_oom: Called with the OomReport before HbmOomError is raised.
        **jit_kwargs: Keywords of jax.jit.

    Returns:
        The watched function, with `lower`, `trace`, `eval_shape` and `clear_cache` where the
        jitted function has them; or, without a function, a decorator that is a context manager.

    Raises:
        TypeError: A keyword that jax.jit does not have; jit keywords for a function that is jitted
            already or with jit=False; a generator or coroutine function; a `top` that is no int.
        ValueError: An unknown `capture` or `sync`, a negative `top`, or a HBMWATCH_DISABLE that is
            no boolean.
    """
    if isinstance(fun, (str, os.PathLike)):
        if logdir is not None:
            raise TypeError("watch_hbm got the folder for profiles twice")
        fun, logdir = None, fun
    _check_choice("capture", capture, Capture)
    _check_choice("sync", sync, Sync)
    if operator.index(top) < 0:
        raise ValueError(f"top={top}: the report cannot show fewer than 0 buffers")
    unknown = jit_kwargs.keys() - inspect.signature(jax.jit).parameters.keys()
    if unknown:
        raise TypeError(f"neither watch_hbm nor jax.jit has a keyword {_listed(unknown)}")
    folder = None if logdir is None else os.fsdecode(logdir)
    if folder is not None and _ADDRESS.match(folder):
        warnings.warn(f"profiles are kept on this host, not in {folder!r}", stacklevel=2)
        folder = None
    settings = Settings(folder, capture, sync, top, on_oom)
    if fun is None:
        return WatchContext(settings, jit, jit_kwargs)
    return _decorate(fun, settings, jit, jit_kwargs)


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(get_args(choices))}")


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def _disabled() -> bool:
    """Whether HBMWATCH_DISABLE is set; strictly parsed, so that a typo does not go unseen."""
    value = os.environ.get("HBMWATCH_DISABLE", "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise ValueError(f"HBMWATCH_DISABLE={value!r} is neither true nor false: use 1 or 0")


def _decorate(
    fun: Callable[..., Any], settings: Settings, jit: bool, jit_kwargs: Mapping[str, Any]
) -> Any:
    name = getattr(fun, "__name__", type(fun).__name__)
    if not callable(fun):
        raise TypeError(f"watch_hbm takes a function or a folder, not {type(fun).__name__}")
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(is_kind(fun) for is_kind in kinds):
        raise TypeError(
            f"{name} is a generator or coroutine function, whose call only starts it; "
            "put `with watch_hbm():` into its body instead"
        )
    as_it_is = not jit or _holds_jitted(fun)
    if as_it_is and jit_kwargs:
        why = "is jitted already" if jit else "is not jitted with jit=False"
        raise TypeError(f"{name} {why}: {_listed(jit_kwargs)} would be without effect")
    target = fun if as_it_is else jax.jit(fun, **jit_kwargs)
    return target if _disabled() else _watched(fun, target, settings)


def _holds_jitted(fun: Any) -> bool:
    """Whether the callable, or one that it wraps, is jitted; jitted again it loses its donation.

    A transformation of a jitted function, such as its gradient, is not: that is to be jitted.
    """
    seen: set[int] = set()
    while fun is not None and id(fun) not in seen:
        seen.add(id(fun))
        if callable(getattr(fun, "lower", None)) or isinstance(fun, jax.stages.Compiled):
            return True
        if _module_of(fun).partition(".")[0] in ("jax", "equinox", "flax"):
            return False
        fun = getattr(fun, "__wrapped__", None) or getattr(fun, "func", None)
    return False


def _module_of(fun: Any) -> str:
    """Where a function was written, though it took its module's name from what it wraps."""
    written: str = getattr(fun, "__globals__", {}).get("__name__") or type(fun).__module__
    return written


def _watched(fun: Callable[..., Any], target: Any, settings: Settings) -> Any:
    """The watched function, with the attributes of the jitted one."""
    name = _name(fun)
    lower = _lower_of(target)
    watched = guarded(target, functools.partial(_call_failure, name, target, lower), settings)
    functools.update_wrapper(watched, target)
    watched.__name__, watched.__wrapped__ = name, fun
    known = FailedCall(name, target)
    if hasattr(target, "trace"):
        watched.trace = watched_stage(target.trace, Traced, known, settings)
    if lower is not None:
        watched.lower = watched_stage(lower, Lowered, known, settings)
    for attribute in ("eval_shape", "clear_cache"):
        if hasattr(target, attribute):
            setattr(watched, attribute, getattr(target, attribute))
    return watched


def _name(fun: Any) -> str:
    """The function's name, of a partial the inner one's, of another callable its class's."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    is_compiled = isinstance(fun, jax.stages.Compiled)
    return getattr(fun, "__name__", "") or ("" if is_compiled else type(fun).__name__)


def _lower_of(target: Any) -> Callable[..., Any] | None:
    """What lowers the program that a call of `target` runs; None where that is not known.

    Of a partial, and of jax.profiler.trace(folder)(jitted), it is the inner function's: what other
    wrappers do with their arguments is not known.
    """
    if callable(getattr(target, "lower", None)):
        return cast(Callable[..., Any], target.lower)
    if isinstance(target, functools.partial):
        inner = _lower_of(target.func)
        return inner and functools.partial(inner, *target.args, **target.keywords)
    if _module_of(target) == "contextlib":
        return _lower_of(getattr(target, "__wrapped__", None))
    return None


def _call_failure(
    name: str,
    target: Any,
    lower: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: Any,
    history: CompileHistory,
) -> FailedCall:
    """What is known of a failed call of a function that JAX compiles when it is called."""
    jitted = _holds_jitted(target) and not getattr(jax.config, "jax_disable_jit", False)
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
    if lower is None or not jitted or _is_traced(args, kwargs):
        return known
    lower = functools.partial(lower, *args, **kwargs)
    return replace(known, lower=lower, compile=lambda lowered: lowered.compile())


def _is_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a transformation is tracing the call, so that its program is another one's part."""
    leaves = jax.tree_util.tree_leaves((args, kwargs))
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
