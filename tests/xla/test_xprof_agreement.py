"""The peak, compared with XProf's own on real programs, in every memory space."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hbmwatch._profiles import xprof
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.xspace import pack_modules, read_modules
from tests import programs
from tests.xla.support import MIB, SPACES, changed, no_trace, peak_of

CASES = [(name, platform) for platform in programs.PLATFORMS for name in programs.PROGRAMS]


def shared_profiles() -> list[Path]:
    """The profiles of real devices, if HBMWATCH_PROFILES or a folder beside the project has any."""
    beside = Path(__file__).parents[3] / "shared" / "profiles"
    folder = Path(os.environ.get("HBMWATCH_PROFILES", beside))
    return sorted(folder.glob("*/plugins/profile/*/*.xplane.pb"))


@functools.cache
def xprof_results(name: str, platform: str) -> dict[str, dict[str, Any] | None]:
    """XProf's results for a program, by memory space."""
    found = programs.compiled(name, platform)
    requests = [(found.name, space) for space in SPACES]
    return dict(zip(SPACES, xprof.preprocess_results(found.xspace, requests), strict=True))


def as_xprof_has_it(summary: PeakSummary) -> PeakSummary:
    """A summary without what XProf lacks outside of HBM: details of whole-program allocations."""
    if summary.memory_space == "hbm":
        return summary

    def bare(op: PeakOp) -> PeakOp:
        if op.start is not None or not op.instruction:
            return op
        without_names = replace(op, opcode="", op_name="", source="", stack=())
        return replace(without_names, unpadded_bytes=op.size_bytes)

    return replace(summary, ops=tuple(map(bare, summary.ops)))


@pytest.mark.slow
@programs.needs_xprof
@pytest.mark.parametrize(("name", "platform"), CASES)
def test_both_readers_agree_on_every_program(name: str, platform: str) -> None:
    """Peak, rows in order, lifetimes, totals and the heap curve are XProf's, in every space."""
    found = programs.compiled(name, platform)
    results = xprof_results(name, platform)
    expected = [xprof.to_summary(r, found.name, s) for s, r in results.items()]
    actual = [as_xprof_has_it(peak_summary(found.program, space)) for space in SPACES]
    assert expected == actual
    assert expected[0].peak_bytes > 0


@pytest.mark.slow
@programs.needs_xprof
@pytest.mark.parametrize(("name", "platform"), CASES)
def test_rows_and_totals_are_the_figures_that_xprof_prints(name: str, platform: str) -> None:
    """Row by row in program order, by size, and in total, as XProf's own JSON has them."""
    result = xprof_results(name, platform)["hbm"]
    assert result is not None
    summary = peak_summary(programs.compiled(name, platform).program)
    expected = [
        (
            row.get("label"),
            row.get("instructionName"),
            row["logicalBufferSizeMib"],
            row.get("unpaddedShapeMib", 0),
            row.get("groupName"),
            row.get("opCode"),
            _xprof_line(row),
        )
        for row in result["maxHeap"]
    ]
    assert expected == [_as_row(op) for op in summary.by_program_order()]
    by_size = [row["logicalBufferSizeMib"] for row in result["maxHeapBySize"]]
    assert by_size == [op.size_bytes / MIB for op in summary.by_size()]
    assert result["peakHeapMib"] == summary.peak_bytes / MIB
    assert result["totalBufferAllocationMib"] == summary.total_allocation_bytes / MIB
    assert result.get("heapSizes", []) == (summary.heap_bytes / MIB).tolist()


def _xprof_line(row: dict[str, Any]) -> str | None:
    source = row.get("sourceInfo")
    return source and f"{source['fileName']}:{source['lineNumber']}"


def _as_row(op: PeakOp) -> tuple[Any, ...]:
    """A PeakOp as a row of XProf's JSON."""
    size, unpadded = op.size_bytes / MIB, op.unpadded_bytes / MIB
    if not op.instruction:
        return ("small (<16384 bytes)", None, size, 0, None, None, None)
    plain = op.instruction.partition("{")[0]
    label = f"{plain}: {op.shape} # {op.op_name}"
    line = op.stack[0] if op.stack else None
    return (label, op.instruction, size, unpadded, op.kind.capitalize(), op.opcode, line)


@pytest.mark.slow
@programs.needs_xprof
def test_both_readers_agree_on_the_profiles_of_real_devices() -> None:
    """TPU v6e, MI300X and MI355X: every module, in every memory space."""
    profiles = shared_profiles()
    if not profiles:
        pytest.skip("no profiles of real devices here; HBMWATCH_PROFILES can name their folder")
    for profile in profiles:
        modules = read_modules(profile.read_bytes(), str(profile))
        requests = [(name, space) for name in modules for space in SPACES]
        results = xprof.preprocess_results(profile, requests)
        for (name, space), result in zip(requests, results, strict=True):
            program = parse_program(modules[name], name)
            actual = as_xprof_has_it(peak_summary(program, space))
            assert xprof.to_summary(result, name, space) == actual, (profile, name, space)


@programs.needs_xprof
@pytest.mark.parametrize("number", [0, 7, 2**63 + 12345])
def test_a_packed_module_is_read_by_both_readers(number: int) -> None:
    """pack_modules gives XProf what it needs, for a CPU's first program as for a TPU's hash."""
    found = programs.compiled("train", "cpu")
    data = pack_modules([("jit_train_step", number, found.hlo_proto)], "host")
    name = f"jit_train_step({number})"
    assert read_modules(data) == {name: found.hlo_proto}
    program = parse_program(found.hlo_proto, name)
    assert program.program_id == number
    assert xprof.peak_summary(data, name) == peak_summary(program)


def _assigned_nowhere(proto: Any) -> None:
    for allocation in proto.buffer_assignment.buffer_allocations:
        allocation.assigned.add(logical_buffer_id=2**40)


def _events_nowhere(proto: Any) -> None:
    events = proto.buffer_assignment.heap_simulator_traces[0].events
    events.add(kind=0, buffer_id=2**20)
    events.add(kind=2, buffer_id=events[0].buffer_id, share_with_canonical_id=2**20)


def _frames_nowhere(proto: Any) -> None:
    computations = proto.hlo_module.computations
    innermost = {i.metadata.stack_frame_id for c in computations for i in c.instructions}
    for number, frame in enumerate(proto.hlo_module.stack_frame_index.stack_frames, start=1):
        if number not in innermost:
            frame.file_location_id = 10**6


@programs.needs_xprof
@pytest.mark.parametrize("change", [no_trace, _assigned_nowhere, _events_nowhere, _frames_nowhere])
def test_what_xprof_leaves_out_is_left_out(change: Callable[[Any], None]) -> None:
    """Ids that point nowhere and a missing trace change our figures as they change XProf's."""
    proto = changed(change)
    data = pack_modules([("jit_train_step", 7, proto)], "host")
    expected = xprof.peak_summary(data, "jit_train_step(7)")
    assert expected == peak_of(proto)
    assert expected != peak_summary(programs.compiled("donated", "cpu").program)
