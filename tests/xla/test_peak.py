"""The memory peak of real programs, and of small ones made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbmwatch._xla.peak import caveats, other_ops, peak_summary
from hbmwatch._xla.shardings import tiles
from hbmwatch._xla.terms import SMALL_BYTES
from hbmwatch._xla.types import PrimitiveType
from tests import programs
from tests.xla.support import GIB, MIB, SPACES, changed, made, no_trace, peak_of


@pytest.mark.parametrize("name", programs.PROGRAMS)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_totals_are_those_of_memory_analysis(name: str, platform: str) -> None:
    """Arguments, outputs, aliased and temporary bytes are what the executable itself says."""
    found = programs.compiled(name, platform)
    summary = peak_summary(found.program)
    assert summary.parameter_bytes == found.memory.argument_size_in_bytes
    outputs = summary.output_bytes + summary.aliased_bytes
    assert outputs == found.memory.output_size_in_bytes
    assert summary.aliased_bytes == found.memory.alias_size_in_bytes
    assert summary.temporary_bytes == found.memory.temp_size_in_bytes


@pytest.mark.tpu
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_the_rows_sum_to_the_peak_in_every_space(name: str) -> None:
    """Also outside of HBM, where XProf leaves out what lives through the whole program."""
    program = programs.compiled(name, "tpu").program
    summaries = [peak_summary(program, space) for space in SPACES]
    expected = [summary.peak_bytes for summary in summaries]
    assert expected == [sum(op.size_bytes for op in summary.ops) for summary in summaries]


@pytest.mark.parametrize("name", programs.PROGRAMS)
@pytest.mark.parametrize("platform", programs.PLATFORMS)
def test_the_buffers_of_all_points_sum_to_the_heap(name: str, platform: str) -> None:
    """At each point but the last, what is live has the heap's bytes but for small buffers."""
    program = programs.compiled(name, platform).program
    summary = peak_summary(program)
    points = len(summary.heap_bytes)
    listed = np.zeros(points + 2, dtype=np.int64)
    for op in (*summary.ops, *other_ops(program)):
        if op.instruction:
            listed[0 if op.start is None else op.start + 1] += op.size_bytes
            listed[points if op.end is None else op.end + 1] -= op.size_bytes
    # At the last point a buffer that the last event frees, and one that stays, look the same.
    rest = (summary.heap_bytes - listed.cumsum()[:points])[:-1]
    assert (rest >= 0).all()
    assert rest.max(initial=0) < max(64 * SMALL_BYTES, 0.01 * summary.peak_bytes)


@pytest.mark.tpu
def test_the_page_s_program_peaks_at_300_gib_and_names_its_lines() -> None:
    """200 GiB of `a @ a` and 100 GiB of the random draw, each with its own line."""
    summary = peak_summary(programs.compiled("seed", "tpu").program)
    assert summary.peak_bytes == 300 * GIB
    sizes = {op.source: op.size_bytes for op in summary.ops}
    assert sizes == {_line("return a @ a"): 200 * GIB, _line("a = jax.random.normal("): 100 * GIB}


def _line(text: str) -> str:
    """The line of tests/programs.py that holds a text, as "programs.py:12"."""
    lines = Path(programs.__file__).read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, start=1) if text in line)
    return f"programs.py:{number}"


@pytest.mark.parametrize("platform", programs.PLATFORMS)
def test_arguments_carry_their_pytree_paths(platform: str) -> None:
    """Weights p[0] to p[7] of 256 MiB and the batch x of 4 GiB."""
    summary = peak_summary(programs.compiled("train", platform).program)
    expected = {f"p[{i}]": 256 * MIB for i in range(8)} | {"x": 4 * GIB}
    assert expected == {op.path: op.size_bytes for op in summary.ops if op.kind == "parameter"}


@pytest.mark.parametrize("platform", programs.PLATFORMS)
def test_donated_weights_are_aliased(platform: str) -> None:
    """Donation turns 2 GiB of outputs into aliased arguments, parameter i for output i."""
    kept = programs.compiled("train", platform).program
    donated = programs.compiled("donated", platform).program
    before, after = peak_summary(kept), peak_summary(donated)
    assert (before.aliased_bytes, after.aliased_bytes) == (0, 2 * GIB)
    assert before.output_bytes - after.output_bytes == 2 * GIB
    assert [] == list(kept.aliases)
    pairs = [(alias.parameter_number, list(alias.output_shape_index)) for alias in donated.aliases]
    assert pairs == [(i, [i]) for i in range(8)]


