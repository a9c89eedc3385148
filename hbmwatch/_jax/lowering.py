"""The private parts of JAX's lowered programs; only this module reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class LoweringDetails:
    """The private details of a jax.stages.Lowered; empty or None if this JAX lacks them.

    Attributes:
        argument_names: The pytree path of each argument leaf, as HLO names parameters.
        output_names: The pytree path of each output leaf.
        kept_arguments: The positions of the argument leaves that the program takes; jit drops those
            that nothing reads. None means that all are taken, or that it is not known.
        in_shardings: The shardings of the kept arguments.
        out_shardings: The shardings of the outputs.
        devices: The devices that the program runs on.
        device_count: How many these are.
    """

    argument_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    kept_arguments: frozenset[int] | None = None
    in_shardings: tuple[Any, ...] = ()
    out_shardings: tuple[Any, ...] = ()
    devices: tuple[Any, ...] = ()
    device_count: int | None = None


def lowering_details(lowered: Any) -> LoweringDetails:
    """The private details of a jax.stages.Lowered; none for any other object.

    Present in jax 0.6.2 to 0.12; tests/jax/test_private_names.py has the exceptions.
    """
    details = getattr(_lowering(lowered), "compile_args", None)
    details = details if isinstance(details, Mapping) else {}
    debug = getattr(details.get("all_args_info"), "debug_info", None)
    kept = details.get("kept_var_idx")
    count = details.get("num_devices")
    return LoweringDetails(
        argument_names=_names(getattr(debug, "arg_names", None)),
        output_names=_names(getattr(debug, "result_paths", None)),
        kept_arguments=frozenset(kept) if isinstance(kept, (set, frozenset)) else None,
        in_shardings=tuple(sequence(details.get("in_shardings"))),
        out_shardings=tuple(sequence(details.get("out_shardings"))),
        devices=_devices(lowered, details),
        device_count=count if isinstance(count, int) else None,
    )


def closed_over(traced: Any) -> tuple[Any, ...]:
    """What a jax.stages.Traced has as first inputs that are no arguments of the function.

    They are values of an outer transformation, which the function closes over.
    """
    found = getattr(traced, "_consts", None)
    if found is None:  # jax before 0.7
        found = traced._args_flat[: getattr(traced, "_num_consts", 0)]
    return tuple(found)


def plain_lowered(lowered: Any) -> Any:
    """The jax.stages.Lowered in what equinox or flax has wrapped around it."""
    while _lowering(lowered) is None and hasattr(lowered, "lowered"):
        lowered = lowered.lowered
    return lowered


def is_same_lowering(one: Any, other: Any) -> bool:
    """Whether two objects are one lowered program, for example JAX's own and a watched one."""
    return _lowering(one) is not None and _lowering(one) is _lowering(other)


def shape_of(argument: Any) -> Any:
    """The ShapedArray in a jax.stages.ArgInfo; None where this JAX has another class."""
    return getattr(argument, "_aval", None)


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is a list or a tuple, else an empty tuple."""
    return value if isinstance(value, (list, tuple)) else ()


def _lowering(lowered: Any) -> Any:
    return getattr(lowered, "_lowering", None)


def _devices(lowered: Any, details: Mapping[str, Any]) -> tuple[Any, ...]:
    """The devices: jax 0.6.2 has them in the details, later versions on the lowering."""
    devices = getattr(_lowering(lowered), "_device_list", None)
    return tuple(devices or details.get("device_assignment") or ())


def _names(given: Any) -> tuple[str, ...]:
    """The names if all are strings, else none."""
    names = tuple(sequence(given))
    return names if all(isinstance(name, str) for name in names) else ()
