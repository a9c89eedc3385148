"""What changed between two peaks, on real compiles and on small tables."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hbmwatch import OomMessage, OomReport, PeakOp, PeakSummary
from hbmwatch._records.look import Look
from hbmwatch._records.sizes import format_size
from hbmwatch._report.comparison import Comparison, Entry
from hbmwatch._report.diff import Change, Group, changes
from hbmwatch._report.diff_text import diff_text
from hbmwatch._xla.peak import peak_summary
from tests import programs

GIB = 2**30
# 17.5 GiB and more in each variant: a TPU v5e has 15.75, and a compile that fails is quick.
BATCH, WIDTH, DEPTH = 163840, 8192, 8


@functools.cache
def _peak(
    batch: int = BATCH,
    depth: int = DEPTH,
    dtype: str = "float32",
    donate: bool = False,
    wrap: Callable[..., Any] = lambda layer: layer,
) -> PeakSummary:
    """The peak of a train step on the TPU compiler."""

    @wrap
    def layer(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w)

    def loss(p: list[Any], x: Any) -> Any:
        for w in p:
            x = layer(x, w)
        return jnp.sum(x * x)

    def step(p: list[Any], x: Any) -> Any:
        grads = jax.grad(loss)(p, x)
        return [w - 0.1 * g for w, g in zip(p, grads, strict=True)]

    weights = [programs.array("tpu", WIDTH, WIDTH, dtype=dtype) for _ in range(depth)]
    x = programs.array("tpu", batch, WIDTH, dtype=dtype)
    lowered = programs.lower("tpu", step, weights, x, donate_argnums=(0,) if donate else ())
    return peak_summary(programs.compile_lowered(lowered).program)


def compared(before: PeakSummary, after: PeakSummary, limit_bytes: int | None = None) -> Comparison:
    """Two peaks as reports, side by side."""
    reports = [OomReport(OomMessage(""), summary) for summary in (before, after)]
    return Comparison(reports[0], reports[1], limit_bytes)


def _touched(after: PeakSummary) -> dict[tuple[str, str], int]:
    """By how much each kind and name of buffer grew, from the unchanged step."""
    found = changes(_peak(), after)
    return {(change.kind, change.name): change.delta_bytes for change in found}


@pytest.mark.tpu
def test_a_compile_has_not_changed_from_itself() -> None:
    """Equal programs have equal peaks, and the text says so."""
    assert changes(_peak(), _peak()) == ()
    size = format_size(_peak().total_allocation_bytes)
    assert diff_text(compared(_peak(), _peak())).splitlines() == [
        f"Memory of jit_step: {size} -> {size} (+0 B)",
        "  no changes",
    ]


@pytest.mark.tpu
def test_a_larger_batch_touches_what_scales_with_it() -> None:
    """The batch and the residuals grow, by name and line; weights and outputs are not mentioned."""
    more = 16384
    after = _peak(batch=BATCH + more)
    touched = _touched(after)
    assert touched[("parameter", "x")] == more * WIDTH * 4
    assert touched[("temporary", "jvp()/dot_general")] > 0
    assert {kind for kind, _ in touched} == {"parameter", "temporary"}
    assert ("parameter", "p[*]") not in touched
    assert sum(touched.values()) == after.peak_bytes - _peak().peak_bytes


@pytest.mark.tpu
def test_more_layers_are_more_weights_outputs_and_residuals() -> None:
    """Depth adds buffers of the same size; the batch is not mentioned."""
    weight = WIDTH * WIDTH * 4
    after = _peak(depth=DEPTH + 2)
    found = {(c.kind, c.name): c for c in changes(_peak(), after)}
    layers = Group(DEPTH, DEPTH * weight, weight, f"f32[{WIDTH},{WIDTH}]")
    more = Group(DEPTH + 2, (DEPTH + 2) * weight, weight, f"f32[{WIDTH},{WIDTH}]")
    assert found[("parameter", "p[*]")] == Change("parameter", "p[*]", "", layers, more)
    outputs = [change for change in found.values() if change.kind == "output"]
    assert [(c.before, c.after) for c in outputs] == [(layers, more)]
    assert found[("temporary", "jvp()/dot_general")].delta_bytes > 0
    assert ("parameter", "x") not in found


@pytest.mark.tpu
def test_a_narrower_dtype_changes_every_shape() -> None:
    """bfloat16 halves arguments and outputs, and the shapes say why."""
    found = {(c.kind, c.name): c for c in changes(_peak(), _peak(dtype="bfloat16"))}
    x = found[("parameter", "x")]
    assert x.after.size_bytes * 2 == x.before.size_bytes == BATCH * WIDTH * 4
    assert (x.before.shape, x.after.shape) == (f"f32[{BATCH},{WIDTH}]", f"bf16[{BATCH},{WIDTH}]")
    assert found[("parameter", "p[*]")].delta_bytes == -DEPTH * WIDTH * WIDTH * 2


@pytest.mark.tpu
def test_donation_frees_the_outputs_and_nothing_else() -> None:
    """Donated weights take the outputs with them; no other buffer is mentioned."""
    after = _peak(donate=True)
    weights = DEPTH * WIDTH * WIDTH * 4
    assert {kind: delta for (kind, _), delta in _touched(after).items()} == {"output": -weights}
    comparison = compared(_peak(), after)
    assert Entry("reused by outputs (donated)", 0, weights, True) in comparison.account()
    assert [
        sum(getattr(entry, field) for entry in comparison.account() if not entry.is_part)
        for field in ("before_bytes", "after_bytes")
    ] == list(comparison.total_bytes)


@pytest.mark.tpu
def test_rematerialization_changes_temporaries_alone() -> None:
    """jax.checkpoint renames outputs too, which have not changed and are not mentioned."""
    touched = _touched(_peak(wrap=jax.checkpoint))
    assert {kind for kind, _ in touched} == {"temporary"}
    assert touched[("temporary", "jvp()/dot_general")] < 0


# --- on small tables ------------------------------------------------------------------------------


def _summary(*ops: PeakOp) -> PeakSummary:
    total = sum(op.size_bytes for op in ops)
    heap = np.array([total], dtype=np.int64)
    return PeakSummary("jit_step", 1, "hbm", total, total, 0, heap, 0, 0, 0, total, total, 0, ops)


def _op(name: str, source: str, gib: int = 1, number: int = 0, shape: str = "f32[8]{0}") -> PeakOp:
    return PeakOp(
        f"fusion.{number}", "fusion", name, shape, gib * GIB, gib * GIB, "temporary", source=source
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            (_op("jit(step)/dot", "a.py:3", number=1),),
            (_op("jit(step)/dot", "a.py:3", number=7),),
            id="renumbered",
        ),
        pytest.param(
            (_op("jit(step)/dot", "a.py:3"),), (_op("jit(train)/dot", "a.py:3"),), id="renamed step"
        ),
        pytest.param(
            (_op("jit(step)/dot", "a.py:3"),), (_op("jit(step)/dot", "a.py:9"),), id="moved line"
        ),
        pytest.param(
            (_op("jit(step)/layer_1/dot", "a.py:3"), _op("jit(step)/layer_2/dot", "a.py:3")),
            (_op("jit(step)/layer_2/dot", "a.py:3"), _op("jit(step)/layer_1/dot", "a.py:3")),
            id="other order",
        ),
        pytest.param((_op("", "", number=1),), (_op("", "", number=2),), id="without a name"),
    ],
)
def test_the_same_buffers_are_recognized(
    before: tuple[PeakOp, ...], after: tuple[PeakOp, ...]
) -> None:
    """What a compile or an edit elsewhere renames has not changed."""
    assert changes(_summary(*before), _summary(*after)) == ()


def test_two_lines_that_moved_are_not_guessed() -> None:
    """Where two lines are left over on each side, nobody can say which is which."""
    before = _summary(_op("dot", "a.py:3", 1), _op("dot", "a.py:4", 2))
    after = _summary(_op("dot", "a.py:5", 1), _op("dot", "a.py:6", 2))
    lines = {change.source for change in changes(before, after)}
    assert lines == {"a.py:3", "a.py:4", "a.py:5", "a.py:6"}


def test_the_text_says_what_grew_from_what() -> None:
    """Each change: by how much, what made it and where, from how many of what to how many."""
    before = _summary(*[_op("jit(step)/dot", "train.py:41", 4, shape="f32[8,4]{1,0}")] * 8)
    grown = [_op("jit(step)/dot", "train.py:41", 5, shape="f32[9,4]{1,0}")] * 8
    after = _summary(*grown, _op("jit(step)/sort", "train.py:50", 2, shape="s32[7]{0}"))
    assert diff_text(compared(before, after), 1).splitlines() == [
        "Memory of jit_step: 32.00 GiB -> 42.00 GiB (+10.00 GiB)",
        "  temporaries  32.00 GiB -> 42.00 GiB  (+10.00 GiB)",
        "  Changes at the peak",
        "    +8.00 GiB  temporary  dot  train.py:41",
        "                          8 x 4.00 GiB -> 8 x 5.00 GiB  f32[8,4] -> f32[9,4]",
        "    and 1 more (+2.00 GiB)",
    ]


def test_the_values_say_the_same() -> None:
    """As JSON: both sides' totals, and each change with both groups."""
    before, after = _summary(_op("dot", "a.py:1", 1)), _summary(_op("dot", "a.py:1", 3))
    group = {"count": 1, "shape": "f32[8]"}
    side = {"module": "jit_step", "memory_space": "hbm", "parameter_bytes": 0, "aliased_bytes": 0}
    side |= {"output_bytes": 0}
    totals = ("peak_bytes", "total_allocation_bytes", "temporary_bytes")
    one = {"size_bytes": GIB, "largest_bytes": GIB}
    three = {"size_bytes": 3 * GIB, "largest_bytes": 3 * GIB}
    entry = {"name": "temporaries", "before_bytes": GIB, "after_bytes": 3 * GIB, "is_part": False}
    assert compared(before, after, 2 * GIB).to_dict() == {
        "schema": 1,
        "before": {**side, **dict.fromkeys(totals, GIB)},
        "after": {**side, **dict.fromkeys(totals, 3 * GIB)},
        "limit_bytes": 2 * GIB,
        "verdict": "The first program is within the limit of 2.00 GiB, and the second is 1.00 GiB "
        "over.",
        "account": [entry],
        "findings": {"gone": [], "new": []},
        "why_no_findings": "",
        "changes": [
            {
                "kind": "temporary",
                "name": "dot",
                "source": "a.py:1",
                "before": {**group, **one},
                "after": {**group, **three},
                "delta_bytes": 2 * GIB,
            }
        ],
    }


