"""The hot path: a call in a try/except that knows when JAX has compiled something."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from hbmwatch._explain.errors import may_be_oom
from hbmwatch._explain.failure import FailedCall, Settings
from hbmwatch._explain.raising import hide_own_frames, raise_explained
from hbmwatch._jax import compiles
from hbmwatch._jax.executable import direct_call
from hbmwatch._jax.lowered import Leaf, array_leaves
from hbmwatch._records.failures import log_failure

_REMEMBERED_COMPILES = 8

# Another number after every compile of this process. A global is the fastest to read.
_compiles: float = 0


def _count(number: float) -> None:
    global _compiles
    _compiles = number


compiles.follow(_count)


@dataclass(slots=True)
class CompileHistory:
    """The compiles of a watched function.

    Attributes:
        shapes: The argument leaves of each compile, oldest first, the last few.
        seconds: What the last one took; 0.0 before there was one.
    """

    shapes: list[tuple[Leaf, ...]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, target: Any, args: Any, kwargs: Any) -> None:
        """Note the compile that this call has just made."""
        self.seconds = compiles.compile_seconds()
        with contextlib.suppress(Exception):  # a user's pytree may refuse to be flattened
            self.shapes.append(array_leaves(target, args, kwargs))
        del self.shapes[:-_REMEMBERED_COMPILES]

    def note_failure(self, before: float) -> None:
        """Note what the compile took that a failed call has made, if it made one.

        Args:
            before: The number of compiles when the call began.
        """
        if before != _compiles and compiles.compiled_since(before):
            self.seconds = compiles.compile_seconds()


def wrap_call(target: Any, failed_call: Callable[..., FailedCall], settings: Settings) -> Any:
    """`target` as a closure that explains its OOMs; a class with __call__ costs twice as much.

    Args:
        target: What is called.
        failed_call: Describes a failed call, from args, kwargs, outputs (if any) and history.
        settings: The arguments of watch_hbm.
    """
    call = _traced_call(target, settings) if settings.capture == "always" else target
    history, wait_for_outputs, must_wait = CompileHistory(), _WAITS[settings.sync], True
    # Bound here, because at the end of the interpreter the names of a module are None.
    explain, partial, suppress = raise_explained, functools.partial, contextlib.suppress
    hide, compiled_since = hide_own_frames, compiles.compiled_since

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal call, must_wait
        before, out = _compiles, None
        try:
            # Unpacking empty keywords would take a third of what all of this takes.
            out = call(*args, **kwargs) if kwargs else call(*args)
            if must_wait or before != _compiles:
                compiled = True
                # The call has succeeded: only an OOM of the wait may get out of here.
                with suppress(Exception):
                    compiled = before != _compiles and compiled_since(before)
                if must_wait or compiled:
                    must_wait = wait_for_outputs(out, args, kwargs)
                    with suppress(Exception):
                        call = direct_call(call) or call
                if compiled:
                    with suppress(Exception):
                        history.add(target, args, kwargs)
            return out
        except Exception as error:
            __tracebackhide__ = __traceback_hide__ = _rich_traceback_omit = True
            must_wait = True
            with suppress(Exception):
                history.note_failure(before)
            # A lambda here would make cells of args and kwargs, on every call.
            try:
                explain(error, partial(failed_call, args, kwargs, out, history), settings)
            except Exception as explained:
                with suppress(Exception):
                    hide(explained)
                raise
            raise

    return watched


def _traced_call(target: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """The call in a profiler trace that includes the wait for its outputs, so that all is in it."""
    from hbmwatch._jax.profiler import traced
    from hbmwatch._profiles.runs import drop_old_runs, new_run

    def traced_call(*args: Any, **kwargs: Any) -> Any:
        try:
            run = new_run(settings.logdir, jax.process_index())
        except Exception as error:  # no folder can be made: the step runs all the same
            log_failure("could not trace this call", error)
            return target(*args, **kwargs)
        try:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(traced(run))
                except Exception as error:  # the step runs all the same
                    log_failure("could not trace this call", error)
                out = target(*args, **kwargs)
                _wait_once(out, args, kwargs)
                return out
        finally:
            if settings.logdir is None:
                with contextlib.suppress(Exception):
                    drop_old_runs(run.parent)

    return traced_call


def _wait_once(out: Any, args: Any, kwargs: Any) -> bool:
    """Wait for the outputs; for a step without outputs, as with nnx, wait for what it updated.

    Only an OOM gets out of here: anything else that waiting raises, the bare call would not raise.

    Returns:
        Whether the next call must wait too, because this one was only traced.
    """
    try:
        leaves = jax.tree_util.tree_leaves(out) or jax.tree_util.tree_leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return True
        arrays = [x for x in leaves if isinstance(x, jax.Array) and not x.is_deleted()]
        jax.block_until_ready(arrays)
    except Exception as error:
        if may_be_oom(error):
            raise
        log_failure("could not wait for the outputs", error)
    return False


def _wait_always(out: Any, args: Any, kwargs: Any) -> bool:
    _wait_once(out, args, kwargs)
    return True


def _wait_never(out: Any, args: Any, kwargs: Any) -> bool:
    return False


_WAITS = {"compile": _wait_once, "always": _wait_always, "never": _wait_never}
