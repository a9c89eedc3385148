"""Errors that may be an OOM although they do not say so, and host memory that ran out."""

from __future__ import annotations

import pytest

from hbmwatch import parse_oom
from hbmwatch._messages.possible import possible_oom
from tests.messages.test_look_alikes import HARMLESS

PROBABLY = "Probably host memory ran out, not device memory, unless the CPU is the device: "
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
ABORT = "terminate called after throwing an instance of '{}'\n  what():  {}\nAborted (core dumped)"
# Each text, and what its note begins with.
NOTES = {
    "XlaRuntimeError: INTERNAL: YNNPACK operation failed: error": "XLA gives no reason",
    "JIT session error: Cannot allocate memory\nFatal Python error": "The operating system refused",
    "cling JIT session error: Cannot allocate memory": "The operating system refused",
    "MemoryError: std::bad_alloc": PROBABLY,
    "terminate called after throwing an instance of 'std::bad_alloc'": PROBABLY,
    "jax.errors.JaxRuntimeError: INTERNAL: std::bad_alloc": PROBABLY,
    'Traceback (most recent call last):\n  File "a.py", line 1\nMemoryError': PROBABLY,
    "builtins.MemoryError: no buffer": PROBABLY,
    HARMLESS["NumPy"]: PROBABLY,
    HARMLESS["fork"]: "The operating system refused memory of the host. Probably",
    "solver_handle_pool.cc:37: operation gpusolverDnCreate(&handle) failed: cuSolver internal "
    "error": "A library of the GPU could not start, and gives no reason. Possibly",
}
NOTES |= dict.fromkeys(
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have "
        "been OOM Killed.",
        "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=71.batch. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
        "[ 88.1] Out of memory: Killed process 1234 (python3) total-vm:9000kB, anon-rss:8000kB",
        "Out of memory: Kill process 1234 (python3) score 900 or sacrifice child",
        "kernel: Memory cgroup out of memory: Killed process 77 (python), UID 0",
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137",
        '"terminated":{"exitCode":137,"reason":"OOMKilled"}',
        '"State": {"OOMKilled": true, "ExitCode": 137}',
        "trainer-0   0/1     OOMKilled   1 (5s ago)   5m",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ),
    "Host memory ran out, not device memory, unless the CPU is the device: ",
)
NOTES |= dict.fromkeys(
    (
        ABORT.format("std::bad_alloc", "std::bad_alloc"),
        "  what():  std::bad_alloc",
        "libc++abi: terminating due to uncaught exception of type std::bad_alloc: std::bad_alloc",
        "builtins.MemoryError: std::bad_alloc",
        "MemoryError: Unable to allocate 8.00 PiB",
        "numpy.core._exceptions.MemoryError: Unable to allocate 1 GiB for an array with shape (3,)",
        "E   MemoryError",
        "E   MemoryError\n\na.py:3: MemoryError\nFAILED a.py::test_a - MemoryError",
        f"{TRACEBACK}ValueError: shapes\n{TRACEBACK}MemoryError\nstep 7: device cuda:0 is idle",
        f"{TRACEBACK}MemoryError\n{TRACEBACK}MemoryError: no buffer",
        f"{TRACEBACK}MemoryError\nsubprocess.CalledProcessError: Command '['a']' returned 1",
        f"{TRACEBACK}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        f"{TRACEBACK}MemoryError",
    ),
    PROBABLY,
)
NOTES |= {"      Reason:  Error\n      Exit Code:    137": "A process was killed (exit code 137"}
NONE = (
    "Detected 0 failures; the oom_kill counter of StepId=71.0 was read",
    "Out of memory: consider a smaller batch. Killed process groups are restarted",
    '"State": {"OOMKilled": false, "ExitCode": 0}',
    "if a pod is OOMKilled, raise its limit of memory",
    "the node is not running low on memory",
    "Exit Code:    1",
    "exit code 1370",
    "step 137, code 137",
    "std::bad_alloc: out_of_memory: CUDA error at: rmm/mr/cuda_memory_resource.hpp",
    "MemoryError: std::bad_alloc: out_of_memory: CUDA error",
    "torch.OutOfMemoryError: CUDA out of memory",
    "    except MemoryError:",
    "operation gpusolverDnCreate(&handle) failed: CUSOLVER_STATUS_ARCH_MISMATCH",
    "could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
    "INTERNAL: Autotuning failed for HLO: %fusion = f64[6,3] fusion(...)",
    "",
)

