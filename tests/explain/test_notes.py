"""What a report notes: on messages, and on stubs of what only a device can tell."""

from __future__ import annotations

from hbmwatch._explain.notes import notes
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._messages.parse import parse_oom
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import DeviceMemory, LiveArrays
from hbmwatch._records.sizes import format_size
from tests.findings.test_findings import explained

GIB = 1 << 30
MIB = 1 << 20


def said(*args: object, **kwargs: object) -> str:
    """All notes as one text."""
    return "\n".join(notes(None, None, *args, **kwargs))  # type: ignore[arg-type]


def full(**fields: object) -> DeviceMemory:
    """A stub of a device's figures: 15 of 16 GiB in use."""
    known = {"limit_bytes": 16 * GIB, "in_use_bytes": 15 * GIB}
    return DeviceMemory("TPU v5 lite", 1, **{**known, **fields})  # type: ignore[arg-type]


def test_a_full_device_is_told_from_a_large_request() -> None:
    """A small request on a full device: others fill it, and which live arrays they are."""
    live = (
        LiveArrays((8192, 8192), "float32", 3, 768 * MIB),
        LiveArrays((1024,), "int32", 1, 4096),
    )
    message = OomMessage("", phase="run", requested_bytes=64 * MIB)
    text = said(message, device=full(live=live))
    assert "The request is small (64 MiB); the device was already full: 15.00 GiB of" in text
    assert "3 x float32[8192, 8192] (768 MiB), 1 x int32[1024] (4 KiB)" in text


def test_a_large_request_on_an_empty_device_is_not_blamed_on_others() -> None:
    """Nothing is said of other tenants where there are none."""
    message = OomMessage("", phase="run", requested_bytes=20 * GIB)
    device = full(in_use_bytes=MIB)
    assert "already full" not in said(message, device=device)
    assert "Live arrays" not in said(message, device=device)


def test_fragmentation_names_the_figure_that_binds() -> None:
    """Enough is free in all, and the largest block is too small."""
    message = OomMessage("", phase="run", requested_bytes=3 * GIB)
    device = full(in_use_bytes=8 * GIB, largest_free_bytes=GIB)
    assert (
        "8.00 GiB were free, but the largest contiguous block, which binds, was 1.00 GiB for "
        "3.00 GiB" in said(message, device=device)
    )


def test_graphs_and_modules_want_the_pool_smaller() -> None:
    """Memory outside of the pool: the opposite of the usual advice."""
    text = said(OomMessage("", platform="gpu", pool="driver"))
    assert "XLA_CLIENT_MEM_FRACTION" in text
    assert "opposite of the usual advice" in text


def test_host_memory_has_a_variable_of_its_own() -> None:
    """Pinned host memory is not the device's."""
    text = said(OomMessage("", platform="gpu", pool="host", memory_space="host"))
    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" in text


def test_vmem_is_a_matter_of_blocks() -> None:
    """VMEM: block sizes and limits, not the batch, and no HBM figure as the cause."""
    text = said(
        OomMessage("", platform="tpu", phase="compile", memory_space="vmem", used_bytes=60 * MIB)
    )
    assert "block sizes" in text
    assert "vmem_limit_bytes" in text
    assert "arguments alone" not in text


def test_the_state_after_a_failed_donating_step_is_told() -> None:
    """Which donated arguments are deleted, so that nobody retries with them."""
    message = OomMessage("", phase="run", requested_bytes=GIB)
    text = said(message, device=full(deleted=("state['params']", "state['mu']")))
    assert "Donated arguments are deleted now: state['params'], state['mu']." in text
    assert "Do not call the step again with them" in text


def test_figures_are_per_device_on_a_mesh() -> None:
    """On several devices: per device, how many, and the mesh."""
    call = CallInfo(device_count=8, mesh={"data": 4, "model": 2})
    assert "the program runs on 8 of them (mesh: data 4, model 2)" in said(OomMessage(""), call)
    assert "the program runs on" not in said(OomMessage(""), CallInfo(device_count=1))


def test_a_recompile_names_what_changed() -> None:
    """The last batch is longer than the one before."""
    before = (Leaf("state", (4,), "float32"), Leaf("batch", (128, 8), "int32"))
    now = (Leaf("state", (4,), "float32"), Leaf("batch", (512, 8), "int32"))
    text = said(OomMessage(""), CallInfo(arguments=now, previous=(before,)))
    assert "recompiled for a new shape: batch: int32[128,8] became int32[512,8]." in text
    assert "recompiled" not in said(OomMessage(""), CallInfo(arguments=now, previous=(now,)))


def test_temporaries_that_are_arguments_and_outputs_are_told() -> None:
    """The compiler's "HLO temporaries" of an undonated step are its state, twice."""
    program, summary, message, call, _ = explained("momentum_step")
    text = "\n".join(notes(program, summary, message, call))
    total = format_size(summary.total_allocation_bytes)
    assert f"Of the {total} that the compiler calls temporaries, 16.01 GiB are" in text


def test_rematerialised_buffers_are_told() -> None:
    """.remat in the names: the peak understates what the program wants."""
    program, summary, message, call, _ = explained("unrolled_chunks")
    assert "The compiler rematerialised already" in "\n".join(
        notes(program, summary, message, call)
    )


def test_a_plain_message_gets_no_note_of_a_device() -> None:
    """What is not known is not said."""
    message = parse_oom("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.")
    assert message is not None
    assert "device was already full" not in said(message)
