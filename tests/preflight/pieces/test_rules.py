"""Every rule: which dimensions it cuts, and that the pieces together are the whole."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
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
from tests.preflight.pieces.evaluate import evaluate
from tests.preflight.pieces.rule_cases import CASES, ELEMENTWISE, Case, Cuts, X, both, split
from tests.preflight.pieces.test_property import differ


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


# XLA computes these in loops that compile slowly.
IN_LOOPS = {"igamma", "igammac", "regularized_incomplete_beta"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * (case.primitive in IN_LOOPS))
        for case in ELEMENTWISE
    ],
    ids=str,
)
def test_pieces_of_an_elementwise_function_are_the_whole(case: Case) -> None:
    """Blocks of each dimension give what the equation gives at once."""
    check_pieces(case, 2, strided=False)


@pytest.mark.parametrize("case", CASES[len(ELEMENTWISE) :], ids=str)
@pytest.mark.parametrize(
    ("n", "strided"),
    [(2, False), *(pytest.param(*how, marks=pytest.mark.slow) for how in [(2, True), (3, False)])],
)
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
        (False, (), 2, True),
        (False, (3,), 4, False),
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
            pieces = jax.make_jaxpr(functools.partial(together, node, grid, way))([key])
            np.testing.assert_array_equal(evaluate(pieces, [key])[0], expected)


@pytest.mark.slow
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
