"""Every form of a step is measured on the target, on whatever devices its arrays are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from hbmwatch import Fit, fits
from tests.programs import devices

MIB = 2**20
X = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)  # 4 MiB
fit = functools.partial(fits, proof="assigned")


def cpu_mesh() -> Mesh:
    """A mesh of the four CPU devices."""
    return Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("fsdp", "tp"))


def prng_key() -> Fit:
    return fit(lambda key: jax.random.normal(key, (1024, 1024)), jax.random.key(0), on="v5e")


def static_arguments() -> Fit:
    return fit(jax.jit(lambda x, n: x * n, static_argnums=1), X, 3, on="v5e")


def debug_print() -> Fit:
    def step(x: Any) -> Any:
        jax.debug.print("sum {}", x.sum())
        return x + 1

    return fit(step, X, on="v5e")


def committed_argument_and_closure() -> Fit:
    weights = jax.device_put(jnp.ones((1024, 1024)), jax.devices("cpu")[1])
    return fit(lambda x: x @ weights, weights, on="v5e")


def cpu_shardings_in_the_step() -> Fit:
    mesh = cpu_mesh()
    rows, tiles = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P("fsdp", "tp"))

    def step(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ x, rows) + 1

    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32, sharding=tiles)
    return fit(jax.jit(step, donate_argnums=0, out_shardings=tiles), x, on="v5e:2x2")


def topology_argument_and_cpu_output() -> Fit:
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=SingleDeviceSharding(devices("tpu")[0]))
    out = SingleDeviceSharding(jax.devices("cpu")[0])
    return fit(jax.jit(lambda x: x + 1, out_shardings=out), x, on="v5e")


def own_topology() -> Fit:
    mesh = Mesh(np.array(devices("tpu")), ("fsdp",))
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.float32, sharding=NamedSharding(mesh, P("fsdp")))
    return fit(lambda x: x + 1, x, on=mesh)


def own_topology_without_a_target() -> Fit:
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=SingleDeviceSharding(devices("tpu")[3]))
    return fit(lambda x: x + 1, x)


def donated_adamw() -> Fit:
    optimizer = optax.adamw(1e-3)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: ((x @ p) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return fit(step, X, jax.eval_shape(optimizer.init, X), X, on="v5e")


# What each takes at least and at most, in MiB, from the shapes alone.
FORMS: dict[Callable[[], Fit], tuple[str, float, float]] = {
    prng_key: ("v5e", 4, 5),
    static_arguments: ("v5e", 8, 9),
    debug_print: ("v5e", 8, 9),
    committed_argument_and_closure: ("v5e", 8, 13),
    cpu_shardings_in_the_step: ("v5e:2x2", 16, 80),
    topology_argument_and_cpu_output: ("v5e", 8, 9),
    own_topology: ("v5e:2x2", 8, 9),
    own_topology_without_a_target: ("v5e:1x1", 8, 9),
    donated_adamw: ("v5e", 16, 25),
}


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_form_is_measured_on_the_target(form: Callable[[], Fit]) -> None:
    """The verdict is the target's, and what it takes is what the shapes say."""
    target, least, most = FORMS[form]
    found = form()

    assert (found.fits, found.target) == (True, target)
    assert found.total_bytes is not None
    assert least <= found.total_bytes / MIB <= most


@pytest.mark.tpu
@pytest.mark.slow
def test_flax_nnx_and_equinox() -> None:
    """Modules whose jit is the library's own, with an optimizer that is updated in place."""
    import equinox as eqx
    from flax import nnx

    model = nnx.Linear(1024, 1024, rngs=nnx.Rngs(0))
    optimizer: Any = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def nnx_step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    linear: Any = eqx.nn.Linear(1024, 1024, key=jax.random.key(0))

    @eqx.filter_jit(donate="all")
    def eqx_step(model: Any, x: Any) -> Any:
        grads = eqx.filter_grad(lambda model: (jax.vmap(model)(x) ** 2).mean())(model)  # type: ignore[no-untyped-call]
        return eqx.apply_updates(model, grads), x + 1

    x = jnp.ones((64, 1024))
    found = [
        fit(nnx_step, model, optimizer, x, on="v5e"),
        fit(eqx_step, linear, x, on="v5e"),
    ]

    assert [one.fits for one in found] == [True, True]
    assert [12 * MIB < (one.total_bytes or 0) for one in found] == [True, False]


@pytest.mark.slow
@pytest.mark.tpu
def test_a_slice_of_256_chips_is_a_matter_of_one_compile() -> None:
    """Fully sharded over v5e:16x16, and per device."""
    from jax.experimental import topologies

    chips = topologies.get_topology_desc("v5e:16x16", platform="tpu").devices
    mesh = Mesh(np.array(chips), ("fsdp",))
    rows = NamedSharding(mesh, P("fsdp"))
    weights = jax.ShapeDtypeStruct((16384, 16384), jnp.float32, sharding=rows)
    found = fit(lambda w: w * 0.9, weights, on="v5e:16x16")

    assert (found.fits, found.target) == (True, "v5e:16x16")
    assert found.total_bytes == pytest.approx(2 * 4 * MIB, abs=MIB)
    assert found.report.device is not None
    assert found.report.device.device_count == 256


@pytest.mark.gpu
def test_more_devices_than_the_target_has_are_refused() -> None:
    """A step on four devices is not squeezed onto one."""
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(cpu_mesh(), P("fsdp")))
    with pytest.raises(ValueError, match="runs on 4 devices, but h100 has 1"):
        fit(lambda x: x + 1, x, on="h100")
