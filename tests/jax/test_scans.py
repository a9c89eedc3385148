"""The layout of a scan's inputs, as each jax has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hbmwatch._jax.scans import ScanInputs, scan_inputs


def test_the_inputs_of_a_scan_are_counted() -> None:
    """Two constants and three carried values, which are leaves of a pytree."""

    def step(scale: jax.Array, shift: jax.Array, rows: jax.Array) -> object:
        def body(carry: dict[str, jax.Array], row: jax.Array) -> tuple[dict[str, jax.Array], None]:
            a, b, c = carry["a"], carry["b"], carry["c"]
            return {"a": a + row * scale, "b": b * a + shift, "c": c - b}, None

        zero = jnp.zeros(3)
        return jax.lax.scan(body, {"a": zero, "b": zero, "c": zero}, rows)

    jaxpr = jax.make_jaxpr(step)(jnp.ones(3), jnp.ones(3), jnp.ones((5, 3)))
    (scan,) = (each for each in jaxpr.eqns if each.primitive.name == "scan")

    assert scan_inputs(scan.params) == ScanInputs(constants=2, carried=3)
