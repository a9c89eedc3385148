"""Every rule: which dimensions it cuts, and that the pieces together are the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hbmwatch._jax import replay
from hbmwatch._preflight.pieces import rewrite, seeds
from hbmwatch._preflight.pieces.program import Node, Value, constant, flatten
from hbmwatch._preflight.pieces.rules import RULES, place
from hbmwatch._preflight.pieces.rules.axis import Placement, Slot, checked
from hbmwatch._preflight.pieces.rules.random import flat_numbers
from hbmwatch._preflight.pieces.split import (
    WHOLE,
    Grid,
    Partial,
    Piece,
    Split,
    State,
    cut_along,
)
from tests.preflight.pieces.test_property import differ


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


def both(*dimensions: int) -> Cuts:
    """Dimensions of the first input, and the same ones of the second."""
    return {(k, d): "split" for d in dimensions for k in (0, 1)}


X = floats(4, 6)
CUBE = floats(4, 6, 2)
N = ints(4, 6)
ROWS = ints(4) % 4
COLUMNS = ints(4, 2) % 6
J = ints()
SQUARES = np.stack([np.eye(3, dtype=np.float32) * 2 + 0.1] * 4)


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
    Case("gather", lambda x, i: x[i], (X, ROWS), {(0, 1): "split", (1, 0): "split"}),
    Case(
        "gather",
        lambda x, i: jnp.take_along_axis(x, i, 1),
        (X, COLUMNS),
        {**both(0), (1, 1): "split"},
    ),
    Case("gather", lambda x, i: x[i, i], (X, ROWS), {(1, 0): "split"}),
    Case("scatter", lambda x, i: x.at[i].set(1.0), (X, ROWS), {(0, 1): "split", (2, 1): "split"}),
    Case(
        "scatter-add",
        lambda x, i, u: x.at[i].add(u),
        (X, ROWS, floats(4, 6)),
        {(0, 1): "split", (2, 1): "split", (1, 0): "sum", (2, 0): "sum"},
    ),
    Case(
        "scatter-mul",
        lambda x, i: x.at[i].multiply(2),
        (X, ROWS),
        {(0, 1): "split", (2, 1): "split"},
    ),
    Case(
        "scatter-min", lambda x, i: x.at[i].min(0.5), (X, ROWS), {(0, 1): "split", (2, 1): "split"}
    ),
    Case(
        "scatter-max", lambda x, i: x.at[i].max(0.5), (X, ROWS), {(0, 1): "split", (2, 1): "split"}
    ),
    Case("scatter", batched_scatter, (X, COLUMNS), {**both(0), (2, 0): "split"}),
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


def primitives_of(closed: Any) -> set[str]:
    """The primitives of the flat program."""
    return {node.name for node in flatten(closed).nodes}


@pytest.mark.parametrize(
    ("name", "function", "cuts"),
    [
        ("log2", jnp.log2, split(0, 1)),
        ("one_minus_square", jax.grad(lambda x: jnp.tanh(x).sum()), split(0, 1)),
        ("stack", lambda x: jnp.stack([x, x], 1), both(0, 1)),
        ("unstack", lambda x: jnp.unstack(x, axis=0), split(1)),
        ("tile", lambda x: jnp.tile(x, (1, 2)), split(0)),
    ],
)
def test_newer_primitives_have_rules(name: str, function: Any, cuts: Cuts) -> None:
    """Where this version of JAX has them, they are cut; an older one uses others."""
    case = Case(name, function, (X,), cuts)
    if name in primitives_of(jax.make_jaxpr(function)(X)):
        test_a_rule_cuts_the_dimensions_that_are_independent(case)
        check_pieces(case, 2, strided=False)


def node_of(case: Case) -> Node:
    """The last equation of the case's primitive."""
    closed = jax.make_jaxpr(case.function)(*case.args)
    return [node for node in flatten(closed).nodes if node.name == case.primitive][-1]


def values_of(case: Case) -> list[Any]:
    """What goes into that equation."""
    closed = jax.make_jaxpr(case.function)(*case.args)
    program = flatten(closed)
    known: dict[Value, Any] = dict(zip(program.inputs, map(jnp.asarray, case.args), strict=True))

    def read(value: Value) -> Any:
        return constant(value) if value.known is not None else known[value]

    wanted = [node for node in program.nodes if node.name == case.primitive][-1]
    for node in program.nodes:
        values = [read(value) for value in node.inputs]
        if node is wanted:
            return values
        made = replay.bind(node.equation, values, {}, node.callers)
        known.update(zip(node.outputs, made, strict=True))
    raise AssertionError(case.primitive)


