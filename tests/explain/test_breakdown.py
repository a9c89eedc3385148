"""The peak as arithmetic: the compiler's account, and the bytes by role and by path."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import breakdown, rollup, with_roles
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._records.message import OomMessage
from tests.findings.cases import UNUSABLE, explained
from tests.hlo import MIB, Hlo
from tests.oom_programs.base import size


@pytest.mark.tpu
def test_roles_change_nothing_else() -> None:
    """Each row is the same but for its role, and every row has one."""
    program, summary, _, _, _ = explained("adam_step")
    told = with_roles(ProgramFacts(program, summary))
    assert told == summary
    assert all(op.role for op in told.ops) and not any(op.role for op in summary.ops)


def test_an_argument_that_xla_names_after_a_loop_is_shown_by_its_path() -> None:
    """In the rows, and in the bytes by path."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, path="jit(f)/while")
    made = hlo.add("negate", w, dims=(512, 512))
    call = CallInfo((Leaf("params['w']", (512, 512), "float32"),))
    told = with_roles(hlo.facts((made,), call=call))

    assert [op.path for op in told.ops] == ["params['w']", None]
    assert [op.shown_name for op in told.ops] == ["params['w']", ""]
    assert rollup(told)["path"] == {"params": MIB, "(temporary)": MIB}
    assert {op.role for op in told.ops} == {"parameters", "other temporaries"}


@pytest.mark.tpu
def test_the_breakdown_is_the_compiler_s_own_account() -> None:
    """Arguments, outputs and the limit of the undonated step, to the byte from its shapes."""
    program, summary, message, _, _ = explained("momentum_step")
    state, batch = 2 * 16 * size(8192, 8192), size(256, 8192)
    expected = {
        "arguments": state + batch,
        "outputs": summary.output_bytes,
        "aliased": 0,
        "temporaries": summary.temporary_bytes,
        "constants": 0,
        "fragmentation": summary.total_allocation_bytes - summary.peak_bytes,
        "total": summary.total_allocation_bytes,
        "limit": int(15.75 * 1024) * MIB,
    }
    assert breakdown(program, summary, message) == expected
    # An output that is a tuple has a table of pointers.
    assert state <= expected["outputs"] < state + 1024
    assert expected["temporaries"] < expected["total"] - 2 * state


def test_the_breakdown_comes_from_the_message_where_there_is_no_program() -> None:
    """A message's own totals, under our names."""
    message = OomMessage(
        "",
        totals={"reserved": 5, "arguments": 7, "HLO temp": 11, "Output size": 3},
        used_bytes=30,
        limit_bytes=20,
        fragmentation_bytes=2,
    )
    assert breakdown(None, None, message) == {
        "arguments": 7,
        "outputs": 3,
        "temporaries": 11,
        "reserved": 5,
        "fragmentation": 2,
        "total": 30,
        "limit": 20,
    }


@pytest.mark.tpu
def test_the_rollup_says_whose_the_bytes_are() -> None:
    """Parameters, optimizer state, batch and outputs of an Adam step, to the byte."""
    program, summary, _, _, _ = explained("adam_step")
    rows = rollup(with_roles(ProgramFacts(program, summary)))
    weights = 16 * size(12288, 4096)
    roles = rows["role"]
    assert [roles["outputs"], roles["optimizer state"], roles["parameters"], roles["batch"]] == [
        3 * weights,
        2 * weights,
        weights,
        2 * size(512, 4096),
    ]
    assert [rows["path"][f"state['{key}']"] for key in ("opt", "params")] == [2 * weights, weights]


@pytest.mark.tpu
@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize("name", ["scanned_decoder", "moments_in_float32", "replicated_output"])
def test_the_rollup_is_all_of_the_peak_in_a_dozen_rows(name: str) -> None:
    """Both groupings sum to the peak and have at most twelve rows, most bytes first."""
    program, summary, _, _, _ = explained(name)
    for rows in rollup(with_roles(ProgramFacts(program, summary))).values():
        named_rows = [size for row, size in rows.items() if row != "other"]
        assert sum(rows.values()) == summary.peak_bytes
        assert len(rows) <= 12
        assert named_rows == sorted(named_rows, reverse=True)


@pytest.mark.parametrize(
    ("path", "training", "other"),
    [
        ("x", "parameters or optimizer state", "updated arguments"),
        ("state.velocity", "optimizer state", "updated arguments"),
        ("params['w']", "parameters", "parameters"),
        ("cache[0]['k']", "cache", "cache"),
    ],
)
def test_what_is_returned_updated_is_an_optimizers_only_in_training(
    path: str, training: str, other: str
) -> None:
    """A donated activation, a velocity of a simulation and a cache are none."""
    roles = []
    for name in ("jit(f)/transpose(jvp())/mul", "jit(f)/mul"):
        hlo = Hlo()
        x = hlo.parameter(512, 512, path=path)
        made = hlo.add("multiply", x, x, dims=(512, 512), name=name)
        summary = with_roles(hlo.facts(outputs=(made,)))
        roles += [op.role for op in summary.ops if op.kind == "parameter"]

    assert roles == [training, other]
