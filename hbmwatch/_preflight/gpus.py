"""The GPUs that can be compiled for without one: what XLA has to know of each.

XLA decides by the card's memory and by its shared memory how it fuses and rematerializes, so these
are the figures of the real cards (cuDeviceGetAttribute, cuDeviceTotalMem).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card, as XLA's GpuTargetConfigProto describes it.

    Attributes:
        kind: The device kind in JAX ("NVIDIA H200").
        memory_bytes: All of the card's memory.
        cores: Streaming multiprocessors.
        capability: CUDA compute capability, major and minor.
        shared_bytes: Shared memory of one multiprocessor.
        l2_bytes: The L2 cache.
        bandwidth: Bytes per second.
        clock_ghz: The clock.
    """

    kind: str
    memory_bytes: int
    cores: int
    capability: tuple[int, int]
    shared_bytes: int
    l2_bytes: int
    bandwidth: int
    clock_ghz: float


GPUS = {
    "a100-40": Gpu(
        "NVIDIA A100-SXM4-40GB", 42405855232, 108, (8, 0), 167936, 41943040, 1555000000000, 1.41
    ),
    "a100-80": Gpu(
        "NVIDIA A100-SXM4-80GB", 84987740160, 108, (8, 0), 167936, 41943040, 2039000000000, 1.41
    ),
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", 84929347584, 132, (9, 0), 233472, 52428800, 3352320000000, 1.98
    ),
    "h200": Gpu("NVIDIA H200", 150117548032, 132, (9, 0), 233472, 62914560, 4800000000000, 1.98),
    "b200": Gpu("NVIDIA B200", 191433605120, 148, (10, 0), 233472, 132120576, 8000000000000, 1.965),
}

_CONFIG = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_bytes}
  threads_per_core_limit: 2048
  core_count: {gpu.cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2_bytes}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.memory_bytes}
  shared_memory_per_block_optin: {optin}
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{gpu.kind}"
"""


def target_config(gpu: Gpu) -> str:
    """The card as the text of XLA's GpuTargetConfigProto."""
    # CUDA keeps 1 KiB of a multiprocessor's shared memory for itself.
    return _CONFIG.format(gpu=gpu, optin=gpu.shared_bytes - 1024)
