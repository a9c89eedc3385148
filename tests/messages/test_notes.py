"""What a message means, when only its text is available."""

from __future__ import annotations

import pytest

from hbmwatch import OomMessage, parse_oom
from hbmwatch._messages.notes import message_notes
from hbmwatch._records.memory_spaces import ON_CHIP

MIB, GIB = 1 << 20, 1 << 30
COMPILE = (
    "The program does not fit, even if nothing else is on the device: the compiler rejected it "
    "before running. Retrying or freeing other arrays will not help."
)
RUN = (
    "An allocation failed at run time, and not while compiling. Other arrays and programs share "
    "this memory; retrying helps only after some of them are freed."
)
CASES: dict[str, tuple[OomMessage, tuple[str, ...]]] = {
    "nothing is known": (OomMessage(""), ()),
    "compiling": (OomMessage("", phase="compile", memory_space="hbm"), (COMPILE,)),
    "running": (OomMessage("", phase="run", memory_space="hbm", requested_bytes=GIB), (RUN,)),
    "VMEM": (
        OomMessage("", platform="tpu", phase="compile", memory_space="vmem"),
        (
            "VMEM is on-chip memory: freeing HBM, by a smaller model or by donation, will not "
            "help. In a Pallas kernel, reduce the block sizes, or raise vmem_limit_bytes in "
            "pltpu.CompilerParams (https://openxla.org/xla/errors/error_1001).",
        ),
    ),
    "SMEM": (
        OomMessage("", platform="tpu", phase="compile", memory_space="smem"),
        (
            "SMEM is on-chip memory: freeing HBM, by a smaller model or by donation, will not "
            "help. In a Pallas kernel, reduce the blocks and scratch shapes that are in SMEM.",
        ),
    ),
    "CMEM": (
        OomMessage("", platform="tpu", phase="compile", memory_space="cmem"),
        ("CMEM is on-chip memory: freeing HBM, by a smaller model or by donation, will not help.",),
    ),
    "on-chip memory that the text does not name": (
        OomMessage("", platform="tpu", phase="compile", limit_bytes=16 * MIB),
        (
            "A memory of 16 MiB is on-chip memory: freeing HBM, by a smaller model or by donation, "
            "will not help.",
        ),
    ),
    "memory of a device that the text does not name": (
        OomMessage("", platform="tpu", phase="compile", limit_bytes=GIB),
        (COMPILE,),
    ),
    "a kernel that the compiler tried": (
        OomMessage("", phase="compile", memory_space="hbm", pool="allocator"),
        (
            "While compiling, XLA tries kernels on the device, and an allocation for that failed. "
            "Other arrays and programs share this memory; retrying helps only after some of them "
            "are freed.",
        ),
    ),
    "a bank": (
        OomMessage("", phase="run", memory_space="l1", requested_bytes=2 * MIB, limit_bytes=MIB),
        (
            "One allocation of 2 MiB is larger than the 1 MiB of one bank of L1. Retrying or "
            "freeing other arrays will not help.",
        ),
    ),
    "outside the pool": (
        OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="driver"),
        (
            "This allocation is outside JAX's array pool (CUDA modules, CUDA graphs, NCCL, library "
            "handles). Lower XLA_CLIENT_MEM_FRACTION (formerly XLA_PYTHON_CLIENT_MEM_FRACTION) to "
            "leave more memory for it. Do not raise it, as is often advised: that leaves less "
            "memory for this allocation. To disable CUDA graphs, set "
            "XLA_FLAGS=--xla_gpu_enable_command_buffer= (empty).",
            RUN,
        ),
    ),
    "CPU": (
        OomMessage("", platform="cpu", phase="run", pool="host"),
        (
            "On the CPU backend, device memory is host RAM; the operating system refused the "
            "allocation.",
            RUN,
        ),
    ),
    "host memory of a GPU": (
        OomMessage("", platform="gpu", phase="run", memory_space="host", pool="host"),
        (
            "This is host memory, not device memory. XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB sets the "
            "limit of pinned host memory (default: 64).",
            RUN,
        ),
    ),
    "host memory of a TPU": (
        OomMessage("", platform="tpu", phase="run", memory_space="host", pool="host"),
        ("This is host memory, not device memory.", RUN),
    ),
    "one of several devices": (
        OomMessage("", replica=0, partition=3),
        (
            "Reported by partition 3 of replica 0; the figures are for that device, and others may "
            "have failed too.",
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_message_has_the_notes_of_its_memory_and_phase(case: str) -> None:
    """What ran out, and whether a retry can help; nothing where the text does not say."""
    message, expected = CASES[case]
    assert message_notes(message) == expected


@pytest.mark.parametrize("space", ON_CHIP)
def test_every_on_chip_memory_space_is_told_from_hbm(space: str) -> None:
    """Freeing HBM does not help them, and no note says that other arrays share them."""
    notes = message_notes(OomMessage("", phase="run", memory_space=space))
    assert [note.partition(":")[0] for note in notes] == [f"{space.upper()} is on-chip memory"]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {"requested_bytes": 2 * GIB, "free_bytes": 3 * GIB, "largest_free_bytes": GIB},
            "More memory is free (3.00 GiB) than was requested (2.00 GiB), but it is fragmented: "
            "the largest free block is 1.00 GiB.",
        ),
        (
            {"requested_bytes": 2 * GIB, "free_bytes": 2 * GIB},
            "More memory is free (2.00 GiB) than was requested (2.00 GiB), so it is probably "
            "fragmented.",
        ),
        ({"requested_bytes": 2 * GIB, "free_bytes": 2 * GIB - 1}, None),
        (
            {"requested_bytes": 2 * GIB, "free_bytes": 3 * GIB, "largest_free_bytes": 2 * GIB},
            None,
        ),
    ],
)
def test_fragmentation_is_stated_or_inferred(fields: dict[str, int], note: str | None) -> None:
    """Enough is free in all; it is in pieces if the largest block is too small or unknown."""
    expected = () if note is None else (note,)
    assert message_notes(OomMessage("", **fields)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("requested", "limit", "free", "size"),
    [
        (GIB - 1, 16 * GIB, None, "1.00 GiB"),
        (GIB, 16 * GIB, None, ""),
        (32 * MIB, 16 * GIB, 32 * MIB - 1, "32 MiB"),
        (32 * MIB, 16 * GIB, 32 * MIB, ""),
        (256 * MIB - 1, None, None, "256 MiB"),
        (256 * MIB, None, None, ""),
    ],
)
def test_a_small_request_did_not_fill_the_memory(
    requested: int, limit: int | None, free: int | None, size: str
) -> None:
    """It is small below a 16th of the device, or below 256 MiB of an unknown device."""
    message = OomMessage(
        "", phase="run", requested_bytes=requested, limit_bytes=limit, free_bytes=free
    )
    told = [note for note in message_notes(message) if "too small" in note]
    assert told == [
        f"The failed {size} request is too small to be the cause. The memory was already full: "
        "look at the largest buffers and the live arrays."
    ] * bool(size)


TEMPORARIES = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(300.00G) exceeds available HBM (15.75G). HLO module: jit_oom."
)


@pytest.mark.parametrize(
    ("breakdown", "note"),
    [
        (
            None,
            'XLA\'s "HLO temporaries" (300.00 GiB) is its total allocation. It includes arguments '
            "and outputs, and can exceed the peak.",
        ),
        (
            {"arguments": 150 * GIB, "outputs": 50 * GIB, "total": 301 * GIB},
            'XLA\'s "HLO temporaries" (301.00 GiB) is its total allocation. It includes 200.00 GiB '
            "of arguments and outputs, and can exceed the peak.",
        ),
    ],
)
def test_hlo_temporaries_are_the_total_allocation(
    breakdown: dict[str, int] | None, note: str
) -> None:
    """One note says what XLA's figure counts, with the exact sizes where they are known."""
    message = parse_oom(TEMPORARIES)
    assert message is not None
    assert message_notes(message, breakdown) == (COMPILE, note)
