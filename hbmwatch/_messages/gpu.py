"""How XLA:GPU, the CPU client and their allocators say that memory ran out.

The allocator's pool and the memory outside of it have opposite remedies, so each row says which of
them ran out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hbmwatch._messages.wording import Wording, add_total, optional, refine
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.sizes import SIZE, read_size

_POOL = OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="allocator")
_DRIVER = OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="driver")
_HOST = OomMessage("", platform="gpu", phase="run", memory_space="host", pool="host")
_CPU = OomMessage("", platform="cpu", phase="run", pool="host")

# The warning goes on: "with freed_by_count=0. The caller indicates that this is not a failure".
_FAILED = r"(?! with freed_by_count|[. ]{1,2}The caller)"
_CAUSE = (
    r"(?:: (?:RESOURCE_EXHAUSTED: )?(?:: )?(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory"
    r"|hipErrorOutOfMemory))?"
)
_STATUS = r"(?:\[\d{1,4}\] ?)?"

_POOL_WORDINGS = (
    Wording(
        "gpu-pool",
        _POOL,
        "Out of memory while trying to allocate",
        # Others run out of memory for "a string buffer".
        "(?! (?!with )[a-z])(?>"
        + optional(" <requested_bytes>", " with allocator <allocator>", " on device <device>")
        # A warning of the convolution autotuner, which goes on without the algorithm.
        + r")(?!\.? ?Convolution performance may be suboptimal)",
    ),
    Wording("gpu-block", _POOL, "BufferAssignment OOM Debugging", role="part"),
    Wording("gpu-stats", _POOL, "BufferAssignment stats: ", role="part"),
    Wording(
        "gpu-entry",  # of the peak buffers, where a log was cut in their midst
        _POOL,
        "Buffer ",
        rf"\d{{1,4}}: Size: {SIZE} (?:Operator|XLA Label|Shape|Entry Parameter Subshape): ",
        "entry",
    ),
    Wording(
        "gpu-bfc",
        _POOL,
        "Allocator (",
        r"<allocator>\) ran out of memory trying to allocate"
        + f"(?: <about_requested_bytes>{_FAILED}"
        + r"(?: \(rounded to <#up_requested_bytes>\))?|$)",
        "log",
    ),
    Wording(
        "gpu-bfc-old",
        _POOL,
        "Ran out of memory trying to allocate ",
        f"<requested_bytes>{_FAILED}",
        "log",
    ),
    Wording(
        "gpu-async",
        _POOL,
        "cuMemAllocAsync failed to allocate ",
        r"<#requested_bytes>(?= bytes|:)",
        "log",
    ),
    Wording(
        "gpu-async-memory",
        _POOL,
        "Free memory/Total memory: ",
        r"<#free_bytes>/<#limit_bytes>(?= )",
        "detail",
    ),
    Wording(
        "gpu-budget",
        _POOL,
        "Not enough PA budget: pa_allocated=",
        "<total_pa_allocated>"
        + optional(", allocation_size=<requested_bytes>", ", pa_budget=<limit_bytes>"),
    ),
    Wording(
        "gpu-all-reduce",
        _POOL,
        "ailed to allocate ",
        "<requested_bytes> for all-reduce",
        needle=" for all-reduce",
    ),
    Wording(
        "tensorflow",
        OomMessage("", phase="run"),
        "ailed to allocate memory [Op:",
    ),
    Wording("gpu-offsets", _POOL, "ailed to allocate output offsets buffer"),
    Wording(
        "gpu-tensor",
        _POOL,
        "OOM when allocating tensor with shape",
        optional(r"\[[\d,]{0,100}\] and type \w{1,40} on <device>", " by allocator <allocator>"),
    ),
    Wording(
        "gpu-log-stats",
        _POOL,
        "Stats: Limit: ",
        "<#limit_bytes>(?= )"
        + optional(
            " InUse: <#total_InUse>(?= )",
            " MaxInUse: <#total_MaxInUse>(?= )",
            r" NumAllocs: \d{1,20}(?= )",
            " MaxAllocSize: <#total_MaxAllocSize>(?= )",
            " Reserved: <#total_Reserved>(?= )",
            " PeakReserved: <#total_PeakReserved>(?= )",
            " LargestFreeBlock: <#largest_free_bytes>(?= )",
        ),
        "detail",
    ),
)

_DRIVER_WORDINGS = (
    Wording(
        "gpu-from-device",
        _DRIVER,
        "ailed to allocate ",
        r"<about_requested_bytes> \(<requested_bytes>\) from device" + _CAUSE,
        "attempt",
        needle=" from device",
    ),
    Wording(
        "gpu-unified",
        _DRIVER,
        "ailed to alloc ",
        "<requested_bytes> unified memory(?:; result: CUDA_ERROR_OUT_OF_MEMORY)?",
        "attempt",
        needle=" unified memory",
    ),
    Wording(
        "gpu-unified-memory",
        _DRIVER,
        "ailed to allocate ",
        r"<about_requested_bytes> \(<requested_bytes>\) (?:of|from) unified memory",
        needle=" unified memory",
    ),
    Wording(
        "gpu-graph",
        _DRIVER,
        "nderlying backend ran out of memory trying to instantiate",
    ),
    Wording(
        "gpu-graph-failed",
        _DRIVER,
        "ailed to instantiate ",
        r"(?:CUDA |GPU |gpu |HIP |cuda )?(?:graph|command buffer):"
        r" (?:[A-Za-z_]{1,80}: ?){0,3}(?:out of memory|hipErrorOutOfMemory)",
        "echo",
    ),
    Wording(
        "gpu-constant",
        _DRIVER,
        "ailed to allocate ",
        "<#requested_bytes> bytes for new constant",
        needle=" bytes for new constant",
    ),
    Wording(
        "gpu-nccl",  # and RCCL's "HIP failure"
        _DRIVER,
        " failure ",
        r"(?:(?<=uda failure )|(?<=UDA failure )|(?<=HIP failure ))(?:\d{1,4} )?'out of memory'",
        "echo",
        needle="'out of memory'",
    ),
    Wording(
        "gpu-nccl-alloc",
        _DRIVER,
        "CCL WARN Failed to ",
        "(?:CUDA|HIP) (?:host )?[cm]?alloc",
        "echo",
    ),
    Wording(
        "gpu-context",
        _DRIVER,
        "cudaSetDevice() on ",
        r"GPU:<device> failed\. Status: out of memory",
    ),
    Wording(
        "gpu-cublas",
        _DRIVER,
        "ailed to create ",
        r"(?:cublas|cublasLt|cuBLAS|cudnn|cuDNN|cusparse|cuSPARSE|cusolver|rocBLAS|rocblas)"
        r" handle: (?:CU\w{1,20}_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|cublas error"
        r"|the resource allocation failed|the library was not initialized"
        r"|rocblas_status_memory_error)",
        "log",
    ),
    Wording(
        "gpu-cudnn",
        _DRIVER,
        "ould not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED",
        role="log",
    ),
    Wording(
        "gpu-cudnn-full",
        _DRIVER,
        "ould not create cudnn handle: CUDNN_STATUS_",
        r"(?:INTERNAL_ERROR|NOT_INITIALIZED)"
        # The failed handle alone says nothing of memory; below 100 MB free it does.
        r".{0,120}?Memory usage: <#free_bytes>(?<!\d{9}) bytes free, <#limit_bytes> bytes total",
        "log",
    ),
    Wording(
        "gpu-cudnn-memory",
        _DRIVER,
        "Memory usage: ",
        "<#free_bytes> bytes free, <#limit_bytes> bytes total",
        "detail",
    ),
    Wording("gpu-cudnn-alloc", _DRIVER, "CUDNN_STATUS_ALLOC_FAILED", role="echo"),
    Wording("gpu-cublas-alloc", _DRIVER, "CUBLAS_STATUS_ALLOC_FAILED", role="echo"),
    Wording("gpu-cusolver-alloc", _DRIVER, "CUSOLVER_STATUS_ALLOC_FAILED", role="echo"),
    Wording("gpu-cufft-alloc", _DRIVER, "CUFFT_ALLOC_FAILED", role="echo"),
    Wording(
        "gpu-cufft-plan",
        _DRIVER,
        "ailed to create cuFFT batched plan",
        # 2 is CUFFT_ALLOC_FAILED. A RET_CHECK's text does not say why there is no plan.
        r"(?::2(?!\d)|(?<!nullptr Failed to create cuFFT batched plan) with scratch allocator)",
        "log",
    ),
    Wording(
        "gpu-cufft-make",
        _DRIVER,
        "ailed to make cuFFT batched plan:2",
        r"(?!\d)",
        "log",
    ),
    Wording("gpu-cufft-area", _DRIVER, "ailed to allocate work area", role="log"),
    Wording(
        "gpu-cufft-limit",
        _DRIVER,
        "batched cufft plan with customized allocator: Allocating ",
        "<requested_bytes> exceeds the memory limit of <limit_bytes>",
    ),
    Wording(
        "gpu-driver",
        _DRIVER,
        "CUDA_ERROR_OUT_OF_MEMORY",
        "(?:: out of memory; total memory reported: <#limit_bytes>)?",
        "echo",
    ),
    Wording("gpu-runtime", _DRIVER, "cudaErrorMemoryAllocation", role="echo"),
    Wording("gpu-rocm", _DRIVER, "hipErrorOutOfMemory", role="echo"),
    Wording("gpu-rocm-driver", _DRIVER, "HIP_ERROR_OutOfMemory", role="echo"),
    Wording("gpu-rocm-event", _DRIVER, "ould not create ROCM event: out of device memory"),
    Wording(
        "gpu-cudnn-device",
        _DRIVER,
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        role="echo",
    ),
    Wording("gpu-cudnn-scratch", _DRIVER, "ailed to allocate scratch memory"),
    Wording(
        "gpu-rmm",  # the allocator of RAFT's top-k kernels
        _DRIVER,
        "(failed to allocate ",
        r"<#requested_bytes> bytes\)",
    ),
    Wording("gpu-barrier", _DRIVER, "ailed to allocate RaggedAllToAll barrier buffers"),
)

_HOST_WORDINGS = (
    Wording(
        "host",
        _HOST,
        "Out of host memory while trying to allocate",
        optional(" <requested_bytes>", r"\.? with allocator <allocator>", " on device <device>"),
    ),
    Wording(
        "host-pinned",
        _HOST,
        "ailed to allocate ",
        r"<about_requested_bytes> \(<requested_bytes>\) (?:of|from) (?:pinned )?host memory",
        needle="host memory",
    ),
    Wording(
        "host-staging",
        _HOST,
        "ailed to allocate a ",
        r"<#requested_bytes>-byte (?:pinned host staging|buffer from the custom host memory)",
    ),
    Wording(
        "host-transfer",
        _HOST,
        "ailed to allocate staging buffer of size ",
        "<#requested_bytes>",
    ),
    Wording("host-transfer-buffer", _HOST, "ailed to allocate host memory for transfer buffer"),
    Wording(
        "host-offload",
        _HOST,
        "ailed to allocate ",
        "<#requested_bytes> bytes for host offloading transfer buffer",
        needle=" for host offloading",
    ),
    Wording(
        "host-alloc",
        _HOST,
        "ailed to alloc ",
        "<requested_bytes> on host" + _CAUSE,
        "attempt",
    ),
    Wording(
        "host-alloc-size",
        _HOST,
        "ould not allocate pinned host memory of size: ",
        "<#requested_bytes>",
        "attempt",
    ),
)

_CPU_WORDINGS = (
    Wording(
        "cpu",
        _CPU,
        "Out of memory allocating ",
        # CuPy goes on: "8,000,000,000 bytes (allocated so far: 512 bytes)".
        r"(?!\d{1,3},)(?><requested_bytes>)(?! \(allocated so far)",
    ),
    Wording("cpu-literal", _CPU, "ailed to allocate buffer for Literal"),
)

_SHARED_WORDINGS = (
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
            rf"{_STATUS}(?:(?!Out of memory while trying)[Oo]ut of memory(?! allocating)"
            rf"(?: (?:while )?trying to allocate)?|[Ff]ailed to allocate(?= {SIZE}))"
            r"(?: <requested_bytes>)?",
            "echo",
        )
        for name, status in (
            ("exhausted", "RESOURCE_EXHAUSTED"),
            ("exhausted-old", "Resource exhausted"),
            ("internal", "INTERNAL"),
            ("internal-old", "Internal"),
        )
    ),
)

WORDINGS = (
    *_HOST_WORDINGS,
    *_POOL_WORDINGS,
    *_DRIVER_WORDINGS,
    *_CPU_WORDINGS,
    *_SHARED_WORDINGS,
)

_TOTAL = (
    r"((?:parameter|constant|maybe_live_out|preallocated temp|total)"
    rf" (?:allocation|fragmentation)): +({SIZE})"
)
_TOTALS_REACH = 2000
_ENTRY = rf"Buffer \d{{1,4}}: Size: ({SIZE})"
_FIELD = r"(Operator|XLA Label|Shape|Entry Parameter Subshape): "
_ATTRIBUTE = r'(op_name|source_file)="([^"]*)"|source_line=(\d{1,9})'


def add_details(fields: dict[str, Any], text: str) -> None:
    """Adds what a flat XLA:GPU message says after its first sentence."""
    allocator = fields.get("allocator", "")
    if "host" in allocator:
        fields["memory_space"] = fields["pool"] = "host"
    if allocator.endswith("cpu"):  # TensorFlow's "cpu" and "mklcpu"
        fields |= {"platform": "cpu", "memory_space": None, "pool": "host"}
    block = text.find("BufferAssignment stats: ")
    if block < 0:
        if " Size: " in text:
            fields["ops"] = tuple(sorted(_listed(text), key=lambda op: -op.size_bytes))
        return
    for name, size in re.findall(_TOTAL, text[block:][:_TOTALS_REACH]):
        add_total(fields, name, size)
        if name == "total allocation":
            refine(fields, "used_bytes", read_size(size))
        if name == "total fragmentation":
            refine(fields, "fragmentation_bytes", read_size(size))
    fields["ops"] = tuple(sorted(_listed(text[block:]), key=lambda op: -op.size_bytes))


def _listed(text: str) -> Iterator[PeakOp]:
    """The peak buffers: "Buffer 1: Size: 6.00MiB Operator: ... XLA Label: fusion Shape: ..."."""
    starts = list(re.finditer(_ENTRY, text))
    for start, end in zip(starts, [m.start() for m in starts[1:]] + [len(text)]):
        parts = re.split(_FIELD, text[start.end() : end].partition(" =====")[0])[1:]
        entry = {name: value.strip() for name, value in zip(parts[::2], parts[1::2])}
        size = read_size(start[1])
        if size:
            yield _op(entry, size.size_bytes)


def _op(entry: dict[str, str], size_bytes: int) -> PeakOp:
    attributes = re.finditer(_ATTRIBUTE, entry.get("Operator", ""))
    operator = {match[1] or "line": match[2] or match[3] for match in attributes}
    path, line = operator.get("source_file") or "", operator.get("line")
    frame = f"{path}:{line}" if path and line else path
    subshape = entry.get("Entry Parameter Subshape")
    label = "parameter" if subshape is not None else entry.get("XLA Label", "")
    return PeakOp(
        instruction=label,
        opcode=label,
        op_name=operator.get("op_name") or "",
        shape=subshape or entry.get("Shape", ""),
        size_bytes=size_bytes,
        unpadded_bytes=size_bytes,
        kind="parameter" if subshape is not None else "",
        source=frame.rpartition("/")[2],
        stack=(frame,) if frame else (),
    )
