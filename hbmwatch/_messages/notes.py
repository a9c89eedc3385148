"""Explain an OOM message when only its text is available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hbmwatch._messages.figures import LARGEST_ON_CHIP
from hbmwatch._messages.warnings import compiler_warnings
from hbmwatch._records.memory_spaces import KERNEL_MEMORY, ON_CHIP, SPARSE_CORE_CODE
from hbmwatch._records.sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records.message import OomMessage

# A request below this share of the device, or below this size, did not fill it by itself.
_SMALL_SHARE = 16
_SMALL_BYTES = 256 * 2**20
# Where the figures of a message are those of a part of the device.
_PARTS = {"dram": "one bank of DRAM", "l1": "one bank of L1"}
_RESERVATION = (
    "JAX's allocator wanted to reserve this memory of the device for a pool, and the driver had "
    "less. Other processes, or another library in this process, use the device: nvidia-smi (on "
    "AMD rocm-smi) lists the processes. End them, lower XLA_CLIENT_MEM_FRACTION (formerly "
    "XLA_PYTHON_CLIENT_MEM_FRACTION), or set XLA_PYTHON_CLIENT_PREALLOCATE=false. The allocator "
    "tries again with 10% less, so this is a failure only if an error follows."
)


def message_notes(
    message: OomMessage,
    breakdown: Mapping[str, int] | None = None,
    is_transfer: bool = False,
) -> tuple[str, ...]:
    """Sentences on which memory ran out, what the figures count, and whether a retry can help.

    Args:
        message: What the error's text says.
        breakdown: What the program's memory was, where it is known: "total", "arguments", ...
        is_transfer: Whether the copy of a host array failed, and no program.
    """
    notes = (
        _memory(message),
        _phase(message, is_transfer),
        *compiler_warnings(" ".join(message.text.split())),
        _temporaries(message, breakdown or {}),
        _fragmentation(message),
        _last_straw(message),
        _one_of_several(message),
    )
    return tuple(note for note in notes if note)


def _memory(message: OomMessage) -> str:
    """Which memory ran out, and what frees it, where it is not the memory of JAX's arrays."""
    if message.memory_space in ON_CHIP:
        return _on_chip(message.memory_space)
    if _is_sparse_core(message):
        return (
            "SparseCore's own memory is the on-chip memory of each of its tiles: freeing HBM will "
            "not help. In a Pallas kernel, reduce the blocks and scratch shapes."
        )
    if message.pool == "reservation":
        return _RESERVATION
    if message.pool == "driver":
        return (
            "This allocation is outside JAX's array pool (CUDA modules, CUDA graphs, NCCL, library "
            "handles). Lower XLA_CLIENT_MEM_FRACTION (formerly XLA_PYTHON_CLIENT_MEM_FRACTION) to "
            "leave more memory for it. Do not raise it, as is often advised: that leaves less "
            "memory for this allocation. To disable CUDA graphs, set "
            "XLA_FLAGS=--xla_gpu_enable_command_buffer= (empty)."
        )
    if message.platform == "cpu":
        return (
            "On the CPU backend, device memory is host RAM; the operating system refused the "
            "allocation."
        )
    if "host" in (message.pool, message.memory_space):
        pinned = (
            " XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB sets the limit of pinned host memory (default: 64)."
        )
        return f"This is host memory, not device memory.{pinned * (message.platform == 'gpu')}"
    return ""


def _is_sparse_core(message: OomMessage) -> bool:
    """Whether one of SparseCore's memories ran out, and the text does not say which."""
    return message.code == SPARSE_CORE_CODE and message.memory_space is None


def _on_chip(space: str) -> str:
    """What frees on-chip memory: not what frees HBM, and in a kernel's own memory its blocks."""
    name, remedy = space.upper(), ""
    if space == "vmem":
        remedy = (
            " In a Pallas kernel, reduce the block sizes, or raise vmem_limit_bytes in "
            "pltpu.CompilerParams (https://openxla.org/xla/errors/error_1001)."
        )
    elif space in KERNEL_MEMORY:
        remedy = f" In a Pallas kernel, reduce the blocks and scratch shapes that are in {name}."
    return (
        f"{name} is on-chip memory: freeing HBM, by a smaller model or by donation, will not help."
        f"{remedy}"
    )


