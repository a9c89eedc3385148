"""Texts that resemble an OOM and are none."""

from __future__ import annotations

import pytest

from hbmwatch import parse_oom

HARMLESS = {
    "a buffer of another program": "Out of memory while trying to allocate a string buffer",
    "CuPy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,512 bytes "
        "(allocated so far: 1,600,001,024 bytes)."
    ),
    "CuPy, cut": "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,512 bytes",
    "CuPy with little": "Out of memory allocating 512 bytes (allocated so far: 0 bytes).",
    "use of a disk": "Total disk usage >= 80G. Used 81G of 80G quota. Exceeded disk capacity by 1G",
    "a planner for a GPU": "It used 90 GiB of 80 GiB HBM, exceeding capacity by 10 GiB on an H100",
    "a disk of a TPU's host": "The TPU VM used 81 GiB of 80 GiB disk, exceeding capacity by 1 GiB",
    "prose on a device's memory": "Failed to alloc DEVICE memory! failed to alloc device memory: 4",
    "pages of a node": "Failed to allocate 16 MB (usage: tensors) on node 3",
    "a device of files": "failed to allocate 4.00G from device: /dev/sda is full",
    "another error of ROCm": "failed to allocate 4.00G from device: hipError_t(1011)",
    "a code without its error": "no E0100: the allocation requires ~640MB but only ~225MB is free",
    "use of memory": "Total memory usage >= 10GB. Program memory requirement 16GB",
    "swap": "Attempting to allocate 4G of swap. Attempting to allocate 512M for the page cache",
    "a heap": "Not enough memory to allocate 512 MB for the JVM heap",
    "a policy": "on failure 'out of memory' restart the pod",
    "a program that fits": (
        "I0320 03:59:34.722540 855 deepsea_compiler_backend.cc:2152] XLA::TPU program HBM usage: "
        "72.5K / 31.25G\n"
        "I0320 03:59:34.722541 855 deepsea_compiler_backend.cc:2163] Total hbm usage >= 281.14M:\n"
        "I0320 03:59:34.722542 855 deepsea_compiler_backend.cc:2163]     program 72.0K\n"
        "I0320 03:59:34.722543 855 deepsea_compiler_backend.cc:2167] Program vmem requirement "
        "143.0K:\nI0320 03:59:34.722544 855 deepsea_compiler_backend.cc:2167] Program hbm "
        "requirement 72.0K:\n"
    ),
    "a program that fits, in Ray": (
        "(pid=, ip=10.0.0.4) :2163] Total hbm usage >= 281.14M: [repeated 5x across cluster]\n"
        "(pid=, ip=10.0.0.6) I0320 03:59:34.777634 888 deepsea_compiler_backend.cc:2167] Program "
        "sflag requirement 228B: [repeated 7x across cluster]\n"
    ),
    "an error's name": "It FIT: no `CompileTimeHbmOom`. CompileTimeHbmOom: 0, E1000: 0",
    "a warning of the BFC allocator": (
        "2020-05-18 08:20:15.727714: W tensorflow/core/common_runtime/bfc_allocator.cc:239] "
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.46GiB with freed_by_count=0. "
        "The caller indicates that this is not a failure, but this may mean that there could be "
        "performance gains if more memory were available."
    ),
    "its older text": (
        "W bfc_allocator.cc:217] Ran out of memory trying to allocate 1.18GiB. \nThe caller "
        "indicates that this is not a failure, but may mean that there could be performance gains "
        "if more memory is available."
    ),
    "a warning of the convolution autotuner": (
        "W gpu_conv_algorithm_picker.cc:729] Failed to determine best cudnn convolution algorithm: "
        "Resource exhausted: Out of memory while trying to allocate 16777716 bytes.\n\n"
        "Convolution performance may be suboptimal."
    ),
    "rematerialization": (
        "W hlo_rematerialization.cc:3282] Can't reduce memory use below 193.77GiB (208055883007 "
        "bytes) by rematerialization; only reduced to 350.36GiB (376197049916 bytes), down from "
        "350.79GiB originally"
    ),
    "arguments above the base limit": (
        "The byte size of input/output arguments (34359738368) exceeds the base limit "
        "(17179869184). This indicates an error in the calculation!"
    ),
    "shared memory of a kernel": (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 4194304,"
        " available: 101376"
    ),
    "tensor memory of a kernel": (
        "RESOURCE_EXHAUSTED: Tensor memory size limit exceeded: requested 1024, available: 512"
    ),
    "shared memory of Mosaic GPU": (
        "ValueError: Mosaic GPU kernel exceeds available shared memory: smem_bytes=300000 > 232448"
    ),
    "ptxas": "ptxas error: Entry function 'fusion' uses too much shared data (0x12000 bytes)",
    "registers": (
        "RESOURCE_EXHAUSTED: [0] Failed to load PTX text as a module (register allocation failed)"
    ),
    "a scratch limit of the autotuner": (
        "RESOURCE_EXHAUSTED: Allocating 134217728 bytes exceeds the memory limit of 67108864 bytes."
    ),
    "a message of gRPC": (
        "RESOURCE_EXHAUSTED: Received message larger than max (123456789 vs. 4194304)"
    ),
    "a quota": (
        "google.api_core.exceptions.ResourceExhausted: 429 RESOURCE_EXHAUSTED: Quota exceeded for "
        "quota metric 'TPU v5e' and limit 'memory'"
    ),
    "open files": "RESOURCE_EXHAUSTED: /data/shard-00001.array_record; Too many open files",
    "threads": "Thread tf_device_initialization creation via pthread_create() failed. (11 vs. 0)",
    "no more threads": "RuntimeError: can't start new thread",
    "disk": "OSError: [Errno 28] No space left on device",
    "shm": "NCCL WARN Call to posix_fallocate failed : No space left on device",
    "NumPy": (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with "
        "shape (1000, 1000, 1000) and data type float64"
    ),
    "bad_alloc": "MemoryError: std::bad_alloc",
    "fork": "OSError: [Errno 12] Cannot allocate memory",
    "the kernel": "Memory cgroup out of memory: Killed process 2908 (python) total-vm:208060kB",
    "a RET_CHECK": (
        "Not Enough GPU memory? INTERNAL: RET_CHECK failure "
        "(external/xla/xla/service/gpu/gpu_compiler.cc:627) dnn != nullptr"
    ),
    "an FFT plan that is not there": (
        "INTERNAL: RET_CHECK failure (fft_thunk.cc:143) fft_plan != nullptr Failed to create cuFFT "
        "batched plan with scratch allocator."
    ),
    "cuDNN with free memory": (
        "E0514 15:42:22.522887 3766360 cuda_dnn.cc:532] Could not create cudnn handle: "
        "CUDNN_STATUS_INTERNAL_ERROR\nE0514 15:42:22.536489 3766360 cuda_dnn.cc:536] Memory usage: "
        "16601251840 bytes free, 16928342016 bytes total."
    ),
    "a library that does not start": (
        "FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above."
    ),
    "NCCL without a reason": (
        "INTERNAL: nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) "
        "failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    ),
    "a pool of semaphores": "INTERNAL: All 8 elements in the host memory pool are in use.",
    "an option": "ValueError: memory_fraction 0.9 leaves 1.5GiB of memory; RESOURCE_EXHAUSTED is 8",
    "a wrong program": "INVALID_ARGUMENT: E0102: RuntimeProgramInputMismatch: Executable expected",
    "an access": "INTERNAL: CUDA error: an illegal memory access was encountered",
    "cuDNN that does not start": (
        "cuda_dnn.cc:535] Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED\n"
        "cuda_dnn.cc:539] Memory usage: 15993929728 bytes free, 17179344896 bytes total."
    ),
    "cuDNN without figures": (
        "cuda_dnn.cc:535] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR"
    ),
    "an allocation of another program": "could not allocate buffer of size: 4096",
    "prose on NCCL": "it failed to CUDA malloc-like functions",
    "prose on NCCL's words": "I have failed to CUDA calloc in my tutorial",
    "prose on bytes of CUDA": "I have failed to CUDA malloc 64 bytes in my tutorial",
    "prose on bytes of the host": "I have failed to CUDA host alloc 64 bytes in my tutorial",
    "prose on NCCL and the host": "I have failed to CUDA host alloc in my tutorial",
    "NVLink SHARP, which its configuration fails": (
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out "
        "of memory'. This is usually caused by a system or configuration error in the Fabric "
        "Manager or NVSwitches."
    ),
    "several buffers": "Not enough space to allocate 4 B DRAM buffers",
    "prose on banks": "Not enough space to allocate 100 B DRAM buffer in my blog",
    "prose on banks of L1": "Not enough space to allocate 100 B L1 buffer across banks",
    "space on a disk": "Not enough space to allocate 2097152 B for the swap file across 2 disks",
    "resources of ROCm with free memory": (
        "rocdevice.cpp:3582: aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime "
        "failed to allocate the necessary resources. Code: 0x1008 Available Free mem : 60211 MB"
    ),
    "threads of ROCm": (
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: Too many threads. Available Free mem : 900 MB"
    ),
    "resources of ROCm with some memory": (
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: Available Free mem : 100 MB"
    ),
    "resources of ROCm without figures": (
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources."
    ),
    "an operation of a GPU": (
        "INTERNAL: jaxlib/gpu/prng_kernels.cc:33: operation gpuGetLastError() failed: invalid "
        "device function"
    ),
    "a list of what is free": (
        "- There are 12.22G free on the disk\n- There are 5.00G free, 0B reserved, and 5.00G "
        "reservable"
    ),
    "statistics of a TPU": (
        "[OOM Summary: Reason: Not enough free memory. Allocator stats:\nLimit: 102803437568\n"
        "InUse: 68240086016\n]"
    ),
    "statistics": "Stats: \nLimit: 17036574720\nInUse: 12345678848\nMaxInUse: 13345678848",
    "PyTorch": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.78 GiB of which 1.34 GiB is free."
    ),
}