def ways(node: Node, n: int, strided: bool) -> dict[tuple[int, int], tuple[Grid, Placement]]:
    """How the equation is placed for each dimension of each input that can be cut."""
    found = {}
    for k, value in enumerate(node.inputs):
        for d, size in enumerate(value.shape):
            if size >= n and (size % n == 0 or not strided):
                grid, split = cut_along(size, d, n, strided=strided)
                have: list[State] = [WHOLE for _ in node.inputs]
                have[k] = split
                way = place(node, grid, Slot(False, k), split, have)
                if not isinstance(way, str):
                    found[k, d] = grid, way
    return found


def together(node: Node, grid: Grid, way: Placement, values: list[Any]) -> list[Any]:
    """The outputs, from all pieces."""
    made: list[Any] = [None] * len(node.outputs)
    starts = [(k * grid.count, grid.count) for k in range(grid.full)]
    starts += [(grid.full * grid.count, grid.rest)] if grid.rest else []
    for start, count in starts:
        piece = Piece(grid, jnp.int32(start), count)
        parts = checked(node, way, piece, [taken(piece, *e) for e in zip(values, way.ins)])
        for k, (state, part) in enumerate(zip(way.outs, parts, strict=True)):
            made[k] = combined(piece, made[k], node.outputs[k], state, part)
    return made


def taken(piece: Piece, array: Any, state: State) -> Any:
    """A piece of an input."""
    if isinstance(state, Split):
        return piece.cut(array, state)
    return piece.share(array, state.operation) if isinstance(state, Partial) else array


def combined(piece: Piece, held: Any, value: Value, state: State, part: Any) -> Any:
    """An output with one more piece."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        part = jax.random.key_data(part)
    if isinstance(state, Split):
        shape = (*value.shape, *part.shape[len(value.shape) :])
        return piece.put(jnp.zeros(shape, part.dtype) if held is None else held, part, state)
    if held is None or not isinstance(state, Partial):
        return part
    combine = {"sum": lax.add, "max": lax.max, "min": lax.min}[state.operation]
    return combine(held, part)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_cuts_the_dimensions_that_are_independent(case: Case) -> None:
    """Each of them gives pieces or parts of the output; the others have no way."""
    found = ways(node_of(case), 2, False)

    assert {at: named(way.outs[0]) for at, (_, way) in found.items()} == case.cuts


def named(state: State) -> str:
    """A state as the table has it."""
    return state.operation if isinstance(state, Partial) else "split"


@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_pieces_of_an_elementwise_function_are_the_whole(case: Case) -> None:
    """Blocks of each dimension give what the equation gives at once."""
    check_pieces(case, 2, strided=False)


@pytest.mark.parametrize("case", CASES[len(ELEMENTWISE) :], ids=str)
@pytest.mark.parametrize(("n", "strided"), [(2, False), (2, True), (3, False)])
def test_the_pieces_together_are_the_whole(case: Case, n: int, strided: bool) -> None:
    """Blocks, strided pieces and a shorter last piece give what the equation gives at once."""
    check_pieces(case, n, strided)


def check_pieces(case: Case, n: int, strided: bool) -> None:
    """All ways to cut the case's equation give the values of the whole."""
    node, values = node_of(case), values_of(case)
    whole = [plain(x) for x in replay.bind(node.equation, values, {}, node.callers)]
    for grid, way in ways(node, n, strided).values():
        made = [plain(x) for x in together(node, grid, way, values)]

        assert [differ(*pair) for pair in zip(whole, made, strict=True)] == [None] * len(whole)


