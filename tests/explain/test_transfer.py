"""A host array that does not fit on a device, where no program fails."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hbmwatch import HbmOomError, OomReport, Transfer, watch_hbm
from hbmwatch._jax.transfers import short_dtype
from hbmwatch._report.text import title

LARGE = np.broadcast_to(np.float32(1), (2**24, 2**24))
DEVICE = jax.devices()[-1]
HERE = jax.sharding.SingleDeviceSharding(DEVICE)


@watch_hbm(jit=False)
def host_step() -> None:
    """A host step that loads data."""
    jax.device_put({"small": np.ones(3), "large": LARGE}, DEVICE)


def halves() -> None:
    """Each of two devices gets a half."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "d")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    with watch_hbm():
        jax.device_put(LARGE, sharding)


def from_callback() -> None:
    """A function that calls the user's code for the data."""
    with watch_hbm():
        jax.make_array_from_callback(LARGE.shape, HERE, lambda index: LARGE[index])


# What fails: the function, JAX's function, its line from the first one on, and the request.
WAYS: dict[str, tuple[Callable[[], Any], str, int, str]] = {
    "host step": (host_step, "device_put", 3, "1.00 PiB"),
    "sharded": (halves, "device_put", 5, "512.00 TiB"),
    "from a callback": (from_callback, "make_array_from_callback", 3, "1.00 PiB"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_that_does_not_fit_is_named(way: str) -> None:
    """The headline has JAX's function, the array and the line; no program is looked for."""
    call, name, line, requested = WAYS[way]
    first = inspect.unwrap(call).__code__.co_firstlineno

    with pytest.raises(HbmOomError) as caught:
        call()

    report = caught.value.report
    source = f"test_transfer.py:{first + line}"
    assert report.transfer == Transfer(name, "f32[16777216,16777216]", 2**50, source)
    assert (report.summary, report.missing, report.findings) == (None, (), ())
    assert str(caught.value).splitlines()[-1] == (
        f"hbmwatch: {name} of 1.00 PiB f32[16777216,16777216] at {source} ran out of memory at "
        f"run time on CPU: requested {requested}"
    )
    assert report.notes[1].startswith("No program failed: ")
    assert report.device is not None
    assert OomReport.from_dict(report.to_dict()) == report


def test_the_line_is_found_above_the_traceback() -> None:
    """Of a watched jax.device_put itself, it is the line that calls it."""
    put = watch_hbm(jax.device_put, jit=False)
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(HbmOomError) as caught:
        put(LARGE)

    assert caught.value.report.transfer is not None
    assert caught.value.report.transfer.source == f"test_transfer.py:{line}"


def test_copies_of_any_size_have_one_fingerprint() -> None:
    """Only JAX's function counts."""
    with pytest.raises(HbmOomError) as caught:
        host_step()
    report = caught.value.report
    other = dataclasses.replace(report, transfer=Transfer("device_put", "s8[7]", 7, "a.py:1"))
    third = dataclasses.replace(report, transfer=Transfer("make_array_from_callback", "s8[7]", 7))

    assert other.fingerprint() == report.fingerprint() != third.fingerprint()
    assert (
        title(third) == "make_array_from_callback of 7 B s8[7] ran out of memory at run time on CPU"
    )


DTYPES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3fn",
    "int8": "s8",
    "uint32": "u32",
    "complex64": "c64",
    "bool": "pred",
    "int4": "s4",
}


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_has_the_name_that_xla_gives_it(name: str) -> None:
    """As the compiler itself writes it."""
    assert short_dtype(name) == DTYPES[name]
    ir = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((3,), jnp.dtype(name))).compile().as_text()
    assert f"{DTYPES[name]}[3]" in (ir or "")


def test_a_program_that_fails_is_no_copy() -> None:
    """Also where it was given a host array."""
    with pytest.raises(HbmOomError) as caught:
        watch_hbm(lambda x: x + 1)(LARGE)

    assert caught.value.report.transfer is None
    assert caught.value.report.function == "<lambda>"
