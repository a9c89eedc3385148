"""The text of every finding, as golden files: a change of wording is a diff to review."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import jax
import pytest

from hbmwatch import DeviceMemory, LiveArrays
from hbmwatch._findings import vmem
from hbmwatch._findings.rank import ADVICE, find_findings
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import Finding
from hbmwatch._report.report import OomReport
from tests.findings.cases import UNUSABLE, explained, params
from tests.findings.small import limited
from tests.hlo import MIB, Hlo
from tests.oom_programs import CASES, Case

GOLDEN = Path(__file__).parent / "golden"
UPDATES = os.environ.get("HBMWATCH_UPDATE_GOLDEN") == "1"
FIRST = {case.kind: case for case in reversed(CASES)}
# Versions of the compiler and of the programs move lines.
LINE = re.compile(r"(\w+\.py):\d+")
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def text(finding: Finding) -> str:
    """A finding as a golden file has it."""
    page = OomReport(OomMessage("RESOURCE_EXHAUSTED"), findings=(finding,)).to_html()
    (data,) = DATA.findall(page)
    rows = {
        "title": finding.title,
        "evidence": finding.evidence,
        "remedy": finding.remedy,
        "will not help": finding.will_not_help,
        "page title": json.loads(data)["findings"][0]["title"],
    }
    return LINE.sub(r"\1:N", "".join(f"{name}: {row}\n" for name, row in rows.items()))


def compare(finding: Finding, slug: str) -> None:
    """Compare with the golden file; HBMWATCH_UPDATE_GOLDEN=1 writes it instead."""
    assert finding.slug == slug
    file = GOLDEN / f"{slug}.txt"
    if UPDATES:
        assert jax.__version__ == "0.10.2", "golden texts are written with jax 0.10.2"
        file.write_text(text(finding), encoding="utf-8")

    assert text(finding) == file.read_text(encoding="utf-8")


# Another version of the compiler has other figures and op_names: it may not write the files.
@pytest.mark.skipif(
    jax.__version__ != "0.10.2" and not UPDATES, reason="the golden figures are of jax 0.10.2"
)
@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize("case", params(FIRST.values()))
def test_a_finding_reads_as_its_golden_text(case: Case) -> None:
    """The first program of each finding."""
    compare(explained(case.name).findings[0], case.kind)


def test_the_finding_on_arguments_reads_as_its_golden_text() -> None:
    """Weights that the device cannot hold."""
    hlo = Hlo()
    for layer in range(3):
        hlo.parameter(1024, 1024, path=f"params['layer_{layer}']")
    hlo.add("negate", dims=(1,))
    compare(find_findings(hlo.facts(message=limited(10, 12)))[0], "arguments")


def test_the_finding_on_live_arrays_reads_as_its_golden_text() -> None:
    """A history of losses that was never dropped."""
    hlo = Hlo()
    hlo.add("sort", dims=(1024, 1024))
    arrays = LiveArrays((1024, 1024), "float32", 6, 24 * MIB, ("history in main(), train.py",))
    device = DeviceMemory("TPU v5 lite", 1, limit_bytes=26 * MIB, live=(arrays,))
    facts = hlo.facts((hlo.instructions[-1]["id"],))
    compare(find_findings(dataclasses.replace(facts, device=device))[0], "live-arrays")


def test_the_finding_on_vmem_reads_as_its_golden_text() -> None:
    """The figures of a message."""
    message = OomMessage("", memory_space="vmem", requested_bytes=20 * MIB, limit_bytes=16 * MIB)
    compare(vmem.find(message)[0], "vmem")


def test_every_finding_has_a_golden_text() -> None:
    """One file for each slug, and no other."""
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(ADVICE)


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.txt")), ids=lambda file: file.stem)
def test_titles_are_sentences(file: Path) -> None:
    """They begin with a capital letter, and do not end in a period."""
    title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("title: ")

    assert title[0].isupper()
    assert not title.endswith(".")
