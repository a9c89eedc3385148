"""Errors of a process that lost another one: the cause is in the other process.

Sources: XLA's coordination service and JAX's distributed client (xla/pjrt/distributed,
xla/tsl/distributed_runtime/coordination), Gloo's TCP transport, and NCCL's ncclRemoteError.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# The tasks follow, one on a line: "3", or in older versions "/job:jax_worker/replica:0/task:3".
_TASKS = r"tasks? are unhealthy \(stopped sending heartbeats\):((?:\s+(?:/\S*task:)?\d+\b)*)"


def _unhealthy(found: re.Match[str]) -> str:
    tasks = sorted({int(number) for number in re.findall(r"(\d+)(?=\s|$)", found[1])})
    which = ", ".join(map(str, tasks[:20])) + (", ..." if len(tasks) > 20 else "")
    which = f"process{'es' if len(tasks) > 1 else ''} {which}" if tasks else "another process"
    return f"{which} stopped sending heartbeats"


# The first row that matches counts: the more a text says, the earlier its row.
_ROWS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(_TASKS), _unhealthy),
    (
        re.compile(r"Task (\d{1,7}) heartbeat timeout"),
        lambda found: f"process {found[1]} stopped sending heartbeats",
    ),
    (
        re.compile(r"Barrier timed out\. Id: (\S{1,80})\."),
        lambda found: f"the barrier {found[1]} timed out: not all processes reached it",
    ),
    (
        re.compile(
            r"Failed to send RPC to coordination service"
            r"|DEADLINE_EXCEEDED: Deadline Exceeded\s{1,9}RPC: /xla\.coordination\."
            r"|UNAVAILABLE:[^\n]{0,300}?coordination service",
            re.IGNORECASE,
        ),
        lambda _: "the coordination service, which runs in process 0, did not answer",
    ),
    (
        re.compile(r"Gloo ([\w -]{1,40}) failed:[^\n]*?(Connection (?:closed|reset) by peer)"),
        lambda found: f"Gloo's {found[1]} failed: {found[2].lower()}",
    ),
    (
        re.compile(r"(?:remote process (?:has )?exited or there was a network error)"),
        lambda _: "NCCL: the remote process exited or there was a network error",
    ),
    (
        re.compile(
            r"Terminating process because (?:the JAX distributed service detected fatal errors"
            r"|the coordinator detected missing heartbeats|of missing heartbeat)"
        ),
        lambda _: "JAX's distributed service ended this process, because another process died",
    ),
    (
        re.compile(r"Connection (closed|reset) by peer"),
        lambda found: f"connection {found[1]} by peer",
    ),
)


def lost_peer(text: str) -> str | None:
    """What a log says of a lost process, as one clause; None if it says nothing of that.

    Args:
        text: The log of a process that did not run out of memory itself.
    """
    for pattern, sentence in _ROWS:
        if found := pattern.search(text):
            return sentence(found)
    return None
