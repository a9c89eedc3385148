"""Which variables hold the arrays that are on the device beside a call."""

from __future__ import annotations

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


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [1, {"a": (x,)}]], ids=["bare", "nested"])
def test_a_local_variable_is_named_with_its_function_and_file(wrap: object) -> None:
    """Also where a container holds the array."""
    history = wrap(jnp.zeros((5, 11)))  # type: ignore[operator]

    assert held(with_holders(device(5, 11), ())) == (
        "history in test_a_local_variable_is_named_with_its_function_and_file(), test_holders.py",
    )
    assert history is not None


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
