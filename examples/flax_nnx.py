"""Flax NNX and Optax: log the report of a step that runs out of memory, go on with a smaller batch.

python examples/flax_nnx.py                     trains on the device that is here
python examples/flax_nnx.py --topology v5e:2x2  asks the TPU compiler, without a TPU
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import SingleDeviceSharding

from hbmwatch import HbmOomError, watch_hbm

log = logging.getLogger("train")

WIDTH, LAYERS, STEPS = 256, 4, 3
BATCHES = (3 * 10**12, 1024)  # to try, the largest first


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


def make() -> tuple[Mlp, nnx.Optimizer]:
    model = Mlp(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def make_batch(batch_size: int) -> jax.Array:
    """Sines to learn; made in the step, where they cost nothing (in real use: an argument)."""
    return jnp.sin(jnp.outer(jnp.arange(float(batch_size)), jnp.arange(1.0, WIDTH + 1)))


# nnx.jit has jitted the step already; watch_hbm leaves that as it is.
@watch_hbm
@partial(nnx.jit, static_argnames="batch_size")
def train_step(model: Mlp, optimizer: nnx.Optimizer, batch_size: int) -> jax.Array:
    x = make_batch(batch_size)
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
    optimizer.update(model, grads)
    return loss


def train(batch_size: int) -> float:
    """A fresh model (in real use: the last checkpoint), and a few steps."""
    model, optimizer = make()
    for _ in range(STEPS):
        loss = train_step(model, optimizer, batch_size=batch_size)
    return float(loss)


def check(device: Any, batch_size: int) -> float:
    """Compile for a device that need not be there; returns the GiB that the step needs."""
    there = SingleDeviceSharding(device)
    graph, shapes = nnx.split(nnx.eval_shape(make))
    state = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=there), shapes)
    model, optimizer = nnx.merge(graph, state)
    compiled = train_step.lower(model, optimizer, batch_size=batch_size).compile()
    stages: Any = getattr(compiled, "compiled", compiled)  # flax wraps JAX's
    return float(stages.memory_analysis().peak_memory_in_bytes) / 2**30


def first_that_fits(run: Callable[[int], float], pages: Path) -> tuple[int, float]:
    """Try batches until one fits; each that does not is logged, with a page to look at."""
    for batch_size in BATCHES:
        try:
            return batch_size, run(batch_size)
        except HbmOomError as oom:
            page = pages / f"oom-batch-{batch_size}.html"
            oom.report.save_html(page)
            log.error("batch %d does not fit; see %s\n%s", batch_size, page, oom.report)
        # The next try starts here, after the exception and the arrays in its frames are gone.
        # What the step changed or donated before it failed is not to be trusted: start afresh.
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
