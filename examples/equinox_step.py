"""Equinox and Optax: log the report of a step that runs out of memory, go on with a smaller batch.

python examples/equinox_step.py                     trains on the device that is here
python examples/equinox_step.py --topology v5e:2x2  asks the TPU compiler, without a TPU
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import SingleDeviceSharding

from hbmwatch import HbmOomError, watch_hbm

log = logging.getLogger("train")

WIDTH, DEPTH, STEPS = 256, 4, 3
BATCHES = (3 * 10**12, 1024)  # to try, the largest first
OPTIMIZER = optax.adam(1e-3)


def make(key: jax.Array) -> tuple[eqx.nn.MLP, Any]:
    model = eqx.nn.MLP(WIDTH, WIDTH, WIDTH, DEPTH, key=key)
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_inexact_array))


def make_batch(batch_size: int) -> jax.Array:
    """Sines to learn; made in the step, where they cost nothing (in real use: an argument)."""
    return jnp.sin(jnp.outer(jnp.arange(float(batch_size)), jnp.arange(1.0, WIDTH + 1)))


# filter_jit has jitted the step already; watch_hbm leaves that, and its donation, as it is.
@watch_hbm
@eqx.filter_jit(donate="all")
def train_step(
    model: eqx.nn.MLP, opt_state: Any, batch_size: int
) -> tuple[eqx.nn.MLP, Any, jax.Array]:
    x = make_batch(batch_size)

    def loss(model: eqx.nn.MLP) -> jax.Array:
        return jnp.mean((jax.vmap(model)(x) - x) ** 2)

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, model)
    return eqx.apply_updates(model, updates), opt_state, value


def train(batch_size: int) -> float:
    """A fresh model (in real use: the last checkpoint), and a few steps."""
    model, opt_state = make(jax.random.key(0))
    for _ in range(STEPS):
        model, opt_state, loss = train_step(model, opt_state, batch_size)
    return float(loss)


def check(device: Any, batch_size: int) -> float:
    """Compile for a device that need not be there; returns the GiB that the step needs."""
    # filter_jit takes shapes for constants, so here JAX's own jit is around it.
    shapes = eqx.filter_eval_shape(make, jax.random.key(0))
    arrays, static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    there = SingleDeviceSharding(device)

    @watch_hbm(donate_argnums=0, out_shardings=there)
    def step(arrays: Any) -> Any:
        results = train_step(*eqx.combine(arrays, static), batch_size)
        return eqx.filter(results, eqx.is_array)

    on_device = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=there), arrays
    )
    compiled = step.lower(on_device).compile()
    return float(compiled.memory_analysis().peak_memory_in_bytes) / 2**30


def first_that_fits(run: Callable[[int], float], pages: Path) -> tuple[int, float]:
    """Try batches until one fits; each that does not is logged, with a page to look at."""
    for batch_size in BATCHES:
        try:
            return batch_size, run(batch_size)
        except HbmOomError as oom:
            page = pages / f"oom-batch-{batch_size}.html"
            oom.report.save_html(page)
            log.error("batch %d does not fit; see %s\n%s", batch_size, page, oom.report)
            gone = oom.report.device.deleted if oom.report.device else ()
            if gone:
                log.warning("the donated state is lost: %d arrays, %s, ...", len(gone), gone[0])
        # The next try starts here, after the exception and the arrays in its frames are gone.
    raise SystemExit("no batch fits")


def main(argv: Sequence[str] | None = None) -> tuple[int, float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", help="such as v5e:2x2; needs libtpu, but no TPU")
    parser.add_argument("--pages", type=Path, default=Path("."), help="where the pages go")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if options.topology is None:
        batch_size, loss = first_that_fits(train, options.pages)
        log.info("batch %d: loss %.3f after %d steps", batch_size, loss, STEPS)
        return batch_size, loss
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=options.topology).devices
    batch_size, gib = first_that_fits(partial(check, devices[0]), options.pages)
    log.info("batch %d: %.2f GiB on %s", batch_size, gib, devices[0].device_kind)
    return batch_size, gib


if __name__ == "__main__":
    main()