def test_buffers_of_several_sizes_are_summed_in_the_text() -> None:
    """Only equal buffers read as "2 x 1.00 GiB"."""
    before = _summary(_op("dot", "a.py:1", 1), _op("dot", "a.py:1", 1))
    after = _summary(_op("dot", "a.py:1", 1), _op("dot", "a.py:1", 3))
    line = diff_text(compared(before, after), 1).splitlines()[-1]
    assert line.split("  ")[-2].strip() == "2 x 1.00 GiB -> 2 buffers, 4.00 GiB"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (12, 7, "The first program is 4.00 GiB over the limit of 8.00 GiB; the change frees "
                "5.00 GiB: enough."),
        (12, 9, "The first program is 4.00 GiB over the limit of 8.00 GiB; the change frees "
                "3.00 GiB: the second is still 1.00 GiB over."),
        (12, 12, "The first program is 4.00 GiB over the limit of 8.00 GiB; the change frees "
                 "nothing: the second is still 4.00 GiB over."),
        (7, 9, "The first program is within the limit of 8.00 GiB, and the second is 1.00 GiB "
               "over."),
        (8, 8, "The first program is within the limit of 8.00 GiB, and so is the second."),
    ],
    ids=["enough", "not enough", "no change", "worse", "both fit"],
)  # fmt: skip
def test_a_known_limit_gives_a_verdict(before: int, after: int, verdict: str) -> None:
    """Whether the change is enough, on the second line."""
    peaks = [
        PeakSummary(
            module="jit_f",
            program_id=1,
            memory_space="hbm",
            peak_bytes=gib * GIB,
            peak_unpadded_bytes=gib * GIB,
            peak_position=None,
            heap_bytes=np.zeros(1, np.int64),
            parameter_bytes=0,
            output_bytes=0,
            aliased_bytes=0,
            temporary_bytes=gib * GIB,
            total_allocation_bytes=gib * GIB,
            fragmentation_bytes=0,
            ops=(),
        )
        for gib in (before, after)
    ]

    lines = diff_text(compared(peaks[0], peaks[1], 8 * GIB)).splitlines()[1:3]
    assert " ".join(map(str.strip, lines)).startswith(verdict)
    assert verdict[:24] not in diff_text(compared(peaks[0], peaks[1]))


