"""Anything at all, read as a message or as a profile: a result or a sentence, and an end.

A few seconds of examples; HBMWATCH_FUZZ_EXAMPLES=6000 makes it about a minute, as in CI.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.scale import hlo_proto
from hbmwatch import OomMessage, OomReport, PeakSummary, ProfileError, parse_oom, parse_ooms
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import rollup, with_roles
from hbmwatch._findings.rank import find_findings
from hbmwatch._messages.parse import parse_oom as parsed
from hbmwatch._xla.peak import caveats, peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.xspace import pack_modules, read_modules

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("HBMWATCH_FUZZ_EXAMPLES", "300"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MESSAGES = Path(__file__).parents[1] / "messages" / "samples"


@functools.cache
def samples() -> tuple[str, ...]:
    """Real messages."""
    files = sorted(file for file in MESSAGES.rglob("*.txt") if file.is_file())
    return tuple(file.read_text(encoding="utf-8", errors="replace") for file in files)


# --- messages -------------------------------------------------------------------------------------

# What wordings are made of, so that random text comes near to them.
PIECES = st.sampled_from(
    [
        "RESOURCE_EXHAUSTED: ",
        "Out of memory",
        " allocating ",
        "bytes",
        "1125899906842624",
        "15.75G",
        "-1",
        "99999999999999999999999999",
        "1e308G",
        "0B",
        "Ran out of memory on HBM",
        "hbm",
        ". ",
        "exceeds available HBM (",
        ")",
        "\n",
        "  Largest program allocations in hbm:\n",
        "Size: ",
        "Shape: f32[",
        "]{1,0:T(8,128)}",
        "Unpadded size: ",
        "Extra memory due to padding: ",
        "(32.0x",
        "Total hbm usage >= ",
        "E1000: CompileTimeHbmOom: ",
        "XLA label: ",
        'Operator: op_name="',
        "BufferAssignment OOM Debugging.",
        "Peak buffers:",
        "\tBuffer 1:\n",
        "=====",
        "\x00",
        "\u202e",
        "while running replica ",
        "0",
        " and partition ",
        "[executable_name='",
        "GPU_0_bfc",
        "::",
    ]
)
near_messages = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=40).map("".join)


@st.composite
def damaged_messages(draw: st.DrawFn) -> str:
    """A real message, cut, doubled, or with pieces exchanged."""
    text = draw(st.sampled_from(samples() or ("RESOURCE_EXHAUSTED: x",)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 200)))
        text = text[:start] + draw(st.one_of(PIECES, st.just(text[start:stop] * 2))) + text[stop:]
    return text


@fuzz
@given(st.one_of(st.text(), near_messages, damaged_messages()))
def test_any_text_is_a_message_or_none(text: str) -> None:
    """parse_oom raises nothing, takes no time, and what it gives is text and numbers."""
    start = time.thread_time()
    message = parse_oom(text)
    assert time.thread_time() - start < 2
    assert (message is None) == (parse_ooms(text) == ())
    if message is None:
        return
    assert isinstance(message, OomMessage)
    report = OomReport(message=message)
    assert str(report) and json.dumps(report.to_dict())
    assert parsed(message.text) is not None


# --- profiles -------------------------------------------------------------------------------------


@functools.cache
def profiles() -> tuple[bytes, bytes]:
    """A profile and the HloProto in it."""
    proto = hlo_proto(12, 2**20)
    return pack_modules([("jit_step", 1, proto)], "host"), proto


def read_profile(data: bytes) -> None:
    """All modules of a profile, as far as it has any."""
    for name, proto in read_modules(data).items():
        read_program(proto, name)


def read_program(proto: bytes, name: str = "jit_step(1)") -> None:
    """All that a report makes of a program."""
    program = parse_program(proto, name)
    for space in ("hbm", "vmem"):
        summary = peak_summary(program, space)
        assert isinstance(summary, PeakSummary)
        assert sum(op.size_bytes for op in summary.ops) <= 2 * summary.peak_bytes + 2**62
        assert str(summary)
        assert isinstance(caveats(summary), tuple)
    summary = peak_summary(program)
    evidence = ProgramFacts(program, summary, OomMessage("RESOURCE_EXHAUSTED: x"))
    for conclude in (lambda e: rollup(with_roles(e)), find_findings):
        with contextlib.suppress(Exception):  # a report then goes without; but they must end
            conclude(evidence)


READERS: dict[str, tuple[int, Callable[[bytes], None]]] = {
    "profile": (0, read_profile),
    "program": (1, read_program),
}


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with some changed, cut, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["set", "flip", "cut", "drop", "double", "insert"]))
        if kind == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
        else:
            data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_are_a_profile_or_a_sentence(name: str) -> None:
    """Whatever the bytes, the reader ends, with a result or a ProfileError that has a sentence."""
    index, read = READERS[name]
    whole = profiles()[index]

    @fuzz
    @given(st.one_of(st.binary(max_size=300), damaged_bytes(whole)))
    def any_bytes(data: bytes) -> None:
        start = time.thread_time()
        try:
            read(data)
        except ProfileError as error:
            assert str(error)
        assert time.thread_time() - start < 5

    any_bytes()


# --- programs that are whole, with anything in their numbers --------------------------------------

numbers = st.one_of(
    st.integers(-3, 14), st.sampled_from([2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)])
)


@st.composite
def strange_programs(draw: st.DrawFn) -> bytes:
    """A program whose ids, sizes, kinds and shapes are any numbers."""
    from hbmwatch._xla.protos import HloProto, message_class

    proto = message_class(HloProto).FromString(profiles()[1])
    module, assignment = proto.hlo_module, proto.buffer_assignment
    (computation,) = module.computations
    for _ in range(draw(st.integers(1, 8))):
        instruction = draw(st.sampled_from(list(computation.instructions)))
        buffer = draw(st.sampled_from(list(assignment.logical_buffers)))
        frame = draw(st.sampled_from(list(module.stack_frame_index.stack_frames)))
        event = draw(st.sampled_from(list(assignment.heap_simulator_traces[0].events)))
        (allocation,) = assignment.buffer_allocations
        places: list[tuple[Any, str]] = [
            (instruction, "id"),
            (instruction.shape, "element_type"),
            (buffer, "size"),
            (buffer, "id"),
            (buffer, "color"),
            (buffer.defined_at, "instruction_id"),
            (frame, "parent_frame_id"),
            (frame, "file_location_id"),
            (event, "kind"),
            (event, "buffer_id"),
            (event, "share_with_canonical_id"),
            (allocation, "size"),
            (allocation, "color"),
            (instruction.metadata, "stack_frame_id"),
            (instruction, "parameter_number"),
            (computation, "root_id"),
            (computation, "id"),
        ]
        message, field = draw(st.sampled_from(places))
        setattr(message, field, draw(numbers))
        lists: list[Any] = [
            instruction.operand_ids,
            instruction.shape.dimensions,
            buffer.defined_at.shape_index,
            instruction.called_computation_ids,
            instruction.shape.layout.minor_to_major,
        ]
        draw(st.sampled_from(lists)).append(draw(numbers))
        instruction.opcode = draw(
            st.sampled_from(
                [
                    "add",
                    "parameter",
                    "while",
                    "fusion",
                    "tuple",
                    "copy",
                    "dot",
                    "dynamic-update-slice",
                    "custom-call",
                    "get-tuple-element",
                    "",
                ]
            )
        )
    serialized: bytes = proto.SerializeToString()
    return serialized


@fuzz
@given(strange_programs())
def test_a_program_with_any_numbers_is_read_or_refused(proto: bytes) -> None:
    """Ids that point nowhere or round in circles, sizes below zero, types and kinds unknown."""
    start = time.thread_time()
    try:
        read_program(proto)
    except ProfileError as error:
        assert str(error)
    assert time.thread_time() - start < 5
