"""Each change on a step of its own: what it proposes, and what the changed step computes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hbmwatch import Fit
from hbmwatch._preflight import pieces
from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes import BY_NAME, in_pieces
from hbmwatch._preflight.changes.batch import Shorten
from hbmwatch._preflight.changes.call import NothingToChange
from hbmwatch._preflight.changes.change import Asked, Edit
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes
from hbmwatch._preflight.changes.state import state_of
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.planning import least_bytes
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport
from tests.preflight.changes.steps import (
    arguments,
    differences,
    first_edit,
    mesh,
    shapes,
    train_step,
)

HAS_HOST_MEMORY = jax.__version_info__ >= (0, 7)
F32 = jnp.float32
MIB = 2**20
X = jax.ShapeDtypeStruct((4096, 64), F32)


def first(name: str, step: Any, *args: Any) -> Edit:
    """What a change proposes first for a step."""
    return first_edit(name, call_of(step, args, {}, None))


@pytest.mark.skipif(not HAS_HOST_MEMORY, reason="this CPU backend has no memory 'pinned_host'")
def test_what_a_scan_stacks_is_sent_to_the_host_slice_by_slice() -> None:
    """The stack is never whole on the device; values and order stay, also of a reversed scan."""

    @jax.jit
    def history(x: Any, kicks: Any) -> Any:
        def body(x: Any, kick: Any) -> Any:
            x = jnp.sin(x) + kick
            return x, (x, x.sum())

        return jax.lax.scan(body, x, kicks, reverse=True)

    args = jnp.arange(1024.0), jnp.arange(512.0)
    edit = first("host-outputs", history, *shapes(args))
    changed = apply(history, (edit,))
    (final, (stack, sums)), expected = changed(*args), history(*args)

    assert edit.what == "sending result[1][0] to the host"
    assert stack.sharding.memory_kind == "pinned_host"
    np.testing.assert_array_equal(np.asarray(stack), expected[1][0])
    np.testing.assert_array_equal(np.asarray(sums), expected[1][1])
    np.testing.assert_array_equal(np.asarray(final), expected[0])
    jaxpr = call_of(changed, shapes(args), {}, None).jaxpr
    (scan,) = (e for e in jaxpr.jaxpr.eqns if e.primitive.name == "scan")
    assert "device_put" in {e.primitive.name for e in scan.params["jaxpr"].jaxpr.eqns}


@pytest.mark.skipif(not HAS_HOST_MEMORY, reason="this CPU backend has no memory 'pinned_host'")
def test_what_is_made_in_pieces_is_sent_to_the_host_piece_by_piece() -> None:
    """In any order of the two changes: the pieces are blocks that a scan stacks on the host."""

    def step(x: Any) -> Any:
        return jnp.sin(jnp.tanh(x)[:, :, None] * jnp.arange(64.0))

    x = jnp.arange(1024.0 * 64).reshape(1024, 64)
    call = call_of(jax.jit(step), shapes((x,)), {}, None)
    host = first("host-outputs", jax.jit(step), *shapes((x,)))
    cuts = BY_NAME["pieces"].edits(call, None, Asked())
    pieces = next(edit for edit in cuts if "dimension 0 of x" in edit.what)

    for edits in ((host, pieces), (pieces, host)):
        changed = edits[1].on(edits[0].on(call))
        body = jax.make_jaxpr(changed.jitted())(x).jaxpr.eqns[0].params["jaxpr"].jaxpr
        (scan,) = (e for e in body.eqns if e.primitive.name == "scan")
        assert "device_put" in {e.primitive.name for e in scan.params["jaxpr"].jaxpr.eqns}
        found = apply(jax.jit(step), edits)(x)
        assert found.sharding.memory_kind == "pinned_host"
        np.testing.assert_allclose(np.asarray(found), step(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["pieces", "inner-pieces"])
def test_no_cut_is_looked_for_after_the_time_is_over(name: str) -> None:
    """A cut of a large program takes seconds; the reason is the time, not the program."""
    weights = jax.ShapeDtypeStruct((4, 64, 64), F32)
    steps: dict[str, tuple[Any, ...]] = {
        "pieces": (jax.jit(two_products), X),
        "inner-pieces": (jax.jit(cast_and_scan), weights, X),
    }
    step, *args = steps[name]
    call = call_of(step, tuple(args), {}, None)

    assert next(BY_NAME[name].edits(call, None, Asked()))
    with pytest.raises(NothingToChange, match="^no time was left$"):
        next(BY_NAME[name].edits(call, None, Asked(until=time.monotonic() - 1)))


def test_the_same_cut_is_made_once_for_each_number_of_pieces() -> None:
    """Many values are split by a cut of the batch; each of them names that cut only once."""
    call = call_of(jax.jit(two_products), (X,), {}, None)
    cuts = [(seed.primitive, seed.size) for seed in pieces.seeds(call.jaxpr)]

    with (
        mock.patch.object(in_pieces, "rewrite", wraps=pieces.rewrite) as rewritten,
        mock.patch.object(in_pieces, "_NEARLY_BEST", 0),
    ):
        next(BY_NAME["pieces"].edits(call, None, Asked()))
    made = [(each.args[1].primitive, each.args[1].size) for each in rewritten.call_args_list]

    product, argument = "dot_general", None
    assert made == [(product, 4096), (product, 512), (product, 8), (argument, 64)]
    assert set(cuts) == {*made, (argument, 4096)}


def cuts_made(step: Any, x: Any) -> int:
    """How many cuts are made until the first is proposed."""
    call = call_of(jax.jit(step), (x,), {}, None)
    with mock.patch.object(in_pieces, "rewrite", wraps=pieces.rewrite) as rewritten:
        next(BY_NAME["pieces"].edits(call, None, Asked()))
    return int(rewritten.call_count)


def test_no_other_cut_is_made_where_one_leaves_nothing_whole() -> None:
    """A cut of the batch is enough; of all pairs, a cut of the rows leaves the columns' maxima."""

    def pairs(x: Any) -> Any:
        scores = x @ x.T
        return jnp.tanh(scores - scores.max(1, keepdims=True) - scores.max(0))

    assert cuts_made(two_products, X) == 1
    assert cuts_made(pairs, X) > 1


