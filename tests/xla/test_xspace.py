"""Profiles: which HLO modules are in them."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.protos import XSpace, message_class
from hbmwatch._xla.xspace import read_contents, read_modules


def plane(*modules: tuple[str, bytes], name: str = "/host:metadata") -> dict[str, Any]:
    """A metadata plane, as the profiler writes it."""
    events = [
        {"key": key, "value": {"name": name, "stats": [{"metadata_id": 7, "bytes_value": proto}]}}
        for key, (name, proto) in enumerate(modules)
    ]
    stat = {"key": 7, "value": {"id": 7, "name": "Hlo Proto"}}
    return {"name": name, "event_metadata": events, "stat_metadata": [stat]}


def space(*planes: dict[str, Any]) -> bytes:
    """A serialized XSpace of these planes."""
    serialized: bytes = message_class(XSpace)(planes=planes).SerializeToString()
    return serialized


def test_modules_are_listed_unparsed_from_every_metadata_plane() -> None:
    """Two planes of a GPU process: all modules, whatever is in their bytes, and nothing else."""
    device = plane(("jit_x(9)", b"x"), name="/device:GPU:0")
    data = space(plane(("jit_f(1)", b"\xff\xff")), device, plane(("jit_g(2)", b"g")))
    assert read_modules(data) == {"jit_f(1)": b"\xff\xff", "jit_g(2)": b"g"}


def test_different_modules_of_one_name_are_all_there() -> None:
    """A GPU's jit_f(1) and the CPU's do not hide one another; the same one twice is one."""
    data = space(plane(("jit_f(1)", b"a")), plane(("jit_f(1)", b"b")), plane(("jit_f(1)", b"a")))
    assert read_modules(data) == {"jit_f(1)": b"a", "jit_f(1) #2": b"b"}


def test_a_profile_without_modules_is_no_error() -> None:
    """A profile with enable_hlo_proto off has planes and no modules."""
    assert read_modules(space(plane())) == {}


def device(number: int, kind: str, name: str = "device_type_string") -> dict[str, Any]:
    """The plane of a device, as the profiler of a TPU writes it."""
    names = [{"key": key, "value": {"id": key, "name": text}} for key, text in ((1, name), (2, ""))]
    stats = [{"metadata_id": 2, "str_value": "other"}, {"metadata_id": 1, "str_value": kind}]
    return {"name": f"/device:TPU:{number}", "stat_metadata": names, "stats": stats}


@pytest.mark.parametrize(
    ("planes", "expected"),
    [
        ((device(0, "TPU v6 Lite"), device(1, "TPU v6 Lite")), {"TPU v6 Lite"}),
        ((device(0, "TPU v4"), plane(), device(1, "TPU v5")), {"TPU v4", "TPU v5"}),
        ((device(0, "AMD", "device_vendor"), device(1, "AMD", "device_vendor")), {"AMD GPU"}),
        ((device(0, "x", "core_details"),), set()),
        (({**device(0, "TPU v4"), "name": "/host:CPU"},), set()),
    ],
)
def test_the_devices_of_a_profile_are_known(
    planes: tuple[dict[str, Any], ...], expected: set[str]
) -> None:
    """By what the planes of devices say; other profilers write other statistics."""
    assert read_contents(space(*planes)).device_types == expected


def test_the_kind_of_a_device_may_be_a_reference() -> None:
    """A profiler may keep a string once, as the name of another statistic."""
    plane_of_device = device(0, "")
    plane_of_device["stat_metadata"].append({"key": 9, "value": {"id": 9, "name": "TPU v6 Lite"}})
    plane_of_device["stats"][1] = {"metadata_id": 1, "ref_value": 9}

    assert read_contents(space(plane_of_device)).device_types == {"TPU v6 Lite"}


@pytest.mark.parametrize("data", [b"", b"\x0a", b"no profile at all", bytes(64)])
def test_what_is_no_profile_is_refused(data: bytes) -> None:
    """Empty, cut and foreign bytes give a sentence with the file's name."""
    with pytest.raises(ProfileError, match=r"^h\.xplane\.pb is (empty|damaged)"):
        read_modules(data, "h.xplane.pb")
