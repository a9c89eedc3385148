"""The facts of a program: its limit, its batch, and what is worth reporting."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis import facts
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import with_roles
from hbmwatch._findings.rank import find_findings
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import DeviceMemory, LiveArrays
from tests.findings.cases import TINY_MIB, explain
from tests.findings.small import limited
from tests.hlo import MIB, Hlo
from tests.oom_programs.base import array, on_one


@pytest.mark.parametrize(
    ("message", "minimum_mib"),
    [(OomMessage("x"), 2), (limited(90, 91), 1), (limited(90, 110), 2), (limited(20, 100), 4)],
    ids=["2% of the peak", "all that is over", "2%, as more is over", "a twentieth of 80 MiB over"],
)
def test_the_minimum_is_a_share_of_the_peak_or_of_what_is_over(
    message: OomMessage, minimum_mib: int
) -> None:
    """The larger of the two; what is enough by itself is reported whatever its size."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(100, 512, 512))
    program = hlo.facts((made,), message=message)

    assert (facts.SHARE_OF_PEAK, facts.SHARE_OF_OVER_LIMIT) == (0.02, 0.05)
    assert program.minimum_saving_bytes == minimum_mib * MIB


def step(rows: int, *others: tuple[int, ...], opcode: str = "sort") -> ProgramFacts:
    """A program with an argument of this many rows, and with other arguments."""
    hlo = Hlo()
    x = hlo.parameter(rows, 64, path="x")
    for number, dims in enumerate(others):
        hlo.parameter(*dims, path=f"y{number}")
    made = hlo.add(opcode, x, dims=(rows, 256), name="jit(f)/sort")
    return hlo.facts((made,))


@pytest.mark.parametrize("path", ["params['experts']", "opt_state.mu", "cache['k']"])
def test_weights_and_caches_are_no_batch(path: str) -> None:
    """Their first dimension is layers or experts, whatever scales with it."""
    hlo = Hlo()
    weights = hlo.parameter(64, 32, path=path)
    made = hlo.add("sort", weights, dims=(64, 4096), name="jit(f)/sort")

    assert hlo.facts((made,)).batch.arguments == ()


@pytest.mark.parametrize(
    ("others", "opcode", "paths"),
    [
        ([(32, 64)], "sort", ["x"]),
        ([(1024, 1024)], "sort", []),
        ([(1024,)], "sort", ["x", "y0"]),
        ([(32, 64)], "gather", []),
    ],
    ids=["first dimension", "another dimension of weights", "labels too", "a table"],
)
def test_the_batch_is_a_first_dimension_that_no_weight_has(
    others: list[tuple[int, ...]], opcode: str, paths: list[str]
) -> None:
    """The dimension of a table, whose rows are looked up, is not the batch either."""
    batch = step(1024, *others, opcode=opcode).batch

    assert [argument.path for argument in batch.arguments] == paths
    assert batch.length == (1024 if paths else 0)


def test_all_pairs_scale_with_the_square_of_the_batch() -> None:
    """Half the batch leaves half of the rows, and a quarter of the pairs."""
    hlo = Hlo()
    x = hlo.parameter(1024, 256, path="x")
    made = hlo.add("sort", x, dims=(1024, 1024))
    program = hlo.facts((made,))

    assert program.batch.scaling_bytes == 5 * MIB
    assert program.scaled_bytes(0.5) == MIB / 2 + 4 * MIB / 4


@pytest.mark.tpu
def test_what_comes_out_like_the_batch_is_no_gradient_of_it() -> None:
    """An autoencoder's batch is the batch, though what it makes of it has the same shape."""

    def train_step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made = jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1])
            return ((made - x) ** 2).sum(), made

        (_, made), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, grads), made

    weights = [array(512, 1024), array(1024, 512)]
    program, summary, message, call, _ = explain(
        on_one(train_step, weights, array(65536, 512)), TINY_MIB
    )
    batch = ProgramFacts(program, summary, message, call).batch
    assert ([argument.path for argument in batch.arguments], batch.length) == (["x"], 65536)


def test_what_others_hold_leaves_less_room() -> None:
    """At run time the limit is the device's, less the live arrays that the call does not own."""
    lowered = jax.jit(lambda x: jnp.sort(x) + 1).lower(
        jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    )
    program, summary, _, call, _ = explain(lowered)
    message = OomMessage("", phase="run", requested_bytes=4 * MIB)
    others = LiveArrays((1,), "float32", 1, 12 * MIB)
    device = DeviceMemory("GPU", 1, limit_bytes=16 * MIB, live=(others,))
    facts = ProgramFacts(program, summary, message, call, device)
    over = summary.total_allocation_bytes - 4 * MIB

    assert facts.over_limit_bytes == over
    assert [finding.slug for finding in find_findings(facts)] == ["live-arrays"]


def test_a_donated_argument_keeps_its_path_where_a_later_value_reuses_its_memory() -> None:
    """XProf names the row after the later value."""

    def step(state: tuple[jax.Array, jax.Array], flag: jax.Array) -> object:
        a, b = state
        new = jax.lax.cond(
            flag,
            lambda s: (jnp.sin(s[0]) @ s[1], jnp.cos(s[1])),
            lambda s: (s[0], s[1] * 2),
            (a, b),
        )
        return new, jnp.sum(a)

    array = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    facts = explain(jax.jit(step, donate_argnums=0).lower((array, array), flag)).facts
    rows = [op.instruction for op in facts.summary.ops if op.kind == "parameter"]
    own = {p.instruction.name for p in facts.buffers.graph.parameters}

    assert not set(rows) <= own
    assert sorted(facts.argument_rows[row].path for row in rows) == ["state[0]", "state[1]"]
    assert [op.path for op in with_roles(facts).ops if op.kind == "parameter"] == [
        facts.argument_rows[row].path for row in rows
    ]


@pytest.mark.parametrize(("length", "scaling_mib"), [(8, 3), (9, 7)])
def test_a_short_batch_is_counted_where_a_batch_is(length: int, scaling_mib: int) -> None:
    """Heads, or a kernel, may be as many: of a long one, each dimension counts."""
    hlo = Hlo()
    x = hlo.parameter(length, 2**18 // length, path="x")
    first = hlo.add("sort", x, dims=(length, 2**19 // length), name="jit(f)/sort")
    later = hlo.add("sort", x, dims=(2**20 // length, length), name="jit(f)/sort")
    batch = hlo.facts((first, later)).batch

    assert facts.MOST_BY_CHANCE == 8
    assert round(batch.scaling_bytes / MIB) == scaling_mib
