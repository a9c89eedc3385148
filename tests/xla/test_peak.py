"""The reader, held against XProf itself on programs of every kind, and against damage."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hbmwatch._profiles import xprof
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.heap import heap_trace
from hbmwatch._xla.peak import caveats, peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.protos import HloProto, XSpace, message_class
from hbmwatch._xla.shardings import tiles
from hbmwatch._xla.terms import memory_color
from hbmwatch._xla.xspace import pack_modules, read_modules
from tests import programs

GIB, MIB = 2**30, 2**20
SPACES = ("hbm", "vmem", "sflag", "cmem", "smem", "host")
CASES = [(name, platform) for platform in programs.PLATFORMS for name in programs.PROGRAMS]


def shared_profiles() -> list[Path]:
    """The profiles of real devices, where they are at hand."""
    beside = Path(__file__).parents[3] / "shared" / "profiles"
    folder = Path(os.environ.get("HBMWATCH_PROFILES", beside))
    return sorted(folder.glob("*/plugins/profile/*/*.xplane.pb"))


# --- both readers ---------------------------------------------------------------------------------


@functools.cache
def asked(name: str, platform: str) -> dict[str, dict[str, Any] | None]:
    """What XProf says of a program, by memory space."""
    found = programs.compiled(name, platform)
    requests = [(found.name, space) for space in SPACES]
    return dict(zip(SPACES, xprof.preprocess_results(found.xspace, requests), strict=True))


def as_xprof_tells(summary: PeakSummary) -> PeakSummary:
    """A summary without what XProf does not tell: outside of HBM, more than sizes of what lasts."""
    if summary.memory_space == "hbm":
        return summary

    def told(op: PeakOp) -> PeakOp:
        if op.start is not None or not op.instruction:
            return op
        bare = replace(op, opcode="", op_name="", source="", stack=())
        return replace(bare, unpadded_bytes=op.size_bytes)

    return replace(summary, ops=tuple(map(told, summary.ops)))


@pytest.mark.slow
@programs.needs_xprof
@pytest.mark.parametrize(("name", "platform"), CASES)
def test_both_readers_agree_on_every_program(name: str, platform: str) -> None:
    """Peak, rows in order, lifetimes, totals and the heap curve are XProf's, in every space."""
    found = programs.compiled(name, platform)
    expected = [xprof.to_summary(r, found.name, s) for s, r in asked(name, platform).items()]
    actual = [as_xprof_tells(peak_summary(found.program, space)) for space in SPACES]
    assert expected == actual
    assert expected[0].peak_bytes > 0


@pytest.mark.slow
@programs.needs_xprof
@pytest.mark.parametrize(("name", "platform"), CASES)
def test_rows_and_totals_are_the_figures_that_xprof_prints(name: str, platform: str) -> None:
    """Row by row in program order, by size, and in total, as XProf's own JSON has them."""
    result = asked(name, platform)["hbm"]
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
    """A PeakOp in XProf's words."""
    size, unpadded = op.size_bytes / MIB, op.unpadded_bytes / MIB
    if not op.instruction:
        return ("small (<16384 bytes)", None, size, 0, None, None, None)
    plain = op.instruction.partition("{")[0]
    label = f"{plain}: {op.shape} # {op.op_name}"
    line = op.stack[0] if op.stack else None
    return (label, op.instruction, size, unpadded, op.kind.capitalize(), op.opcode, line)


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
            actual = as_xprof_tells(peak_summary(program, space))
            assert xprof.to_summary(result, name, space) == actual, (profile, name, space)


# --- what is known beforehand ---------------------------------------------------------------------


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
    """Every temporary at the peak comes to life before it and is freed at it or later."""
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


# --- profiles -------------------------------------------------------------------------------------


def plane(*modules: tuple[str, bytes], name: str = "/host:metadata") -> dict[str, Any]:
    """A metadata plane, as the profiler writes it."""
    events = [
        {"key": key, "value": {"name": name, "stats": [{"metadata_id": 7, "bytes_value": proto}]}}
        for key, (name, proto) in enumerate(modules)
    ]
    stat = {"key": 7, "value": {"id": 7, "name": "Hlo Proto"}}
    return {"name": name, "event_metadata": events, "stat_metadata": [stat]}


def space(*planes: dict[str, Any]) -> bytes:
    """A serialized XSpace of these planes."""
    serialized: bytes = message_class(XSpace)(planes=planes).SerializeToString()
    return serialized


