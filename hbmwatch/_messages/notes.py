"""What an out-of-memory message means, for who has nothing but its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage

_SMALL_SHARE = 16
_SMALL_BYTES = 256 * 2**20


def message_notes(message: OomMessage) -> tuple[str, ...]:
    """Sentences on what ran out, what the figures count, and whether a retry can help."""
    said = (make(message) for make in _SENTENCES)
    return tuple(sentence for sentence in said if sentence)


def _which_memory(message: OomMessage) -> str:
    if message.memory_space in ON_CHIP:
        name = message.memory_space.upper()
        return (
            f"{name} is memory on the chip that one kernel uses while it runs: smaller blocks in "
            "that kernel help, a smaller model or donated arguments do not."
        )
    if message.pool == "driver":
        return (
            "This memory is outside of the pool that JAX keeps for arrays (modules, CUDA graphs, "
            "NCCL, library handles): a smaller pool, XLA_CLIENT_MEM_FRACTION, leaves more of it."
        )
    if message.platform == "cpu":
        return "On the CPU backend the device's memory is the machine's: the system refused it."
    if message.pool == "host" or message.memory_space == "host":
        return "This is memory of the host, not of the device."
    return ""


def _when(message: OomMessage) -> str:
    if message.phase == "compile" and message.memory_space in ("hbm", None):
        return (
            "The compiler found, before anything ran, that the program does not fit on one device, "
            "even if it is alone there: neither a retry nor freeing other arrays helps."
        )
    if message.phase == "run" and message.memory_space not in ON_CHIP:
        return (
            "The program compiled, and one allocation failed on a device that other arrays and "
            "programs share: a retry helps only after some of those are gone."
        )
    return ""


def _of_temporaries(message: OomMessage) -> str:
    if "HLO temporaries" not in message.text:
        return ""
    return (
        'The figure for "HLO temporaries" counts arguments and outputs too, and is all that the '
        "compiler allocates, which can be more than is live at the peak."
    )


def _fragments(message: OomMessage) -> str:
    requested, free = message.requested_bytes, message.free_bytes
    largest = message.largest_free_bytes
    if requested is None or free is None or free < requested:
        return ""
    pieces = f"; the largest is {format_size(largest)}" if largest is not None else ""
    return (
        f"More is free ({format_size(free)}) than was asked for ({format_size(requested)}): it is "
        f"in pieces, and an allocation needs one that is large enough{pieces}."
    )


def _last_straw(message: OomMessage) -> str:
    requested = message.requested_bytes
    if requested is None or message.phase != "run" or message.pool in ("driver", "host"):
        return ""
    limit = message.limit_bytes
    if requested >= (limit // _SMALL_SHARE if limit else _SMALL_BYTES):
        return ""
    return (
        f"The {format_size(requested)} that failed are the last straw: what filled the memory "
        "before them is what to look for."
    )


def _per_device(message: OomMessage) -> str:
    if message.partition is None:
        return ""
    return (
        f"Partition {message.partition} of replica {message.replica} says so; the figures are of "
        "that one device, and others may have failed as well."
    )


_SENTENCES: tuple[Callable[[OomMessage], str], ...] = (
    _which_memory,
    _when,
    _of_temporaries,
    _fragments,
    _last_straw,
    _per_device,
)
