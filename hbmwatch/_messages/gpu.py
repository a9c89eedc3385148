"""How XLA:GPU, its allocators and the CUDA and ROCm libraries say that memory ran out.

JAX's memory pool and the memory outside it have opposite remedies, so each row says which of them
ran out.
"""

from __future__ import annotations

from hbmwatch._messages.wording import STATISTICS as LOGGED_STATISTICS
from hbmwatch._messages.wording import Wording, optional
from hbmwatch._records.message import OomMessage
from hbmwatch._records.sizes import SIZE

STATISTICS = "BufferAssignment stats: "

_POOL = OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="allocator")
# An allocator that the driver refuses memory asks for less, so that the program need not fail.
_RESERVATION = OomMessage("", platform="gpu", memory_space="hbm", pool="reservation")
_DRIVER = OomMessage("", platform="gpu", phase="run", memory_space="hbm", pool="driver")
# The GPU, its context and the libraries start before a program runs, and for the autotuner.
_START = OomMessage("", platform="gpu", memory_space="hbm", pool="driver")
_HOST = OomMessage("", platform="gpu", phase="run", memory_space="host", pool="host")

# People fail to CUDA malloc some bytes too, in a tutorial. NCCL's own words begin a sentence.
_OF_NCCL = "(?<![A-Za-z] )F$|(?i:[nr]ccl)"
# A warning continues: "with freed_by_count=0. The caller indicates that this is not a failure".
_FAILED = r"(?! with freed_by_count|[. ]{1,2}The caller)"
_CAUSE = (
    r"(?:: (?:RESOURCE_EXHAUSTED: )?(?:: )?(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory"
    r"|hipErrorOutOfMemory))?"
)
_POOL_REQUEST = (
    # Other programs run out of memory "while trying to allocate a string buffer".
    "(?! (?!with )[a-z])(?>"
    + optional(" <requested_bytes>", " with allocator <allocator>", " on device <device>")
    # A warning of the convolution autotuner, which continues without the algorithm.
    + r")(?!\.? ?Convolution performance may be suboptimal)"
)

_POOL_WORDINGS = (
    Wording(
        "gpu-pool",
        _POOL,
        "Out of memory while trying to allocate",
        _POOL_REQUEST,
        after="(?i:resource.?exhausted)|Execution of replica",
    ),
    Wording(
        "gpu-pool-alone",  # in a table or in prose, which do not say that it was at run time
        OomMessage("", platform="gpu", memory_space="hbm", pool="allocator"),
        "Out of memory while trying to allocate",
        _POOL_REQUEST,
    ),
    Wording("gpu-block", _POOL, "BufferAssignment OOM Debugging", source="continuation"),
    Wording("gpu-stats", _POOL, STATISTICS, source="continuation"),
    Wording(
        "gpu-entry",  # of the list of buffers, where a log starts in the middle of it
        _POOL,
        "Buffer ",
        rf"\d{{1,4}}: Size: {SIZE} (?:Operator|XLA Label|Shape|Entry Parameter Subshape): ",
        "allocation_entry",
    ),
    Wording(
        "gpu-bfc",
        _POOL,
        "Allocator (",
        r"<allocator>\) ran out of memory trying to allocate"
        + f"(?: <approx_requested_bytes>{_FAILED}"
        + r"(?: \(rounded to <#rounded_up_requested_bytes>\))?| ?$)",
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
        "Free memory/Total",
        # At the end of a text a number may be cut, unless a person has separated its thousands.
        r"(?: memory)?: <#free_bytes> ?/ ?<#limit_bytes>(?: |(?<=[,_']\d{3})$)",
        "extra_figures",
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
            *LOGGED_STATISTICS,
            " LargestFreeBlock: <#largest_free_bytes>(?= |(?<= 0)$)",
        ),
        "extra_figures",
    ),
    Wording(
        "gpu-dump",  # what the BFC allocator logs when it fails
        _POOL,
        "Sum Total of in-use chunks: ",
        "<total_in_use_chunks>",
        "log",
    ),
    Wording(
        "gpu-dump-limit",
        _POOL,
        "total_region_allocated_bytes_: ",
        "<#total_allocated_regions>"
        + optional(
            " memory_limit_: <#limit_bytes>(?= )",
            " available bytes: <#total_available_bytes>(?= )",
        ),
        "extra_figures",
    ),
)

