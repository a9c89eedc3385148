"""Programs that compute all samples or all steps at once: vmap, scan, unrolled loops."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from tests.oom_programs.base import array, case, on_one


@case("random-bits", "jax-ml/jax#19893, google/flax#3701")
def random_init(fault: bool) -> Any:
    """One huge kernel is drawn at once, and the bits of the generator do not fit beside it."""

    def draw(key: Any, *shape: int) -> Any:
        return jax.random.truncated_normal(key, -2, 2, shape, jnp.float32)

    def init(key: Any) -> Any:
        if fault:
            return draw(key, 65536, 32768)
        return jax.lax.map(lambda k: draw(k, 512, 32768), jax.random.split(key, 128))

    # The default when both were reported: the bits are not computed where they are used.
    with jax.threefry_partitionable(False):
        return on_one(init, array(2, dtype=jnp.uint32))


@case("random-bits", "QuantEcon/lecture-python.myst#330")
def shocks_of_all_periods(fault: bool) -> Any:
    """A simulation draws the shocks of all periods before its loop; the fix draws them in it."""

    def walk(x: Any, shock: Any) -> Any:
        return 0.9 * x + 0.1 * shock * jnp.abs(x)

    def simulate(key: Any, x: Any) -> Any:
        if fault:
            shocks = jax.random.normal(key, (2100, *x.shape))
            return jax.lax.scan(lambda x, shock: (walk(x, shock), None), x, shocks)[0].mean()

        def step(period: Any, x: Any) -> Any:
            return walk(x, jax.random.normal(jax.random.fold_in(key, period), x.shape))

        return jax.lax.fori_loop(0, 2100, step, x).mean()

    return on_one(simulate, array(2, dtype=jnp.uint32), array(2097152))


@case("stacked-outputs", "uwplasma/JAX-in-Cell#37, arviz#2307")
def scan_history(fault: bool) -> Any:
    """A simulation returns the whole history of its fields from a scan."""

    def simulate(field: Any, kick: Any) -> Any:
        def step(f: Any, k: Any) -> Any:
            f = f + 0.1 * (jnp.roll(f, 1, -1) - 2 * f + jnp.roll(f, -1, -1)) * k
            return f, (f if fault else f.mean())

        return jax.lax.scan(step, field, kick)

    return on_one(simulate, array(2, 1024, 2048), array(1200))


@case("stacked-outputs", "pyro-ppl/numpyro#539: the chain keeps every state")
def mcmc_chain(fault: bool) -> Any:
    """A Markov chain collects its momentum and its gradient beside its position."""

    def run(state: Any, keys: Any) -> Any:
        def energy(q: Any) -> Any:
            return (q**4).sum() + (q**2).sum()

        def step(state: Any, key: Any) -> Any:
            q, p = state
            g = jax.grad(energy)(q)
            p = 0.9 * p - 0.01 * g + 0.1 * jax.random.normal(key, p.shape)
            q = q + 0.01 * p
            return (q, p), ({"position": q, "momentum": p, "gradient": g} if fault else q.mean())

        return jax.lax.scan(step, state, keys)

    q = array(64, 16384)
    return on_one(run, (q, q), array(2000, 2, dtype=jnp.uint32))


@case("samples", "juanitorduz/numpyro_forecast#64, pyro-ppl/numpyro#1503")
def posterior_predictive(fault: bool) -> Any:
    """All draws of a posterior predictive are made in one allocation."""

    def predictive(key: Any, loc: Any, scale: Any) -> Any:
        def draw(k: Any) -> Any:
            noise = jax.random.normal(k, loc.shape)
            return loc + scale * noise

        keys = jax.random.split(key, 1000)
        if fault:
            return jax.vmap(draw)(keys)
        return jax.lax.map(lambda k: draw(k).mean(), keys)

    panel = array(365, 16384)
    return on_one(predictive, array(2, dtype=jnp.uint32), panel, panel)


@case("samples", "pymc-devs/pymc#5664, kokabsc/gwkokab#451: log likelihood of every draw")
def vmapped_log_likelihood(fault: bool) -> Any:
    """The log likelihood is vmapped over all posterior draws and summed afterwards."""

    def log_likelihood(draws: Any, x: Any, y: Any) -> Any:
        def one(draw: Any) -> Any:
            mean = x @ draw["beta"] + draw["alpha"]
            z = jnp.sort((y - mean) / jnp.exp(draw["sigma"]))
            return jax.nn.logsumexp(-0.5 * z**2)

        if fault:
            return jax.vmap(one)(draws)
        return jax.lax.map(one, draws)

    draws = {"beta": array(8000, 32), "alpha": array(8000), "sigma": array(8000)}
    return on_one(log_likelihood, draws, array(524288, 32), array(524288))


@case("samples", "netket/netket#1740: the gradient of each sample is kept")
def sample_gradients(fault: bool) -> Any:
    """vmap over a gradient makes one for each sample; the fix uses each as it is made."""

    def log_psi(w: Any, x: Any) -> Any:
        return jnp.log(jnp.cosh(jnp.tanh(x @ w[0]) @ w[1])).sum()

    def update(w: Any, xs: Any) -> Any:
        def norm(x: Any) -> Any:
            grads = jax.grad(log_psi)(w, x)
            return sum((jnp.sort(g, axis=0) ** 2).sum() for g in grads)

        return jax.vmap(norm)(xs) if fault else jax.lax.map(norm, xs)

    return on_one(update, (array(1024, 512), array(512, 1024)), array(4096, 1024))


@case("samples", "google/objax#178: one gradient per example, to clip each of them")
def clipped_gradients(fault: bool) -> Any:
    """The layers are a Python loop under a vmap; the fix adds up one example at a time."""

    def loss(params: Any, x: Any) -> Any:
        for layer in range(4):
            x = jnp.tanh(x @ params["up"][layer]) @ params["down"][layer]
        return (x**2).sum()

    def clipped(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        norm = jnp.sqrt(sum((g**2).sum() for g in grads.values()))
        return jax.tree.map(lambda g: g / jnp.maximum(1, norm), grads)

    def step(params: Any, xs: Any) -> Any:
        if fault:
            every = jax.vmap(clipped, in_axes=(None, 0))(params, xs)
            return jax.tree.map(lambda g: g.mean(0), every)

        def add(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, clipped(params, x)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)[0]

    params = {"up": array(4, 1024, 4096), "down": array(4, 4096, 1024)}
    return on_one(step, params, array(256, 1024))


@case("unrolled-loop", "HomebrewML/Olmax#25: chunks in a Python loop")
def unrolled_chunks(fault: bool) -> Any:
    """A sum over chunks is a Python loop, so that the compiler keeps all chunks at once."""

    def total(weights: Any, x: Any) -> Any:
        def chunk(w: Any) -> Any:
            return jnp.sort(x @ w, axis=-1)

        if fault:
            parts = [chunk(weights[i]) for i in range(24)]
            return functools.reduce(jnp.add, parts) / jnp.stack([p.max() for p in parts]).max()

        def body(carry: Any, w: Any) -> Any:
            part = chunk(w)
            return (carry[0] + part, jnp.maximum(carry[1], part.max())), None

        zero = jnp.zeros((x.shape[0], weights.shape[2]))
        summed, top = jax.lax.scan(body, (zero, jnp.float32(0)), weights)[0]
        return summed / top

    return on_one(total, array(24, 512, 8192), array(24576, 512))
