"""A program's parts: its name, its instructions and its buffers."""

from __future__ import annotations

from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from tests import programs
from tests.xla.support import made


def test_a_program_without_a_number_in_its_name_has_its_module_s() -> None:
    """A dump has no name such as "jit_step(12)"; then the HloModule's own id counts."""
    found = programs.compiled("small", "cpu")
    program = parse_program(found.hlo_proto, "dump")
    assert (program.module, program.program_id) == ("jit_step", found.program.program_id)


def test_buffers_without_an_allocation_or_an_instruction_are_left_out() -> None:
    """An id that points nowhere is None, and is not among the buffers."""
    program = made({"buffers": {1: 8, 2: 8}})
    program.proto.buffer_assignment.logical_buffers[1].defined_at.instruction_id = 77
    ids = [buffer.proto.id for buffer in program.buffers()]
    assert (ids, program.buffer(2), program.buffer(99)) == ([1], None, None)


def test_instructions_are_found_by_name() -> None:
    """Before and after a peak was read; names of no instruction are left out."""
    program = made({"buffers": {1: 8, 2: 8}, "is_constant": True}, {"buffers": {3: 8}})
    names = {"i1", "i3", "nowhere"}
    before = program.definers(names)
    peak_summary(program)
    after = program.definers(names)

    assert {name: i.id for name, i in before.items()} == {"i1": 1, "i3": 3}
    assert after == before
