"""What the allocators of devices may use, in the events of a profile."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._xla.allocators import device_limits
from hbmwatch._xla.protos import XEvent, XLine, XPlane, message_class
from hbmwatch._xla.xspace import read_contents
from tests.xla.test_xprof_agreement import shared_profiles

NAMES = (
    *("bytes_reserved", "bytes_allocated", "bytes_available"),
    *("allocator_name", "index_on_host", "GPU_0_bfc", "GPU_1_bfc", "xla_gpu_host_bfc"),
)
KINDS = {3: "MemoryAllocation", 300: "MemoryDeallocation", 4: "ThreadpoolListener"}


def event(kind: int, **stats: int | str) -> bytes:
    """An event, as the profiler writes it: a text is a reference to a name."""
    listed = [
        {
            "metadata_id": NAMES.index(name),
            **({"ref_value": NAMES.index(n)} if isinstance(n, str) else {"int64_value": n}),
        }
        for name, n in stats.items()
    ]
    serialized: bytes = message_class(XEvent)(metadata_id=kind, stats=listed).SerializeToString()
    return serialized


def used(reserved: int, allocated: int, available: int, **of: int | str) -> dict[str, Any]:
    """The statistics of an allocation."""
    sizes = (reserved, allocated, available)
    return {**dict(zip(NAMES, sizes, strict=False)), **of}


def limits(*events: bytes) -> frozenset[int]:
    """The limits in a plane with these events, on two lines."""
    lines = [
        message_class(XLine)(events=part).SerializeToString()
        for part in (events[::2], events[1::2])
    ]
    plane = message_class(XPlane)(
        name="/host:CPU",
        lines=lines,
        event_metadata=[{"key": k, "value": {"id": k, "name": name}} for k, name in KINDS.items()],
        stat_metadata=[{"key": k, "value": {"id": k, "name": n}} for k, n in enumerate(NAMES)],
    )
    found: XPlane = message_class(XPlane).FromString(plane.SerializeToString())
    return device_limits(found)


GPU, HOST = {"allocator_name": "GPU_0_bfc"}, {"allocator_name": "xla_gpu_host_bfc"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((event(3, **used(1, 20, 300, **GPU)),), {321}),
        ((event(3, **used(0, 20, 300, **GPU)), event(300, **used(0, 0, 320, **GPU))), {320}),
        ((event(3, **used(0, 20, 300, **HOST)),), set()),
        ((event(3, **used(0, 9, 1, index_on_host=0)), event(300, **used(0, 1, 9, index_on_host=1))),
         {10}),
        ((event(3, **used(0, 9, 1, allocator_name="GPU_0_bfc")),
          event(3, **used(0, 9, 3, allocator_name="GPU_1_bfc"))), {10, 12}),
        ((event(4, **used(0, 9, 1, **GPU)),), set()),
        ((event(3, bytes_allocated=4, bytes_available=5, **GPU),), set()),
        ((event(3, **used(0, 9, 1)),), set()),
        ((event(3, **used(0, 0, 0, **GPU)),), set()),
        ((event(3, **used(1, 20, 300, **GPU)), b"\x08\x03\x22\x7f"), set()),
        ((), set()),
    ],
    ids=["a GPU", "it frees", "the host", "TPUs", "two limits", "another event", "a part is absent",
         "of nobody", "of nothing", "damaged", "no event"],
)  # fmt: skip
def test_the_events_of_devices_have_their_limits(
    events: tuple[bytes, ...], expected: set[int]
) -> None:
    """What is in use and what is left; the host's allocators and other events do not count."""
    assert limits(*events) == expected


def test_real_devices_say_what_their_allocators_may_use() -> None:
    """A TPU v6e: what its compiler lets a program use; GPUs: the share that JAX reserves."""
    found: dict[str, tuple[object, object]] = {
        profile.parts[-5]: (contents.device_types, contents.device_limits)
        for profile in shared_profiles()
        for contents in [read_contents(profile.read_bytes())]
    }
    if not found:
        pytest.skip("no profiles of real devices here; HBMWATCH_PROFILES can name their folder")
    assert found == {
        "v6e_jax_host_offload": ({"TPU v6 Lite"}, {31996 * 2**20}),
        "mi300x_jax_attention": ({"AMD GPU"}, {206141652992 * 3 // 4}),
        "mi300x_jax_conv": ({"AMD GPU"}, {206141652992 * 3 // 4}),
        "mi355x_jax_transformer_engine": ({"AMD GPU"}, {299944250900}),
    }