@pytest.mark.parametrize("width", [60, 80, 99, 130, 200])
def test_the_text_is_as_wide_as_asked_for(width: int) -> None:
    """At each width nothing is longer, and sizes, counts and hbmwatch's own words are whole."""
    name = "jit(step)/" + "a_long_scope/" * 12 + "dot_general"
    source = "a_long_name_of_a_file_that_somebody_chose.py:1041"
    before = _summary(*[_op(name, source, 4, shape="f32[131072,8192,16]{2,1,0}")] * 8)
    after = _summary(
        *[_op(name, source, 5, shape="f32[131072,16384,16]{2,1,0}")] * 8, _op("", "", 1)
    )
    look = Look(width)
    text = diff_text(compared(before, after, 30 * GIB), look=look)

    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    told = (
        "The first program is 2.00 GiB over the limit of 30.00 GiB; the change adds 9.00 GiB: "
        "the second is still 11.00 GiB over."
    )
    assert [
        one
        for one in (told, "8 x 4.00 GiB -> 8 x 5.00 GiB", "none -> 1.00 GiB")
        if one not in words
    ] == []


def test_counts_without_room_for_both_are_on_two_lines() -> None:
    """At 60 columns, by a grouping that sums buffers of several sizes."""
    before = _summary(*[_op("a/dot", "a.py:1", n, number=n) for n in range(1, 16)])
    after = _summary(*[_op("b/dot", "a.py:1", n, number=n) for n in range(1, 1200, 100)])
    lines = diff_text(compared(before, after), look=Look(60), grouping="role").splitlines()

    assert max(map(len, lines)) <= 60
    assert [line.strip() for line in lines[-2:]] == [
        "15 buffers, 120.00 GiB ->",
        "12 buffers, 6.46 TiB",
    ]


