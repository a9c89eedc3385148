"""A compiler in its own process, which runs this file by its path, with a folder as argument.

The folder takes the job and the answer; XLA's dump goes into a folder in it. The child reads
stdin: one line says that the job is there, and the end of it that the parent is gone. A process
that the parent forked keeps stdin open, so the child looks at its parent's id as well.

A compile cannot be interrupted, so a parent that has seen enough kills the process. The process
waits for that after its answer too: if it ended by itself, nobody would remove the folder where the
parent is killed at that moment.

jaxlib alone is loaded for a TPU: a third of the time that jax takes.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

JOB, ANSWER, MODULE, OPTIONS, DUMP = "job.json", "answer.json", "module.mlir", "options.pb", "dump"
_PARENT_POLL_S = 0.5


def main(folder: Path) -> None:
    """Load the compiler, wait for the job, compile, and write the answer."""
    platform, parent = sys.argv[2], int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort would leave a core file
    try:
        _load_tpu() if platform == "tpu" else _load_jax()
        if not _read(parent):
            shutil.rmtree(folder, ignore_errors=True)
            return
        threading.Thread(target=_end_with_parent, args=(folder, parent), daemon=True).start()
        answer = _compile(folder, json.loads((folder / JOB).read_text()))
    except Exception as error:  # every failure is an answer
        answer = {"error": str(error), "kind": type(error).__name__}
    partial = folder / f"{ANSWER}.partial"
    partial.write_text(json.dumps(answer))
    partial.rename(folder / ANSWER)
    _end_with_parent(folder, parent)
    signal.pause()


def _read(parent: int) -> bytes:
    """What the parent writes next; nothing where it is gone."""
    while os.getppid() == parent:
        if select.select([0], [], [], _PARENT_POLL_S)[0]:
            return os.read(0, 64)
    return b""


def _end_with_parent(folder: Path, parent: int) -> None:
    """Wait until the parent is gone; then end all processes of the group, and remove the folder.

    XLA writes into the folder until the last moment, so a shell removes it after the end.
    """
    while _read(parent):
        pass
    command = ["/bin/sh", "-c", 'kill -9 "-$0"; rm -rf "$1"', str(os.getpgrp()), str(folder)]
    subprocess.Popen(command, start_new_session=True)


def _load_tpu() -> None:
    """Load libtpu, without looking for TPUs."""
    from jaxlib import xla_client

    library = os.environ.get("TPU_LIBRARY_PATH", "")
    if not os.path.isfile(library):
        import libtpu

        library = libtpu.get_library_path()
    xla_client.load_pjrt_plugin_dynamically("tpu", library)
    xla_client.initialize_pjrt_plugin("tpu")


def _load_jax() -> None:
    """Load jax, because its plugins register the GPU compiler and jaxlib's custom calls."""
    import jax  # noqa: F401


def _compile(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Compile the job's module into the dump folder."""
    from jaxlib import _jax, xla_client

    chosen = _chosen(_devices(job), job["ids"], job["count"])
    options = xla_client.CompileOptions.ParseFromString((folder / OPTIONS).read_bytes())
    options.device_assignment = _assignment(chosen, job["replica_count"])
    options.env_option_overrides = [
        *options.env_option_overrides,
        ("xla_dump_to", str(folder / DUMP)),
        ("xla_dump_hlo_as_proto", True),
        ("xla_dump_hlo_pass_re", "^$"),
    ]
    client = chosen[0].client
    loads = not isinstance(client, _jax.CompileOnlyPyClient) and hasattr(client, "compile_and_load")
    compile_ = client.compile_and_load if loads else client.compile
    module = (folder / MODULE).read_bytes()
    device_list = _jax.DeviceList(tuple(chosen))
    try:
        executable = compile_(module, device_list, options)
    except TypeError:  # since jax 0.7 the module itself is wanted, not its bytes
        executable = compile_(_parsed(module), device_list, options)
    stats = executable.get_compiled_memory_stats()
    return {"code_bytes": int(stats.generated_code_size_in_bytes)}


def _devices(job: dict[str, Any]) -> list[Any]:
    """The devices of the job's target; this machine does not need any of them."""
    if job["platform"] == "tpu":
        from jaxlib import xla_client

        options = {name: _tuple(value) for name, value in job["topology_options"].items()}
        topology = xla_client.make_tfrt_tpu_c_api_device_topology(job["topology"], **options)
        return list(topology._make_compile_only_devices())  # type: ignore[attr-defined]
    import jax

    if job["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", job["device_count"])
        return jax.devices("cpu")
    from jax.experimental import topologies

    found = topologies.get_topology_desc(
        platform=job["platform"], topology_name=job["topology"], **job["topology_options"]
    )
    return list(found.devices)


def _chosen(devices: list[Any], ids: list[int], count: int) -> list[Any]:
    """The devices with the job's ids if the step names devices of this target, else the first."""
    by_id = {device.id: device for device in devices}
    if ids and by_id.keys() >= set(ids):
        return [by_id[one] for one in ids]
    return devices[:count]


def _tuple(value: Any) -> Any:
    """Lists as tuples: JSON has only lists, and libtpu needs tuples."""
    return tuple(value) if isinstance(value, list) else value


def _assignment(devices: list[Any], replica_count: int) -> Any:
    """The devices as XLA numbers them, (replicas, partitions)."""
    import numpy as np
    from jaxlib import xla_client

    ids = np.array([device.id for device in devices], dtype=np.int32)
    return xla_client.DeviceAssignment.create(ids.reshape(replica_count, -1))


def _parsed(module: bytes) -> Any:
    """The module in a context that knows JAX's dialects."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    sdy.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    chlo.register_dialect(context)
    stablehlo.register_dialect(context)
    context.__enter__()
    return ir.Module.parse(module)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # compilers abort when they are torn down
