"""Programs that are made to hurt: they are read or refused in time in proportion to their size."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hbmwatch._xla.protos import HloProto, message_class
from hbmwatch._xla.xspace import pack_modules
from tests.cli.support import run

F32, TUPLE, MIB = 11, 13, 2**20
Values = dict[str, Any]


def instruction(number: int, **more: Any) -> Values:
    """An addition that makes 1 MiB."""
    made = {"name": f"add.{number}", "opcode": "add", "id": number}
    return {**made, "shape": {"element_type": F32, "dimensions": [MIB // 4]}, **more}


def program(
    computations: list[list[Values]],
    owners: list[int],
    events: list[Values] | None = None,
    traces: int = 1,
    **module: Any,
) -> Values:
    """A program whose owners have a buffer of 1 MiB each, all of them live at once."""
    assigned = [{"logical_buffer_id": n} for n in range(len(owners))]
    allocated = [{"kind": 0, "buffer_id": n} for n in range(len(owners))]
    trace = {"events": allocated if events is None else events}
    return {
        "hlo_module": {
            "name": "jit_f",
            "id": 1,
            "entry_computation_id": 1,
            "entry_computation_name": "c1",
            "computations": [
                {"name": f"c{n}", "id": n, "root_id": each[-1]["id"], "instructions": each}
                for n, each in enumerate(computations, start=1)
            ],
            **module,
        },
        "buffer_assignment": {
            "logical_buffers": [
                {"id": n, "size": MIB, "defined_at": {"instruction_id": owner}}
                for n, owner in enumerate(owners)
            ],
            "buffer_allocations": [{"index": 0, "size": MIB * len(owners), "assigned": assigned}],
            "heap_simulator_traces": [trace] * traces,
        },
    }


def frames(count: int, is_cycle: bool) -> Values:
    """A stack of so many frames, whose last one may be called by the first."""
    parents = [n + 2 for n in range(count)]
    if is_cycle:
        parents[-1] = 1
    return {
        "file_names": ["/a/b.py"],
        "file_locations": [{"file_name_id": 1, "line": 1}],
        "stack_frames": [{"file_location_id": 1, "parent_frame_id": each} for each in parents],
    }


def cycles(n: int) -> Values:
    """Operands, calls and stacks that go round."""
    called, stack = {"called_computation_ids": [1, 2]}, {"metadata": {"stack_frame_id": 1}}
    round_ = [
        instruction(10 + k, operand_ids=[10 + (k + 1) % n], **called, **stack) for k in range(n)
    ]
    owners = [10 + k for k in range(n)]
    return program([round_, round_], owners, stack_frame_index=frames(n, is_cycle=True))


def ring_of_moves(n: int) -> Values:
    """Residuals of one function that copies and bitcasts pass on in a ring."""
    index = {
        "file_names": ["/a/b.py"],
        "function_names": ["loss", "block"],
        "file_locations": [{"file_name_id": 1, "function_name_id": k, "line": k} for k in (1, 2)],
        "stack_frames": [
            {"file_location_id": 1},
            {"file_location_id": 2, "parent_frame_id": 1},
        ],
    }
    forward = {"op_name": "jit(f)/jvp()/copy", "stack_frame_id": 2}
    backward = {"op_name": "jit(f)/transpose(jvp())/mul"}
    ring, readers = range(10, 10 + n), range(10 + n, 10 + 2 * n)
    made = [instruction(k, opcode=("copy", "bitcast")[k % 2], metadata=forward) for k in ring]
    for one, after in zip(made, (*ring[1:], ring[0]), strict=True):
        one["operand_ids"] = [after]
    made += [
        instruction(k, opcode="multiply", operand_ids=[k - n], metadata=backward) for k in readers
    ]
    return program([made], [*ring], stack_frame_index=index)


def deep_stack(n: int) -> Values:
    """Fifty buffers that were made below n frames."""
    made = [instruction(10 + k, metadata={"stack_frame_id": 1}) for k in range(50)]
    owners = [10 + k for k in range(50)]
    return program([made], owners, stack_frame_index=frames(n, is_cycle=False))


def deep_calls(n: int) -> Values:
    """Computations that call one another, n deep."""
    made = [[instruction((k << 32) + 1, called_computation_ids=[k + 1])] for k in range(1, n + 1)]
    return program(made, [(1 << 32) + 1, (n << 32) + 1])


def long_chain(n: int) -> Values:
    """Each instruction reads the one before it."""
    made = [instruction(10 + k, operand_ids=[9 + k] if k else []) for k in range(n)]
    return program([made], [9 + n])


def sharing(n: int) -> Values:
    """Each buffer shares the memory of the one before it."""
    shared = [{"kind": 2, "buffer_id": k, "share_with_canonical_id": k - 1} for k in range(1, n)]
    return program([[instruction(10)]], [10] * n, [{"kind": 0, "buffer_id": 0}, *shared])


def many_buffers(n: int) -> Values:
    """n buffers at the peak."""
    return program([[instruction(10 + k) for k in range(n)]], [10 + k for k in range(n)])


def many_traces(n: int) -> Values:
    """n heap traces."""
    return program([[instruction(10)]], [10], traces=n)


def wide_tuple(n: int) -> Values:
    """A buffer that is a tuple of n arrays."""
    array = {"element_type": F32, "dimensions": [1]}
    shape = {"element_type": TUPLE, "tuple_shapes": [array] * n}
    return program([[instruction(10, shape=shape)]], [10])


def written(folder: Path, values: Values) -> Path:
    """A profile of the program."""
    proto = message_class(HloProto)(**values).SerializeToString()
    file = folder / "h.xplane.pb"
    file.write_bytes(pack_modules([("jit_f", 1, proto)], "h"))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "small", "peak"),
    [
        (cycles, 50, "200 MiB"),
        (ring_of_moves, 50, "200 MiB"),
        (deep_stack, 10_000, "50 MiB"),
        (deep_calls, 2_000, "2 MiB"),
        (long_chain, 10_000, "1 MiB"),
        (sharing, 2_000, "1 MiB"),
        (many_buffers, 2_000, "7.81 GiB"),
        (many_traces, 2_000, "1 MiB"),
        (wide_tuple, 20_000, "1 MiB"),
    ],
)
def test_the_time_grows_with_the_size_of_a_hostile_program(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    make: Callable[[int], Values],
    small: int,
    peak: str,
) -> None:
    """Four times as much takes less than 12 times the processor time; squared growth takes 16."""
    seconds = []
    for count in (small, 4 * small):
        file = written(tmp_path, make(count))
        start = time.process_time()
        status, out, err = run(capsys, "peak", str(file))
        seconds.append(time.process_time() - start)
        assert (status, err) == (0, "")
    assert f"Peak of jit_f: {peak}" in out
    assert seconds[1] < 12 * max(seconds[0], 0.1)


@pytest.mark.slow
def test_shares_that_go_round_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A sentence names the buffer with which the circle closes."""
    events = [
        {"kind": 2, "buffer_id": one, "share_with_canonical_id": other}
        for one, other in ((1, 0), (0, 1), (2, 0))
    ]
    file = written(tmp_path, program([[instruction(10)]], [10] * 3, events))
    status, out, err = run(capsys, "peak", str(file))
    assert (status, out) == (3, "")
    assert "in the heap trace of jit_f(1) buffer 0 shares with itself" in err
