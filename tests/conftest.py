"""What every test stands on: a CPU backend of four devices, and the real TPU and GPU compilers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Read when jax and libtpu load, so set before either is imported.
for _name, _value in {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}.items():
    os.environ.setdefault(_name, _value)
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=4"
    + " --xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
)

# What decides whether a change lands tries the same examples each time; elsewhere new ones.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Any]:
    """watch_hbm that keeps its profiles in the test's folder."""
    from hbmwatch import watch_hbm  # not at the top: that imports jax

    return functools.partial(watch_hbm, logdir=tmp_path)
