"""Steps written with the libraries that people use with JAX: each runs out, and says where."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import SIDE, SMALL

pytestmark = pytest.mark.clients
os.environ.setdefault("KERAS_BACKEND", "jax")  # read when keras is imported

Client = Callable[[Path], Any]
CLIENTS: dict[str, tuple[tuple[str, ...], Client, str]] = {}


def client(headline: str, *modules: str) -> Callable[[Client], Client]:
    """Register a step that needs these modules, with the headline of its OOM."""

    def register(run: Client) -> Client:
        CLIENTS[run.__name__] = modules, run, headline
        return run

    return register


def wide(x: jax.Array) -> jax.Array:
    """One petabyte from one number."""
    return jnp.broadcast_to(x, (SIDE, SIDE)) + 1


@jax.jit
def times_wide(x: jax.Array) -> jax.Array:
    """One number from one petabyte."""
    return (wide(x) @ jnp.ones(SIDE)).sum()


OOM = "{} ran out of memory at run time on CPU: requested 1.00 PiB"
STEP = OOM.format("train_step")


@client(STEP, "flax")
def flax_linen(_: Path) -> None:
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return wide(linen.Dense(4)(x).sum())

    net = Net()
    params = {"params": {"Dense_0": {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4)}}}

    @watch_hbm
    def train_step(params: Any, x: Any) -> Any:
        return net.apply(params, x)

    train_step(params, SMALL)


@client(STEP, "flax", "optax")
def flax_nnx(_: Path) -> None:
    nnx, model, optimizer = nnx_model()

    def train_step(model: Any, optimizer: Any, x: Any) -> Any:
        grads = nnx.grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)
        return wide(model(x).sum())

    watch_hbm(nnx.jit(train_step))(model, optimizer, SMALL)


@client(OOM.format("cached_step"), "flax", "optax")
def flax_nnx_cached_partial(_: Path) -> None:
    nnx, model, optimizer = nnx_model()

    def cached_step(model: Any, optimizer: Any, x: Any) -> Any:
        return wide(model(x).sum())

    watch_hbm(nnx.cached_partial(nnx.jit(cached_step), model, optimizer))(SMALL)


def nnx_model() -> Any:
    """The module, a model and its optimizer."""
    import optax  # type: ignore[import-untyped]
    from flax import nnx

    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    return nnx, model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


@client(STEP, "equinox")
def equinox(_: Path) -> None:
    import equinox as eqx

    model = eqx.nn.MLP(8, 4, 16, 2, key=jax.random.key(0))

    @watch_hbm
    @eqx.filter_jit
    def train_step(model: Any, x: Any) -> Any:
        return wide(model(x).sum())

    train_step(model, SMALL)


@client(STEP, "jax.experimental.pallas")
def pallas_kernel(_: Path) -> None:
    from jax.experimental import pallas

    def double(x: Any, out: Any) -> None:
        out[...] = 2 * x[...]

    @watch_hbm
    def train_step(x: Any) -> Any:
        return wide(pallas.pallas_call(double, out_shape=x, interpret=True)(x).sum())

    train_step(SMALL)


@client(STEP, "optax")
def optax(_: Path) -> None:
    import optax

    optimizer = optax.adam(1e-3)

    @watch_hbm(donate_argnums=(0, 1))
    def train_step(w: Any, state: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda w: (w * x).sum())(w)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(w, updates), state, wide(loss)

    w = jnp.ones(8)
    train_step(w, optimizer.init(w), SMALL)


@client(STEP, "haiku")
def haiku(_: Path) -> None:
    import haiku as hk

    net = hk.without_apply_rng(hk.transform(lambda x: wide(hk.Linear(4)(x).sum())))

    @watch_hbm
    def train_step(params: Any, x: Any) -> Any:
        return net.apply(params, x)

    train_step({"linear": {"w": jnp.ones((8, 4)), "b": jnp.ones(4)}}, SMALL)


@client(OOM.format("jit_diffeqsolve"), "diffrax")
def diffrax(_: Path) -> None:
    import diffrax as dfx

    with watch_hbm():
        dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, args: -y),
            dfx.Tsit5(),
            0.0,
            1.0,
            0.1,
            jnp.ones(SIDE),
            saveat=dfx.SaveAt(ts=jnp.linspace(0, 1, SIDE)),
        )


@client(OOM.format("jit_minimise"), "optimistix")
def optimistix(_: Path) -> None:
    import optimistix as optx

    with watch_hbm():
        optx.minimise(lambda y, _: times_wide(y.sum()), optx.BFGS(1e-3, 1e-3), SMALL)


@client(OOM.format("run"), "jaxopt")
def jaxopt(_: Path) -> None:
    from jaxopt import BFGS

    watch_hbm(BFGS(lambda y: times_wide(y.sum()), maxiter=2).run)(SMALL)


@client(OOM.format("probably jit_times_wide(N)"), "numpyro")
def numpyro(_: Path) -> None:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        numpyro.sample("x", dist.Normal(times_wide(w.sum()), 1.0), obs=x)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO())
    with watch_hbm():
        svi.run(jax.random.key(1), 2, 1.0, progress_bar=False)


@client(OOM.format("step_fn"), "blackjax")
def blackjax(_: Path) -> None:
    import blackjax

    nuts = blackjax.nuts(lambda x: times_wide(x.sum()), 1e-3, jnp.ones(8))
    state = jax.eval_shape(nuts.init, SMALL)
    state = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), state)
    watch_hbm(nuts.step)(jax.random.key(0), state)


@client(STEP, "brax")
def brax(_: Path) -> None:
    from brax import envs
    from brax.training.acting import generate_unroll

    env = envs.training.wrap(envs.get_environment("fast"))
    state = env.reset(jax.random.split(jax.random.PRNGKey(0), 2**17))

    @watch_hbm
    def train_step(state: Any, key: Any) -> Any:
        actions: Any = jnp.zeros((2**17, env.action_size)), {}
        return generate_unroll(env, state, lambda *_: actions, key, unroll_length=2**30)

    train_step(state, jax.random.PRNGKey(1))


@client(OOM.format("probably jit_train_step(N)"), "keras")
def keras(_: Path) -> None:
    import keras

    inputs = keras.Input((8,))
    hidden = keras.layers.Lambda(lambda x: times_wide(x.sum()) + x)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    data = np.ones((4, 8), np.float32)
    with watch_hbm():
        model.fit(data, data[:, :1], batch_size=4, verbose=0)


@client(STEP, "orbax.checkpoint")
def orbax(folder: Path) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "1", {"w": jnp.ones(8)})
        checkpointer.wait_until_finished()
        state = checkpointer.restore(folder / "1")

    @watch_hbm
    def train_step(state: Any) -> Any:
        return wide(state["w"].sum())

    train_step(state)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_step_runs_out_and_says_where(name: str, tmp_path: Path) -> None:
    """The last line of the error has the function or program, and what it requested."""
    modules, run, headline = CLIENTS[name]
    for module in modules:
        pytest.importorskip(module)

    with pytest.raises(HbmOomError) as caught:
        run(tmp_path)

    last = str(caught.value).splitlines()[-1]
    assert re.sub(r"\(\d+\)", "(N)", last) == f"hbmwatch: {headline}"  # the number of a module
    assert caught.value.summary is not None
    assert caught.value.report.missing == ()