def test_modules_are_listed_unparsed_from_every_metadata_plane() -> None:
    """Two planes of a GPU process: all modules, whatever is in their bytes, and nothing else."""
    device = plane(("jit_x(9)", b"x"), name="/device:GPU:0")
    data = space(plane(("jit_f(1)", b"\xff\xff")), device, plane(("jit_g(2)", b"g")))
    assert read_modules(data) == {"jit_f(1)": b"\xff\xff", "jit_g(2)": b"g"}


def test_different_modules_of_one_name_are_all_there() -> None:
    """A GPU's jit_f(1) and the CPU's do not hide one another; the same one twice is one."""
    data = space(plane(("jit_f(1)", b"a")), plane(("jit_f(1)", b"b")), plane(("jit_f(1)", b"a")))
    assert read_modules(data) == {"jit_f(1)": b"a", "jit_f(1) #2": b"b"}


def test_a_profile_without_modules_is_no_error() -> None:
    """A profile with enable_hlo_proto off has planes and no modules."""
    assert read_modules(space(plane())) == {}


@pytest.mark.parametrize("data", [b"", b"\x0a", b"no profile at all", bytes(64)])
def test_what_is_no_profile_is_refused(data: bytes) -> None:
    """Empty, cut and foreign bytes give a sentence with the file's name."""
    with pytest.raises(ProfileError, match=r"^h\.xplane\.pb is (empty|damaged)"):
        read_modules(data, "h.xplane.pb")


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


def test_a_program_without_a_number_in_its_name_has_its_module_s() -> None:
    """A dump has no name "jit_step(12)"; the HloModule's own id stands in."""
    found = programs.compiled("small", "cpu")
    program = parse_program(found.hlo_proto, "dump")
    assert (program.module, program.program_id) == ("jit_step", found.program.program_id)


# --- damage ---------------------------------------------------------------------------------------


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Sixty cuts and two hundred bit flips."""
    chance = random.Random(seed)
    for _ in range(60):
        yield data[: chance.randrange(len(data))]
    for _ in range(200):
        flipped = bytearray(data)
        for _ in range(chance.choice([1, 1, 4, 32])):
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)


def read_all(xspace: bytes) -> None:
    """Everything that the reader does with a profile."""
    for name, proto in read_modules(xspace).items():
        program = parse_program(proto, name)
        for memory_space in SPACES:
            summary = peak_summary(program, memory_space)
            assert str(summary)
            assert isinstance(caveats(summary), tuple)
        for instruction in program.instructions.values():
            program.frames(instruction)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_damaged_profile_gives_a_sentence_or_a_summary(platform: str) -> None:
    """Cut or flipped anywhere: a ProfileError or a result, nothing else, and always an end."""
    outcomes = set()
    for data in damaged(programs.compiled("small", platform).xspace, seed=1):
        try:
            read_all(data)
            outcomes.add("read")
        except ProfileError as error:
            assert len(str(error)) > 20
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_damaged_program_gives_a_sentence_or_a_summary(platform: str) -> None:
    """The same for the HloProto, inside a profile that is whole."""
    outcomes = set()
    found = programs.compiled("scanned", platform)
    for data in damaged(found.hlo_proto, seed=2):
        try:
            read_all(pack_modules([("jit_loss", 1, data)], "host"))
            outcomes.add("read")
        except ProfileError as error:
            assert len(str(error)) > 20
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def changed(change: Callable[[Any], None], name: str = "donated") -> bytes:
    """A program's HloProto with a change made to it."""
    proto = message_class(HloProto).FromString(programs.compiled(name, "cpu").hlo_proto)
    change(proto)
    serialized: bytes = proto.SerializeToString()
    return serialized


def peak_of(hlo_proto: bytes, memory_space: str = "hbm") -> PeakSummary:
    """The peak of a serialized program."""
    return peak_summary(parse_program(hlo_proto, "jit_train_step(7)"), memory_space)


def _no_assignment(proto: Any) -> None:
    proto.ClearField("buffer_assignment")


def _no_module(proto: Any) -> None:
    proto.ClearField("hlo_module")


def _negative_buffer(proto: Any) -> None:
    proto.buffer_assignment.logical_buffers[3].size = -5


def _negative_allocation(proto: Any) -> None:
    proto.buffer_assignment.buffer_allocations[0].size = -5


def _freed_twice(proto: Any) -> None:
    events = proto.buffer_assignment.heap_simulator_traces[0].events
    events.append(next(event for event in events if event.kind == 1))