def _phase(message: OomMessage, is_transfer: bool) -> str:
    """Whether a retry can help."""
    if _is_sparse_core(message):
        return ""
    if message.phase == "compile":
        return _while_compiling(message)
    requested, limit = message.requested_bytes, message.limit_bytes
    if message.phase == "run" and requested is not None and limit is not None and requested > limit:
        return (
            f"One allocation of {format_size(requested)} is larger than the {format_size(limit)} "
            f"of {_PARTS.get(message.memory_space or '', 'the device')}. Retrying or freeing other "
            "arrays will not help."
        )
    if is_transfer:
        return (
            "No program failed: the host array did not fit on the device. Other arrays and "
            "programs share this memory; retrying helps only after some of them are freed."
        )
    if message.phase == "run" and message.memory_space not in ON_CHIP:
        return (
            "An allocation failed at run time, and not while compiling. Other arrays and programs "
            "share this memory; retrying helps only after some of them are freed."
        )
    return ""


def _while_compiling(message: OomMessage) -> str:
    """Whether freeing other memory can help a program to compile."""
    limit = message.limit_bytes
    if message.pool == "allocator":
        return (
            "While compiling, XLA tries kernels on the device, and an allocation for that failed. "
            "Other arrays and programs share this memory; retrying helps only after some of them "
            "are freed."
        )
    if message.memory_space is None and limit is not None and limit < LARGEST_ON_CHIP:
        return (
            f"A memory of {format_size(limit)} is on-chip memory: freeing HBM, by a smaller model "
            "or by donation, will not help."
        )
    if message.memory_space in ("hbm", None):
        return (
            "The program does not fit, even if nothing else is on the device: the compiler "
            "rejected it before running. Retrying or freeing other arrays will not help."
        )
    return ""


def _temporaries(message: OomMessage, breakdown: Mapping[str, int]) -> str:
    """What the compiler's figure for "HLO temporaries" counts."""
    if "HLO temporaries" not in message.text:
        return ""
    total = breakdown.get("total", message.used_bytes)
    others = breakdown.get("arguments", 0) + breakdown.get("outputs", 0)
    size = f" ({format_size(total)})" if total is not None else ""
    included = f"{format_size(others)} of " if others else ""
    return (
        f'XLA\'s "HLO temporaries"{size} is its total allocation. It includes {included}arguments '
        "and outputs, and can exceed the peak."
    )


def _fragmentation(message: OomMessage) -> str:
    requested, free = message.requested_bytes, message.free_bytes
    largest = message.largest_free_bytes
    if requested is None or free is None or free < requested:
        return ""
    if largest is not None and largest >= requested:
        return ""
    known = (
        f"but it is fragmented: the largest free block is {format_size(largest)}"
        if largest is not None
        else "so it is probably fragmented"
    )
    return (
        f"More memory is free ({format_size(free)}) than was requested "
        f"({format_size(requested)}), {known}."
    )


def _last_straw(message: OomMessage) -> str:
    """That a small request failed because the memory was full already."""
    requested = message.requested_bytes
    if (
        requested is None
        or message.phase != "run"
        or message.pool in ("reservation", "driver", "host")
    ):
        return ""
    if message.free_bytes is not None and message.free_bytes >= requested:
        return ""
    limit = message.limit_bytes
    if requested >= (limit // _SMALL_SHARE if limit else _SMALL_BYTES):
        return ""
    return (
        f"The failed {format_size(requested)} request is too small to be the cause. The memory was "
        "already full: look at the largest buffers and the live arrays."
    )


def _one_of_several(message: OomMessage) -> str:
    if message.partition is None:
        return ""
    return (
        f"Reported by partition {message.partition} of replica {message.replica}; the figures are "
        "for that device, and others may have failed too."
    )