def plain(array: Any) -> Any:
    """An array of numbers, in NumPy. Complex numbers as pairs."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    numbers = np.asarray(array)
    return numbers.view(np.float32) if numbers.dtype == np.complex64 else numbers


def test_numbers_of_a_piece_are_those_of_its_place() -> None:
    """An iota in pieces begins, in each piece, where the piece begins."""
    node = flatten(jax.make_jaxpr(lambda: lax.iota(jnp.int32, 6) * 2)()).nodes[0]
    grid, split = cut_along(6, 0, 3, strided=True)
    way = place(node, grid, Slot(True, 0), split, ())

    assert isinstance(way, Placement)
    assert together(node, grid, way, [])[0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("partitionable", "keys", "n", "strided"),
    [
        pytest.param(True, (), 2, False, marks=pytest.mark.slow),
        (True, (), 3, True),
        pytest.param(True, (3,), 4, False, marks=pytest.mark.slow),
        pytest.param(False, (), 2, True, marks=pytest.mark.slow),
        pytest.param(False, (3,), 4, False, marks=pytest.mark.slow),
    ],
)
def test_the_bits_of_a_key_are_cut_by_their_numbers(
    partitionable: bool, keys: tuple[int, ...], n: int, strided: bool
) -> None:
    """Of one key or of each of several, along any dimension, the bits are those of the whole."""
    with jax.threefry_partitionable(partitionable):
        check_bits((8, 32) if partitionable else (32,), keys, n, strided)


def check_bits(widths: tuple[int, ...], keys: tuple[int, ...], n: int, strided: bool) -> None:
    """All dimensions of the bits, of all widths."""
    for width in widths:

        def bits(key: Any, width: int = width) -> Any:
            return jax.random.bits(key, (4, 6, 10), f"uint{width}")

        key = jax.random.split(jax.random.key(0), keys) if keys else jax.random.key(0)
        function = jax.vmap(bits) if keys else bits
        node = next(n for n in flatten(jax.make_jaxpr(function)(key)).nodes if "bits" in n.name)
        expected = np.asarray(function(key))
        for d in range(len(keys), expected.ndim):
            size = expected.shape[d]
            if strided and size % n:
                continue
            grid, split = cut_along(size, d, n, strided=strided)
            way = place(node, grid, Slot(True, 0), split, [WHOLE])
            assert isinstance(way, Placement)
            np.testing.assert_array_equal(together(node, grid, way, [key])[0], expected)


def test_elements_beyond_32_bits_have_their_numbers() -> None:
    """The number of an element takes 64 bits, in two halves."""
    shape = (1 << 15, 3, 1 << 20)
    grid, split = cut_along(shape[0], 0, shape[0], strided=False)
    start = shape[0] - 1
    high, low = flat_numbers(shape, split, Piece(grid, jnp.int32(start), 1))
    expected = np.arange(start * 3 << 20, (start + 1) * 3 << 20, dtype=np.uint64)
    found = np.asarray(high).astype(np.uint64) << np.uint64(32) | np.asarray(low)

    np.testing.assert_array_equal(found.ravel(), expected)


def test_other_bits_are_made_whole() -> None:
    """Those of another generator, and an odd number of bits that are made in pairs."""

    def way(impl: str, partitionable: bool) -> Any:
        with jax.threefry_partitionable(partitionable):
            key = jax.random.key(0, impl=impl)
            closed = jax.make_jaxpr(lambda key: jax.random.bits(key, (5,)))(key)
            node = next(n for n in flatten(closed).nodes if n.name == "random_bits")
            grid, split = cut_along(5, 0, 2, strided=False)
            return place(node, grid, Slot(True, 0), split, [WHOLE])

    assert isinstance(way("threefry2x32", True), Placement)
    assert isinstance(way("threefry2x32", False), str)
    assert isinstance(way("rbg", True), str)


def test_every_rule_has_a_case() -> None:
    """A rule that is added is added to the table; a few names belong to other versions of JAX."""
    tested = {case.primitive.replace("-", "_") for case in CASES}

    assert {name.replace("-", "_") for name in RULES} - tested <= {
        *("copy", "copy_p", "eq_to", "igamma_grad_a", "iota", "le_to", "lt_to", "scatter_sub"),
        *("log2", "one_minus_square", "reshard", "stack", "tile", "unstack"),
    }


def test_the_shardings_of_an_automatic_mesh_do_not_stop_a_cut() -> None:
    """On a mesh, JAX writes a sharding that says nothing into the equations of a gradient."""
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("data",))
    weights, batch = (
        jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, spec))
        for spec in (P(), P("data"))
    )

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w))

    closed = jax.jit(jax.grad(loss)).trace(weights, batch).jaxpr
    cut = next(seed for seed in seeds(closed) if seed.argument == 1 and seed.dimension == 0)

    assert rewrite(closed, cut, 4, strided=True).stages == 1
