"""Is this text a device-memory OOM, and what does it say?

The text is unwrapped (colours, prefixes of lines, literal "\\n"), made flat (white space to one
space, which also mends phrases that break over lines), and given to the tables of wordings. All
steps take time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from hbmwatch._messages import gpu, tpu
from hbmwatch._messages.log_text import flat, strip_log_decoration
from hbmwatch._messages.wording import Wording, read_figures, refine
from hbmwatch._records.message import OomMessage
from hbmwatch._records.sizes import Size

WORDINGS: tuple[Wording, ...] = (*tpu.WORDINGS, *gpu.WORDINGS)

# An OOM's text ends with the next one, with a traceback, or this many characters on.
_REACH = 1 << 20
# More of the same text stands at most this far behind; what an error quotes stands near to it.
_FAR = 1 << 16
_NEAR = 2000
_SHORT = 1 << 16
# Each wording has one of these; a test says so.
_HINTS = (
    "emory",
    "MEMORY",
    "lloc",
    "ALLOC",
    "hbm",
    "Hbm",
    "usage",
    "requirement",
    "OOM",
    "Oom",
    "BufferAssignment",
    "handle:",
    "cuFFT",
    "HBM",
    "capacity",
    "XLA",
    "Error loading",
)
_TRACEBACK = "Traceback (most recent call last)"


class _Statement(NamedTuple):
    """A wording that stands somewhere in the flat text."""

    start: int
    end: int
    row: int
    match: re.Match[str]

    @property
    def wording(self) -> Wording:
        return WORDINGS[self.row]


class _Group(NamedTuple):
    """The statements about one OOM, and the stretch of the flat text that is about it."""

    statements: list[_Statement]
    behind: int
    end: int

    @property
    def start(self) -> int:
        """Where it begins; the first of a list's entries may begin anywhere before its mark."""
        first = self.statements[0]
        return self.behind if first.wording.role == "entry" else first.start


def parse_oom(text: str) -> OomMessage | None:
    """The first device-memory OOM in a text, or None.

    Read are the wordings of XLA's compilers, runtimes and allocators, and of the CUDA and ROCm
    libraries below them; a text that only speaks of memory, a limit of one kernel, a warning that
    says it is no failure, and PyTorch's own "CUDA out of memory" are None. A space on the chip
    (vmem, smem, ...) is an OOM of that space.

    Args:
        text: An exception's text, a traceback or a log, as raw or as wrapped as it comes. It is
            returned unchanged as the message's text.
    """
    _, flat_text, groups = _read(text)
    return _message(text, flat_text, groups[0]) if groups else None


def parse_ooms(text: str) -> tuple[OomMessage, ...]:
    """All device-memory OOMs in a text, in order.

    The text of each message is the text itself where there is one, else the stretch that it was
    read from, unwrapped: without colours, and without what a log puts before each line.
    """
    plain, flat_text, groups = _read(text)
    if len(groups) == 1:
        return (_message(text, flat_text, groups[0]),)
    stretches = _stretches(plain, flat_text, groups)
    return tuple(_message(own, flat_text, group) for own, group in zip(stretches, groups))


def _read(text: str) -> tuple[str, str, list[_Group]]:
    """The text unwrapped, the same made flat, and what is about one OOM each in it."""
    plain = strip_log_decoration(_relevant(text))
    flat_text = flat(plain)
    groups = list(_groups(flat_text))
    if not groups and len(plain) < _SHORT:
        # A terminal breaks lines within words too.
        joined = plain.replace("\n", "")
        flat_joined = flat(joined)
        return joined, flat_joined, list(_groups(flat_joined))
    return plain, flat_text, groups


def _relevant(text: str) -> str:
    """The part of a long text that can be about memory: most of a log is not worth unwrapping."""
    if len(text) < _SHORT:
        return text
    places = [place for word in _HINTS if (place := text.find(word)) >= 0]
    if not places:
        return ""
    last = max(text.rfind(word) for word in _HINTS)
    return text[max(0, min(places) - _NEAR) : last + _FAR]


