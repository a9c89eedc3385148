"""What the reader of a report should know and that frees nothing by itself."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._explain.breakdown import breakdown
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._messages.notes import message_notes
from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.report import DeviceMemory
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.program import Program

_GROUPS, _CHANGES, _PATHS = 4, 3, 4
_MOST = 0.5
_FULL, _SMALL, _NOISE = 0.8, 0.1, 0.001


def notes(
    program: Program | None,
    summary: PeakSummary | None,
    message: OomMessage,
    call: CallInfo | None = None,
    device: DeviceMemory | None = None,
) -> tuple[str, ...]:
    """Sentences on the pool that ran out, the device's other tenants, and the state after it.

    Args:
        program: The failing program; None where it could not be had.
        summary: Its memory peak; None where it could not be had.
        message: What the error's text says.
        call: What is known of the call.
        device: What else was on the device.
    """
    said = [
        *message_notes(message),
        *_pool(message),
        *_arguments_and_outputs(program, summary, message),
        *_rematerialised(summary),
        *_tenants(message, call, device),
        *_deleted(device),
        *_devices(message, call),
        *_recompiled(call),
    ]
    return tuple(dict.fromkeys(said))


def _pool(message: OomMessage) -> list[str]:
    """What to turn for the memory that ran out, where it is not the arrays' own."""
    if message.memory_space in ON_CHIP:
        return [
            "For a Pallas kernel that is its block sizes, or vmem_limit_bytes in "
            "pltpu.CompilerParams; the batch size and what fills HBM are not the cause "
            "(https://openxla.org/xla/errors/error_1001)."
        ]
    if message.pool == "driver":
        return [
            "This is the opposite of the usual advice: a larger XLA_CLIENT_MEM_FRACTION (in older "
            "versions XLA_PYTHON_CLIENT_MEM_FRACTION) or more preallocation makes it worse; CUDA "
            "graphs go with XLA_FLAGS=--xla_gpu_enable_command_buffer= (empty)."
        ]
    if message.platform == "gpu" and "host" in (message.pool, message.memory_space):
        return [
            "On GPU XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB raises the limit of pinned host memory "
            "(64 GB by default)."
        ]
    return []


def _arguments_and_outputs(
    program: Program | None, summary: PeakSummary | None, message: OomMessage
) -> list[str]:
    """When the compiler's figure is mostly arguments and outputs, or arguments are too much."""
    if message.memory_space in ON_CHIP:
        return []
    figures = breakdown(program, summary, message)
    arguments, total = figures.get("arguments", 0), figures.get("total", 0)
    both = arguments + figures.get("outputs", 0)
    limit = figures.get("limit")
    said = []
    if limit is not None and arguments > limit:
        said.append(
            f"The arguments alone ({format_size(arguments)}) are more than the device offers "
            f"({format_size(limit)})."
        )
    if "HLO temporaries" in message.text and both > _MOST * total:
        said.append(
            f"Of the {format_size(total)} that the compiler calls temporaries, {format_size(both)} "
            "are arguments and outputs."
        )
    return said


def _rematerialised(summary: PeakSummary | None) -> list[str]:
    """When the compiler recomputed values to save memory, and it was not enough."""
    again = [op for op in summary.ops if ".remat" in op.instruction] if summary else []
    if not again:
        return []
    return [
        f"The compiler rematerialised already ({len(again)} of the buffers at the peak are named "
        ".remat): the program wants more than its peak shows."
    ]


def _tenants(message: OomMessage, call: CallInfo | None, device: DeviceMemory | None) -> list[str]:
    """Who else was on the device, at run time."""
    if device is None or message.phase == "compile":
        return []
    said = []
    requested, in_use, limit = message.requested_bytes, device.in_use_bytes, device.limit_bytes
    if requested and in_use is not None and limit:
        if in_use >= _FULL * limit and requested <= _SMALL * limit:
            said.append(
                f"The request is small ({format_size(requested)}); the device was already full: "
                f"{format_size(in_use)} of {format_size(limit)} were in use."
            )
    total = sum(group.size_bytes for group in device.live)
    if total and total >= _NOISE * max(requested or 0, limit or 0):
        groups = [
            f"{group.count} x {group.dtype}{list(group.shape)} ({format_size(group.size_bytes)})"
            for group in device.live[:_GROUPS]
        ]
        more = len(device.live) - len(groups)
        listed = f"{', '.join(groups)}{f' and {more} more groups' if more else ''}"
        said.append(
            f"Live arrays, the program's own arguments among them, take {format_size(total)} of "
            f"the fullest device: {listed}."
            if call is None
            else f"Live arrays that this call did not pass in take {format_size(total)} of the "
            f"fullest device: {listed}; drop the references that are not needed."
        )
    return said + _fragmented(message, device)


def _fragmented(message: OomMessage, device: DeviceMemory) -> list[str]:
    """When enough was free in all, and the figure that binds."""
    requested, largest = message.requested_bytes, device.largest_free_bytes
    limit, in_use = device.limit_bytes, device.in_use_bytes
    if requested is None or largest is None or limit is None or in_use is None:
        return []
    free = limit - in_use
    if free < requested or largest >= requested or message.largest_free_bytes is not None:
        return []
    return [
        f"Fragmentation: {format_size(free)} were free, but the largest contiguous block, which "
        f"binds, was {format_size(largest)} for {format_size(requested)}."
    ]


def _deleted(device: DeviceMemory | None) -> list[str]:
    """Which donated arguments are gone."""
    if device is None or not device.deleted:
        return []
    shown = ", ".join(device.deleted[:_PATHS])
    more = len(device.deleted) - _PATHS
    return [
        f"Donated arguments are deleted now: {shown}{f' and {more} more' if more > 0 else ''}. Do "
        "not call the step again with them; restore them first."
    ]


def _devices(message: OomMessage, call: CallInfo | None) -> list[str]:
    """On how many devices the program runs."""
    if call is None or not call.device_count or call.device_count < 2:
        return []
    mesh = ", ".join(f"{axis} {size}" for axis, size in call.mesh.items())
    return [
        f"All figures are for one device, not in all; the program runs on {call.device_count} of "
        f"them{f' (mesh: {mesh})' if mesh else ''}."
    ]


def _recompiled(call: CallInfo | None) -> list[str]:
    """Which argument changed against the last compile of this function."""
    if call is None or not call.previous:
        return []
    changes = _changes(call.previous[-1], call.arguments)
    if not changes:
        return []
    shown = "; ".join(changes[:_CHANGES])
    more = len(changes) - _CHANGES
    return [
        f"The function was recompiled for a new shape: {shown}"
        f"{f' and {more} more' if more > 0 else ''}."
    ]


def _changes(before: Sequence[Leaf], now: Sequence[Leaf]) -> list[str]:
    """The leaves whose shape or dtype changed, as "batch: float32[8,4] became float32[16,4]"."""
    known = {leaf.path: leaf for leaf in before}
    return [
        f"{leaf.path}: {_typed(known[leaf.path])} became {_typed(leaf)}"
        for leaf in now
        if leaf.path in known and _typed(known[leaf.path]) != _typed(leaf)
    ]


def _typed(leaf: Leaf) -> str:
    """A leaf's dtype and shape."""
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
