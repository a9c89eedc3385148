"""Targets are words; what they offer, and what is said of words that are none."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import jax
import pytest

from hbmwatch._preflight.targets import memory_of, resolve
from tests.programs import devices

MIB = 2**20


@pytest.mark.tpu
@pytest.mark.parametrize(
    ("word", "count", "topology"),
    [
        ("v5e", 1, "v5e:1x1"),
        ("V5E:4x4", 16, "v5e:4x4"),
        ("v6e", 1, "v6e:1x1"),
        ("v5p", 1, "v5p:1x1x1"),
        ("v4:2x2x1", 4, "v4:2x2x1"),
        ("tpu7x", 2, "tpu7x:1x1x1"),
    ],
)
def test_a_tpu_is_a_word_with_a_shape(word: str, count: int, topology: str) -> None:
    """One chip where no shape is given."""
    target = resolve(word)

    assert (target.name, target.platform, target.topology) == (word.lower(), "tpu", topology)
    assert target.device_count == count


@pytest.mark.gpu
@pytest.mark.parametrize("word", ["h100", "h200", "a100-40", "a100-80", "b200", "h100:8"])
def test_a_gpus_limit_is_a_share_of_its_memory(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three quarters, as JAX takes, or what the environment says, or what is given."""
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    whole = resolve(word, 1.0).limit_bytes
    assert whole is not None
    assert resolve(word).limit_bytes == int(whole * 0.75)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.9")
    assert resolve(word).limit_bytes == int(whole * 0.9)
    assert resolve(word).limit_note == "assumed: 0.9 of the card's memory"
    assert resolve(word, 0.5).limit_bytes == int(whole * 0.5)


@pytest.mark.tpu
def test_devices_and_topologies_name_their_target() -> None:
    """The smallest topology that holds them."""
    chips = devices("tpu")

    assert resolve(chips).name == "v5e:2x2"
    assert resolve(chips[0]).name == "v5e:1x1"
    assert resolve(jax.devices("cpu")).name == "cpu"


@pytest.mark.parametrize(
    ("device_type", "expected"),
    [
        ("TPU v6 Lite", ("TPU v6 lite", 31992 * MIB, "measured with libtpu 0.0.50")),
        ("TPU v4", ("TPU v4", 31485 * MIB, "measured with libtpu 0.0.50")),
        ("TPU v3", None),
        ("", None),
    ],
)
def test_a_profiles_device_has_the_limit_of_its_kind(
    device_type: str, expected: tuple[str, int, str] | None
) -> None:
    """XProf writes the kinds of JAX with other capitals."""
    assert memory_of(device_type) == expected


@pytest.mark.tpu
def test_the_limit_is_that_of_the_installed_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on the version; for an unknown version, a note names the version it is from."""

    def limit(version: str) -> tuple[Any, str]:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
        target = resolve("v6e")
        return target.limit_bytes, target.limit_note

    assert limit("0.0.42.1") == (31996 * MIB, "")
    assert limit("0.0.50.1") == (31992 * MIB, "")
    assert limit("0.1.7") == (31992 * MIB, "measured with libtpu 0.0.50")


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("v99", "unknown target 'v99': choose one of v4, v5e,"),
        ("v5e:4x", "'4x' is not the shape of a topology"),
        ("v5p:2x2", "a v5p topology has 3 dimensions (v5p:2x2x2)"),
        ("h100:2x2", "give a number of GPUs (h100:8), not a shape"),
        ("h100:1000000", "give at most 65536 GPUs"),
        ("v5e:18x16", "the largest slice of v5e is v5e:16x16"),
        ("v5p:2x2x30", "the largest slice of v5p is v5p:16x20x28"),
        ("v5e:3x3", "its first two dimensions are even"),
        ("v4:1x1x2", "its first two dimensions are even"),
        (7, "on=7 is neither a target nor jax devices"),
    ],
)
def test_an_unknown_target_is_refused(
    on: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ValueError says what is wrong, and what the choices are."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ValueError) as caught:
        resolve(on)
    assert said in str(caught.value)


@pytest.mark.parametrize(("on", "extra"), [("v5e", "tpu"), ("h100", "gpu")])
def test_a_compiler_that_is_missing_is_named_with_its_extra(
    on: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'hbmwatch\[{extra}\]'"):
        resolve(on)


@pytest.mark.gpu
def test_a_share_of_the_memory_is_between_0_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is refused, and the error names the variable that it comes from."""
    with pytest.raises(ValueError, match="^memory_fraction must be .* at most 1, not 1.5"):
        resolve("h100", 1.5)
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    for text in ("lots", "0", "nan"):
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", text)
        with pytest.raises(ValueError, match=f"^XLA_PYTHON_CLIENT_MEM_FRACTION .* not '{text}'"):
            resolve("h100")


@pytest.mark.tpu
def test_some_devices_of_a_host_have_a_topology() -> None:
    """One chip is one wherever it lies, and of two the host is the smallest topology."""
    chips = devices("tpu")

    assert [resolve(chip).name for chip in chips] == ["v5e:1x1"] * 4
    assert resolve(chips[:2]).name == "v5e:2x2"
    with pytest.raises(ValueError, match="devices of one kind, not of several"):
        resolve([*jax.devices("cpu")[:1], chips[0]])
