"""The text of a report."""

from __future__ import annotations

from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import Finding
from hbmwatch._report.report import OomReport


def test_the_evidence_keeps_every_place() -> None:
    """Three files with long names, in a long sentence."""
    places = [f"{number}_{'a_long_name_of_a_file_' * 2}.py:{number}" for number in range(3)]
    finding = Finding(
        slug="residuals",
        title="Rematerialize",
        evidence=f"{'242 buffers are residuals, ' * 6}computed at {', '.join(places)} and kept.",
        remedy="Put jax.checkpoint around it.",
        saves_bytes=None,
        certainty="derived",
        link="",
    )
    text = str(OomReport(OomMessage("RESOURCE_EXHAUSTED"), findings=(finding,)))

    assert [place for place in places if place not in text] == []
