"""The environment in which the compilers of TPUs and GPUs work here; JAX reads it when it loads."""

from __future__ import annotations

from hbmwatch._jax.libtpu_environment import WITHOUT_TPU

QUIET = {**WITHOUT_TPU, "TF_CPP_MIN_LOG_LEVEL": "3"}
XLA_FLAGS = (
    "--xla_force_host_platform_device_count=4 "
    "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
)
