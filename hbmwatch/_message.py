"""Is this text a device-memory OOM, and what does it say?

The text is unwrapped (colours, prefixes of lines, literal "\\n"), made flat (white space to one
space, which also mends phrases that break over lines), and given to the tables of wordings. All
steps take time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from hbmwatch import _gpu_wordings, _tpu_wordings
from hbmwatch._records import OomMessage
from hbmwatch._wording import Wording, read_figures

WORDINGS: tuple[Wording, ...] = (*_tpu_wordings.WORDINGS, *_gpu_wordings.WORDINGS)

_REACH = 1 << 20


class _Statement(NamedTuple):
    """A wording that stands somewhere in the flat text."""

    start: int
    end: int
    row: int
    match: re.Match[str]

    @property
    def wording(self) -> Wording:
        return WORDINGS[self.row]


def parse_oom(text: str) -> OomMessage | None:
    """The first device-memory OOM in a text, or None.

    Args:
        text: An exception's text, a traceback or a log, as raw or as wrapped as it comes. It is
            returned unchanged as the message's text.
    """
    flat = _flat(_unwrapped(text))
    for group in _groups(flat):
        return _message(text, flat, *group)
    return None


def parse_ooms(text: str) -> tuple[OomMessage, ...]:
    """All device-memory OOMs in a text, in order.

    The text of each message is the text itself where there is one, else the stretch that it was
    read from, unwrapped: without colours, and without what a log puts before each line.
    """
    unwrapped = _unwrapped(text)
    flat = _flat(unwrapped)
    groups = list(_groups(flat))
    if len(groups) == 1:
        return (_message(text, flat, *groups[0]),)
    stretches = _stretches(unwrapped, flat, [(start, end) for start, end, _ in groups])
    return tuple(_message(own, flat, *group) for own, group in zip(stretches, groups))


_COLOUR = re.compile(r"(?:\x1b|\\+x1b|\\+u001b|\\+033|\^\[)\[[0-9;?]{0,20}[A-Za-z]")
_LOST_COLOUR = re.compile(r"\[(?:\d{1,3};){0,4}\d{1,3}m")
_ESCAPE = re.compile(r"\\+(?:r\\+n|([nrt])|([\"']))")
_PREFIX = re.compile(
    r"""\n(?:[ \t]*+(?:
    \[[^\[\]\n='"]{1,80}\](?:<std(?:err|out)>)?:?
    |\((?:[\w.-]{1,60}[ ])?(?:pid|ip|rank|worker|process|task|actor)\b[^()\n]{0,120}\)
    |\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?:?(?=\s)
    |(?:\d\d-\d\d[ ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?:?(?=\s)
    |[IWEF](?:\d{4}|\d{8})[ ]\d\d:\d\d:\d\d\.\d{1,9}[ ]+\d{1,20}[ ][\w./+-]{1,300}:\d{1,6}\]
    |[IWEF][ ]{1,8}(?:\d{1,20}[ ])?[\w./+-]{1,300}:\d{1,6}\]
    |(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?::[\w.]{1,80})?(?::|[ ]-|[ ]\||(?=[ ]))
    |\d{1,6}:(?=[ ])
    |[\w.-]{1,80}[ ]{0,20}\|(?=[ ])
    |[>│┃|](?=[ ])
    |E(?=[ ]{2})
    ))++""",
    re.VERBOSE,
)
_BOX_END = re.compile(r"[ \t]*[│┃][ \t]*(?=\n|$)")


def _unwrapped(text: str) -> str:
    """The text without colours, literal escapes, quoted payloads and prefixes of lines."""
    text = _without_payloads(text)
    if "[" in text:
        text = _COLOUR.sub("", text)
        if "[0m" in text:
            text = _LOST_COLOUR.sub("", text)
    if "\\" in text:
        text = _ESCAPE.sub(_unescaped, text)
    if "│" in text or "┃" in text:
        text = _BOX_END.sub("", text)
    return _PREFIX.sub("\n", "\n" + text)[1:]


def _unescaped(escape: re.Match[str]) -> str:
    return escape[2] or (" " if escape[1] == "t" else "\n")


def _without_payloads(text: str) -> str:
    """Leaves out payloads that quote the message: [type.googleapis.com/...='\\x08...']."""
    kept = []
    start = 0
    while (opened := text.find("[type.googleapis.com/", start)) >= 0:
        kept.append(text[start:opened])
        closed = text.find("']", opened)
        start = closed + 2 if closed >= 0 else len(text)
    return "".join(kept) + text[start:] if kept else text


def _flat(text: str) -> str:
    return " ".join(text.split())


def _stretches(unwrapped: str, flat: str, spans: list[tuple[int, int]]) -> Iterator[str]:
    """The stretch of the unwrapped text for each span of the flat one; both have the same words."""
    words = re.finditer(r"\S+", unwrapped)
    at = -1
    word: re.Match[str] | None = None
    for start, end in spans:
        first = flat.count(" ", 0, start)
        last = first + flat.count(" ", start, end)
        begin = 0
        while at < last and (word := next(words, None)):
            at += 1
            begin = word.start() if at == first else begin
        yield unwrapped[begin : word.end() if word else len(unwrapped)].strip()


def _groups(flat: str) -> Iterator[tuple[int, int, list[_Statement]]]:
    """The statements that belong to one OOM each, with the stretch that they are read from."""
    group: list[_Statement] = []
    for statement in _statements(flat):
        if group and _belongs(flat, statement, group):
            group.append(statement)
            continue
        if group:
            yield _stretch(flat, group, statement.start)
        group = [] if statement.wording.role == "detail" else [statement]
    if group:
        yield _stretch(flat, group, len(flat))


def _stretch(
    flat: str, group: list[_Statement], limit: int
) -> tuple[int, int, list[_Statement]]:
    start = group[0].start
    limit = min(limit, group[-1].end + _REACH)
    traceback = flat.find("Traceback (most recent call last)", group[-1].end, limit)
    return start, limit if traceback < 0 else traceback, group


def _statements(flat: str) -> list[_Statement]:
    """All wordings in the text, in order; of those that overlap, the table's first."""
    found = sorted(
        _Statement(match.start(), match.end(), row, match)
        for row, wording in enumerate(WORDINGS)
        for match in wording.matches(flat)
    )
    kept: list[_Statement] = []
    for statement in found:
        if kept and statement.start < kept[-1].end:
            if statement.row < kept[-1].row:
                kept[-1] = statement
        else:
            kept.append(statement)
    return kept


def _belongs(flat: str, statement: _Statement, group: list[_Statement]) -> bool:
    """Whether a statement says more about the OOM of the statements before it."""
    if statement.wording.role in ("failure", "log") or statement.row in {o.row for o in group}:
        return False
    return flat.find("Traceback (most recent call last)", group[-1].end, statement.start) < 0


_CODE = re.compile(r"(E\d{4}): [A-Z]\w{1,80}:")
_LINK = re.compile(r"openxla\.org/xla/errors/error_(\d{4})")
_LOADING = re.compile(r"Error loading program '([^']{1,500})'")
_MODULE = re.compile(r"HLO module: ([\w.<>-]{0,500}\w)")
_EXECUTABLE = re.compile(r"\[executable_name='([^']{1,500})'\]")
_REPLICA = re.compile(r"while running replica (\d{1,9}) and partition (\d{1,9})")


def _message(text: str, flat: str, start: int, end: int, group: list[_Statement]) -> OomMessage:
    """The OOM that the statements make, of which the earlier ones count first."""
    fields: dict[str, Any] = {"totals": {}, "resolution_bytes": {}}
    for statement in group:
        _merge(fields, read_figures(statement.match))
        says = statement.wording.says
        said = ("platform", "phase", "memory_space", "pool")
        _merge(fields, {name: value for name in said if (value := getattr(says, name))})
    stretch = flat[start:end]
    _DETAILS.get(fields.get("platform", ""), _no_details)(fields, stretch)
    _add_surroundings(fields, flat[max(0, start - 300) : start], stretch)
    return OomMessage(text, **fields)


def _no_details(fields: dict[str, Any], text: str) -> None:
    """A wording that every backend has says no more."""


_DETAILS = {"tpu": _tpu_wordings.add_details, "gpu": _gpu_wordings.add_details}


def _merge(fields: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if name in ("totals", "resolution_bytes"):
            fields[name].update({key: v for key, v in value.items() if key not in fields[name]})
        else:
            fields.setdefault(name, value)


def _add_surroundings(fields: dict[str, Any], before: str, stretch: str) -> None:
    """Adds the error's code, the module and the replica, which many wordings share."""
    codes = _CODE.findall(before)
    link = _LINK.search(stretch)
    if codes or link:
        fields.setdefault("code", codes[-1] if codes else f"E{link[1]}" if link else None)
    loading = _LOADING.findall(before)
    module = _MODULE.search(stretch) or _EXECUTABLE.search(stretch)
    if loading or module:
        fields.setdefault("module", loading[-1] if loading else module[1] if module else None)
    replica = _REPLICA.search(stretch)
    if replica:
        fields.setdefault("replica", int(replica[1]))
        fields.setdefault("partition", int(replica[2]))
