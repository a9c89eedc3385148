"""A case for each rule: a program, its arguments, and the dimensions that can be cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name


def floats(*shape: int) -> Any:
    """Floats between 0.05 and 0.95, for which every function is defined."""
    size = int(np.prod(shape))
    return (np.arange(size) * 7 % size / size * 0.9 + 0.05).astype(np.float32).reshape(shape)


def ints(*shape: int) -> Any:
    """Small positive integers."""
    return (np.arange(int(np.prod(shape))) * 5 % 7).astype(np.int32).reshape(shape)


# Which input and dimension of an equation can be cut, and how its first output is made then.
Cuts = dict[tuple[int, int], str]


@dataclass(frozen=True)
class Case:
    """A primitive, a program that uses it once or more, and how its last use can be cut."""

    primitive: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    cuts: Cuts

    def __str__(self) -> str:
        return self.primitive


def split(*dimensions: int) -> Cuts:
    """Dimensions of the first input that give pieces of the output."""
    return {(0, d): "split" for d in dimensions}


def sums(*dimensions: int) -> Cuts:
    """Dimensions of the first input whose pieces add up."""
    return {(0, d): "sum" for d in dimensions}


def both(*dimensions: int) -> Cuts:
    """Dimensions of the first input, and the same ones of the second."""
    return {(k, d): "split" for d in dimensions for k in (0, 1)}


X = floats(4, 6)
CUBE = floats(4, 6, 2)
N = ints(4, 6)
ROWS = ints(4) % 4
OUTSIDE = np.asarray([3, -2, 1, 9], np.int32)
COLUMNS = ints(4, 2) % 6
# Written with lax, as `.at` makes negative indices positive, and older jax cannot turn that off.
ELEMENTS = lax.GatherDimensionNumbers((), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))
INTO_ELEMENTS = lax.ScatterDimensionNumbers((), (0, 1), scatter_dims_to_operand_dims=(0, 1))
INTO_ROWS = lax.ScatterDimensionNumbers((1,), (0,), scatter_dims_to_operand_dims=(0,))
J = ints()
SQUARES = np.stack([np.eye(3, dtype=np.float32) * 2 + 0.1] * 4)


def in_column_1(rows: Any) -> Any:
    """The indices of the elements of a matrix that are in these rows, and in its column 1."""
    return jnp.stack([rows, jnp.ones_like(rows)], axis=-1)


def bits(seed: Any) -> Any:
    """Random numbers of a key that the seed makes."""
    return jax.random.uniform(jax.random.key(seed), (3,))


def two_bits(seed: Any) -> Any:
    """Random numbers of two keys that the seed makes."""
    one, two = jax.random.split(jax.random.key(seed))
    return jax.random.uniform(one, (3,)) + jax.random.uniform(two, (3,))


def folded(number: Any) -> Any:
    """Random numbers of a key that the number changes."""
    return jax.random.uniform(jax.random.fold_in(jax.random.key(0), number), (3,))


def data(seed: Any) -> Any:
    """The numbers of the key that a seed makes."""
    return jax.random.key_data(jax.random.key(seed))


def wrapped(numbers: Any) -> Any:
    """Random numbers of the key with these numbers."""
    return jax.random.uniform(jax.random.wrap_key_data(numbers), (3,))


def windows(x: Any, start: Any, combine: Any) -> Any:
    """A window of two along the last dimension."""
    return lax.reduce_window(x, start, combine, (1, 2), (1, 2), "VALID")


def batched_scatter(x: Any, i: Any) -> Any:
    """A scatter into each row alone."""
    return jax.vmap(lambda row, at: row.at[at].set(0.5))(x, i)


# Functions of one, of two, and of integer arrays that work element by element.
UNARY = """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma
erf erf_inv erfc exp exp2 expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign sin
sinh sqrt square stop_gradient tan tanh""".split()
BINARY = """add atan2 div eq ge gt igamma igammac le lt max min mul ne nextafter
polygamma pow rem sub zeta""".split()
INTEGER = "and or xor shift_left shift_right_arithmetic shift_right_logical".split()
ONE_INTEGER = "not clz population_count".split()


def elementwise(name: str, *args: Any) -> Case:
    """A case of a function that works element by element."""
    bitwise = getattr(lax, f"bitwise_{name}", None)
    function = bitwise if bitwise is not None else getattr(lax, name)
    cuts = {(k, d): "split" for k in range(len(args)) for d in (0, 1)}
    return Case(name, function, args, cuts)


ELEMENTWISE = (
    *(elementwise(name, X) for name in UNARY),
    *(elementwise(name, X, X[::-1] + 1) for name in BINARY),
    *(elementwise(name, N, N[::-1] + 1) for name in INTEGER),
    *(elementwise(name, N) for name in ONE_INTEGER),
    Case(
        "regularized_incomplete_beta",
        lax.betainc,
        (X + 1, X + 2, X / 2),
        {(k, d): "split" for k in range(3) for d in (0, 1)},
    ),
    elementwise("clamp", X / 2, X, X * 2),
    elementwise("complex", X, X),
    Case("real", lambda x: lax.real(lax.complex(x, x)), (X,), split(0, 1)),
    Case("imag", lambda x: lax.imag(lax.complex(x, x)), (X,), split(0, 1)),
    Case("conj", lambda x: lax.conj(lax.complex(x, x)), (X,), split(0, 1)),
    Case("convert_element_type", lambda x: x.astype(jnp.int32), (X,), split(0, 1)),
    Case("bitcast_convert_type", lambda x: x.view(jnp.int32), (X,), split(0, 1)),
    Case("integer_pow", lambda x: x**3, (X,), split(0, 1)),
    Case("reduce_precision", lambda x: lax.reduce_precision(x, 5, 10), (X,), split(0, 1)),
    Case("name", lambda x: checkpoint_name(x, "x"), (X,), split(0, 1)),
    Case("add_any", lambda x: jax.grad(lambda x: (x * x).sum())(x), (X,), both(0, 1)),
)
CASES = (
    *ELEMENTWISE,
    Case("broadcast_in_dim", lambda x: jnp.broadcast_to(x[:, None], (4, 3, 6)), (X,), split(0, 2)),
    Case("concatenate", lambda x: jnp.concatenate([x, x * 2], 1), (X,), both(0)),
    Case("pad", lambda x: lax.pad(x, jnp.float32(1), ((0, 0, 0), (1, 2, 1))), (X,), split(0)),
    Case("rev", lambda x: x[:, ::-1], (X,), split(0)),
    Case("slice", lambda x: lax.slice(x, (0, 1), (4, 5)), (X,), split(0)),
    Case("split", lambda x: jnp.split(x, 2, 1), (X,), split(0)),
    Case("squeeze", lambda x: lax.squeeze(x, (1,)), (floats(4, 1, 6),), split(0, 2)),
    Case("transpose", lambda x: x.transpose(2, 0, 1), (CUBE,), split(0, 1, 2)),
    Case("reshape", lambda x: lax.reshape(x, (24, 2)), (CUBE,), split(0, 1, 2)),
    Case("reduce_sum", lambda x: x.sum(1), (X,), {(0, 0): "split", (0, 1): "sum"}),
    Case("reduce_max", lambda x: x.max(1), (X,), {(0, 0): "split", (0, 1): "max"}),
    Case("reduce_min", lambda x: x.min(1), (X,), {(0, 0): "split", (0, 1): "min"}),
    Case("reduce_or", lambda x: (x > 5).any(1), (N,), {(0, 0): "split", (0, 1): "max"}),
    Case("reduce_and", lambda x: (x > 0).all(1), (N,), {(0, 0): "split", (0, 1): "min"}),
    Case("reduce_xor", lambda x: lax.reduce_xor(x, (1,)), (N,), split(0)),
    Case("reduce_prod", lambda x: x.prod(1), (X,), split(0)),
    Case("argmax", lambda x: lax.argmax(x, 1, jnp.int32), (X,), split(0)),
    Case("argmin", lambda x: lax.argmin(x, 1, jnp.int32), (X,), split(0)),
    Case(
        "dot_general",
        lambda x, y: x @ y,
        (X, floats(6, 8)),
        {(0, 0): "split", (1, 1): "split", (0, 1): "sum", (1, 0): "sum"},
    ),
    Case(
        "dot_general",
        lambda x, y: jnp.einsum("bij,bkj->bik", x, y),
        (floats(4, 8, 6), floats(4, 2, 6)),
        {**both(0), **split(1), (1, 1): "split", (0, 2): "sum", (1, 2): "sum"},
    ),
    Case(
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"),
        (floats(4, 2, 6), floats(8, 2, 3)),
        {(0, 0): "split", (1, 0): "split", (0, 1): "sum", (1, 1): "sum"},
    ),
    Case(
        "conv_general_dilated",
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2),
        (floats(4, 2, 6), floats(8, 1, 3)),
        split(0),
    ),
    Case("gather", lambda x, i: x[i], (X, ROWS), {(0, 0): "sum", (0, 1): "split", (1, 0): "split"}),
    Case(
        "gather",
        lambda x, i: jnp.take_along_axis(x, i, 1),
        (X, COLUMNS),
        {**both(0), **sums(1), (1, 1): "split"},
    ),
    *(
        Case(
            "gather",
            lambda x, i, mode=mode: lax.gather(x, in_column_1(i), ELEMENTS, (1, 1), mode=mode),
            (X, OUTSIDE),
            {**sums(0, 1), (1, 0): "split"},
        )
        for mode in ("fill", "clip", "promise_in_bounds")
    ),
    Case(
        "scatter-add",
        lambda x, i, u: lax.scatter_add(x, in_column_1(i), u, INTO_ELEMENTS, mode="drop"),
        (X, OUTSIDE, floats(4)),
        {**split(0, 1), (1, 0): "sum", (2, 0): "sum"},
    ),
    Case(
        "scatter",
        lambda x, i, u: lax.scatter(
            x, i[:, None], jnp.broadcast_to(u, (i.size, u.size)), INTO_ROWS, mode="clip"
        ),
        (X, OUTSIDE, floats(6)),
        {**split(0, 1), (2, 1): "split"},
    ),
    Case("scatter", lambda x, i: x.at[i, 1].set(2.0, mode="clip"), (X, OUTSIDE), {}),
    Case("gather", lambda x, i: x[i, i], (X, ROWS), {**sums(0, 1), (1, 0): "split"}),
    Case("scatter", lambda x, i: x.at[i].set(1.0), (X, ROWS), {**split(0, 1), (2, 1): "split"}),
    Case(
        "scatter-add",
        lambda x, i, u: x.at[i].add(u),
        (X, ROWS, floats(4, 6)),
        {**split(0, 1), (2, 1): "split", (1, 0): "sum", (2, 0): "sum"},
    ),
    Case(
        "scatter-mul",
        lambda x, i: x.at[i].multiply(2),
        (X, ROWS),
        {**split(0, 1), (2, 1): "split"},
    ),
    Case(
        "scatter-min",
        lambda x, i, u: x.at[i].min(u),
        (X, ROWS, floats(4, 6)[::-1]),
        {**split(0, 1), (2, 1): "split", (1, 0): "min", (2, 0): "min"},
    ),
    Case(
        "scatter-max",
        lambda x, i, u: x.at[i].max(u, mode="drop"),
        (X, OUTSIDE, floats(4, 6)[::-1]),
        {**split(0, 1), (2, 1): "split", (1, 0): "max", (2, 0): "max"},
    ),
    Case("scatter", batched_scatter, (X, COLUMNS), {**both(0), (0, 1): "split", (2, 0): "split"}),
    Case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, i), (4, 2)), (X, J), split(0)),
    Case(
        "dynamic_update_slice",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
        (X, floats(4, 2), J),
        both(0),
    ),
    Case("cumsum", lambda x: lax.cumsum(x, 1), (X,), split(0)),
    Case("cumprod", lambda x: lax.cumprod(x, 1), (X,), split(0)),
    Case("cummax", lambda x: lax.cummax(x, 1), (X,), split(0)),
    Case("cummin", lambda x: lax.cummin(x, 1), (X,), split(0)),
    Case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), (X,), split(0)),
    Case("sort", lambda x: lax.sort((x, x * 2), dimension=1, num_keys=1), (X,), both(0)),
    Case("top_k", lambda x: lax.top_k(x, 2), (X,), split(0)),
    Case("fft", lambda x: jnp.fft.rfft(x), (X,), split(0)),
    Case("cholesky", lambda x: lax.linalg.cholesky(x), (SQUARES,), split(0)),
    Case("eigh", lambda x: lax.linalg.eigh(x, symmetrize_input=False), (SQUARES,), split(0)),
    Case("lu", lambda x: lax.linalg.lu(x), (SQUARES,), split(0)),
    Case("qr", lambda x: lax.linalg.qr(x, full_matrices=False), (SQUARES,), split(0)),
    Case("svd", lambda x: lax.linalg.svd(x, compute_uv=False), (SQUARES,), split(0)),
    Case(
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        (SQUARES, floats(4, 3, 2)),
        both(0),
    ),
    Case("reduce_window_max", lambda x: windows(x, -jnp.inf, lax.max), (X,), split(0)),
    Case("reduce_window_min", lambda x: windows(x, jnp.inf, lax.min), (X,), split(0)),
    Case("reduce_window_sum", lambda x: windows(x, 0.0, lax.add), (X,), split(0)),
    Case(
        "select_and_scatter_add",
        lambda x: jax.grad(lambda x: windows(x, -jnp.inf, lax.max).sum())(x),
        (X,),
        both(0),
    ),
    Case(
        "select_and_gather_add",
        lambda x: jax.jvp(lambda x: windows(x, -jnp.inf, lax.max), (x,), (x * 2,))[1],
        (X,),
        both(0),
    ),
    Case("clamp", lambda x: lax.clamp(0.2, x, 0.8), (X,), {(1, 0): "split", (1, 1): "split"}),
    Case(
        "select_n",
        lambda x: lax.select_n(J > 0, x, x * 2),
        (X,),
        {(k, d): "split" for k in (1, 2) for d in (0, 1)},
    ),
    Case("mul", lambda x: x * x[:1], (X,), {**split(0, 1), (1, 1): "split"}),
    Case("random_bits", lambda x: jax.vmap(bits)(x), (np.arange(4),), split(0)),
    Case("random_split", lambda x: jax.vmap(two_bits)(x), (np.arange(4),), split(0)),
    Case("random_fold_in", lambda x: jax.vmap(folded)(x), (np.arange(4),), {(1, 0): "split"}),
    Case("random_seed", lambda x: jax.vmap(bits)(x), (np.arange(4),), split(0)),
    Case("random_unwrap", lambda x: jax.vmap(data)(x), (np.arange(4),), split(0)),
    Case(
        "random_wrap",
        lambda x: jax.vmap(wrapped)(x),
        (np.arange(8).reshape(4, 2).astype(np.uint32),),
        split(0),
    ),
    Case("optimization_barrier", lambda x: lax.optimization_barrier((x, x * 2)), (X,), both(0, 1)),
)
