"""A function of JAX, replaced for one thread and restored."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest

from hbmwatch._jax.intercept import replaced


def module() -> Any:
    """Something with a function in it."""
    return types.SimpleNamespace(double=lambda x: 2 * x)


def test_this_thread_gets_the_replacement_and_others_the_real_one() -> None:
    """A replacement sees the calls of its own thread alone, and may call the real function."""
    owner, elsewhere = module(), []
    with replaced(owner, "double", lambda real, x: real(x) + 1):
        thread = threading.Thread(target=lambda: elsewhere.append(owner.double(3)))
        thread.start()
        thread.join()
        here = owner.double(3)

    assert (here, elsewhere) == (7, [6])


def test_the_owner_has_the_same_object_afterwards() -> None:
    """The attribute is the object that it was, also after an exception and after nesting."""
    owner = module()
    real = owner.double
    with pytest.raises(KeyError), replaced(owner, "double", lambda real, x: 0):
        with replaced(owner, "double", lambda real, x: 1):
            assert owner.double(1) == 1
        assert owner.double(1) == 0
        raise KeyError

    assert owner.double is real


def test_a_method_is_replaced_as_a_method() -> None:
    """Where the owner is a class, the replacement gets the object."""

    class Stage:
        def lower(self, x: int) -> int:
            return x

    with replaced(Stage, "lower", lambda real, stage, x: (type(stage), real(stage, x))):
        found: Any = Stage().lower(5)

    assert found == (Stage, 5)
    assert Stage().lower(5) == 5
