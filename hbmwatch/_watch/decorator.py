"""watch_hbm, and what it makes of its arguments."""

from __future__ import annotations

import contextlib
import inspect
import operator
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import jax

from hbmwatch._explain.failure import Capture, Settings, Sync
from hbmwatch._records.addresses import check_address, remote_address
from hbmwatch._watch.block import WatchContext
from hbmwatch._watch.proving import prover
from hbmwatch._watch.step import quoted, watch_function
from hbmwatch._watch.types import Logdir, P, R, Watched

if TYPE_CHECKING:
    from hbmwatch._report.report import OomReport


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
    on_oom: Callable[[OomReport], object] | Literal["exit"] | None = None,
    prove: float | None = None,
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
    on_oom: Callable[[OomReport], object] | Literal["exit"] | None = None,
    prove: float | None = None,
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
    on_oom: Callable[[OomReport], object] | Literal["exit"] | None = None,
    prove: float | None = None,
    **jit_kwargs: Any,
) -> Any:
    """Watch a step: when it runs out of device memory, HbmOomError says what filled the memory.

    Use it as a decorator (`@watch_hbm`, `@watch_hbm(donate_argnums=0)`,
    `@watch_hbm("/tmp/xprof")`), as a function (`watch_hbm(fun)`), or around any code
    (`with watch_hbm("/tmp/xprof") as watch:`, where `watch.report` is the last report).

    A plain function is jitted with `jit_kwargs`. A function that is already jitted, even inside
    wrappers, is watched unchanged. A call that succeeds costs about as much as a bare try/except.

    Args:
        fun: The step; or the folder for profiles, as in jax.profiler.trace(folder); or None.
        logdir: The folder that receives the profile of a failing program, for `xprof --logdir`.
            With None it is a folder under the system's temporary folder, which is made at the first
            failure. It keeps the last 8 profiles of each process, those of the last minute, and
            those whose report is still in use; copies of a report do not count. A relative folder
            is relative to the working directory at this call. With an address that fsspec opens
            ("gs://bucket/xprof", "s3://...") the profile is written there first, and then copied to
            the address within 30 seconds (HBMWATCH_REMOTE_SECONDS). hbmwatch does not open the
            address before a failure, and does not copy the traces of capture="always".
        capture: When to take a profile. "on_oom" costs nothing before a failure. "always" puts
            jax.profiler.trace around every call, which records a timeline as well. "never" builds
            the report from the text of the error alone.
        sync: When to wait for the outputs, so that an asynchronous failure appears in the call that
            caused it. "compile" waits for the first call, for each call that compiles something,
            and after a failure for each call until one succeeds. "always" waits for each call,
            "never" for none. The end of a `with` block waits for the arrays that were made in it,
            unless it is "never". It does not raise an OOM that the block itself catches, in an
            `except` clause or with contextlib.suppress: the block may have handled it already.
        jit: False watches the callable as it is, such as a host step that calls jitted functions.
        top: How many buffers the text of the report shows.
        on_oom: Called with the OomReport before HbmOomError is raised. With "exit" the process
            prints the error and exits at once with status 86, and runs no exit handlers: a process
            of a distributed job would wait at its exit for processes that wait for it.
        prove: If the compiler rejects the step, hbmwatch.plan looks for up to this many seconds for
            a change with which it fits, and the report ends with the best one. None: no search.
        **jit_kwargs: Keyword arguments of jax.jit.

    Returns:
        The watched function, with `lower`, `trace`, `eval_shape` and `clear_cache` where the
        jitted function has them. Without a function, a decorator that is also a context manager;
        `with` does not accept `capture="always"`, `jit=False` or keyword arguments of
        jax.jit.

    Raises:
        TypeError: A keyword that neither watch_hbm nor jax.jit has; keywords of jax.jit for a
            function that is already jitted, or with jit=False; a generator or coroutine function;
            a `top` that is not an int; `logdir` given twice.
        ValueError: An unknown `capture` or `sync`, a negative `top`, a `prove` that is not a number
            of seconds above 0, a `logdir` that looks like an address and cannot be opened as one, a
            value of HBMWATCH_DISABLE that is neither true nor false, or, with an address, one of
            HBMWATCH_REMOTE_SECONDS that is not a number of seconds above 0.
    """
    if isinstance(fun, (str, os.PathLike)):
        if logdir is not None:
            raise TypeError("logdir was given twice, by position and by keyword")
        fun, logdir = None, fun
    _check_choice("capture", capture, Capture)
    _check_choice("sync", sync, Sync)
    if operator.index(top) < 0:
        raise ValueError(f"top must be at least 0, not {top}")
    _check_jit_keywords(jit_kwargs)
    folder = None if logdir is None else os.fsdecode(logdir)
    if folder is not None:
        check_address(folder)
    remote = None if folder is None else remote_address(folder)
    if remote is not None:
        folder = None
        _check_store(remote)
    elif folder is not None:
        with contextlib.suppress(OSError):  # the working directory may have been deleted
            folder = str(Path(folder).absolute())  # the program may leave it before the failure
    if isinstance(on_oom, str) and on_oom != "exit":
        raise ValueError(f"on_oom={on_oom!r}: pass a function or 'exit'")
    calls = None if on_oom == "exit" else on_oom
    settings = Settings(
        folder,
        capture,
        sync,
        top,
        calls,
        exits=on_oom == "exit",
        prove=prover(prove),
        remote=None if remote is None else remote.rstrip("/"),
    )
    if fun is None:
        return WatchContext(settings, jit, jit_kwargs)
    return watch_function(fun, settings, jit, jit_kwargs)


def _check_store(address: str) -> None:
    """Warn now if the package is missing that a failure would need to open an address."""
    from hbmwatch._profiles.store import missing_package, time_limit

    time_limit()
    if missing := missing_package(address):
        warnings.warn(
            f"nothing can be written to {address}: {missing}. Profiles stay in the system's "
            "temporary folder",
            stacklevel=3,
        )


def _check_choice(name: str, value: object, choices: Any) -> None:
    """Raise ValueError where the value is none of a Literal's."""
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(get_args(choices))}")


def _check_jit_keywords(jit_kwargs: dict[str, Any]) -> None:
    """Raise TypeError where jax.jit has no such keyword, or where it is the function itself."""
    function, *keywords = inspect.signature(jax.jit).parameters
    if function in jit_kwargs:
        raise TypeError(
            "pass the function by position: "
            f"watch_hbm(step, ...), not watch_hbm({function}=step, ...)"
        )
    unknown = jit_kwargs.keys() - set(keywords)
    if unknown:
        raise TypeError(f"neither watch_hbm nor jax.jit has a keyword {quoted(unknown)}")