def _shares_with_itself(proto: Any) -> None:
    events = proto.buffer_assignment.heap_simulator_traces[0].events
    buffer = events[0].buffer_id
    events.add(kind=2, buffer_id=buffer, share_with_canonical_id=buffer)


def _unknown_event(proto: Any) -> None:
    proto.buffer_assignment.heap_simulator_traces[0].events[0].kind = 9


def _foreign_buffer(proto: Any) -> None:
    assignment = proto.buffer_assignment
    parameter = next(a for a in assignment.buffer_allocations if a.is_entry_computation_parameter)
    event = assignment.heap_simulator_traces[0].events[-1]
    event.kind, event.buffer_id = 0, parameter.assigned[0].logical_buffer_id


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_no_assignment, r"jit_train_step\(7\) has no buffer assignment"),
        (_no_module, r"the HloProto of jit_train_step\(7\) holds no module"),
        (_negative_buffer, r"jit_train_step\(7\) is damaged: it has a buffer of -5 bytes"),
        (_negative_allocation, r"jit_train_step\(7\) is damaged: it has a buffer of -5 bytes"),
        (_freed_twice, "frees buffer [0-9]+ more than once"),
        (_shares_with_itself, "buffer [0-9]+ shares with itself"),
        (_unknown_event, "has an event of kind 9, which this version of hbmwatch does not know"),
        (_foreign_buffer, "runs through 2 allocations, not one"),
    ],
)
def test_an_inconsistent_program_says_what_is_wrong(
    change: Callable[[Any], None], sentence: str
) -> None:
    """A peak that cannot be told is a ProfileError that names the program and the fault."""
    with pytest.raises(ProfileError, match=sentence):
        peak_of(changed(change))


def _no_trace(proto: Any) -> None:
    del proto.buffer_assignment.heap_simulator_traces[:]


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
@pytest.mark.parametrize("change", [_no_trace, _assigned_nowhere, _events_nowhere, _frames_nowhere])
def test_what_xprof_leaves_out_is_left_out(change: Callable[[Any], None]) -> None:
    """Ids that point nowhere and a missing trace change our figures as they change XProf's."""
    proto = changed(change)
    data = pack_modules([("jit_train_step", 7, proto)], "host")
    expected = xprof.peak_summary(data, "jit_train_step(7)")
    assert expected == peak_of(proto)
    assert expected != peak_summary(programs.compiled("donated", "cpu").program)


def test_without_a_trace_the_peak_is_what_lasts() -> None:
    """No heap curve, no position, no fragmentation: only what lives through the program."""
    summary = peak_of(changed(_no_trace))
    assert (summary.heap_bytes.tolist(), summary.peak_position) == ([], None)
    assert summary.fragmentation_bytes == 0
    assert {op.kind for op in summary.ops} <= {"parameter", "output", "constant", ""}
    assert summary.temporary_bytes > 0


def _frame_cycle(proto: Any) -> None:
    for number, frame in enumerate(proto.hlo_module.stack_frame_index.stack_frames, start=1):
        frame.parent_frame_id = number


def test_a_stack_that_comes_round_again_ends() -> None:
    """A cycle of frames, on which XProf never ends, gives each frame once."""
    stacks = {op.stack for op in peak_of(changed(_frame_cycle)).ops if op.stack}
    assert stacks and all(len(stack) == 1 for stack in stacks)


def _future_type(proto: Any) -> None:
    for computation in proto.hlo_module.computations:
        for instruction in computation.instructions:
            if instruction.metadata.op_name == "x":
                instruction.shape.element_type = 99


def test_an_element_type_of_the_future_does_not_hide_the_peak() -> None:
    """Sizes stay right, the padding counts as none, and a caveat says that it is not known."""
    proto = changed(_future_type)
    whole = peak_summary(programs.compiled("donated", "cpu").program)
    summary = peak_of(proto)
    (row,) = (op for op in summary.ops if op.op_name == "x")
    assert (row.shape, row.padding_bytes) == ("type99[131072,8192]{1,0}", 0)
    assert summary.peak_bytes == whole.peak_bytes
    (caveat,) = caveats(summary)
    assert "element type 99" in caveat
    assert caveats(whole) == ()


@pytest.mark.tpu
def test_the_trace_of_a_space_is_found_by_its_first_buffer() -> None:
    """What a trace says of its allocation is not to be trusted, and XProf does not."""
    program = programs.compiled("small", "tpu").program
    vmem = memory_color("vmem")
    events = heap_trace(program, vmem)
    buffers = (program.buffer(event.buffer_id) for event in events)
    assert {buffer and buffer.allocation.color for buffer in buffers} == {vmem}
