"""Errors that may be an OOM although they do not say so, and host memory that ran out."""

from __future__ import annotations

import pytest

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
NONE = (
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


@pytest.mark.parametrize("text", NONE)
def test_other_errors_have_no_note(text: str) -> None:
    """Device memory that is stated, a handler in source text, and errors with another cause."""
    assert possible_oom(text) == ""