NCCL = "n1:7:9 [0] NCCL WARN "
# What allocates after an error of the GPU, and fails for that reason.
UNEXPLAINED = {
    "calloc": f"{NCCL}Failed to CUDA calloc async 608 bytes",
    "malloc": "Last error:\nFailed to CUDA malloc 64 bytes",
    "cut": f"{NCCL}Failed to CUDA calloc",
    "host": f"{NCCL}Failed to CUDA host alloc 128 bytes",
    "cuBLAS": "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED",
    "cuBLAS that allocates": "failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED",
    "cuDNN": "INTERNAL: CUDNN_STATUS_ALLOC_FAILED",
    "cuFFT": "cuda_fft.cc:140] Failed to make cuFFT batched plan:2",
    "the driver": "failed to allocate 1.00GiB (1073741824 bytes) from device",
    "the pool of the driver": "cuMemAllocAsync failed to allocate 1073741824 bytes",
    "a kind of memory": "could not allocate device of size: 1073741824",
    "the pool": "Failed to allocate request for 4.50GiB (4831838208B) on device ordinal 0",
    "pinned memory": "failed to allocate 8.0KiB (8192 bytes) of pinned host memory",
    "a constant": "Failed to allocate 16 bytes for new constant",
}
# Errors of the GPU after which allocations go on.
PASSING_CAUSES = (
    "hipErrorPeerAccessAlreadyEnabled",
    "CUDA_ERROR_NOT_SUPPORTED: operation not supported",
    "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    f"{NCCL}Cuda failure 600 'not ready'",
    "CUDA_ERROR_OPERATING_SYSTEM: OS call failed",
)
OTHER_CAUSES = (
    f"{NCCL}Cuda failure 700 'an illegal memory access was encountered'",
    f"{NCCL}Cuda failure 'unspecified launch failure'",
    f"{NCCL}HIP failure 1 'invalid argument'",
    "INTERNAL: CUDA error: an illegal memory access was encountered",
    "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
    "cudaErrorLaunchFailure",
    "hipErrorIllegalAddress",
)