def test_too_few_pieces_are_left_out_at_first() -> None:
    """By the estimate of the first cut; then half as many are tried, as long as they fit."""
    call = call_of(jax.jit(two_products), (X,), {}, None)
    facts: Any = SimpleNamespace(peak_bytes=60 * MIB)
    edits = BY_NAME["pieces"].edits(call, facts, Asked(limit_bytes=10 * MIB))
    report = OomReport(message=OomMessage(""))
    fit = Fit(True, 8 * MIB, 8 * MIB, 10 * MIB, "v5e", "assigned", report)

    tried: list[Any] = [next(edits), *(edits.send(fit) for _ in range(3))]

    assert [edit.pieces for edit in tried] == [16, 8, 4, 2]
    with pytest.raises(StopIteration):
        edits.send(fit)


def test_few_pieces_are_tried_where_the_estimate_misses_the_memory() -> None:
    """It hardly falls by pieces, as where a TPU pads the values: it does not tell how many."""
    call = call_of(jax.jit(lambda x: jnp.tanh(x @ jnp.ones((64, 2)))), (X,), {}, None)
    facts: Any = SimpleNamespace(peak_bytes=60 * MIB)
    edit: Any = next(BY_NAME["pieces"].edits(call, facts, Asked(limit_bytes=10 * MIB)))

    assert edit.pieces == 4


def test_a_narrow_value_that_each_piece_makes_whole_keeps_its_dtype() -> None:
    """Only sums over the pieces add up in float32."""

    @jax.jit
    def step(x: Any, narrow: Any) -> Any:
        start = jnp.zeros(x.shape[1:]), narrow
        return jax.lax.scan(lambda c, row: ((jnp.tanh(c[0] + row), c[1] * 2), None), start, x)[0]

    args = jnp.arange(4.0 * 512).reshape(4, 512), jnp.arange(8, dtype=jnp.bfloat16)
    call = call_of(step, shapes(args), {}, None)
    edits = list(BY_NAME["pieces"].edits(call, None, Asked()))
    (edit,) = [each for each in edits if each.what == "4 pieces along dimension 1 of x"]

    for found, expected in zip(apply(step, (edit,))(*args), step(*args), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def two_products(x: Any) -> Any:
    """A step with several values that have the dimension of the batch."""
    return jnp.sum(jnp.tanh(jnp.tanh(x @ jnp.ones((64, 512))) @ jnp.ones((512, 8))))


def cast_and_scan(weights: Any, x: Any) -> Any:
    """Wide copies of all weights are made in front of a scan over them, and of one more."""
    wide = weights.astype(F32)
    last = weights[0].astype(F32)
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w) @ last, h.sum()), x, wide)


def narrow_and_scan(weights: Any, x: Any) -> Any:
    """Mixed precision: copies of all weights in another dtype, beside the weights."""
    narrow = weights.astype(jnp.float16)
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w).astype(F32), h.sum()), x, narrow)


def cast_and_repeat(weights: Any, x: Any) -> Any:
    """The same in front of a while loop."""
    wide = weights.astype(F32)
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ wide[0])), (0, x)
    )


