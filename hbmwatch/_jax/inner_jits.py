"""Steps that flax.nnx.jit and equinox.filter_jit return, with another jitted function inside.

These steps turn modules into arrays, call what jax.jit returned, and turn the arrays back. So what
they do themselves stays as it is where the jitted function is replaced.
"""

from __future__ import annotations

import types
from typing import Any

from hbmwatch._jax.jit_options import jit_options

# The attribute with what jax.jit returned, of each library; both names are private.
_INNER = {"flax": "jitted_fn", "equinox": "_cached"}


def library_of(step: Any) -> str:
    """The package of a step that a library has made: "flax", "equinox", "jax"."""
    made = step.step if isinstance(step, WithInner) else step
    return type(made).__module__.partition(".")[0]


def inner_jit(step: Any) -> Any:
    """What jax.jit returned, inside a library's step; None if `step` is no such step."""
    name = _INNER.get(library_of(step), "")
    inner = getattr(step, name, None) if name else None
    return inner if inner is not None and jit_options(inner) is not None else None


class WithInner:
    """A library's step that calls another function in place of what jax.jit returned.

    The library runs its own code with this object as `self`. flax looks up what belongs to a call
    by the step, so this object is equal to the step.
    """

    def __init__(self, step: Any, inner: Any) -> None:
        self.step, self._inner = step, inner
        self._name = _INNER[library_of(step)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the step returns."""
        return type(self.step).__call__(self, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The library's own Lowered."""
        return type(self.step).lower(self, *args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where the step is the attribute of a class."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in ("step", "_inner", "_name"):  # while it is copied
            raise AttributeError(name)
        return self._inner if name == self._name else getattr(self.step, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.step

    def __hash__(self) -> int:
        return hash(self.step)
