"""The buffers at the peak: inferred names, families, readers."""

from __future__ import annotations

import dataclasses

import pytest

from hbmwatch._analysis import live_buffers
from hbmwatch._analysis.live_buffers import PeakBuffers
from hbmwatch._xla.peak import peak_summary
from tests.findings.cases import explained
from tests.findings.saved import FORWARD
from tests.hlo import MIB, Hlo


@pytest.mark.parametrize(("users", "count"), [(299, 299), (301, 300)])
def test_the_readers_of_copies_are_found_up_to_a_bound(users: int, count: int) -> None:
    """A chain of copies is walked down."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(512, 512))
    last = made
    for _ in range(users):
        last = hlo.add("copy", last, dims=(512, 512))
    facts = hlo.facts((made,))

    assert live_buffers.MOST_VISITS == 300
    assert len(facts.buffers.uses(facts.live[0])) == count


@pytest.mark.parametrize(("length", "name"), [(299, "jit(f)/sort"), (300, "")])
def test_a_name_is_inferred_through_a_bounded_walk(length: int, name: str) -> None:
    """From the nearest instruction above that has one."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(512, 512), name="jit(f)/sort")
    for _ in range(length):
        made = hlo.add("negate", made, dims=(512, 512))
    (live,) = hlo.facts((made,)).live

    assert live_buffers.MOST_VISITS == 300
    assert (live.name, live.inferred) == (name, bool(name))


@pytest.mark.parametrize(("count", "is_saved"), [(2, False), (3, True)])
def test_without_marks_three_equal_buffers_are_residuals(count: int, is_saved: bool) -> None:
    """Before jax 0.7 op_names show the passes inside of jit only; a sum of gradients is a sign."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(512, 512), name="jit(f)/tanh") for _ in range(count)]
    hlo.add("add", *made[:2], dims=(512, 512), name="jit(f)/add_any")
    facts = hlo.facts(made)

    assert live_buffers.LEAST_LAYERS == 3
    assert bool(facts.buffers.saved) == is_saved


def test_a_sample_of_the_op_names_tells_the_passes_of_a_large_program() -> None:
    """Every third of 3000 instructions is read, and all that are live."""
    hlo = Hlo()
    hlo.add("negate", dims=(1,), name="jit(f)/first")
    made = hlo.add("sort", dims=(512, 512), name=FORWARD)
    for number in range(2998):
        hlo.add("negate", dims=(1,), name=f"jit(f)/{number}")
    names = hlo.facts((made,)).buffers.op_names

    assert live_buffers.SAMPLED_INSTRUCTIONS == 1000
    assert len(names) == 1000 + 1
    assert FORWARD in names


@pytest.mark.tpu
def test_nameless_loop_stacks_are_named_after_what_fills_them() -> None:
    """The stacks of a scanned decoder have no name in the viewer; their op and line are found."""
    summary = explained("scanned_decoder").summary
    nameless = {op.instruction for op in summary.ops if not op.op_name and op.size_bytes > MIB}
    buffers = PeakBuffers(explained("scanned_decoder").program, summary)
    found = {
        live.name.rpartition("/")[2]: live.source.partition(":")[0]
        for live in buffers.live
        if live.op.instruction in nameless and live.loop_buffer is not None
    }
    assert {"exp", "dot_general"} <= set(found)
    assert set(found.values()) == {"base.py", "saved.py"}


@pytest.mark.parametrize(
    ("result", "name"), [(0, "jit(f)/sin"), (1, "jit(f)/cos"), (2, "jit(f)/both")]
)
def test_each_result_of_a_fusion_has_the_name_of_what_computes_it(result: int, name: str) -> None:
    """A fusion has the name of one of its results; a result without a name takes it."""
    hlo = Hlo()
    inside = hlo.inner()
    x = inside.parameter(512, 512)
    made = [
        inside.add(opcode, x, dims=(512, 512), name=own)
        for opcode, own in (("sine", "jit(f)/sin"), ("cosine", "jit(f)/cos"), ("negate", ""))
    ]
    root = inside.add("tuple", *made)
    fusion = hlo.add(
        "fusion",
        hlo.parameter(512, 512, path="x"),
        shape=hlo.known[root]["shape"],
        calls=inside,
        name="jit(f)/both",
    )
    program = hlo.program((fusion,))
    summary = peak_summary(program)
    (op,) = [op for op in summary.ops if op.opcode == "fusion"]
    op = dataclasses.replace(op, instruction=f"{op.instruction}{{{result}}}")
    (live,) = PeakBuffers(program, dataclasses.replace(summary, ops=(op,))).live

    assert live.name == name


@pytest.mark.parametrize(
    ("given", "name", "source"),
    [(True, "dynamic_update_slice", "train.py:40"), (False, "select_n", "train.py:33")],
    ids=["updated in place", "stacked by a scan"],
)
def test_an_array_that_a_loop_updates_has_the_line_of_its_update(
    given: bool, name: str, source: str
) -> None:
    """What a scan stacks has the line of the value, which JAX writes to the stack by itself."""
    lines = [43, 33, 40]  # of the loop, of the value and of the update
    frames = {
        "file_names": ["train.py"],
        "function_names": ["step", "body"],
        "file_locations": [
            {"file_name_id": 1, "function_name_id": n, "line": line}
            for line, n in zip(lines, [1, 2, 2])
        ],
        "stack_frames": [
            {"file_location_id": n, "parent_frame_id": parent}
            for n, parent in [(1, 0), (2, 1), (3, 1)]
        ],
    }
    hlo = Hlo()
    old = hlo.parameter(64, 512, path="collection")
    begin = hlo.add("copy", old, dims=(64, 512)) if given else hlo.add("iota", dims=(64, 512))
    start = hlo.add("tuple", begin)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[start]["shape"])
    whole = body.add("get-tuple-element", carried, dims=(64, 512), tuple_index=0)
    in_body = "jit(step)/while/body"
    value = body.add(
        "select", dims=(1, 512), metadata={"op_name": f"{in_body}/select_n", "stack_frame_id": 2}
    )
    written = {"op_name": f"{in_body}/dynamic_update_slice", "stack_frame_id": 3}
    body.add(
        "tuple",
        body.add("dynamic-update-slice", whole, value, dims=(64, 512), metadata=written),
    )
    loop = hlo.add(
        "while",
        start,
        shape=hlo.known[start]["shape"],
        calls=body,
        metadata={"op_name": "jit(step)/while", "stack_frame_id": 1},
    )
    hlo.add("get-tuple-element", loop, dims=(64, 512), tuple_index=0)
    (live,) = (b for b in hlo.facts((begin,), stack_frame_index=frames).live if b.loop_buffer)

    assert (live.name, live.source) == (f"{in_body}/{name}", source)