@pytest.mark.parametrize(
    ("step", "loop", "what"),
    [
        (cast_and_scan, "scan", "casting 2 arrays to float32"),
        (narrow_and_scan, "scan", "casting 1 array to float16"),
        (cast_and_repeat, "while", "casting 1 array to float32"),
    ],
)
def test_casts_move_into_the_loop_that_reads_them(step: Any, loop: str, what: str) -> None:
    """The values are the same, and no copy of all weights exists any more."""
    weights = jax.random.normal(jax.random.key(0), (4, 1024, 1024)).astype(jnp.bfloat16)
    args = weights / 32, jnp.ones((2, 1024))
    edit = first("in-loop", jax.jit(step), *args)
    changed = apply(jax.jit(step), (edit,))
    call = edit.on(call_of(jax.jit(step), shapes(args), {}, None))

    assert edit.what == f"{what} in the body of the loop"
    assert edit.where[0].startswith("test_edits.py:")
    for found, expected in zip(changed(*args), jax.jit(step)(*args), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert [e.primitive.name for e in call.jaxpr.jaxpr.eqns][-1] == loop
    assert all(v.aval.size < weights.size for v in outvars(call))


def outvars(call: Any) -> list[Any]:
    """What the equations of a call make, without those in bodies."""
    return [v for equation in call.jaxpr.jaxpr.eqns for v in equation.outvars]


@pytest.mark.skipif(not HAS_HOST_MEMORY, reason="this CPU backend has no memory 'pinned_host'")
def test_a_stack_on_the_host_is_fetched_slice_by_slice() -> None:
    """The scan fetches each slice when it needs it."""
    device = jax.devices()[0]
    here, there = (
        jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
        for kind in ("device", "pinned_host")
    )
    layers = jax.device_put(jnp.ones((4, 512, 512)) / 512, there)

    @jax.jit
    def step(layers: Any, x: Any) -> Any:
        fetched = jax.device_put(layers, here)
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, fetched)[0]

    args = layers, jnp.ones((2, 512))
    edit = first("in-loop", step, *shapes(args))

    assert edit.what == "fetching 1 array from the host in the body of the loop"
    np.testing.assert_array_equal(apply(step, (edit,))(*args), step(*args))
    call = edit.on(call_of(step, shapes(args), {}, None))
    assert [e.primitive.name for e in call.jaxpr.jaxpr.eqns] == ["scan"]


def test_what_more_than_a_loop_reads_stays_in_front_of_it() -> None:
    """A wide copy that something else needs as well is there anyway; nor is a carry moved."""

    def other(weights: Any, x: Any) -> Any:
        wide = weights.astype(F32)
        return jax.lax.scan(lambda h, w: (h @ w, None), x, wide)[0], wide.sum()

    def carried(weights: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, w: w @ w, weights[0].astype(F32)) @ x.T

    args = jnp.ones((2, 1024, 1024), jnp.bfloat16), jnp.ones((2, 1024))
    for step in (other, carried):
        with pytest.raises(NothingToChange, match="before a loop that is its only reader"):
            first("in-loop", jax.jit(step), *args)


def test_state_comes_back_in_the_dtype_that_it_had() -> None:
    """A bfloat16 moment that the step returns as float32 is rounded before it is returned."""

    @jax.jit
    def step(state: Any, x: Any) -> Any:
        return {"mu": 0.9 * state["mu"].astype(F32) + x, "count": state["count"] + 1}

    args = {"mu": jnp.ones((8, 4), jnp.bfloat16), "count": jnp.int32(0)}, jnp.full((8, 4), 0.01)
    edit = first("kept-dtype", step, *args)
    found = apply(step, (edit,))(*args)

    assert edit.what == ("returning result['mu'] as bfloat16, the dtype that they had as arguments")
    assert found["mu"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found["mu"], step(*args)["mu"].astype(jnp.bfloat16))
    with pytest.raises(NothingToChange, match="no argument is returned in a wider dtype"):
        first("kept-dtype", jax.jit(lambda state: state * 2), jnp.ones(4))


