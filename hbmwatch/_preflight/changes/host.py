"""Keep state in host memory between steps, or send large outputs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import SingleDeviceSharding

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._preflight.changes.call import (
    HOST,
    AroundGiven,
    Call,
    Leaf,
    NothingToChange,
    names,
    typed,
)
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.state import state_of

_VALUES = "the same operations and values; some arrays are copied between device and host"
# An output is sent to the host if it is at least this part of the largest one.
_LEAST_PART = 8
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOnHost(Edit):
    """Some arguments, and the outputs that replace them, in host memory."""

    numbers_values = True

    arguments: tuple[int, ...]

    def on(self, call: Call) -> Call:
        """The call that copies them to the device, and their outputs back."""
        pairs = call.updated()
        device = {i: _sharding(call, call.arguments[i]) for i in self.arguments}
        host = {i: _on_host(sharding) for i, sharding in device.items()}
        back = {pairs[i]: host[i] for i in self.arguments if i in pairs}
        first, flat = len(call.constants), jaxpr_as_fun(call.jaxpr)

        def run(*arrays: Any) -> list[Any]:
            moved = list(arrays)
            for i, sharding in device.items():
                moved[first + i] = jax.device_put(arrays[first + i], sharding)
            return list(flat(*moved))

        jaxpr = jax.make_jaxpr(run)(*map(typed, call.jaxpr.in_avals))
        arguments = {i: call.arguments[i].at(sharding) for i, sharding in host.items()}
        outputs = {o: call.outputs[o].at(sharding) for o, sharding in back.items()}
        own = {i: call.arguments[i].sharding for i in self.arguments}
        given = None if call.given is None else _KeptAgain(call.given, self, own)
        new = call.changed(jaxpr=jaxpr, given=given)
        return new.with_arguments(arguments).with_outputs(outputs)


@dataclass(frozen=True, slots=True, eq=False)
class _KeptAgain(AroundGiven):
    """The user's step, whose state is kept on the host again when it is traced again.

    Attributes:
        own: The shardings of the state on the devices; None where XLA chooses.
    """

    edit: KeepOnHost
    own: Mapping[int, Any]

    def retraced(self, shapes: Sequence[jax.ShapeDtypeStruct]) -> Call:
        on_devices = list(shapes)
        for i, sharding in self.own.items():
            on_devices[i] = typed(shapes[i], sharding)
        return self.edit.on(self.given.retraced(on_devices))

    def varied(self, variant: Callable[..., Any]) -> Call:
        return self.edit.on(self.given.varied(variant))


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToHost(Edit):
    """Some outputs in host memory."""

    outputs: tuple[int, ...]

    def on(self, call: Call) -> Call:
        """The call whose outputs go to the host."""
        return call.with_outputs(
            {
                o: call.outputs[o].at(_on_host(_sharding(call, call.outputs[o])))
                for o in self.outputs
            }
        )


def _sharding(call: Call, leaf: Leaf) -> Any:
    """Where a leaf is on the devices."""
    if leaf.sharding is not None:
        return leaf.sharding
    if len(call.devices) != 1:
        raise NothingToChange(f"the sharding of {leaf.name} is not known")
    return SingleDeviceSharding(call.devices[0])


def _on_host(sharding: Any) -> Any:
    try:
        return sharding.with_memory_kind(HOST)
    except ValueError as error:  # such as the CPU backend of jax 0.6
        raise NothingToChange(f"the devices have no memory {HOST!r}") from error


def _check_host(call: Call, leaves: list[Leaf]) -> None:
    """Raise NothingToChange unless each of them can be in host memory."""
    for leaf in leaves:
        _on_host(_sharding(call, leaf))


def _state_edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    state = tuple(sorted(state_of(call)))
    if not state:
        raise NothingToChange("no argument is known to be optimizer state")
    leaves = [call.arguments[i] for i in state]
    _check_host(call, leaves)
    yield KeepOnHost(
        what=f"keeping {names(leaves)} on the host",
        code=f"keep {names(leaves)} on sharding.with_memory_kind({HOST!r}) between steps; in the "
        "step, jax.device_put them to the device, and the new values to the host",
        arguments=state,
    )


def _output_edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    back = {o for i, o in call.updated().items() if call.arguments[i].donated}
    new = {o: leaf.nbytes for o, leaf in enumerate(call.outputs) if o not in back}
    least = max(max(new.values(), default=0) // _LEAST_PART, _LARGE_BYTES)
    large = tuple(o for o, size in new.items() if size >= least)
    if not large:
        raise NothingToChange("no output is large, or all large ones replace donated arguments")
    leaves = [call.outputs[o] for o in large]
    _check_host(call, leaves)
    yield SendToHost(
        what=f"sending {names(leaves)} to the host",
        code=f"set out_shardings with memory_kind={HOST!r} for {names(leaves)}",
        outputs=large,
    )


HOST_OUTPUTS = Change("host-outputs", "B", _VALUES, _output_edits, frees_arguments=True)
HOST_STATE = Change("host-state", "B", _VALUES, _state_edits, frees_arguments=True)
