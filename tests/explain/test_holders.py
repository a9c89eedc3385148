"""Which variables hold the arrays that are on the device beside a call."""

from __future__ import annotations

import weakref

import jax.numpy as jnp
import pytest

from hbmwatch import DeviceMemory, LiveArrays
from hbmwatch._explain.holders import with_holders

KEPT = jnp.zeros((3, 7))


def device(*shape: int) -> DeviceMemory:
    """A device with live arrays of one shape."""
    return DeviceMemory("cpu", 1, live=(LiveArrays(shape, "float32", 1, 4),))


def held(found: DeviceMemory | None) -> tuple[str, ...]:
    """The holders of the only group."""
    assert found is not None
    return found.live[0].held_by


def keep(history: object) -> tuple[DeviceMemory | None, object]:
    """A function with a local variable. pytest reads the variables of those with assertions."""
    return with_holders(device(5, 11), ()), history


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [1, {"a": (x,)}]], ids=["bare", "nested"])
def test_a_local_variable_is_named_with_its_function_and_file(wrap: object) -> None:
    """Also where a container holds the array."""
    found, _ = keep(wrap(jnp.zeros((5, 11))))  # type: ignore[operator]

    assert held(found) == ("history in keep(), test_holders.py",)


def test_a_variable_of_the_module_is_named() -> None:
    """A global keeps an array as long as the process lives."""
    assert held(with_holders(device(3, 7), ())) == ("KEPT in module test_holders.py",)


def test_arguments_of_the_call_do_not_count() -> None:
    """They are needed."""
    x = jnp.zeros((5, 13))

    assert held(with_holders(device(5, 13), (x,))) == ()


def test_a_container_that_cannot_be_searched_is_left_out() -> None:
    """Keys that cannot be sorted, and large lists."""
    odd = {1: jnp.zeros((5, 17)), "a": 2}
    large = [jnp.zeros((5, 17))] * 10_001

    assert held(with_holders(device(5, 17), ())) == ()
    assert with_holders(None, ()) is None
    assert (len(odd), len(large)) == (2, 10_001)


def test_a_function_keeps_nothing_because_it_was_looked_at() -> None:
    """What a variable held is freed with the variable, and the function's own locals() stay."""

    def look(names: dict[str, object] | None) -> tuple[bool, list[str]]:
        x = jnp.zeros((5, 19))
        gone = weakref.ref(x)
        with_holders(device(5, 19), ())
        del x
        return gone() is None, sorted(names or ())

    def look_with_locals() -> list[str]:
        kept = 1
        names = locals()
        with_holders(device(5, 19), ())
        assert kept
        return [name for name in names if name != "names"]

    assert look(None) == (True, [])
    assert look_with_locals() == ["kept"]
