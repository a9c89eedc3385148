"""The settings of a watch, and what it knows of a call that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hbmwatch._jax.lowered import Leaf
    from hbmwatch._records.report import Finding
    from hbmwatch._report.report import OomReport

Capture = Literal["on_oom", "always", "never"]
Sync = Literal["compile", "always", "never"]
# The findings of a program -> the same with what was measured of their remedies.
Measure = Callable[["Sequence[Finding]"], "tuple[Finding, ...]"]
OOM_EXIT_STATUS = 86  # not a status of Python, of a shell, or of sysexits.h


@dataclass(frozen=True, slots=True)
class Proved:
    """What a plan found for a call.

    Attributes:
        text: The best change, or that there is none.
        measure: Adds to the findings of the program what the plan measured of their remedies.
    """

    text: str = ""
    measure: Measure = tuple


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of watch_hbm, under the same names.

    Attributes:
        remote: The address of the log folder that a run is copied to; `logdir` is None then.
        exits: Whether the process exits after the report, for on_oom="exit".
        prove: Returns what a plan finds for a call that did not compile; None without `prove=`.
    """

    logdir: str | None
    capture: Capture
    sync: Sync
    top: int
    on_oom: Callable[[OomReport], object] | None
    exits: bool = False
    prove: Callable[[FailedCall], Proved] | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FailedCall:
    """A call that failed, as far as the watch knows it; alive only while it is explained.

    Attributes:
        function_name: The function's name; "" for a `with` block.
        function_object: The function, for the names of its arguments.
        jitted: Whether it is jitted, so that a program has its name.
        lower: Returns the failing program's jax.stages.Lowered, from JAX's caches where it has been
            lowered before; None where no program is known.
        compile: Returns the jax.stages.Compiled of what `lower` returned, from JAX's caches.
        compiler_options: The options that the failing compile was given.
        args: The call's positional arguments.
        kwargs: The call's keyword arguments.
        given: The arguments of a call that was lowered ahead of time, by shapes; None where they
            are not known.
        outputs: What the call returned, where it failed asynchronously; None where it returned
            nothing.
        previous: The argument leaves of earlier compiles of the function, oldest first.
        compile_seconds: How long the last compile of the program took; 0.0 where that is not known.
        since_lowering_seconds: How long ago this thread last lowered a program, which is how long a
            compile took that has just failed; 0.0 where that is not known.
        error: What the call raised, or the OOM among its causes.
    """

    function_name: str = ""
    function_object: Callable[..., Any] | None = None
    jitted: bool = True
    lower: Callable[[], Any] | None = None
    compile: Callable[[Any], Any] | None = None
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    outputs: Any = None
    previous: tuple[tuple[Leaf, ...], ...] = ()
    compile_seconds: float = 0.0
    since_lowering_seconds: float = 0.0
    error: BaseException | None = None
