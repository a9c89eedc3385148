"""Lowers a step for a platform, and captures what JAX would send to its compiler.

Nothing is compiled here: the module and the options are bytes that another process can compile.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from hbmwatch._jax.inner_jits import library_of
from hbmwatch._jax.intercept import replaced
from hbmwatch._jax.lowering import is_same_lowering, plain_lowered
from hbmwatch._jax.placement import on_live_devices
from hbmwatch._jax.wrappers import cached_by_flax, has_own_lower, is_transformation

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")
_LONGEST_NAME = 100


class WrongPlatform(TypeError):
    """The step cannot be lowered for the requested platform."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One compile, as bytes.

    Attributes:
        name: The module's name ("jit_train_step"), as far as XLA can use it in a file's name.
        module: The StableHLO module as MLIR bytecode.
        options: xla.CompileOptionsProto, serialized.
        devices: The jax devices of the step, in the order of the program's partitions.
        replica_count: How many rows the device assignment has.
    """

    name: str
    module: bytes
    options: bytes
    devices: tuple[Any, ...]
    replica_count: int


class _Requested(Exception):
    """Ends a compile where the compiler would be called."""


# --- lowering -------------------------------------------------------------------------------------


def lower_for(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    platform: str | None,
) -> Any:
    """The step's jax.stages.Lowered for a platform, whatever devices the step is on.

    Arguments, closed-over arrays, shardings and constraints may be committed to devices of another
    platform: the module names devices by their position alone.

    Args:
        step: A function, jitted or not, a method, or whatever has `.lower`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        platform: "tpu", "cuda", "cpu"; None lowers for the devices that the step is on.

    Raises:
        WrongPlatform: The step's own `.lower` ignores the platform.
    """
    return traced_for(step, args, kwargs, platform)[1]


def traced_for(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    platform: str | None,
) -> tuple[Any, Any]:
    """The step's jax.stages.Traced and Lowered for a platform; see lower_for.

    The Traced is None if no platform was named and the step's `.lower` does not go through jax.jit.

    Raises:
        WrongPlatform: The step's own `.lower` ignores the platform.
    """
    owner, args, kwargs = lowerable(step, args, kwargs)
    lower = lower_of(owner)
    with _lowering_for(platform) as seen:
        try:
            lowered = lower(*args, **kwargs)
        except ValueError as error:
            if platform is None or "incompatible devices" not in str(error):
                raise
            args, kwargs = on_live_devices((args, kwargs))
            lowered = lower(*args, **kwargs)
    lowered = plain_lowered(lowered)
    found = [(traced, other) for traced, other in seen if is_same_lowering(other, lowered)]
    if found:
        return found[0]  # not what a watch has made of it
    if platform is None:
        return None, lowered
    raise WrongPlatform(
        f"{getattr(step, '__name__', 'the step')} was not lowered for {platform!r}: "
        "its lower() does not go through jax.jit"
    )


@contextlib.contextmanager
def _lowering_for(platform: str | None) -> Iterator[list[tuple[Any, Any]]]:
    """In the body, this thread lowers for one platform only; yields what it traced and lowered."""
    seen: list[tuple[Any, Any]] = []
    platforms = {} if platform is None else {"lowering_platforms": (platform,)}

    def lower(real: Callable[..., Any], traced: Any, **options: Any) -> Any:
        lowered = real(traced, **{**options, **platforms})
        seen.append((traced, lowered))
        return lowered

    def backend(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return real(*args, **options)
        except ValueError:  # it is another platform's
            if platform is None:
                raise
            return _Backend(platform)

    from jax._src.interpreters import mlir

    with (
        replaced(jax.stages.Traced, "lower", lower),
        replaced(mlir.ModuleContext, "get_backend", backend),
    ):
        yield seen


class _Backend:
    """A stand-in for a backend that this machine lacks, to lower host callbacks for it."""

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def make_python_callback_from_host_send_and_recv(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because the callback is never called."""


