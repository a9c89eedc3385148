"""The allocations that a message lists, on lists of one or two entries."""

from __future__ import annotations

import pytest

from hbmwatch import PeakOp
from hbmwatch._messages.allocations import failed_allocation, gpu_allocations, tpu_allocations

MIB = 1 << 20


def test_a_tpu_entry_has_its_instruction_padding_and_line() -> None:
    """The label is the instruction's text, and the operator has the name and the line."""
    text = (
        '1. Size: 4.0M Operator: op_name="jit(f)/dot" source_file="/w/a.py" source_line=7 '
        "Shape: f32[8] Unpadded size: 1.0M Extra memory due to padding: 3.0M (4.0x expansion) "
        "XLA label: %fusion.1 = f32[8]{0} fusion(p0) Allocation type: HLO temp "
        "========================== "
        "2. Size: 2.0M Shape: u8[2] XLA label: p0 Allocation type: arguments"
    )
    assert list(tpu_allocations(text, "hbm")) == [
        PeakOp("fusion.1", "fusion", "jit(f)/dot", "f32[8]", 4 * MIB, MIB, "temporary", "hbm",
               "a.py:7", ("/w/a.py:7",)),
        PeakOp("p0", "", "", "u8[2]", 2 * MIB, 2 * MIB, "parameter", "hbm"),
    ]  # fmt: skip


def test_a_gpu_entry_has_its_opcode_and_line() -> None:
    """The label is the opcode, and an entry parameter has a subshape."""
    text = (
        'Buffer 1: Size: 4.00MiB Operator: op_name="jit(f)/dot" source_file="/w/a.py" '
        "source_line=7 XLA Label: fusion Shape: f32[8] ========================== "
        "Buffer 2: Size: 2.00MiB Entry Parameter Subshape: u8[2]"
    )
    assert list(gpu_allocations(text)) == [
        PeakOp("fusion", "fusion", "jit(f)/dot", "f32[8]", 4 * MIB, 4 * MIB, "",
               source="a.py:7", stack=("/w/a.py:7",)),
        PeakOp("parameter", "parameter", "", "u8[2]", 2 * MIB, 2 * MIB, "parameter"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "1. Size: ", "1. Size: large", "Buffer 1: Size: ", "Buffer 1: Shape: f32[8]"]
)
def test_an_entry_without_a_size_is_left_out(text: str) -> None:
    """A list that a log has cut lists what it says."""
    assert list(tpu_allocations(text, "hbm")) == []
    assert list(gpu_allocations(text)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "#allocation7 [shape = 'f32[8]', space=hbm, size = 0x10, tag = ''] :: fusion.3",
            PeakOp("fusion.3", "", "", "f32[8]", 16, 16, "", "hbm"),
        ),
        (
            "#allocation7 [shape = 'f32[8]', space=hbm, scoped, tag = ''] :: fusion.3",
            PeakOp("fusion.3", "", "", "f32[8]", 16, 16, "temporary", "hbm"),
        ),
        (
            "#allocation7 [shape = 'f32[8]', space=hbm, tag = 'output of main@{1}'] :: x",
            PeakOp("main{1}", "", "", "f32[8]", 16, 16, "", "hbm"),
        ),
        (
            "while allocating on stack for %gmm.4 = f32[8] custom-call(%p). Scoped allocation "
            "with size 16B",
            PeakOp("gmm.4", "custom-call", "", "", 16, 16, "temporary", "hbm"),
        ),
        ("nothing is named", None),
    ],
)
def test_the_failed_allocation_is_the_one_that_is_named(text: str, expected: PeakOp | None) -> None:
    """Its size is the request, and without a request there is none."""
    assert failed_allocation(text, 16, "hbm") == (() if expected is None else (expected,))
    assert failed_allocation(text, None, "hbm") == ()