# Errors of device memory that libraries name like those of the host.
OF_THE_DEVICE = (
    "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory",
    "pyopencl._cl.MemoryError: create_buffer failed: MEM_OBJECT_ALLOCATION_FAILURE",
    "MemoryError: CUDA out of memory",
    "MemoryError: cuMemAlloc failed",
    "MemoryError: hipMalloc failed",
    "MemoryError: create_buffer failed: MEM_OBJECT_ALLOCATION_FAILURE",
    "MemoryError: failed to allocate 8 GiB on device cuda:0",
    "MemoryError: no space left on GPU 3",
    "MemoryError: std::bad_alloc: out_of_memory: RMM failure",
    "rmm::bad_alloc was thrown: std::bad_alloc: cudaErrorLaunchFailure",
    "INTERNAL: std::bad_alloc: CUDA error (failed to allocate 4 bytes) at: rmm/mr/cuda_async.hpp",
    ABORT.format("rmm::bad_alloc", "std::bad_alloc: cudaErrorLaunchFailure"),
    ABORT.format("std::bad_alloc", "std::bad_alloc: CUDA error"),
    ABORT.format("thrust::system::detail::bad_alloc", "std::bad_alloc"),
    f"{TRACEBACK}MemoryError\n{TRACEBACK}pycuda._driver.MemoryError: cuMemAlloc failed",
    f"{TRACEBACK}MemoryError\n{TRACEBACK}MemoryError: CUDA out of memory",
)
# Errors of the host's memory that are only mentioned, or that another error follows.
MENTIONED = (
    "The std::bad_alloc in line 3 was fixed",
    "The std::bad_alloc in line 3 was fixed\nValueError: shapes",
    "We catch MemoryError: it is raised by NumPy",
    "The error said: Unable to allocate 8 GiB for an array with shape (3,)",
    "see [Errno 12] Cannot allocate memory in the manual",
    f"{TRACEBACK}MemoryError\n\nE   ValueError: shapes",
    f"{TRACEBACK}MemoryError\n\nE   ValueError",
    f"E   MemoryError\n{TRACEBACK}jax.errors.JaxRuntimeError: INTERNAL: shapes",
    f"{TRACEBACK}MemoryError\nsteps go on\nKeyboardInterrupt",
    f"{HARMLESS['NumPy']}\n{TRACEBACK}ValueError: shapes",
    f"MemoryError: std::bad_alloc\n{TRACEBACK}ValueError: shapes",
    f"{HARMLESS['fork']}\n{TRACEBACK}ValueError: shapes",
    f"{HARMLESS['fork']}\n{TRACEBACK}OSError: [Errno 28] No space left on device",
    f"{TRACEBACK}MemoryError\n" + ABORT.format("std::runtime_error", "shapes"),
)


@pytest.mark.parametrize("text", NOTES)
def test_an_error_that_may_be_an_oom_has_a_note(text: str) -> None:
    """The note says which memory, or says that it is only possible."""
    assert possible_oom(text).startswith(NOTES[text])


@pytest.mark.parametrize("text", [text for text in NOTES if "kill" in text.lower()])
def test_a_killed_process_is_no_device_oom(text: str) -> None:
    """parse_oom says nothing of host memory."""
    assert parse_oom(text) is None


@pytest.mark.parametrize("text", NONE + OF_THE_DEVICE + MENTIONED)
def test_other_errors_have_no_note(text: str) -> None:
    """Device memory that is stated, a handler in source text, and errors with another cause."""
    assert possible_oom(text) == ""
