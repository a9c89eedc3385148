"""A buffer that is sent to the host."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify
from tests.findings.small import classified
from tests.hlo import Hlo


def printed(opcode: str, target: str, name: str) -> ProgramFacts:
    """A buffer that one instruction reads."""
    hlo = Hlo()
    x = hlo.parameter(512)
    h = hlo.add("broadcast", x, dims=(512, 512), name="jit(f)/tanh")
    hlo.add(opcode, h, custom_call_target=target, name=name)
    return hlo.facts((h,))


@pytest.mark.parametrize(
    ("opcode", "target", "name", "slug"),
    [
        (
            "custom-call",
            "xla_ffi_python_cpu_callback",
            "jit(f)/branched_error_if_impl/cond/branch_1_fun/pure_callback",
            "callback",
        ),
        ("custom-call", "xla_ffi_python_gpu_callback", "jit(f)/debug_callback", "callback"),
        ("send", "", "jit(f)/debug_callback", "callback"),
        ("custom-call", "__cublas$gemm", "jit(f)/dot_general", None),
        ("add", "", "jit(f)/callback/add", None),
    ],
)
def test_only_what_goes_to_the_host_is_a_callback(
    opcode: str, target: str, name: str, slug: str | None
) -> None:
    """The reader sends its operand to the host, and its name or target says callback."""
    assert classified(printed(opcode, target, name)) == slug


def test_an_error_check_of_equinox_is_told_from_a_print() -> None:
    """It is in the solvers of diffrax; nobody finds a jax.debug.print to remove."""
    name = "jit(f)/branched_error_if_impl/cond/branch_1_fun/pure_callback"
    facts = printed("custom-call", "xla_ffi_python_cpu_callback", name)
    (finding,) = classify.find(facts)

    assert finding.title.startswith("An error check of equinox (error_if)")
    assert "throw=False" in finding.remedy
