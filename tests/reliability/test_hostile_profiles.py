"""Profiles that are made to hurt: they are refused, or read in time in proportion to their size."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import ProfileError, load_peak_summary
from hbmwatch._xla.protos import HloProto, message_class
from hbmwatch._xla.shapes import element_count
from hbmwatch._xla.xspace import label_modules, pack_modules
from tests.cli.support import run


def profile(folder: Path, dimensions: list[int], sizes: list[int]) -> Path:
    """A profile of one program, whose buffers have these sizes and one shape."""
    shape = {"element_type": 11, "dimensions": dimensions}
    instruction = {"name": "add.1", "opcode": "add", "id": 10, "shape": shape}
    module: dict[str, Any] = {
        "name": "jit_f",
        "id": 1,
        "entry_computation_id": 1,
        "entry_computation_name": "main",
        "computations": [{"name": "main", "id": 1, "instructions": [instruction]}],
    }
    assignment = {
        "logical_buffers": [
            {"id": n, "size": size, "defined_at": {"instruction_id": 10}}
            for n, size in enumerate(sizes)
        ],
        "buffer_allocations": [
            {
                "index": n,
                "size": size,
                "maybe_live_out": True,
                "assigned": [{"logical_buffer_id": n}],
            }
            for n, size in enumerate(sizes)
        ],
    }
    proto = message_class(HloProto)(hlo_module=module, buffer_assignment=assignment)
    file = folder / "h.xplane.pb"
    file.write_bytes(pack_modules([("jit_f", 1, proto.SerializeToString())], "h"))
    return file


def test_allocations_of_more_than_any_memory_are_refused(tmp_path: Path) -> None:
    """Each of them is possible, their sum is not."""
    with pytest.raises(
        ProfileError, match=r"jit_f\(1\) is damaged: its allocations add up to more"
    ):
        load_peak_summary(profile(tmp_path, [4], [2**60] * 64))


@pytest.mark.parametrize("dimensions", [400, 100_000])
def test_a_shape_of_impossible_dimensions_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, dimensions: int
) -> None:
    """Its elements are not counted: their number would have a million digits."""
    file = profile(tmp_path, [2**62] * dimensions, [2**20])
    status, out, err = run(capsys, "peak", str(file), "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["summary"]["peak_bytes"] == 2**20
    status, out, err = run(capsys, "peak", str(file), "--html", str(tmp_path / "page.html"))
    assert (status, "1 MiB" in out, err) == (0, True, "")


@pytest.mark.slow
def test_the_time_grows_with_the_number_of_dimensions(tmp_path: Path) -> None:
    """Four times the dimensions take less than eight times the processor time."""
    seconds = []
    for count in (250_000, 1_000_000):
        file = profile(tmp_path, [2**62] * count, [2**20])
        start = time.process_time()
        summary = load_peak_summary(file)
        seconds.append(time.process_time() - start)
        assert (summary.peak_bytes, len(summary.ops[0].shape)) == (2**20, 20 * count + 4)
    assert seconds[1] < 8 * max(seconds[0], 0.01)


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [([], 1), ([2, 3], 6), ([2**62, 2], 2**63), ([2**62] * 1000, 2**63), ([2**62] * 9 + [0], 0)],
)
def test_elements_are_counted_up_to_what_memory_can_hold(
    dimensions: list[int], expected: int
) -> None:
    """An empty array is empty whatever its other dimensions are."""
    assert element_count(dimensions) == expected


def test_the_time_grows_with_the_number_of_modules_of_one_name() -> None:
    """Four times the modules take less than eight times the time, and each has its own label."""
    seconds = []
    for count in (5000, 20_000):
        modules = [("m(1)", str(number).encode()) for number in range(count)]
        start = time.process_time()
        labeled = label_modules(modules)
        seconds.append(time.process_time() - start)
        assert list(labeled)[:3] == ["m(1)", "m(1) #2", "m(1) #3"]
        assert list(labeled.values()) == [proto for _, proto in modules]
    assert seconds[1] < 8 * max(seconds[0], 0.01)


def test_a_file_that_no_profile_can_be_is_not_read(tmp_path: Path) -> None:
    """A sparse file of a terabyte takes no disk, and would take a terabyte of memory."""
    file = tmp_path / "large.xplane.pb"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)

    with pytest.raises(ProfileError) as caught:
        load_peak_summary(file)

    assert str(caught.value) == f"cannot read {file}: it is larger than 2 GiB"


def test_a_file_of_zeros_is_not_read(tmp_path: Path) -> None:
    """A sparse file of a gigabyte would take a gigabyte of memory to be no profile."""
    file = tmp_path / "zeros.xplane.pb"
    with file.open("wb") as sparse:
        sparse.truncate(2**30)

    tracemalloc.start()
    try:
        with pytest.raises(ProfileError) as caught:
            load_peak_summary(file)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert str(caught.value) == (
        f"cannot read {file}: it begins with a zero byte, as no profile and no report does"
    )
    assert most < 2**20
