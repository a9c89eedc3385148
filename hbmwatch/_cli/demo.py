"""The demo: the program of OpenXLA's "Debug OOM errors with XProf" page, and its report."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

_PAGE = "https://openxla.org/xla/oom_debugging"


def run(topology: str | None = None, as_json: bool = False) -> int:
    """Run the page's program out of memory and print what HbmOomError says.

    Args:
        topology: A TPU topology ("v5e:2x2") to compile for, by libtpu and without a TPU; None runs
            it on the device that is there.
        as_json: Print the report as JSON, and nothing else.

    Returns:
        The exit code: 0, or 1 where it did not run out of memory or cannot be run.
    """
    if topology is not None:
        _without_a_tpu()
    os.environ.pop("HBMWATCH_DISABLE", None)  # a demo of nothing is none
    # A plugin whose device is not there would otherwise print a traceback around the report.
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.CRITICAL)
    import jax

    from hbmwatch import HbmOomError

    try:
        program = _on_topology(topology) if topology is not None else _on_device()
    except Exception as error:
        print(f"hbmwatch demo: no compiler for {topology!r} here: {error}", file=sys.stderr)
        return 1
    if not as_json:
        _announce(topology)
    try:
        jax.block_until_ready(program())
    except HbmOomError as oom:
        text = f"{oom.message.text}\n\n{oom.report}"
        print(json.dumps(oom.report.to_dict(), indent=2) if as_json else text)
        return 0
    print("hbmwatch demo: the program did not run out of memory", file=sys.stderr)
    return 1


def _announce(topology: str | None) -> None:
    import jax

    where = f"for a {topology} topology" if topology else f"on {jax.devices()[0].device_kind}"
    print(f"The program of {_PAGE}, {where}:\n")
    print("    a = jax.random.normal(jax.random.PRNGKey(1), shape, dtype=jnp.bfloat16)")
    print("    return a @ a\n")


def _without_a_tpu() -> None:
    """libtpu compiles for a topology on any machine, if it does not look for its own devices."""
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }.items():
        os.environ.setdefault(name, value)


def _on_topology(topology: str) -> Any:
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from hbmwatch import watch_hbm

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    step = watch_hbm(_oom(327_680), out_shardings=SingleDeviceSharding(devices[0]))
    return lambda: step.lower().compile()


def _on_device() -> Any:
    import jax

    from hbmwatch import watch_hbm

    # The page's size fills 300 GiB; a CPU may have that, or overcommit, so there it is 1 PiB.
    size = 2**24 if jax.devices()[0].platform == "cpu" else 327_680
    return watch_hbm(_oom(size))


def _oom(size: int) -> Any:
    import jax
    import jax.numpy as jnp

    def oom() -> jax.Array:
        a = jax.random.normal(jax.random.PRNGKey(1), (size, size), dtype=jnp.bfloat16)
        return a @ a

    return oom