@pytest.mark.tpu
def test_sizes_on_a_mesh_are_per_device() -> None:
    """A quarter of the batch is on each of four chips, and all of the replicated weights."""
    program = programs.compiled("sharded", "tpu").program
    ops = {op.path: op.size_bytes for op in peak_summary(program).ops}
    assert (ops["x"], ops["p[0]"]) == (4 * 2**20 * 8192 // 4, 256 * MIB)
    *_, batch = program.parameter_shardings
    assert tiles(batch, 2) == (4, 1)
    assert program.output_sharding is not None


@pytest.mark.parametrize("platform", programs.PLATFORMS)
def test_a_lifetime_holds_the_peak(platform: str) -> None:
    """Every temporary at the peak is allocated before it and freed at it or later."""
    summary = peak_summary(programs.compiled("scanned", platform).program)
    peak, heap = summary.peak_position, summary.heap_bytes
    assert peak == int(np.argmax(heap)) and int(heap[peak]) == summary.peak_bytes
    spans = [op for op in summary.ops if op.kind == "temporary"]
    assert spans
    for op in spans:
        assert op.start is not None and op.end is not None
        assert op.start < peak <= op.end + 1


def test_a_summary_s_heap_cannot_be_written() -> None:
    """heap_bytes is an int64 array that is read-only."""
    heap = peak_summary(programs.compiled("small", "cpu").program).heap_bytes
    assert (heap.dtype, heap.flags.writeable) == (np.dtype(np.int64), False)


def test_an_unknown_memory_space_is_a_value_error_that_lists_them() -> None:
    """The text names every choice."""
    program = programs.compiled("small", "cpu").program
    with pytest.raises(ValueError, match="'hbm', 'vmem', 'sflag', 'cmem', 'smem', 'host'"):
        peak_summary(program, "hmb")


def test_without_a_trace_the_peak_is_the_whole_program_allocations() -> None:
    """No heap curve, no position, no fragmentation: parameters, outputs and constants only."""
    summary = peak_of(changed(no_trace))
    assert (summary.heap_bytes.tolist(), summary.peak_position) == ([], None)
    assert summary.fragmentation_bytes == 0
    assert {op.kind for op in summary.ops} <= {"parameter", "output", "constant", ""}
    assert summary.temporary_bytes > 0


def _future_type(proto: Any) -> None:
    for computation in proto.hlo_module.computations:
        for instruction in computation.instructions:
            if instruction.metadata.op_name == "x":
                instruction.shape.element_type = 99


def test_an_unknown_element_type_does_not_hide_the_peak() -> None:
    """Sizes stay right, the padding counts as none, and a caveat says that it is unknown."""
    proto = changed(_future_type)
    whole = peak_summary(programs.compiled("donated", "cpu").program)
    summary = peak_of(proto)
    (row,) = (op for op in summary.ops if op.op_name == "x")
    assert (row.shape, row.padding_bytes) == ("type99[131072,8192]{1,0}", 0)
    assert summary.peak_bytes == whole.peak_bytes
    (caveat,) = caveats(summary)
    assert "element type 99" in caveat
    assert caveats(whole) == ()


ALLOCATIONS = (
    {"buffers": {1: 64 * 1024}, "is_entry_computation_parameter": True},
    {
        "buffers": {2: 48 * 1024, 3: 48 * 1024},
        "is_entry_computation_parameter": True,
        "maybe_live_out": True,
    },
    {"buffers": {4: 32 * 1024}, "maybe_live_out": True},
    {"buffers": {5: 16 * 1024}, "is_constant": True},
    {"buffers": {6: 16 * 1024 - 1, 7: 20 * 1024, 8: 100}, "size": 40 * 1024},
    {"buffers": {9: 2**20}, "is_thread_local": True},
    {"buffers": {}, "size": 0},
)


def test_a_peak_made_by_hand_has_every_kind_of_buffer() -> None:
    """Whole-program allocations by their largest buffer, then the heap, then the small buffers."""
    summary = peak_summary(made(*ALLOCATIONS, traces=(((0, 6), (0, 7), (0, 8), (1, 8)),)))

    rows = [(op.instruction, op.kind, op.size_bytes, op.start, op.end) for op in summary.ops]
    assert rows == [
        ("i1", "parameter", 64 * 1024, None, None),
        ("i2", "parameter", 48 * 1024, None, None),
        ("i4", "output", 32 * 1024, None, None),
        ("i5", "constant", 16 * 1024, None, None),
        ("i7", "temporary", 20 * 1024, 1, 3),
        ("", "", 16 * 1024 - 1 + 100, None, None),
    ]
    whole_program = (64 + 48 + 32 + 16) * 1024
    peak = whole_program + 36 * 1024 + 99
    heap = [0, 16 * 1024 - 1, 36 * 1024 - 1, 36 * 1024 + 99, 36 * 1024 - 1]
    assert summary.heap_bytes.tolist() == [whole_program + size for size in heap]
    assert (summary.peak_bytes, summary.peak_position) == (peak, 3)


def test_the_totals_of_a_peak_made_by_hand() -> None:
    """Aliased bytes are arguments, not outputs; thread-local allocations count nowhere."""
    summary = peak_summary(made(*ALLOCATIONS, traces=(((0, 6), (0, 7)),)))

    assert summary.parameter_bytes == (64 + 48) * 1024
    assert summary.aliased_bytes == 48 * 1024
    assert summary.output_bytes == 32 * 1024
    assert summary.temporary_bytes == 40 * 1024
    assert summary.total_allocation_bytes == (64 + 48 + 32 + 16 + 40) * 1024
    assert summary.fragmentation_bytes == summary.total_allocation_bytes - summary.peak_bytes


def test_padding_is_what_a_buffer_has_beyond_its_elements() -> None:
    """f32[1000,3] in 512,000 bytes: 12,000 bytes of elements, 42.7 times as many in all."""
    shape = {"element_type": PrimitiveType.F32, "dimensions": [1000, 3]}
    (op,) = peak_summary(
        made({"buffers": {1: 512_000}}, traces=(((0, 1),),), shapes={1: shape})
    ).ops

    assert (op.shape, op.unpadded_bytes, op.padding_bytes) == ("f32[1000,3]", 12_000, 500_000)
    assert round(op.expansion, 1) == 42.7


def test_a_program_of_another_memory_space_has_no_peak() -> None:
    """A space without buffers is empty, not an error."""
    summary = peak_summary(made(*ALLOCATIONS, traces=(((0, 6),),)), "vmem")

    assert (summary.peak_bytes, summary.ops, summary.peak_position) == (0, (), None)
    assert summary.heap_bytes.tolist() == []
