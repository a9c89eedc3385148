"""Small random programs: a list of numbers, read as steps over a growing list of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.preflight.pieces.modes import MODES, Args, Array, forward_mode

# One step: which operation, which two arrays, and a number for everything else.
Step = tuple[int, int, int, int]
MOST_ELEMENTS = 4096


@dataclass(frozen=True)
class Code:
    """A program: its steps, the shapes of its arguments, and how it is differentiated."""

    steps: tuple[Step, ...]
    rows: int
    columns: int
    mode: int


def codes() -> st.SearchStrategy[Code]:
    """Random programs."""
    small = st.integers(0, 11)
    step = st.tuples(st.integers(0, len(OPERATIONS) - 1), small, small, st.integers(0, 23))
    steps = st.lists(step, min_size=1, max_size=8).map(tuple)
    sizes = st.sampled_from([(4, 6), (6, 4), (8, 3), (5, 6)])
    modes = st.integers(0, len(MODES) - 1)
    return st.builds(lambda s, z, m: Code(_runnable(s, m), z[0], z[1], m), steps, sizes, modes)


def _runnable(steps: tuple[Step, ...], mode: int) -> tuple[Step, ...]:
    """The steps, without custom_vjp in forward mode, in which JAX cannot run it."""
    if MODES[mode] is not forward_mode:
        return steps
    is_clipped = [OPERATIONS[step[0]] is _wrapped and step[3] % 5 == 0 for step in steps]
    return tuple(
        (*step[:3], step[3] + 1) if clipped else step for step, clipped in zip(steps, is_clipped)
    )


def arguments(code: Code) -> Args:
    """The arguments of a program. They are the same for the same shapes."""
    rows, columns = code.rows, code.columns
    random = np.random.RandomState(rows * 10 + columns)

    def normal(*shape: int) -> Array:
        return random.randn(*shape).astype(np.float32)

    return {
        "x": normal(rows, columns),
        "y": normal(rows, columns),
        "w": normal(columns, columns) * 0.5,
        "b": normal(columns),
        "t": normal(2, rows, columns),
        "i": random.randint(0, rows, (rows,)).astype(np.int32),
        "j": random.randint(0, 2, ()).astype(np.int32),
        "k": jax.random.key(3),
    }


def function(code: Code) -> Callable[[Args], Any]:
    """The program as a function of its arguments."""

    def forward(args: Args) -> Array:
        arrays = [args["x"], args["y"], args["w"], args["b"], args["t"]]
        for operation, a, b, p in code.steps:
            # Mostly the latest array, so that few steps are dead code.
            first = arrays[-1] if a < 9 else arrays[a % len(arrays)]
            second = arrays[b % len(arrays)]
            made = OPERATIONS[operation](args, first, second, p)
            if 0 < made.size <= MOST_ELEMENTS and made.ndim <= 4:
                arrays.append(made)
        return arrays[-1]

    return MODES[code.mode](forward)


def _like(x: Array, y: Array) -> Array:
    """`y` in the shape of `x`: as it is, or one number of it."""
    return y if y.shape == x.shape else jnp.mean(y)


def _axis(x: Array, p: int) -> int:
    return p % max(int(x.ndim), 1)


def _unary(args: Args, x: Array, y: Array, p: int) -> Array:
    functions = (jnp.tanh, jnp.sin, jax.nn.gelu, jax.nn.softplus, jax.nn.relu, lambda x: x * x / 4)
    return functions[p % len(functions)](x)


def _binary(args: Args, x: Array, y: Array, p: int) -> Array:
    functions = (jnp.add, jnp.multiply, jnp.subtract, jnp.maximum, jnp.minimum)
    return functions[p % len(functions)](x, _like(x, y))


def _matmul(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim and x.shape[-1] == args["w"].shape[0]:
        return jnp.tanh(x @ args["w"])
    return x * 2


def _pairs(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim != 2:
        return x + 1
    y = y if y.ndim == 2 and y.shape[1] == x.shape[1] else x
    if p % 2:
        return jnp.einsum("id,jd->ij", x, y) / x.shape[1]
    return jnp.sum((x[:, None] - y[None]) ** 2, -1)


def _outer(args: Args, x: Array, y: Array, p: int) -> Array:
    return x[..., None] * args["b"] if x.ndim < 3 else jnp.sum(x, axis=_axis(x, p))


def _reduce(args: Args, x: Array, y: Array, p: int) -> Array:
    functions = (jnp.sum, jnp.mean, jnp.max, jnp.min, jnp.var, jnp.prod)
    if not x.ndim:
        return x
    made = functions[p % 6](x, axis=_axis(x, p // 6), keepdims=bool(p % 2))
    return jnp.tanh(made)


def _normalize(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    axis = _axis(x, p // 3)
    if p % 3 == 0:
        return jax.nn.softmax(x, axis=axis)
    if p % 3 == 1:
        return x - jax.nn.logsumexp(x, axis=axis, keepdims=True)
    return (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + 0.1)


def _reshape(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim >= 2 and p % 3:
        return x.reshape(-1, *x.shape[2:]) if p % 3 == 1 else x.reshape(*x.shape[:-2], -1)
    axis = _axis(x, p // 3)
    if x.ndim and x.shape[axis] % 2 == 0:
        return x.reshape(*x.shape[:axis], 2, -1, *x.shape[axis + 1 :])
    return x.reshape(1, *x.shape)


def _move(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    axis = _axis(x, p // 4)
    moves: tuple[Callable[[], Array], ...] = (
        lambda: jnp.swapaxes(x, axis, -1),
        lambda: jnp.flip(x, axis),
        lambda: jnp.roll(x, 1, axis),
        lambda: jnp.expand_dims(x, axis),
    )
    return moves[p % 4]()


def _slice(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    axis = _axis(x, p // 4)
    size = x.shape[axis]
    if p % 4 == 0:
        return lax.slice_in_dim(x, 0, size, 2, axis)
    if p % 4 == 1:
        return lax.slice_in_dim(x, min(1, size - 1), size, 1, axis)
    if p % 4 == 2:
        return lax.dynamic_slice_in_dim(x, args["j"], max(size - 1, 1), axis)
    return lax.index_in_dim(x, size - 1, axis, keepdims=False)


def _pad(args: Args, x: Array, y: Array, p: int) -> Array:
    config = [(0, 0, 0)] * x.ndim
    if x.ndim:
        config[_axis(x, p // 4)] = ((1, 0, 0), (0, 2, 0), (0, 0, 1), (-1, 2, 0))[p % 4]
    return lax.pad(x, jnp.float32(p % 2), config)


def _concatenate(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    y = y if y.shape == x.shape else x * 2
    return jnp.stack([x, y], axis=0) if p % 2 else jnp.concatenate([x, y], axis=_axis(x, p // 2))


def _gather(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    index = args["i"] % x.shape[0]
    if p % 3 == 0:
        return x[index]
    if p % 3 == 1 and x.ndim == 2:
        columns = jnp.arange(x.shape[0])[:, None] * 3 % x.shape[1]
        return jnp.take_along_axis(x, columns, axis=1)
    return jnp.take(x, index[:2], axis=_axis(x, p // 3), mode="clip")


def _scatter(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    index = args["i"][:3] % x.shape[0]
    values = jnp.sin(x[:3]) if x.shape[0] >= 3 else jnp.mean(x)
    index = index if x.shape[0] >= 3 else index[0]
    at = x.at[index]
    if p % 4 == 0:
        return at.add(values)
    if p % 4 == 1:
        return at.max(values)
    if p % 4 == 2:
        return x.at[0].set(0.5)
    return lax.dynamic_update_slice_in_dim(x, x[:1] * 2, args["j"], 0)


def _along(args: Args, x: Array, y: Array, p: int) -> Array:
    if not x.ndim:
        return x
    axis = _axis(x, p // 5)
    functions: tuple[Callable[[], Array], ...] = (
        lambda: jnp.cumsum(x, axis) / x.shape[axis],
        lambda: jnp.sort(x, axis),
        lambda: lax.cummax(x, axis),
        lambda: lax.top_k(x, 1)[0],
        lambda: lax.cumsum(x, axis, reverse=True) / x.shape[axis],
    )
    return functions[p % 5]()


def _scan(args: Args, x: Array, y: Array, p: int) -> Array:
    """A loop over the first dimension, or over stacked weights, checkpointed or not."""
    wrap: Callable[..., Any] = jax.checkpoint if p % 2 else lambda f: f
    if p % 3 == 0 and x.ndim:

        def row(carry: Array, each: Array) -> tuple[Array, Array]:
            after = jnp.tanh(carry * 0.5 + each)
            return after, after * each

        last, rows = lax.scan(wrap(row), x[0], x, reverse=bool(p % 4))
        return rows + last
    weights = jnp.stack([args["w"], args["w"].T, args["w"] * 0.5])

    def layer(carry: Array, w: Array) -> tuple[Array, Array]:
        h = carry @ w if carry.ndim and carry.shape[-1] == w.shape[0] else carry * jnp.mean(w)
        after = jnp.tanh(h + carry)
        return after, jnp.sum(after, axis=-1) if after.ndim else after

    last, sums = lax.scan(wrap(layer), x, weights)
    return last if p % 3 == 1 else sums


def _loop(args: Args, x: Array, y: Array, p: int) -> Array:
    if p % 2:
        return lax.fori_loop(0, 3, lambda k, c: jnp.sin(c + k), x)
    zero = lax.stop_gradient(x)
    count, made = lax.while_loop(
        lambda c: c[0] < 2 + args["j"], lambda c: (c[0] + 1, jnp.cos(c[1]) + 0.5), (0, zero)
    )
    return made + x * count


def _branch(args: Args, x: Array, y: Array, p: int) -> Array:
    other = _like(x, y)
    which = args["j"] if p % 2 else 1 - args["j"]
    return lax.cond(which > 0, lambda a, b: jnp.sin(a) + b, lambda a, b: a * 0.5, x, other)


def _random(args: Args, x: Array, y: Array, p: int) -> Array:
    key = jax.random.fold_in(args["k"], p)
    if p % 3 == 0:
        return jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x, 0.0)
    if p % 3 == 1 or not x.ndim:
        return x + jax.random.normal(key, x.shape)
    keys = jax.random.split(key, x.shape[0])
    return jax.vmap(lambda k, row: row * jax.random.uniform(k, row.shape))(keys, x)


def _mask(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim < 2:
        return x
    rows = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    columns = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    if p % 2:
        return jnp.where(rows >= columns, x, -1.0)
    return x * jax.nn.one_hot(args["i"][0], x.shape[-1]) + rows * 0.1


@jax.custom_vjp
def _clipped(x: Array) -> Array:
    return jnp.sin(x)


_clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -0.01, 0.01) * x,))


def _wrapped(args: Args, x: Array, y: Array, p: int) -> Array:
    functions = (
        _clipped,
        jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x) * x)),
        jax.jit(lambda x: jnp.sin(x) * 2),
        lambda x: lax.optimization_barrier(x) * 2,
        lambda x: lax.stop_gradient(x) * x,
    )

    return functions[p % 5](x)


def _mapped(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim < 2:
        return x
    if p % 2:
        return jax.vmap(lambda row: jnp.outer(row.ravel(), row.ravel()))(x)
    return jax.vmap(jax.grad(lambda row: jnp.sum(jnp.tanh(row) ** 2) * row.ravel()[0]))(x)


def _convolve(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim != 2:
        return x
    if p % 2:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID")
    window = args["w"][:1, :2].reshape(1, 1, 2) * jnp.ones((2, 1, 1))
    made = lax.conv_general_dilated(x[:, None], window, (1,), "SAME")
    return made.reshape(x.shape[0], -1)


def _matrices(args: Args, x: Array, y: Array, p: int) -> Array:
    if x.ndim != 2 or x.shape[1] > 6:
        return x
    stacked = jax.vmap(lambda row: jnp.outer(row, row) + 2 * jnp.eye(row.size))(jnp.tanh(x))
    lower = jnp.linalg.cholesky(stacked)
    return lower if p % 2 else lax.linalg.triangular_solve(lower, x[..., None], left_side=True)


OPERATIONS: Sequence[Callable[[Args, Array, Array, int], Array]] = (
    _unary,
    _binary,
    _matmul,
    _pairs,
    _outer,
    _reduce,
    _normalize,
    _reshape,
    _move,
    _slice,
    _pad,
    _concatenate,
    _gather,
    _scatter,
    _along,
    _scan,
    _loop,
    _branch,
    _random,
    _mask,
    _wrapped,
    _mapped,
    _convolve,
    _matrices,
)
