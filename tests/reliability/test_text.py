"""Text that somebody else wrote comes out harmless: of messages, of profiles, of the program."""

from __future__ import annotations

import json
import time
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks.scale import hlo_proto
from hbmwatch import HbmOomError, OomReport, parse_oom, watch_hbm
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import Finding
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from tests.live import SMALL, fill, oom_of

EVIL = {
    "control characters": "a\x00b\x07c\x08d\re\x7ff\x9bg",
    "ANSI escapes": "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[2J",
    "bidirectional marks": "abc\u202edef\u2066ghi\u200fjkl\u061c",
    "line separators": "a\nb\u2028c\u2029d\x85e\x0bf\x0cg",
    "surrogates": "a\ud800b\udfff",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&--></style>",
    "format strings": "%s %n {0} {__class__} {0.__init__} ${HOME} `id` %(name)s",
    "one long line": "A" * 2**20,
    "long without letters": "\u202e" * 2**18,
}


def evil_program(text: str) -> PeakSummary:
    """The peak of a program in which every name and path is this text."""
    from hbmwatch._xla.protos import HloProto, message_class

    text = text.encode("utf-8", "replace").decode()
    proto = message_class(HloProto).FromString(hlo_proto(4))
    module = proto.hlo_module
    module.name = text
    module.stack_frame_index.file_names[0] = text
    for number, instruction in enumerate(module.computations[0].instructions):
        instruction.name = f"{text}.{number}"
        instruction.metadata.op_name = text
        instruction.opcode = text
    return peak_summary(parse_program(proto.SerializeToString(), f"{text}(1)"))


def evil_report(text: str) -> OomReport:
    """A report in which every text that others write is this one."""
    finding = Finding(
        slug="aggregate",
        title=text,
        evidence=text,
        remedy=text,
        saves_bytes=None,
        certainty="hint",
        link=text,
    )
    message = OomMessage(f"RESOURCE_EXHAUSTED: {text}", module=text, device=text, allocator=text)
    return OomReport(
        message=message,
        summary=evil_program(text),
        findings=(finding,),
        notes=(text,),
        missing=(text,),
        logdir=text,
        function=text,
        versions={"hbmwatch": text},
    )


def is_harmless(text: str) -> bool:
    """Whether text has no character that a terminal acts on, but for line ends."""
    return not any(
        unicodedata.category(c)[0] == "C" or c in "\u2028\u2029" for c in text.replace("\n", "")
    )


@pytest.mark.parametrize("name", EVIL)
def test_a_report_s_text_is_harmless_and_short(name: str) -> None:
    """Nothing that a terminal acts on, no line of its own, and no more lines than a page."""
    report = evil_report(EVIL[name])

    lines = str(report).splitlines()
    summary = str(report.summary).splitlines()

    assert is_harmless(str(report)) and is_harmless(str(report.summary))
    assert len(lines) <= 60 and len(summary) <= 20
    assert max(map(len, lines + summary)) <= 260


@pytest.mark.parametrize("name", EVIL)
def test_an_error_adds_one_harmless_line_to_the_text_that_was_caught(name: str) -> None:
    """The caught text stays as it is, as JAX itself would have printed it; ours is clean."""
    report = evil_report(EVIL[name])

    caught = report.message.text.rstrip().encode("utf-8", "replace").decode()

    text = str(HbmOomError(report.message.text, report))

    added = text.removeprefix(f"{caught}\n")
    assert text != added
    assert is_harmless(added) and "\n" not in added and len(added) < 300


@pytest.mark.parametrize("name", EVIL)
def test_a_report_s_data_is_what_was_said(name: str) -> None:
    """JSON holds the text as data, scalars hold numbers alone, under names of ours."""
    report = evil_report(EVIL[name])

    values = json.loads(json.dumps(report.to_dict()))
    scalars = report.scalars()

    assert values["function"] == EVIL[name]
    assert all(isinstance(value, (int, float)) for value in scalars.values())
    assert all(is_harmless(key) and len(key) < 300 for key in scalars)


class Elements(HTMLParser):
    """The elements of a page and what runs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(sorted(name for name, _ in attrs))))


def elements(report: OomReport) -> set[tuple[str, tuple[str, ...]]]:
    """The kinds of elements in a report's page."""
    parser = Elements()
    parser.feed(report.to_html())
    return set(parser.seen)


def test_html_in_a_text_adds_no_element_to_the_page() -> None:
    """The page of hostile text has the elements of the page of plain text."""
    assert elements(evil_report(EVIL["HTML"])) <= elements(evil_report("plain"))


@pytest.mark.parametrize("name", EVIL)
def test_a_message_with_anything_in_it_is_parsed_in_time(name: str) -> None:
    """An OOM among hostile text is found, whatever is before and after it, within a second."""
    oom = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."
    text = f"{EVIL[name]}\n{oom}\n{EVIL[name]}"

    start = time.thread_time()
    message = parse_oom(text)

    assert time.thread_time() - start < 1
    assert message is not None and message.requested_bytes == 2**50


def test_a_live_program_with_hostile_names(tmp_path: Path) -> None:
    """Scopes, argument names and dict keys of a real program come out clean in its report."""
    evil = EVIL["ANSI escapes"] + EVIL["HTML"] + EVIL["bidirectional marks"]

    def step(state: Any) -> Any:
        with jax.named_scope(evil):
            return fill(state[evil])

    oom = oom_of(watch_hbm(tmp_path)(step), {evil: SMALL})

    assert oom.report.missing == ()
    assert is_harmless(str(oom.report)) and is_harmless(oom.__notes__[0])
