"""An equation that is bound again keeps its place in the user's code."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hbmwatch._jax import replay

X = jnp.arange(4.0)


def doubled(x: Any) -> Any:
    """A function with a name of its own in the name stack."""
    with jax.named_scope("doubling"):
        return x * 2


def test_an_equation_takes_other_values_and_parameters() -> None:
    """Its shape parameter is changed, and the value is a new one."""
    closed = jax.make_jaxpr(lambda x: jnp.broadcast_to(x, (3, 4)))(X)
    (equation,) = closed.jaxpr.eqns

    (made,) = replay.bind(equation, [X + 1], {"shape": (2, 4)})

    assert made.tolist() == [[1.0, 2.0, 3.0, 4.0]] * 2


def test_an_equation_keeps_its_frames_and_its_names() -> None:
    """The new equation says the line and the scope of the old one, not ours."""
    (equation,) = jax.make_jaxpr(doubled)(X).jaxpr.eqns
    again: Any = jax.make_jaxpr(lambda x: replay.bind(equation, [x, 2.0], {})[0])(X)
    (copy,) = again.jaxpr.eqns

    assert str(copy.source_info.name_stack) == "doubling"
    assert copy.source_info.traceback is equation.source_info.traceback