_DRIVER_WORDINGS = (
    Wording(
        "gpu-from-device",
        _RESERVATION,
        "ailed to allocate ",
        # 1002 was hipErrorMemoryAllocation.
        r"<approx_requested_bytes>(?: \(<requested_bytes>\) from device"
        + _CAUSE
        + r"| from device: hipError_t\(1002\))",
        "retry_log",
        needle=" from device",
    ),
    Wording(
        "gpu-alloc-size",
        _RESERVATION,
        "ould not allocate ",
        "(?:device|unified|collective) (?:memory )?of size: <#requested_bytes>",
        "retry_log",
        needle=" of size: ",
    ),
    Wording(
        "gpu-unified",
        _RESERVATION,
        "ailed to alloc ",
        "<requested_bytes> unified memory(?:; result: CUDA_ERROR_OUT_OF_MEMORY)?",
        "retry_log",
        needle=" unified memory",
    ),
    Wording(
        "gpu-unified-memory",
        _RESERVATION,
        "ailed to allocate ",
        r"<approx_requested_bytes> \(<requested_bytes>\) (?:of|from) unified memory",
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
        "quoted",
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
        " failure",
        r"(?:(?<=uda failure)|(?<=UDA failure)|(?<=HIP failure)):?(?: \d{1,4})? 'out of memory'",
        "quoted",
        needle="'out of memory'",
    ),
    Wording(
        "gpu-nccl-alloc",  # RCCL has the same words, with "CUDA" too
        _DRIVER,
        "ailed to CUDA ",
        r"[cm]alloc(?![\w-])(?: async)?(?:(?: of)? [`'\"]?<requested_bytes>"
        r"|(?<=WARN Failed to CUDA .alloc)|(?<=WARN Failed to CUDA .alloc async))",
        "quoted",
        after=_OF_NCCL,
    ),
    Wording(
        "gpu-operation",
        _DRIVER,
        "operation gpu",
        r"\w{1,60}\([^()]{0,200}\) failed: out of memory",
        "quoted",
        needle=" failed: out of memory",
    ),
    Wording(
        "gpu-hsa",
        _DRIVER,
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        # Threads and events are resources too; with less than 100 MB free, memory is the reason.
        r".{0,250}?Available Free mem ?: (?=\d{1,2} ?MB)<free_bytes>",
    ),
    Wording(
        "gpu-context",
        _START,
        "cudaSetDevice() on ",
        r"GPU:<device> failed\. Status: out of memory",
    ),
    Wording(
        "gpu-cublas",
        _START,
        "ailed to create ",
        r"(?:cublas|cublasLt|cuBLAS|cudnn|cuDNN|cusparse|cuSPARSE|cusolver|rocBLAS|rocblas)"
        r" handle: (?:CU\w{1,20}_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|cublas error"
        r"|the resource allocation failed|the library was not initialized"
        r"|rocblas_status_memory_error)",
        "log",
    ),
    Wording(
        "gpu-cudnn",
        _START,
        "ould not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED",
        source="log",
    ),
    Wording(
        "gpu-cudnn-full",
        _START,
        "ould not create cudnn handle: CUDNN_STATUS_",
        r"(?:INTERNAL_ERROR|NOT_INITIALIZED)"
        # A handle fails for other reasons too; with less than 100 MB free, memory is the reason.
        r".{0,120}?Memory usage: <#free_bytes>(?<!\d{9}) bytes free, <#limit_bytes> bytes total",
        "log",
    ),
    Wording(
        "gpu-cudnn-memory",
        _START,
        "Memory usage: ",
        "<#free_bytes> bytes free, <#limit_bytes> bytes total",
        "extra_figures",
    ),
    Wording("gpu-cudnn-alloc", _DRIVER, "CUDNN_STATUS_ALLOC_FAILED", source="quoted"),
    Wording("gpu-cublas-alloc", _DRIVER, "CUBLAS_STATUS_ALLOC_FAILED", source="quoted"),
    Wording("gpu-cusolver-alloc", _DRIVER, "CUSOLVER_STATUS_ALLOC_FAILED", source="quoted"),
    Wording("gpu-cufft-alloc", _DRIVER, "CUFFT_ALLOC_FAILED", source="quoted"),
    Wording(
        "gpu-cufft-plan",
        _DRIVER,
        "ailed to create cuFFT batched plan",
        # 2 is CUFFT_ALLOC_FAILED. The text of a RET_CHECK does not say why there is no plan.
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
    Wording("gpu-cufft-area", _DRIVER, "ailed to allocate work area", source="log"),
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
        "quoted",
    ),
    Wording("gpu-runtime", _DRIVER, "cudaErrorMemoryAllocation", source="quoted"),
    Wording("gpu-rocm", _DRIVER, "hipErrorOutOfMemory", source="quoted"),
    Wording("gpu-rocm-driver", _DRIVER, "HIP_ERROR_OutOfMemory", source="quoted"),
    Wording("gpu-rocm-event", _DRIVER, "ould not create ROCM event: out of device memory"),
    Wording(
        "gpu-cudnn-device",
        _DRIVER,
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        source="quoted",
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
        r"<approx_requested_bytes> \(<requested_bytes>\) (?:of|from) (?:pinned )?host memory",
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
    Wording(
        "host-nccl",
        _HOST,
        "ailed to CUDA host alloc",
        "(?:(?: of)? [`'\"]?<requested_bytes>|(?<=WARN Failed to CUDA host alloc))",
        "quoted",
        after=_OF_NCCL,
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
        "retry_log",
    ),
    Wording(
        "host-alloc-size",
        _HOST,
        "ould not allocate ",
        "(?:pinned )?host (?:memory )?of size: <#requested_bytes>",
        "retry_log",
        needle=" of size: ",
    ),
    Wording(
        "unknown-alloc-size",
        OomMessage("", platform="gpu"),
        "ould not allocate unknown of size: ",
        "<#requested_bytes>",
        "retry_log",
    ),
)

WORDINGS = (*_HOST_WORDINGS, *_POOL_WORDINGS, *_DRIVER_WORDINGS)