def _stretches(plain: str, flat_text: str, groups: list[_Group]) -> list[str]:
    """The lines of the unwrapped text for each group; it has the words of the flat text."""
    edges = []
    position = words = 0
    for group in groups:
        words += flat_text.count(" ", position, group.start)
        position = group.start
        ends = (group.statements[-1].end, group.end)
        said, last = (words + flat_text[group.start : end].rstrip().count(" ") for end in ends)
        edges.append((words, said, last))
    needed = {word for edge in edges for word in edge}
    found = enumerate(re.finditer(r"\S+", plain))
    spans = {word: match.span() for word, match in found if word in needed}
    starts = [plain.rfind("\n", 0, spans[first][0]) + 1 for first, _, _ in edges]
    stretches, end = [], 0
    for (_, said, last), line, following in zip(edges, starts, [*starts[1:], len(plain)]):
        start = max(end, line)
        # How the next one's line begins belongs to that.
        end = max(spans[said][1], min(spans[last][1], following))
        stretches.append(plain[start:end].strip())
    return stretches


def _groups(flat_text: str) -> Iterator[_Group]:
    """The statements that belong to one OOM each, with the stretch that they are read from."""
    group: list[_Statement] = []
    behind = said = 0
    for statement in _statements(flat_text):
        if group and _belongs(flat_text, statement, group, said):
            if statement.row not in {other.row for other in group}:
                group.append(statement)
        elif statement.wording.role == "detail":
            continue
        else:
            if group:
                yield _Group(group, behind, _end(flat_text, said, statement.start))
            behind, group = said, [statement]
        said = statement.end
    if group:
        yield _Group(group, behind, _end(flat_text, said, len(flat_text)))


def _end(flat_text: str, said: int, limit: int) -> int:
    """Where the text of an OOM ends at the latest, when its last statement ends at said."""
    limit = min(limit, said + _REACH)
    traceback = flat_text.find(_TRACEBACK, said, limit)
    return limit if traceback < 0 else traceback


def _statements(flat_text: str) -> list[_Statement]:
    """All wordings in the text, in order; of those that overlap, the table's first."""
    found = sorted(
        (match.start(), row, match)
        for row, wording in enumerate(WORDINGS)
        for match in wording.matches(flat_text)
    )
    kept: list[_Statement] = []
    for start, row, match in found:
        if not kept or start >= kept[-1].end:
            kept.append(_Statement(start, match.end(), row, match))
        elif row < kept[-1].row:
            kept[-1] = _Statement(kept[-1].start, max(match.end(), kept[-1].end), row, match)
    return kept


def _belongs(flat_text: str, statement: _Statement, group: list[_Statement], said: int) -> bool:
    """Whether a statement says more about the OOM of a group, whose last one ends at said."""
    role, gap = statement.wording.role, statement.start - said
    platforms = {other.wording.says.platform for other in group}
    if statement.wording.says.platform not in {*platforms, None} and platforms != {None}:
        return False
    if role == "entry":
        return gap < _FAR
    roles = {other.wording.role for other in group} - {"detail"}
    if roles == {"code"}:
        return gap < _NEAR
    if role in _ERRORS and roles & {"log", "attempt"} and roles <= {"log", "attempt", "echo"}:
        return role == "attempt" or roles == {"attempt"} or _agree(statement, group)
    between = flat_text[said : statement.start]
    if role in ("failure", "code", "log", "attempt") or _TRACEBACK in between:
        return _again(statement, group, between)
    if role == "echo":
        return gap < _NEAR
    return gap < _FAR and statement.row not in {other.row for other in group}


def _again(statement: _Statement, group: list[_Statement], between: str) -> bool:
    """Whether a chain of exceptions repeats the text."""
    said = {other.match[0] for other in group}
    return statement.match[0] in said and any(words in between for words in _CHAINED)


