"""Errors that may be an OOM although they do not say so, and host memory that ran out."""

from __future__ import annotations

import pytest

from hbmwatch import parse_oom
from hbmwatch._messages.possible import possible_oom
from tests.messages.test_look_alikes import HARMLESS

# Each text, and what its note begins with.
NOTES = {
    "XlaRuntimeError: INTERNAL: YNNPACK operation failed: error": "XLA gives no reason",
    "JIT session error: Cannot allocate memory\nFatal Python error": "The operating system refused",
    "cling JIT session error: Cannot allocate memory": "The operating system refused",
    "MemoryError: std::bad_alloc": "Host memory ran out",
    "terminate called after throwing an instance of 'std::bad_alloc'": "Host memory ran out",
    "jax.errors.JaxRuntimeError: INTERNAL: std::bad_alloc": "Host memory ran out",
    'Traceback (most recent call last):\n  File "a.py", line 1\nMemoryError': "Host memory ran out",
    "builtins.MemoryError: no buffer": "Host memory ran out",
    HARMLESS["NumPy"]: "Host memory ran out",
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


@pytest.mark.parametrize("text", NOTES)
def test_an_error_that_may_be_an_oom_has_a_note(text: str) -> None:
    """The note says which memory, or says that it is only possible."""
    assert possible_oom(text).startswith(NOTES[text])


@pytest.mark.parametrize("text", [text for text in NOTES if "kill" in text.lower()])
def test_a_killed_process_is_no_device_oom(text: str) -> None:
    """parse_oom says nothing of host memory."""
    assert parse_oom(text) is None


@pytest.mark.parametrize("text", NONE)
def test_other_errors_have_no_note(text: str) -> None:
    """Device memory that is stated, a handler in source text, and errors with another cause."""
    assert possible_oom(text) == ""