@pytest.mark.parametrize("cause", OTHER_CAUSES)
@pytest.mark.parametrize("name", UNEXPLAINED)
def test_an_allocation_that_fails_after_another_error_is_none(name: str, cause: str) -> None:
    """The last error that is named before it counts, where that is near."""
    text = UNEXPLAINED[name]
    found = [
        parse_oom(before + text) is not None
        for before in (
            f"{cause}\n",
            f"{cause}\n{NCCL}comm.cc:12 -> 1\n",
            f"{NCCL}Cuda failure 2 'out of memory'\n{cause}\n",
            "",
            f"{cause}\n{NCCL}Cuda failure 2 'out of memory'\n",
            f"{cause}\n" + "step 7 of 100\n" * 200,
        )
    ]
    # The third text states an OOM before the other error.
    assert found == [False, False, True, True, True, True]


@pytest.mark.parametrize("cause", PASSING_CAUSES)
@pytest.mark.parametrize("name", UNEXPLAINED)
def test_an_allocation_that_fails_after_a_passing_error_is_an_oom(name: str, cause: str) -> None:
    """Such errors are no reason why an allocation fails."""
    assert parse_oom(f"{cause}\n{UNEXPLAINED[name]}") is not None


@pytest.mark.parametrize(
    ("cause", "is_oom"),
    [
        (": CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", False),
        (": INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", False),
        ("; result: hipErrorIllegalAddress", False),
        (": CUDA_ERROR_OUT_OF_MEMORY: out of memory", True),
        (": HIP_ERROR_OutOfMemory", True),
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "failed to allocate 1.00GiB (1073741824 bytes) from device",
        "cuMemAllocAsync failed to allocate 1073741824 bytes",
        "failed to alloc 1073741824 bytes unified memory",
        "failed to alloc 1073741824 bytes on host",
    ],
)
def test_the_error_that_an_allocation_ends_with_is_its_cause(
    text: str, cause: str, is_oom: bool
) -> None:
    """Whatever was named before it."""
    assert (parse_oom(text + cause) is not None) is is_oom


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_an_oom_is_none(name: str) -> None:
    """Other limits, warnings and host errors give None, on one line or several."""
    text = HARMLESS[name]
    assert [parse_oom(text), parse_oom(text.replace(" ", "\n"))] == [None, None]
