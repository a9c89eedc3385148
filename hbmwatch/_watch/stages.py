"""The stages of ahead-of-time compilation, watched."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hbmwatch._explain.failure import FailedCall, Settings
from hbmwatch._explain.raising import hide_own_frames, raise_explained
from hbmwatch._watch.guard import CompileHistory, wrap_call
from hbmwatch._watch.proving import shapes_of


class Stage:
    """A stage of ahead-of-time compilation that stands in for JAX's own object.

    These few methods are all that a stage needs, so they do not justify a dependency on
    wrapt.ObjectProxy.
    """

    __slots__ = ("_known", "_settings", "_stage")

    def __init__(self, stage: Any, known: FailedCall, settings: Settings) -> None:
        self._stage = stage
        self._known = known
        self._settings = settings

    @property  # type: ignore[misc]  # isinstance() asks for it
    def __class__(self) -> type:
        return type(self._stage)

    def __getattr__(self, name: str) -> Any:
        if name in Stage.__slots__:  # a copy asks before they are set
            raise AttributeError(name)
        return getattr(self._stage, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stage, self._known, self._settings)

    def __repr__(self) -> str:
        return repr(self._stage)


class Traced(Stage):
    """A watched jax.stages.Traced."""

    __slots__ = ()

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower the traced function, as jax.stages.Traced.lower does; the result is watched."""
        lower = explaining(self._stage.lower, self._settings)
        return Lowered(lower(*args, **kwargs), self._known, self._settings)


class Lowered(Stage):
    """A watched jax.stages.Lowered."""

    __slots__ = ()

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Compile the program, as jax.stages.Lowered.compile does; the result is watched.

        Raises:
            HbmOomError: The compiler says that the program does not fit on the device.
        """
        start = time.perf_counter()
        options = args[0] if args else kwargs.get("compiler_options")
        known = replace(self._known, lower=lambda: self._stage, compiler_options=options or {})
        try:
            compiled = self._stage.compile(*args, **kwargs)
        except Exception as error:
            __tracebackhide__ = __traceback_hide__ = _rich_traceback_omit = True
            known = replace(known, compile_seconds=time.perf_counter() - start)
            try:
                raise_explained(error, lambda: known, self._settings)
            except Exception as explained:
                with contextlib.suppress(Exception):
                    hide_own_frames(explained)
                raise
            raise
        seconds = time.perf_counter() - start
        known = replace(known, compile=lambda _: compiled, compile_seconds=seconds)
        return Compiled(compiled, known, self._settings)


class Compiled(Stage):
    """A watched jax.stages.Compiled; calling it runs the program."""

    # As a slot, __call__ is each object's own closure: no method of ours stands before it.
    __slots__ = ("__call__",)

    def __init__(self, stage: Any, known: FailedCall, settings: Settings) -> None:
        super().__init__(stage, known, settings)

        def failed_call(
            args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any, history: CompileHistory
        ) -> FailedCall:
            return replace(known, args=args, kwargs=kwargs, outputs=outputs)

        self.__call__ = wrap_call(stage, failed_call, settings)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function, for inspect."""
        return inspect.signature(self._stage)


def watched_stage(
    stage: Callable[..., Any], proxy: type[Stage], known: FailedCall, settings: Settings
) -> Callable[..., Any]:
    """The `lower` or `trace` of a jitted function, so that it returns a watched stage."""

    explained = explaining(stage, settings)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = explained(*args, **kwargs)
        if settings.prove is None:
            return proxy(found, known, settings)
        return proxy(found, replace(known, given=shapes_of(args, kwargs)), settings)

    return functools.update_wrapper(call, stage)


def explaining(trace: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """What traces a function, so that an OOM of a program that runs meanwhile is explained.

    The program that failed is another one than the function's, which is not lowered yet.
    """

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        try:
            return trace(*args, **kwargs)
        except Exception as error:
            __tracebackhide__ = __traceback_hide__ = _rich_traceback_omit = True
            try:
                raise_explained(error, FailedCall, settings)
            except Exception as explained:
                with contextlib.suppress(Exception):
                    hide_own_frames(explained)
                raise
            raise

    return traced