def _agree(statement: _Statement, group: list[_Statement]) -> bool:
    """Whether two statements can speak of the same request."""
    if statement.match[0] in {other.match[0] for other in group}:
        return True
    fields = read_figures(statement.match)
    for other in group:
        more = read_figures(other.match)
        sizes = (fields.get("requested_bytes"), more.get("requested_bytes"))
        resolution = max(f["resolution_bytes"].get("requested_bytes", 0) for f in (fields, more))
        known = other.wording.role == "log" and sizes[1] is not None
        if known and sizes[0] is not None and abs(sizes[0] - sizes[1]) > max(resolution, 255):
            return False
    return True


_CODE = r"(E\d{4}): [A-Z]\w{1,80}: ?$"
_LINK = r"openxla\.org/xla/errors/error_(\d{4})(?!\d)"
_LOADING = r"Error loading (?:SparseCore )?program '([^']{1,500})'"
_MODULE = r"HLO module: ([\w.<>-]{0,500}\w)|\[executable_name='([^']{1,500})'\]"
_EXECUTION = (
    r"Execution of replica (\d{1,9}) failed: (?:RESOURCE_EXHAUSTED|Resource exhausted|INTERNAL)"
)
_REPLICA = r"while running replica (\d{1,9}) and partition (\d{1,9})"


def _message(text: str, flat_text: str, group: _Group) -> OomMessage:
    """The OOM that a group of statements makes; the error itself counts first, then its order."""
    fields: dict[str, Any] = {"totals": {}, "resolution_bytes": {}}
    for statement in sorted(group.statements, key=lambda one: _WEIGHT[one.wording.role]):
        if statement.wording.role != "attempt" or "platform" not in fields:
            _merge(fields, read_figures(statement.match))
            says = statement.wording.says
            _merge(fields, {name: value for name in _SAID if (value := getattr(says, name))})
    stretch = flat_text[group.start : group.end]
    details = _DETAILS.get(fields.get("platform", ""))
    if details:
        details(fields, stretch)
    before = flat_text[max(group.behind, group.start - _NEAR) : group.start]
    said = group.statements[-1].end - group.start
    _add_surroundings(fields, before, stretch, said)
    return OomMessage(text, **fields)


_ERRORS = ("failure", "log", "attempt", "echo")
_CHAINED = (
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception, another exception occurred",
    "The stack trace below excludes JAX-internal frames",
)
_SAID = ("platform", "phase", "code", "memory_space", "pool")
_WEIGHT = {
    "failure": 0,
    "part": 0,
    "entry": 0,
    "log": 1,
    "echo": 2,
    "detail": 3,
    "code": 4,
    "attempt": 5,
}
_DETAILS = {"tpu": tpu.add_details, "gpu": gpu.add_details}


def _merge(fields: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds what is not known yet, and figures that are more exact."""
    resolution = more.get("resolution_bytes", {})
    for name, value in more.items():
        if name == "totals":
            for total, size_bytes in value.items():
                fields["totals"].setdefault(total, size_bytes)
                if total in resolution:
                    fields["resolution_bytes"].setdefault(total, resolution[total])
        elif name.endswith("_bytes") and name != "resolution_bytes":
            refine(fields, name, Size(value, resolution.get(name, 0)))
        elif name != "resolution_bytes":
            fields.setdefault(name, value)


def _add_surroundings(fields: dict[str, Any], before: str, stretch: str, said: int) -> None:
    """Adds the error's code, the module and the replica, which many wordings share.

    Args:
        before: What stands before the stretch.
        stretch: The flat text that is about the OOM; its last statement ends at said.
    """
    code = re.search(_CODE, before[-100:])
    link = re.search(_LINK, stretch)
    if code or link:
        fields.setdefault("code", code[1] if code else f"E{link[1]}" if link else None)
    loading = re.search(_LOADING, before[-600:]) or re.search(_LOADING, stretch)
    module = loading or re.search(_MODULE, stretch)
    if module:
        fields.setdefault("module", module[1] or module[2])
    replica = re.search(_REPLICA, stretch)
    execution = re.search(_EXECUTION, before[-100:] + stretch[:said])
    if replica:
        fields.setdefault("replica", int(replica[1]))
        fields.setdefault("partition", int(replica[2]))
    elif execution:
        fields.setdefault("replica", int(execution[1]))
