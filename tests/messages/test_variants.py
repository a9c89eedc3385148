"""Messages as people and logs change them; each states its class and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hbmwatch import OomMessage, parse_oom, parse_ooms
from tests.messages.samples import SAMPLES, sample
from tests.messages.test_look_alikes import HARMLESS
from tests.messages.test_public import agrees

VARIANTS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "variants.json").read_text(encoding="utf-8")
)
CLASS = ("platform", "phase", "memory_space", "pool")
FIGURES = {name for name in OomMessage.__slots__ if name.endswith("_bytes")} - {"resolution_bytes"}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["kind"])
def test_a_variant_has_its_class_and_its_figures(variant: dict[str, Any]) -> None:
    """It is one OOM, of the stated memory, with the stated figures and no other figure."""
    expected = variant["expected"]
    (message,) = parse_ooms(variant["text"])
    assert {name: getattr(message, name) for name in CLASS} == {n: expected.get(n) for n in CLASS}
    totals = expected.get("totals", {})
    stated = {name: value for name, value in expected.items() if name != "totals"}
    assert {n: getattr(message, n) for n, v in stated.items() if not agrees(message, n, v)} == {}
    assert {n for n in FIGURES if getattr(message, n) is not None} == stated.keys() & FIGURES
    assert {name: message.totals.get(name) for name in totals} == totals


STATISTICS = (
    "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 7.25G. That was "
    "not possible. There are 1.50G free.; (0x0x0_HBM0)",
    "[OOM Summary: Reason: Not enough free memory. Allocator stats:",
    "Limit:                     33822867456",
    "InUse:                     31415926528",
    "MaxInUse:                  31500000256",
    "NumAllocs:                        1234",
    "]",
)
PREFIXES = (
    "",
    "# ",
    "# (pid=, ip=10.0.0.9) ",
    "(train_step pid=77, ip=10.0.0.9) ",
    "\x1b[36m(worker pid=3)\x1b[0m ",
    "[rank0]: ",
    "2026-03-01T10:00:00Z stderr F ",
    "E0601 10:00:00.123456 140408571025152 tpu_pjrt_client.cc:1811] ",
    "worker-1  | ",
    "> > ",
    "    // ",
    "- ",
)


@pytest.mark.parametrize("suffix", ["", " [repeated 15x across cluster]", "\r"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_statistics_with_a_prefix_on_each_line_are_read(prefix: str, suffix: str) -> None:
    """What a TPU's allocator logs of itself belongs to the error before it."""
    (message,) = parse_ooms("\n".join(f"{prefix}{line}{suffix}" for line in STATISTICS))
    assert (message.limit_bytes, message.free_bytes) == (33822867456, 3 * 2**29)
    assert message.totals == {"InUse": 31415926528, "MaxInUse": 31500000256}


# In capitals, the first has the words of another row; hbmwatch does not print its reports so.
NOT_IN_CAPITALS = {"status-exhausted--trying", "report", "report--host"}
CAPITALS = [name for name in SAMPLES if name not in NOT_IN_CAPITALS]


@pytest.mark.parametrize("name", CAPITALS)
def test_a_message_in_capitals_has_its_class_and_no_other_figure(name: str) -> None:
    """A pager or a person wrote it so; a table of totals after the first sentence is not read."""
    bare, message = parse_oom(sample(name)), parse_oom(sample(name).upper())
    assert bare is not None and message is not None
    assert {n: getattr(message, n) for n in CLASS} == {n: getattr(bare, n) for n in CLASS}
    for field in FIGURES:
        stated, read = getattr(bare, field), getattr(message, field)
        coarse = message.resolution_bytes.get(field, 0)
        assert (read is None and (stated is None or bare.totals)) or abs(read - stated) <= coarse


# In capitals it is what Neuron's runtime logs.
@pytest.mark.parametrize("name", sorted(HARMLESS.keys() - {"prose on a device's memory"}))
def test_what_only_looks_like_an_oom_is_none_in_capitals(name: str) -> None:
    """Other limits, warnings and host errors give None."""
    assert parse_oom(HARMLESS[name].upper()) is None
