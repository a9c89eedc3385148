"""Plain JAX: a donated state on a mesh of devices; when a step runs out of memory, a smaller batch.

python examples/plain_jax.py                     trains on the devices that are here
python examples/plain_jax.py --topology v5e:2x2  asks the TPU compiler, without a TPU
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hbmwatch import HbmOomError, watch_hbm

log = logging.getLogger("train")

WIDTH, LAYERS, STEPS = 512, 4, 3
BATCHES = (3 * 10**12, 1024)  # to try, the largest first


def make_state(key: jax.Array) -> dict[str, Any]:
    keys = jax.random.split(key, LAYERS)
    params = [jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH**0.5 for k in keys]
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}


def make_batch(batch_size: int) -> jax.Array:
    """Sines to learn; made in the step, where they cost nothing (in real use: an argument)."""
    return jnp.sin(jnp.outer(jnp.arange(float(batch_size)), jnp.arange(1.0, WIDTH + 1)))


def train_step(state: dict[str, Any], batch_size: int, rows: NamedSharding) -> Any:
    """One step of SGD with momentum."""
    x = jax.lax.with_sharding_constraint(make_batch(batch_size), rows)

    def loss(params: Any) -> jax.Array:
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - x) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def watched(mesh: Mesh) -> Any:
    """The step on a mesh: the state on every device, the batch split, the old state donated."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    step = partial(train_step, rows=NamedSharding(mesh, PartitionSpec("data")))
    return watch_hbm(step, static_argnames="batch_size", donate_argnums=0, out_shardings=everywhere)


def train(mesh: Mesh, batch_size: int) -> float:
    """A fresh state (in real use: the last checkpoint), and a few steps."""
    step = watched(mesh)
    state = jax.device_put(make_state(jax.random.key(0)), NamedSharding(mesh, PartitionSpec()))
    for _ in range(STEPS):
        state, loss = step(state, batch_size=batch_size)
    return float(loss)


def check(mesh: Mesh, batch_size: int) -> float:
    """Compile for devices that need not be there; returns the GiB that each needs."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    shapes = jax.eval_shape(make_state, jax.random.key(0))
    state = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=everywhere), shapes
    )
    compiled = watched(mesh).lower(state, batch_size=batch_size).compile()
    return float(compiled.memory_analysis().peak_memory_in_bytes) / 2**30


def first_that_fits(run: Any, batches: Sequence[int], pages: Path) -> tuple[int, float]:
    """Try batches until one fits; each that does not is logged, with a page to look at."""
    for batch_size in batches:
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
        mesh = Mesh(np.array(jax.devices()), ("data",))
        batch_size, loss = first_that_fits(partial(train, mesh), BATCHES, options.pages)
        log.info("batch %d: loss %.3f after %d steps", batch_size, loss, STEPS)
        return batch_size, loss
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=options.topology).devices
    mesh = Mesh(np.array(devices), ("data",))
    batch_size, gib = first_that_fits(partial(check, mesh), BATCHES, options.pages)
    log.info("batch %d: %.2f GiB on each of %d devices", batch_size, gib, len(devices))
    return batch_size, gib


if __name__ == "__main__":
    main()
