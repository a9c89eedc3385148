"""The table of wordings: each row has a sample, a word that logs are searched for, and one home."""

from __future__ import annotations

from pathlib import Path

import hbmwatch
from hbmwatch import parse_oom
from hbmwatch._messages.log_text import collapse_whitespace, strip_log_decoration
from hbmwatch._messages.statements import find_statements
from hbmwatch._messages.table import WORDINGS
from tests.messages.samples import SAMPLES, row, sample


def rows(text: str) -> list[str]:
    """The rows that match a text, without extra figures and the later entries of a list."""
    statements = find_statements(collapse_whitespace(strip_log_decoration(text)))
    found = [one.wording for one in statements if one.wording.source != "extra_figures"]
    return [w.name for w in found if w.source != "allocation_entry" or w is found[0]]


def test_every_wording_has_a_sample_that_it_alone_matches() -> None:
    """A sample is filed under its row, and a sample with a row's name matches only that row."""
    filed = {name: row(name) for name in SAMPLES}
    details = {wording.name for wording in WORDINGS if wording.source == "extra_figures"}
    assert {wording.name for wording in WORDINGS} - details == set(filed.values())
    named = [name for name in SAMPLES if name == filed[name]]
    assert {name: {name} for name in named} == {name: set(rows(sample(name))) for name in named}
    assert [name for name in SAMPLES if filed[name] not in rows(sample(name))] == []


def test_a_wording_is_read_in_one_file() -> None:
    """The text that a row starts with is in one file of the package."""
    package = Path(hbmwatch.__file__).parent
    sources = {file.name: file.read_text() for file in package.rglob("*.py")}
    anchors = {wording.anchor.strip() for wording in WORDINGS if len(wording.anchor) > 20}
    homes = {
        anchor: [name for name, source in sources.items() if anchor in source]
        for anchor in anchors
        if any(anchor in source for source in sources.values())  # E1000's is put together
    }
    assert len(homes) > 40
    assert {anchor: names for anchor, names in homes.items() if len(names) > 1} == {}


LOG = "2026-03-01 10:00:00.123456: I external/xla/xla/client.cc:12] step 7, m in use 12 GiB\n"


def test_every_sample_has_a_word_that_a_long_log_is_searched_for() -> None:
    """An OOM is found in a long log too, by a word that each wording has."""
    filler = LOG * 400
    found = {name: parse_oom(filler + sample(name) + "\n" + filler) for name in SAMPLES}
    assert [name for name, message in found.items() if message is None] == []
