"""How the CPU client says that memory ran out, and the texts that name no platform."""

from __future__ import annotations

from hbmwatch._messages.wording import BETWEEN, Wording, optional
from hbmwatch._records.message import OomMessage
from hbmwatch._records.sizes import SIZE

_CPU = OomMessage("", platform="cpu", phase="run", pool="host")

_CPU_WORDINGS = (
    Wording(
        "cpu",
        _CPU,
        "Out of memory allocating ",
        # CuPy has the same words: "OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes
        # (allocated so far: 512 bytes)".
        r"(?<!OutOfMemoryError: Out of memory allocating )(?><requested_bytes>)"
        r"(?! \(allocated so far)",
    ),
    Wording("cpu-literal", _CPU, "ailed to allocate buffer for Literal"),
)

# Tenstorrent's allocator. All figures but the first one are those of one bank of the memory.
_BANKS = (
    r" B {space} buffer across \d{{1,4}} banks",
    ", where each bank needs to store <#requested_bytes> B",
    ", but bank size is (?:only )?<#limit_bytes> B",
    r" \(allocated: <#total_allocated> B",
    ", free: <#free_bytes> B",
    ", largest free block: <#largest_free_bytes> B",
)
_BANK_WORDINGS = tuple(
    Wording(
        f"banks-{space.lower()}",
        OomMessage("", phase="run", memory_space=space.lower()),
        "Not enough space to allocate ",
        "<#total_buffer>" + _BANKS[0].format(space=words) + optional(*_BANKS[1:]),
    )
    for space, words in (("DRAM", "DRAM"), ("L1", "L1(?:_SMALL)?"))
)

# The runtime of AWS Neuron logs a request three times, and gives no error of its own.
_NEURON = OomMessage("", phase="run", memory_space="hbm")
_NEURON_WORDINGS = (
    Wording(
        "neuron",
        _NEURON,
        "ailed to allocate ",
        r"<approx_requested_bytes> \((?:alignment: [\w ]{1,20}, )?usage: [\w ]{1,40}\) on <device>"
        rf"(?:, current utilization:{BETWEEN}total: <total_current_utilization>)?",
        "log",
        needle=") on ND ",
    ),
    Wording(
        "neuron-device", _NEURON, "ailed to alloc DEVICE memory: ", "<#requested_bytes>", "log"
    ),
    Wording(
        "neuron-tensor",
        _NEURON,
        "ailed to allocate ",
        "<requested_bytes> on DEVICE for tensor",
        "log",
        needle=" on DEVICE for tensor",
    ),
)

_STATUSES = (
    ("exhausted", "RESOURCE_EXHAUSTED"),
    ("exhausted-old", "Resource exhausted"),
    ("internal", "INTERNAL"),
    ("internal-old", "Internal"),
)
# A status is followed by the number of the device: "INTERNAL: [0] out of memory".
_DEVICE = r"(?:\[\d{1,4}\] ?)?"

_ANY_PLATFORM_WORDINGS = (
    Wording(
        "request",
        OomMessage("", phase="run", memory_space="hbm", pool="allocator"),
        "ailed to allocate request for ",
        r"<approx_requested_bytes>(?: \(<requested_bytes>\))?(?: on device ordinal <device>)?",
    ),
    Wording(
        "tensorflow",
        OomMessage("", phase="run"),
        "ailed to allocate memory [Op:",
    ),
    Wording(
        "not-enough",
        OomMessage(""),
        "Not enough memory to allocate ",
        "<requested_bytes>(?! for )",
    ),
    *(
        Wording(
            f"status-{name}",
            OomMessage(""),
            f"{status}: ",
            rf"{_DEVICE}(?:(?!Out of memory while trying)[Oo]ut of memory(?! allocating)"
            rf"(?: (?:while )?trying to allocate)?|[Ff]ailed to allocate(?= {SIZE}| memory\b))"
            r"(?: <requested_bytes>)?",
            "quoted",
        )
        for name, status in _STATUSES
    ),
)

WORDINGS = (*_CPU_WORDINGS, *_BANK_WORDINGS, *_NEURON_WORDINGS, *_ANY_PLATFORM_WORDINGS)