def test_debug_callbacks_are_left_out_of_loops_too() -> None:
    """The line of the print is named, and nothing is printed any more."""
    printed: list[float] = []

    @jax.jit
    def step(x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            jax.debug.callback(lambda x: printed.append(float(x)), x.sum())
            return x * 2, None

        return jax.lax.scan(body, x, None, length=3)[0]

    edit = first("callbacks", step, jnp.ones(4))
    found = apply(step, (edit,))(jnp.ones(4))
    jax.effects_barrier()

    assert edit.where[0].startswith("test_edits.py:")
    assert printed == []
    np.testing.assert_array_equal(found, np.full(4, 8.0))


def test_outputs_take_the_shardings_of_the_arguments_that_they_replace() -> None:
    """Then those that replace none are spread over the devices."""
    spread, whole = NamedSharding(mesh(), P("data")), NamedSharding(mesh(), P())

    def step(state: Any) -> Any:
        return state * 2, jnp.outer(state[:, 0], state[:, 1])

    jitted = jax.jit(step, out_shardings=whole)
    state = jax.device_put(jnp.ones((256, 128)), spread)
    call = call_of(jitted, (state,), {}, None)
    own, both = BY_NAME["output-sharding"].edits(call, None, Asked())

    for edit, specs in ((own, (P("data"), P())), (both, (P("data"), P("data")))):
        found = apply(jitted, (edit,))(state)
        for array, expected, spec in zip(found, jitted(state), specs, strict=True):
            wanted = NamedSharding(mesh(), spec)
            assert array.sharding.is_equivalent_to(wanted, 2)
            np.testing.assert_array_equal(np.asarray(array), np.asarray(expected))


@pytest.mark.slow
def test_optimizer_state_is_what_only_meets_its_own_shape() -> None:
    """Momentum is state; parameters, which products read, are not, and neither is the batch."""
    call = call_of(jax.jit(train_step), shapes(arguments()), {}, None)

    assert [call.arguments[i].path for i in sorted(state_of(call))] == [
        f"state['velocity']['layers'][{n}]" for n in range(3)
    ]


def test_an_argument_belongs_to_the_output_of_its_path() -> None:
    """Leaves of equal shape are paired by the ends of their paths, in any order."""
    step = jax.jit(lambda state: {"b": state["b"] + 1, "a": {"c": state["c"], "x": state["a"]}})
    args = ({name: jnp.ones(4) for name in "abc"},)
    call = call_of(step, args, {}, None)
    pairs = {call.arguments[i].path: call.outputs[o].path for i, o in call.updated().items()}

    assert pairs == {
        "state['b']": "result['b']",
        "state['c']": "result['a']['c']",
        "state['a']": "result['a']['x']",
    }


def test_the_least_memory_counts_arguments_and_new_outputs() -> None:
    """Neither what is not read, nor an output that could reuse an argument."""
    step = jax.jit(lambda state, unused, x: (state + x, jnp.outer(x[:8], x[:8])))
    args = jnp.ones(1024), jnp.ones(4096), jnp.ones(1024)

    assert least_bytes(call_of(step, args, {}, None)) == 4 * (1024 + 1024 + 64)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: jnp.sin(x) * 2, 2),  # in place, but the argument stays
        (lambda x: x @ x, 2),
        (lambda x: (x @ x) @ x, 3),
        (lambda x: jnp.cos(jnp.sin(x @ x)), 2),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x @ x), 2),
        (lambda x: jax.lax.scan(lambda c, _: (c + x, None), x @ x, None, length=3)[0], 2),
    ],
)
def test_a_rough_peak_is_counted_in_arrays(step: Any, expected: int) -> None:
    """Elementwise operations and loops work in place; a product needs its operands."""
    closed = jax.make_jaxpr(step)(jax.ShapeDtypeStruct((64, 64), F32))
    size = 64 * 64 * 4

    assert estimated_peak_bytes(closed) == pytest.approx(expected * size, rel=0.01)


@pytest.mark.skipif(not HAS_HOST_MEMORY, reason="this CPU backend has no memory 'pinned_host'")
def test_a_step_with_state_on_the_host_can_be_traced_again() -> None:
    """With a checkpoint, another dtype or a smaller batch, it stays donated and on the host."""
    step, args = jax.jit(train_step), arguments()
    expected = step(*args)
    call = call_of(step, shapes(args), {}, None)
    donated = first_edit("donation", call, "state")
    host = first_edit("host-state", call)
    before = host.on(donated.on(call))

    checkpoint = first_edit("checkpoint", before)
    narrow = first_edit("bfloat16", before, "state")
    half = Shorten(what="", code="", arguments=(6,), parts=2)
    for edit in (checkpoint, narrow, half):
        after = edit.on(before)
        assert [leaf.donated for leaf in after.arguments] == [True] * 6 + [False]
        assert [leaf.is_on_host for leaf in after.arguments] == [False] * 3 + [True] * 3 + [False]
        assert [leaf.is_on_host for leaf in after.outputs[:6]] == [False] * 3 + [True] * 3

    found = apply(step, (donated, host, checkpoint))(*arguments())
    assert differences(found, expected) == {}
    cast = apply(step, (donated, host, narrow))(*arguments())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(cast[0])} == {"bfloat16"}
    assert cast[0]["velocity"]["layers"][0].sharding.memory_kind == "pinned_host"
