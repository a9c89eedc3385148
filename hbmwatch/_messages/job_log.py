"""What the log of one process of a job says: it ran out of memory, or lost another process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hbmwatch._messages.log_text import strip_log_decoration
from hbmwatch._messages.own_reports import reported_function, reported_process
from hbmwatch._messages.peer_loss import lost_peer
from hbmwatch._messages.stream import find_in_log
from hbmwatch._records.message import OomMessage
from hbmwatch._records.process import Process

# A process that lost another one ends with the error and the stacks of its threads. What a job
# logs before that, such as a connection that was reset and opened again, did not end it.
_END = 1 << 18
_LINES = 100  # at the end; the last one may be empty


class JobLog(NamedTuple):
    """What the log of one process says.

    Attributes:
        oom: Its last OOM; None if it has none.
        function: The function that a report in the log names; else "".
        process: The process that a report in the log names; else None.
        lost: What the log's end says of a lost process, where it has no OOM.
        last_line: The last line that is not empty, where it has no OOM.
    """

    oom: OomMessage | None = None
    function: str = ""
    process: Process | None = None
    lost: str | None = None
    last_line: str = ""


def read_job_log(blocks: Iterable[bytes]) -> JobLog:
    """What the log of one process says.

    Args:
        blocks: The log in UTF-8, in blocks of any size.
    """
    kept = LogEnd()
    last = deque(find_in_log(kept.passed(blocks)), maxlen=1)
    if last:
        oom = last[0].message
        return JobLog(oom, reported_function(oom.text), reported_process(oom.text))
    lines = [line.strip() for line in kept.text().splitlines()[-_LINES:]]
    return JobLog(lost=kept.lost_peer(), last_line=next(filter(None, reversed(lines)), ""))


class LogEnd:
    """The end of a log that is read in blocks, and how many lines the log has."""

    def __init__(self) -> None:
        self._data = b""
        self._breaks = 0

    def passed(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks, unchanged."""
        for block in blocks:
            self._data = (self._data + block)[-_END:]
            self._breaks += block.count(b"\n")
            yield block

    @property
    def line_count(self) -> int:
        """The number of lines, also counting a last one that has no line break."""
        return self._breaks + (not self._data.endswith(b"\n"))

    def text(self) -> str:
        """Without log decoration."""
        return strip_log_decoration(self._data.decode("utf-8", "replace"))

    def lost_peer(self) -> str | None:
        """What it says of a lost process, as one clause; None if it says nothing of that."""
        return lost_peer(self.text())
