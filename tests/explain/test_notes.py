"""The notes of a report: on the device, the call and the state after the failure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbmwatch import DeviceMemory, LiveArrays, OomMessage, PeakOp, PeakSummary, parse_oom
from hbmwatch._explain.notes import notes
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._messages.notes import message_notes

GIB, MIB = 1 << 30, 1 << 20


def own_notes(message: OomMessage, **known: Any) -> list[str]:
    """The notes beside those that the message itself makes."""
    found = notes(None, known.pop("summary", None), message, **known)
    return [note for note in found if note not in message_notes(message)]


def full(**fields: Any) -> DeviceMemory:
    """A device with 15 of its 16 GiB in use."""
    known = {"limit_bytes": 16 * GIB, "in_use_bytes": 15 * GIB}
    return DeviceMemory("TPU v5 lite", 1, **{**known, **fields})


def request(size_bytes: int, **fields: Any) -> OomMessage:
    """A message about a request at run time."""
    return OomMessage("", phase="run", requested_bytes=size_bytes, **fields)


def test_a_full_device_is_told_from_a_large_request() -> None:
    """A small request on a full device: the notes say what fills it."""
    live = (
        LiveArrays((8192, 8192), "float32", 3, 768 * MIB),
        LiveArrays((1024,), "int32", 1, 4096),
    )
    arrays = "3 x float32[8192, 8192] (768 MiB), 1 x int32[1024] (4 KiB)."
    is_full = (
        "The request is small (64 MiB), and the device was already full: 15.00 GiB of 16.00 GiB "
        "was in use."
    )
    assert own_notes(request(64 * MIB), device=full(live=live)) == [
        is_full,
        "Live arrays, including the program's own arguments, occupy 768 MiB on the fullest device: "
        + arrays,
    ]
    assert own_notes(request(64 * MIB), device=full(live=live), call=CallInfo()) == [
        is_full,
        "Arrays that are not arguments of this call occupy 768 MiB on the fullest device: "
        f"{arrays} Drop references you no longer need.",
    ]


def test_only_the_largest_groups_of_live_arrays_are_listed() -> None:
    """Four groups, and the number of the others."""
    live = tuple(LiveArrays((n,), "uint8", 1, GIB) for n in range(6))
    (note,) = own_notes(request(20 * GIB), device=full(live=live))
    assert note.endswith("1 x uint8[3] (1.00 GiB) and 2 more groups.")


@pytest.mark.parametrize(
    ("requested", "in_use", "is_full"),
    [
        (16 * GIB // 10, 13 * GIB, True),
        (16 * GIB // 10 + 1, 13 * GIB, False),
        (MIB, 12 * GIB, False),
    ],
)
def test_a_device_is_full_from_four_fifths_for_a_tenth(
    requested: int, in_use: int, is_full: bool
) -> None:
    """Below that share, or for a larger request, no note says so."""
    found = own_notes(request(requested), device=full(in_use_bytes=in_use))
    assert any("already full" in note for note in found) == is_full


def test_a_large_request_on_an_empty_device_has_no_note_of_other_arrays() -> None:
    """Nothing is said of live arrays where there are none."""
    assert own_notes(request(20 * GIB), device=full(in_use_bytes=MIB)) == []


def test_fragmentation_names_the_largest_free_block() -> None:
    """Enough is free in all, and the largest block is too small."""
    device = full(in_use_bytes=8 * GIB, largest_free_bytes=GIB)
    assert own_notes(request(3 * GIB), device=device) == [
        "The device's memory is fragmented: 8.00 GiB was free, but the largest free block was "
        "1.00 GiB, and 3.00 GiB was requested."
    ]


def test_arguments_that_do_not_fit_are_named() -> None:
    """The arguments alone exceed the limit, by the totals of the message."""
    message = OomMessage("", "tpu", "compile", limit_bytes=16 * GIB, totals={"arguments": 17 * GIB})
    assert own_notes(message) == ["The arguments alone take 17.00 GiB; the device has 16.00 GiB."]


def test_on_chip_memory_has_no_note_on_the_arguments_in_hbm() -> None:
    """The figures of HBM do not explain a kernel's VMEM."""
    message = OomMessage(
        "", "tpu", "compile", memory_space="vmem", limit_bytes=MIB, totals={"arguments": GIB}
    )
    assert own_notes(message) == []


def test_deleted_arguments_are_named() -> None:
    """The first four donated arguments that are gone, so that nobody retries with them."""
    device = full(deleted=("state['params']", "state['mu']"))
    assert own_notes(request(GIB * 2), device=device) == [
        "These donated arguments have been deleted: state['params'], state['mu']. Restore them "
        "before calling the step again."
    ]
    (note,) = own_notes(request(GIB * 2), device=full(deleted=tuple("abcdef")))
    assert "deleted: a, b, c, d and 2 more." in note


def test_figures_are_per_device_on_a_mesh() -> None:
    """On several devices a note says how many, and the mesh; on one device it says nothing."""
    call = CallInfo(device_count=8, mesh={"data": 4, "model": 2})
    assert own_notes(OomMessage(""), call=call) == [
        "All sizes are per device; the program runs on 8 devices (mesh: data=4, model=2)."
    ]
    assert own_notes(OomMessage(""), call=CallInfo(device_count=1)) == []


def test_a_recompile_names_what_changed() -> None:
    """The last batch is longer than the one before."""
    before = (Leaf("state", (4,), "float32"), Leaf("batch", (128, 8), "int32"))
    now = (Leaf("state", (4,), "float32"), Leaf("batch", (512, 8), "int32"))
    changed = CallInfo(arguments=now, previous=(before,))
    assert own_notes(OomMessage(""), call=changed) == [
        "The function was recompiled: batch changed from int32[128,8] to int32[512,8]."
    ]
    assert own_notes(OomMessage(""), call=CallInfo(arguments=now, previous=(now,))) == []


@pytest.mark.parametrize(("count", "buffers"), [(1, "1 buffer"), (3, "3 buffers")])
def test_rematerialized_buffers_are_counted(count: int, buffers: str) -> None:
    """The names of instructions show that the compiler recomputes values already."""
    verb = "is" if count == 1 else "are"
    ops = tuple(
        PeakOp(f"fusion.{n}.remat", "fusion", "", "f32[256]", GIB, GIB, "temporary")
        for n in range(count)
    )
    plain = PeakOp("fusion", "fusion", "", "f32[256]", GIB, GIB, "temporary")
    heap = np.zeros(1, np.int64)
    total = (count + 1) * GIB
    summary = PeakSummary(
        "jit_step", 1, "hbm", total, total, 0, heap, 0, 0, 0, total, total, 0, (*ops, plain)
    )
    assert own_notes(OomMessage(""), summary=summary) == [
        f"XLA already rematerialized values ({buffers} at the peak {verb} named .remat). Without "
        "that, the peak would be higher."
    ]


def test_a_plain_message_has_only_its_own_notes() -> None:
    """What is not known is not said."""
    message = parse_oom("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.")
    assert message is not None
    assert own_notes(message) == []
