"""A kernel's blocks that do not fit in on-chip memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from hbmwatch._findings import vmem
from hbmwatch._messages.parse import parse_oom
from hbmwatch._records.message import OomMessage
from tests.hlo import MIB

SAMPLES = Path(__file__).parents[1] / "messages" / "samples"


@pytest.mark.parametrize(
    "file", ["real-tpu_jax-0.10.2_libtpu-0.0.42.1_vmem.txt", "tpu-allocation--vmem.txt"]
)
def test_memory_on_the_chip_is_a_matter_of_blocks(file: str) -> None:
    """The finding on VMEM is read from the text: its figures, the kernel, block sizes."""
    message = parse_oom((SAMPLES / file).read_text(encoding="utf-8"))
    assert message is not None
    (finding,) = vmem.find(message)

    assert finding.slug == "vmem"
    assert "MiB" in finding.evidence
    assert "smaller blocks" in finding.remedy


@pytest.mark.parametrize("space", ["vmem", "smem", "spmem", "tilespmem"])
def test_every_memory_of_a_kernel_has_the_finding(space: str) -> None:
    """Those of the SparseCores too; the limit that a kernel may raise is VMEM's."""
    message = OomMessage("", memory_space=space, requested_bytes=2 * MIB, limit_bytes=MIB)
    (finding,) = vmem.find(message)

    assert finding.evidence == f"{space.upper()}: 2 MiB requested at once, 1 MiB available."
    assert ("vmem_limit_bytes" in finding.remedy) == (space == "vmem")


@pytest.mark.parametrize("space", ["hbm", "host", "cmem", "sflag"])
def test_other_memories_have_none(space: str) -> None:
    """Blocks are not in them."""
    assert vmem.find(OomMessage("", memory_space=space, requested_bytes=MIB)) == ()


def test_a_message_without_figures_has_none() -> None:
    """Nothing backs a remedy."""
    assert vmem.find(OomMessage("", memory_space="vmem")) == ()
