"""The environment in which libtpu compiles for TPUs that the machine does not have, and its log.

Nothing is imported, because JAX and libtpu read the environment when they are imported.
"""

from __future__ import annotations

# libtpu would otherwise look for a local TPU.
WITHOUT_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

# On this logger JAX prints a traceback for a plugin that finds no device.
BACKENDS_LOGGER = "jax._src.xla_bridge"