def lowerable(
    step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """What has the step's `.lower`, and its arguments; a step without `.lower` is jitted.

    Of a wrapper it is the jitted function inside: what the wrapper itself does runs in Python.
    """
    if isinstance(step, types.MethodType) and hasattr(step.__func__, "lower"):
        return step.__func__, (step.__self__, *args), kwargs
    # Equinox has a Partial of its own, for a jitted method of a module.
    if isinstance(step, functools.partial) or hasattr(getattr(step, "func", None), "lower"):
        partial: Any = step
        return lowerable(partial.func, (*partial.args, *args), {**partial.keywords, **kwargs})
    if (cached := cached_by_flax(step)) is not None:
        return lowerable(cached[0], (*cached[1], *args), kwargs)
    inner = inspect.unwrap(step, stop=lambda fun: has_own_lower(fun) or is_transformation(fun))
    return inner if has_own_lower(inner) else jax.jit(_hashable(step)), args, kwargs


def _hashable(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, or a function around it: jax.jit takes no module that holds arrays."""
    try:
        hash(step)
    except TypeError:
        return functools.wraps(step, updated=())(lambda *args, **kwargs: step(*args, **kwargs))
    return step


def lower_of(owner: Any) -> Callable[..., Any]:
    """The step's `.lower`, which may be called with shapes.

    Equinox takes a jax.ShapeDtypeStruct for a static value, so that it gets tracers in its place.
    """
    if library_of(owner) != "equinox":
        found: Callable[..., Any] = owner.lower
        return found

    def lower(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
        lowered: list[Any] = []

        def call(*tracers: Any) -> None:
            for place, tracer in zip(places, tracers):
                leaves[place] = tracer
            traced_args, traced_kwargs = jax.tree.unflatten(tree, leaves)
            lowered.append(owner.lower(*traced_args, **traced_kwargs))

        jax.eval_shape(call, *[leaves[place] for place in places])
        return lowered[0]

    return lower


# --- what the compiler would get ------------------------------------------------------------------


def compile_request(
    lowered: Any, compiler_options: Mapping[str, Any] | None = None
) -> CompileRequest:
    """What `lowered.compile()` would send to the compiler.

    Args:
        lowered: A jax.stages.Lowered.
        compiler_options: XLA options, besides those of the step's own jit.

    Raises:
        RuntimeError: This version of JAX compiles in another way.
    """
    from jax._src import compiler

    found: list[CompileRequest] = []

    def request(
        real: Callable[..., Any],
        backend: Any,
        computation: Any,
        devices: Any,
        compile_options: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found.append(_request(computation, devices, compile_options))
        raise _Requested

    # JAX caches programs by their options: with an option that is new each time, none is cached.
    options = {**(compiler_options or {}), "xla_dump_to": f"hbmwatch-{id(found)}"}
    with (
        replaced(compiler, "compile_or_get_cached", request),
        contextlib.suppress(_Requested),
    ):
        lowered.compile(compiler_options=options)
    if not found:
        raise RuntimeError("this version of JAX does not compile through compile_or_get_cached")
    return found[0]


def _request(computation: Any, devices: Any, compile_options: Any) -> CompileRequest:
    """The request as bytes, without the option that made it new."""
    compile_options.env_option_overrides = [
        (name, value)
        for name, value in compile_options.env_option_overrides
        if name != "xla_dump_to"
    ]
    name, module = _named_module(computation)
    return CompileRequest(
        name=name,
        module=module,
        options=compile_options.SerializeAsString(),
        devices=tuple(devices.flatten()),
        replica_count=int(compile_options.num_replicas),
    )


def _named_module(computation: Any) -> tuple[str, bytes]:
    """The module under a name that XLA can use in the names of its dumps, and that name."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    attributes = computation.operation.attributes
    old = attributes["sym_name"]
    name = _NOT_IN_FILE_NAMES.sub("_", str(old.value))[:_LONGEST_NAME]
    try:
        attributes["sym_name"] = ir.StringAttr.get(name, computation.context)
        return name, mlir.module_to_bytecode(computation)
    finally:
        attributes["sym_name"] = old  # the module is the caller's


def without_locations(module: bytes) -> bytes:
    """The module without source lines, which do not change how it compiles."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir, passmanager

    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(parsed.operation)
        return bytes(mlir.module_to_bytecode(parsed))
