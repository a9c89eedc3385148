"""Instructions as a graph, in programs made by hand: as no compiler would write them, too."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import Graph
from hbmwatch._analysis.live_buffers import PeakBuffers
from hbmwatch._explain.breakdown import rollup, with_roles
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.protos import HloProto, message_class
from tests import programs

F32, MIB = 11, 2**20


def instruction(number: int, opcode: str, *operands: int, **fields: Any) -> dict[str, Any]:
    """An instruction of f32[1024,256], 1 MiB."""
    shape = {"element_type": F32, "dimensions": [1024, 256]}
    return {
        "id": number,
        "name": f"{opcode}.{number}",
        "opcode": opcode,
        "shape": shape,
        "operand_ids": operands,
        **fields,
    }


def made(
    *computations: list[dict[str, Any]],
    ids: tuple[int, ...] = (),
    live: tuple[int, ...] = (),
    events: tuple[dict[str, int], ...] = (),
) -> Program:
    """A program of computations, the entry first, numbered from 1 unless ids are given.

    Args:
        live: The instructions that have a buffer, of the same number, all in one allocation.
        events: The heap trace; by default all buffers come to life one after another.
    """
    numbers = ids or range(1, len(computations) + 1)
    listed = [
        {"id": number, "root_id": instructions[-1]["id"], "instructions": instructions}
        for number, instructions in zip(numbers, computations)
    ]
    proto = message_class(HloProto)(
        hlo_module={"name": "jit_f", "entry_computation_id": numbers[0], "computations": listed},
        buffer_assignment={
            "logical_buffers": [
                {"id": n, "size": MIB, "defined_at": {"instruction_id": n}} for n in live
            ],
            "buffer_allocations": [
                {"size": len(live) * MIB, "assigned": [{"logical_buffer_id": n} for n in live]}
            ],
            "heap_simulator_traces": [{"events": events or [{"buffer_id": n} for n in live]}],
        },
    )
    return parse_program(proto.SerializeToString(), "jit_f(1)")


NEW = 1 << 32  # an id of XLA's since 2025 begins with its computation's


@pytest.mark.parametrize(
    ("inner", "wanted"),
    [(2 * NEW + 5, 2 * NEW + 5), (7, 7), (3 * NEW + 7, 3 * NEW + 7), (7, 8), (7, -1), (7, NEW + 9)],
    ids=["new", "old", "of another computation", "unknown", "negative", "unknown, in the entry"],
)
def test_an_instruction_is_found_whatever_its_id_says(inner: int, wanted: int) -> None:
    """By an id of any age, also after others of its computation; None where there is none."""
    entry = [instruction(NEW + 1, "add")]
    program = made(entry, [instruction(inner, "copy")], [instruction(3 * NEW + 1, "sine")])
    found = [program.instruction(number) for number in (3 * NEW + 1, NEW + 1, wanted, wanted)]
    names = [one and one.opcode for one in found]
    assert names == ["sine", "add", *["copy" if inner == wanted else None] * 2]


def test_of_two_instructions_of_one_id_the_first_asked_for_does_not_decide() -> None:
    """In a damaged program too, what was found before changes nothing."""
    double = [instruction(2 * NEW, "add")]
    asked: list[Any] = []
    for first in (2 * NEW, 3 * NEW):
        program = made(
            double,
            [instruction(3 * NEW, "copy"), instruction(9 * NEW, "copy")],
            [instruction(4 * NEW, "sine"), instruction(9 * NEW, "sine")],
            ids=(2, 3, 4),
        )
        program.instruction(first)
        asked.append(program.instruction(9 * NEW))
    assert asked[0] is not None and asked[0].opcode == asked[1].opcode


def test_users_are_told_once_and_loops_in_loops_are_found() -> None:
    """Of entry and bodies; a user that takes a value twice is one."""
    program = made(
        [
            instruction(1, "parameter"),
            instruction(2, "add", 1, 1),
            instruction(3, "while", 2, called_computation_ids=[2]),
            instruction(4, "add", 2, 3),
        ],
        [instruction(11, "parameter"), instruction(12, "while", 11, called_computation_ids=[3, 2])],
        [instruction(21, "parameter"), instruction(22, "copy", 21), instruction(23, "copy", 21)],
    )
    graph = Graph(program)
    users = {
        n: [user.id for user in graph.users(one)]
        for n in (1, 2, 21, 4)
        if (one := program.instruction(n)) is not None
    }
    assert users == {1: [2], 2: [3, 4], 21: [22, 23], 4: []}
    assert [loop.id for loop in graph.loops] == [3, 12]
    inner = program.instruction(22)
    assert inner is not None
    assert [one and one.id for one in graph.loop_of(inner)] == [12, 3]


def test_shares_that_come_round_end() -> None:
    """Three buffers that share memory one after the other, and one that is shared once more."""
    share = {"kind": 2}
    events = (
        {"buffer_id": 1},
        {"buffer_id": 2, "share_with_canonical_id": 1, **share},
        {"buffer_id": 3, "share_with_canonical_id": 2, **share},
        {"buffer_id": 2, "share_with_canonical_id": 3, **share},
        {"buffer_id": 2, "kind": 1},
    )
    program = made([instruction(n, "add") for n in (1, 2, 3)], live=(1, 2, 3), events=events)
    assert peak_summary(program).peak_bytes == MIB


def rolled(program: Program) -> dict[str, int]:
    """The roles of what is live at the peak."""
    evidence = ProgramFacts(program, peak_summary(program))
    return rollup(with_roles(evidence))["role"]


def test_copies_that_come_round_end() -> None:
    """In a loop's body, where what fills a stack is looked for behind copies."""
    program = made(
        [
            instruction(1, "add"),
            instruction(2, "tuple", 1),
            instruction(3, "while", 2, called_computation_ids=[2]),
        ],
        [
            instruction(101, "copy", 102),
            instruction(102, "copy", 101),
            instruction(103, "tuple", 101),
        ],
        live=(1,),
    )
    assert rolled(program) == {"other temporaries": MIB}


def test_a_way_through_many_copies_is_gone_once() -> None:
    """Each of nine copies takes the one before a hundred times."""
    chain = [instruction(n + 1, "copy", *[n] * 100) for n in range(1, 10)]
    program = made(
        [
            instruction(1, "add"),
            *chain,
            instruction(20, "tuple", 10),
            instruction(21, "while", 20, called_computation_ids=[2]),
        ],
        [instruction(30, "parameter"), instruction(31, "tuple", 30)],
        live=(1,),
    )
    assert rolled(program) == {"other temporaries": MIB}


def test_rows_that_another_reader_made_have_their_instructions() -> None:
    """A program that has made no rows itself finds the same buffers by their names."""
    program = programs.compiled("scanned", "cpu").program
    summary = peak_summary(program)
    fresh = parse_program(programs.compiled("scanned", "cpu").hlo_proto, program.name)
    mine, theirs = (
        [(live.op, live.instruction.name, live.name) for live in PeakBuffers(one, summary).live]
        for one in (program, fresh)
    )
    assert mine and mine == theirs
