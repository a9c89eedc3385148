"""The notes of a report: background that the reader should know, and that is no remedy."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._explain.breakdown import breakdown
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._messages.notes import message_notes
from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.process import Process
from hbmwatch._records.report import DeviceMemory, Transfer
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.program import Program

# How many groups of live arrays, changed arguments and deleted arguments a note lists.
_GROUPS, _CHANGES, _PATHS = 4, 3, 4
# A device is full from this share on, and a request is small up to this one: the rest of the
# device could hold it, if it were free in one piece.
_FULL_SHARE, _SMALL_SHARE = 0.8, 0.1
# Live arrays below this share of the device are not worth a note.
_NEGLIGIBLE = 0.001


def notes(
    program: Program | None,
    summary: PeakSummary | None,
    message: OomMessage,
    call: CallInfo | None = None,
    device: DeviceMemory | None = None,
    transfer: Transfer | None = None,
) -> tuple[str, ...]:
    """Sentences on the memory that ran out, what else is on the device, and its state now.

    Args:
        program: The failing program; None where it is not known.
        summary: Its memory peak; None where it is not known.
        message: What the error's text says.
        call: What is known of the call.
        device: What else was on the device.
        transfer: The host array that could not be copied, where no program failed.
    """
    figures = {} if message.memory_space in ON_CHIP else breakdown(program, summary, message)
    sentences = [
        *message_notes(message, figures, is_transfer=transfer is not None),
        *_arguments(figures.get("arguments"), figures.get("limit")),
        *_rematerialized(summary),
        *_other_arrays(message, call, device),
        *_deleted(device),
        *_devices(call),
        *_recompiled(call),
    ]
    return tuple(dict.fromkeys(sentences))


def _arguments(arguments: int | None, limit: int | None) -> list[str]:
    """When the arguments alone do not fit."""
    if arguments is None or limit is None or arguments <= limit:
        return []
    return [
        f"The arguments alone take {format_size(arguments)}; the device has {format_size(limit)}."
    ]


def peers(process: Process, exits: bool) -> str:
    """What the other processes of the job know of the failure."""
    others = process.count - 1
    if others < 1 or exits:
        return ""
    which = (
        "The other process of the job waits"
        if others == 1
        else (f"The other {others} processes of the job wait")
    )
    return (
        f"{which} for this one in the next collective, and this one waits at its exit. Unless all "
        "of them failed, end the job, or let this process exit at once: "
        'watch_hbm(on_oom="exit"), with status 86.'
    )


def _rematerialized(summary: PeakSummary | None) -> list[str]:
    """When the compiler recomputes values to save memory, and it was not enough."""
    recomputed = [op for op in summary.ops if ".remat" in op.instruction] if summary else []
    if not recomputed:
        return []
    buffers = "1 buffer" if len(recomputed) == 1 else f"{len(recomputed)} buffers"
    verb = "is" if len(recomputed) == 1 else "are"
    return [
        f"XLA already rematerialized values ({buffers} at the peak {verb} named .remat). Without "
        "that, the peak would be higher."
    ]


def _other_arrays(
    message: OomMessage, call: CallInfo | None, device: DeviceMemory | None
) -> list[str]:
    """What else was on the device, at run time."""
    if device is None or message.phase == "compile":
        return []
    sentences = []
    requested, in_use, limit = message.requested_bytes, device.in_use_bytes, device.limit_bytes
    if requested and in_use is not None and limit:
        if in_use >= _FULL_SHARE * limit and requested <= _SMALL_SHARE * limit:
            sentences.append(
                f"The request is small ({format_size(requested)}), and the device was already "
                f"full: {format_size(in_use)} of {format_size(limit)} was in use."
            )
    total = sum(group.size_bytes for group in device.live)
    if total and total >= _NEGLIGIBLE * max(requested or 0, limit or 0):
        sentences.append(_live_arrays(total, device, call))
    return sentences + _fragmented(message, device)


def _live_arrays(total: int, device: DeviceMemory, call: CallInfo | None) -> str:
    """The largest groups of live arrays."""
    groups = [
        f"{group.count} x {group.dtype}{list(group.shape)} ({format_size(group.size_bytes)})"
        for group in device.live[:_GROUPS]
    ]
    more = len(device.live) - len(groups)
    listed = ", ".join(groups) + (f" and {plural(more, 'more group')}" if more else "")
    occupied = f"{format_size(total)} on the fullest device: {listed}."
    if call is None:
        return f"Live arrays, including the program's own arguments, occupy {occupied}"
    return (
        f"Arrays that are not arguments of this call occupy {occupied} Drop references you no "
        "longer need."
    )


def _fragmented(message: OomMessage, device: DeviceMemory) -> list[str]:
    """When the device had enough free memory, but not in one block."""
    requested, largest = message.requested_bytes, device.largest_free_bytes
    limit, in_use = device.limit_bytes, device.in_use_bytes
    if requested is None or largest is None or limit is None or in_use is None:
        return []
    free = limit - in_use
    if free < requested or largest >= requested or message.largest_free_bytes is not None:
        return []
    return [
        f"The device's memory is fragmented: {format_size(free)} was free, but the largest free "
        f"block was {format_size(largest)}, and {format_size(requested)} was requested."
    ]


def _deleted(device: DeviceMemory | None) -> list[str]:
    """Which donated arguments are gone."""
    if device is None or not device.deleted:
        return []
    return [
        f"These donated arguments have been deleted: {_listed(device.deleted, ', ', _PATHS)}. "
        "Restore them before calling the step again."
    ]


def _devices(call: CallInfo | None) -> list[str]:
    """On how many devices the program runs."""
    if call is None or not call.device_count or call.device_count < 2:
        return []
    mesh = ", ".join(f"{axis}={size}" for axis, size in call.mesh.items())
    return [
        f"All sizes are per device; the program runs on {call.device_count} devices"
        f"{f' (mesh: {mesh})' if mesh else ''}."
    ]


def _recompiled(call: CallInfo | None) -> list[str]:
    """Which arguments changed since the last compile of this function."""
    changes = _changes(call.previous[-1], call.arguments) if call and call.previous else []
    if not changes:
        return []
    return [f"The function was recompiled: {_listed(changes, '; ', _CHANGES)}."]


def _changes(before: Sequence[Leaf], now: Sequence[Leaf]) -> list[str]:
    """The changed leaves: "batch changed from float32[8,4] to float32[16,4]"."""
    known = {leaf.path: leaf for leaf in before}
    return [
        f"{leaf.path} changed from {_typed(known[leaf.path])} to {_typed(leaf)}"
        for leaf in now
        if leaf.path in known and _typed(known[leaf.path]) != _typed(leaf)
    ]


def _typed(leaf: Leaf) -> str:
    """A leaf's dtype and shape."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _listed(items: Sequence[str], separator: str, most: int) -> str:
    """The first items, and how many more there are."""
    more = len(items) - most
    return separator.join(items[:most]) + (f" and {more} more" if more > 0 else "")
