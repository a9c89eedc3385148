"""Damaged profiles and inconsistent programs: a sentence or a result, and always an end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.peak import caveats, peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.xspace import pack_modules, read_modules
from tests import programs
from tests.xla.support import SPACES, changed, frame_cycle, peak_of


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Thirty cuts and a hundred bit flips."""
    chance = random.Random(seed)
    for _ in range(30):
        yield data[: chance.randrange(len(data))]
    for _ in range(100):
        flipped = bytearray(data)
        for _ in range(chance.choice([1, 1, 4, 32])):
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)


def read_all(xspace: bytes) -> None:
    """Read every peak and every stack of a profile."""
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
    """A peak that cannot be computed is a ProfileError that names the program and the fault."""
    with pytest.raises(ProfileError, match=sentence):
        peak_of(changed(change))


def test_a_cycle_of_stack_frames_ends() -> None:
    """XProf never ends on it; here each frame is in the stack once."""
    stacks = {op.stack for op in peak_of(changed(frame_cycle)).ops if op.stack}
    assert stacks and all(len(stack) == 1 for stack in stacks)
