"""Donated arguments whose memory no output can reuse."""

from __future__ import annotations

from typing import Any

import pytest

from hbmwatch._findings import donation_unusable
from hbmwatch._findings.donation_unusable import same_leaf
from tests.findings.cases import UNUSABLE, explained, named
from tests.findings.saved import BACKWARD
from tests.hlo import BF16, F32, MIB, REPLICATED, S8, Hlo, tiled
from tests.oom_programs import Case

DONOR = {"entries": [{"parameter_number": 0}]}


@pytest.mark.parametrize(
    ("dims", "dtype", "title"),
    [
        ((512, 512), BF16, "output 0 is bf16, but w is f32"),
        ((512, 256), BF16, "no output has the shape [512, 512]"),
    ],
)
def test_the_reason_is_named(dims: tuple[int, ...], dtype: int, title: str) -> None:
    """Another dtype, or no output of this shape."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, path="w")
    output = hlo.add("convert", w, dims=dims, dtype=dtype)
    finding = donation_unusable.find(hlo.facts(outputs=(output,), buffer_donor=DONOR))

    assert finding is not None
    assert finding.title == f"Donating w has no effect: {title}"


@pytest.mark.parametrize(
    ("before", "after", "name", "converts"),
    [
        (BF16, S8, "", True),
        (S8, BF16, "", True),
        (F32, BF16, "", True),
        (F32, BF16, BACKWARD, False),
        (BF16, S8, BACKWARD, True),
        (BF16, F32, "", False),
    ],
    ids=["quantized", "dequantized", "narrowed", "in training", "8-bit state", "widened"],
)
def test_what_a_program_converts_is_not_to_be_cast_back(
    before: int, after: int, name: str, converts: bool
) -> None:
    """That would undo it; one layer at a time holds both only of that layer."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, dtype=before, path="w")
    output = hlo.add("convert", w, dims=(512, 512), dtype=after, name=name)
    finding = donation_unusable.find(hlo.facts(outputs=(output,), buffer_donor=DONOR))

    assert finding is not None
    assert finding.remedy.startswith("An output of another dtype cannot") == converts
    assert finding.remedy.startswith("Return the donated leaves") == (not converts)


@pytest.mark.parametrize(("dtype", "freed"), [(S8, 3 * MIB), (F32, 16 * MIB)])
def test_one_layer_exists_in_both_dtypes(dtype: int, freed: int) -> None:
    """Of four that are converted; what is widened by mistake reuses all of the memory."""
    hlo = Hlo()
    weights = [hlo.parameter(1024, 1024, dtype=BF16, path=f"w{n}") for n in range(4)]
    outputs = [hlo.add("convert", w, dims=(1024, 1024), dtype=dtype) for w in weights]
    donors = {"entries": [{"parameter_number": n} for n in range(4)]}
    finding = donation_unusable.find(hlo.facts(outputs=outputs, buffer_donor=donors))

    assert finding is not None
    assert finding.saves_bytes == freed


def test_another_sharding_is_told_by_the_shape_on_one_device() -> None:
    """The whole array has the same shape; its part on a device has another one."""
    hlo = Hlo()
    w = hlo.parameter(256, 512, path="w")
    output = hlo.add("copy", w, dims=(512, 512))
    shardings: dict[str, Any] = {
        "spmd_parameters_shardings": [tiled(2, 1)],
        "spmd_output_sharding": {"type": 2, "tuple_shardings": [REPLICATED]},
    }
    facts = hlo.facts(outputs=(output,), buffer_donor=DONOR, **shardings)
    finding = donation_unusable.find(facts)

    assert finding is not None
    assert finding.saves_bytes == MIB
    assert "has another sharding ([512, 512] per device, but w has [256, 512])" in finding.title


def test_a_donation_that_took_effect_has_no_finding() -> None:
    """An output is aliased with it."""
    hlo = Hlo()
    w = hlo.parameter(512, 512)
    output = hlo.add("negate", w, dims=(512, 512))
    alias = {"entries": [{"parameter_number": 0, "output_shape_index": [0]}]}
    facts = hlo.facts(outputs=(output,), buffer_donor=DONOR, input_output_alias=alias)

    assert donation_unusable.find(facts) is None


@pytest.mark.parametrize(
    ("argument", "output", "same"),
    [
        ("state['mu']", "result[0]['mu']", True),
        ("state['opt']['mu']", "result['mu']", False),
        ("state['mu']", "result['nu']", False),
        ("state[0]", "result[0]", False),
        ("state['mu'][0]", "result['mu'][0]", True),
        ("state['params'][0]", "result['mu'][0]", False),
        ("state[0][1]", "result[0][1]", False),
    ],
)
def test_leaves_are_the_same_by_their_last_keys(argument: str, output: str, same: bool) -> None:
    """An index alone says nothing."""
    assert same_leaf(argument, output) == same


@pytest.mark.tpu
@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            named("moments_in_float32"),
            "result['mu'][0] is f32, but state['mu'][0] is bf16",
        ),
        (
            named("donated_other_sharding"),
            "result['w0'] has another sharding ([8192, 16384] per device, but state['w0'] has "
            "[8192, 8192])",
        ),
    ],
)
def test_a_donation_in_vain_names_the_leaf_and_the_reason(case: Case, reason: str) -> None:
    """Why a donated leaf found no output: another dtype, another sharding."""
    finding = explained(case.name).findings[0]
    assert (finding.slug, reason in finding.evidence) == ("donation-unusable", True)
