"""What stands after the first sentence of a message, on texts of one line."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._messages.gpu_details import add_gpu_details
from hbmwatch._messages.tpu_details import add_tpu_details

KIB = 1 << 10


def read(add_details: Any, text: str, **known: Any) -> dict[str, Any]:
    """The fields after the details of a text were added, without how coarse they are."""
    fields: dict[str, Any] = {"totals": {}, "resolution_bytes": {}, **known}
    add_details(fields, text)
    return {name: value for name, value in fields.items() if name != "resolution_bytes"}


def test_a_tpu_breakdown_is_totals() -> None:
    """Each line of the breakdown has its name, and the total is what the program needs."""
    text = (
        "Total hbm usage >= 9.0K: reserved 1.0K program 8.0K arguments 2.0K "
        "Output size 3.0K; shares 2.0K with arguments. Max free chunk 4.0K. "
        "Program hbm requirement 8.0K: HLO temp 6.0K (50.0% utilization: Unpadded (3.0K) "
        "Padded (6.0K), 33.3% fragmentation (2.0K)) Largest program allocations in hbm: a 1.0K"
    )
    assert read(add_tpu_details, text, phase="compile") == {
        "phase": "compile",
        "totals": {
            "Total hbm usage": 9 * KIB,
            "reserved": KIB,
            "program": 8 * KIB,
            "arguments": 2 * KIB,
            "Output size": 3 * KIB,
            "shared with arguments": 2 * KIB,
            "Program hbm requirement": 8 * KIB,
            "HLO temp": 6 * KIB,
            "HLO temp unpadded": 3 * KIB,
            "HLO temp padded": 6 * KIB,
        },
        "used_bytes": 9 * KIB,
        "largest_free_bytes": 4 * KIB,
        "fragmentation_bytes": 2 * KIB,
    }


def test_the_table_of_an_old_runtime_is_totals() -> None:
    """The capacity is the limit, and the program's requirement is the request."""
    text = "HBM capacity 8.0K: Program requirement: 4.0K (4096 bytes) Already used: 5K (5120 bytes)"
    assert read(add_tpu_details, text, phase="run") == {
        "phase": "run",
        "totals": {"Program requirement": 4096, "Already used": 5120},
        "limit_bytes": 8 * KIB,
        "requested_bytes": 4096,
    }


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        (
            "(0x0x1_HBM0)",
            {"phase": "run"},
            {"phase": "run", "device": "0x0x1_HBM0", "memory_space": "hbm"},
        ),
        ("(0x0x1_HBM0)", {"phase": "compile"}, {"phase": "compile"}),
        (
            "",
            {"phase": "compile", "space": "201"},
            {"phase": "compile", "memory_space": "tilespmem"},
        ),
        ("", {"phase": "compile", "space": "7"}, {"phase": "compile"}),
    ],
)
def test_a_tpu_device_and_memory_space_are_named(
    text: str, known: dict[str, str], expected: dict[str, str]
) -> None:
    """A device belongs to a run, and MLIR's number of a memory space becomes its name."""
    assert read(add_tpu_details, text, **known) == {"totals": {}, **expected}


def test_gpu_statistics_are_totals() -> None:
    """The total allocation is what the program needs."""
    text = (
        "BufferAssignment stats: parameter allocation: 1.0KiB total allocation: 4.0KiB "
        "total fragmentation: 512B (12.50%)"
    )
    assert read(add_gpu_details, text) == {
        "totals": {
            "parameter allocation": KIB,
            "total allocation": 4 * KIB,
            "total fragmentation": 512,
        },
        "used_bytes": 4 * KIB,
        "fragmentation_bytes": 512,
    }


@pytest.mark.parametrize(
    ("allocator", "expected"),
    [
        ("GPU_0_bfc", {}),
        ("gpu_host_bfc", {"memory_space": "host", "pool": "host"}),
        ("mklcpu", {"platform": "cpu", "memory_space": None, "pool": "host"}),
    ],
)
def test_an_allocator_says_whose_memory_it_is(allocator: str, expected: dict[str, Any]) -> None:
    """The host's allocator on a GPU machine, and TensorFlow's CPU allocators."""
    known = {"allocator": allocator, "totals": {}}
    assert read(add_gpu_details, "", allocator=allocator) == known | expected


def test_what_follows_a_breakdown_in_a_log_is_not_part_of_it() -> None:
    """Another program's figures have other units, or are far away."""
    table = "Total hbm usage >= 9.0K: reserved 1.0K "
    for more in ("step 7, memory in use 12 GiB", "x" * 300 + " rate 12.0K"):
        totals = read(add_tpu_details, table + more, phase="compile")["totals"]
        assert totals == {"Total hbm usage": 9 * KIB, "reserved": KIB}