# --- by group, and what was found -----------------------------------------------------------------


def test_what_is_not_in_use_at_the_peak_is_in_the_account() -> None:
    """The lines sum to what the program needs, which is more than its peak."""
    before, after = _summary(_op("dot", "a.py:1", 4)), _summary(_op("dot", "a.py:1", 3))
    after = dataclasses.replace(
        after, total_allocation_bytes=5 * GIB, fragmentation_bytes=2 * GIB, aliased_bytes=GIB
    )
    comparison = compared(before, after)

    assert comparison.account() == (
        Entry("reused by outputs (donated)", 0, GIB, is_part=True),
        Entry("temporaries", 4 * GIB, 3 * GIB),
        Entry("not in use at the peak", 0, 2 * GIB),
    )
    assert comparison.total_bytes == (4 * GIB, 5 * GIB)


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ("origin", {"jvp()/dot": (0, 1), "layer_*/mul": (1, 2)}),
        ("role", {"forward temporaries": (0, 1), "other temporaries": (2, 3)}),
        ("line", {"a.py:9": (1, 3)}),
        ("function", {"f": (1, 3)}),
        ("path", {"not an argument": (2, 4)}),
        ("shape", {"f32[4]": (0, 2)}),
        ("layer", {"not in a named block": (1, 2), "layer_*": (1, 2)}),
    ],
)
def test_changes_have_other_groups(grouping: str, expected: dict[str, tuple[int, int]]) -> None:
    """A line that moved is one line; what a grouping has no name for has a name of its own."""
    before = (_in("f", "layer_1/mul", "a.py:3"), _in("g", "sub", "a.py:5"))
    after = (
        _in("f", "layer_1/mul", "a.py:9"),
        _in("f", "layer_2/mul", "a.py:9", "f32[4]{0}"),
        _in("g", "sub", "a.py:5"),
        _in("f", "jvp()/dot", "a.py:9", "f32[4]{0}"),
    )
    found = changes(_summary(*before), _summary(*after), grouping)

    counts = {change.name: (change.before.count, change.after.count) for change in found}
    assert counts == expected


def test_changes_by_layer_are_those_of_blocks_and_of_their_arguments() -> None:
    """The numbers of blocks do not count; an argument is in the layer that its path names."""
    path = "params['layers'][{}]['w']"
    before = _summary(_argument(path.format(0)), _op("jvp(block_0)/dot", "a.py:1"))
    after = _summary(
        *(_argument(path.format(n)) for n in range(2)),
        *(_op(f"transpose(jvp(block_{n}))/mlp/dot", "a.py:1") for n in range(2)),
    )

    assert diff_text(compared(before, after), grouping="layer").splitlines()[3:] == [
        "  Changes at the peak, by layer",
        "    +2.00 GiB  block_*/mlp",
        "               none -> 2 x 1.00 GiB",
        "    +1.00 GiB  params['layers'][*]",
        "               1.00 GiB -> 2 x 1.00 GiB",
        "    -1.00 GiB  block_*",
        "               1.00 GiB -> none",
    ]


def _argument(path: str) -> PeakOp:
    return dataclasses.replace(_op(path, ""), kind="parameter")


def _in(function: str, name: str, source: str, shape: str = "f32[8]{0}") -> PeakOp:
    """A buffer that a function made, by a frame whose function XLA does not name."""
    return dataclasses.replace(_op(name, source, shape=shape), functions=("", function))
