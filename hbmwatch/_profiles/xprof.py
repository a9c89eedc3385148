"""XProf as the second reader, in a child process: it may be missing, hang, or abort.

XProf's C++ aborts the process on some protos, never ends on others, and writes files next to the
profile that it reads. So a child process, which runs this file by its path, reads a copy of the
profile in a temporary folder, within a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hbmwatch._profiles.child_process import ended_by, interpreter, last_lines
from hbmwatch._profiles.python_path import python_path
from hbmwatch._records.libraries import is_own
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import Kind, PeakOp
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.terms import MODULE_NAME, SMALL_BYTES, memory_color
from hbmwatch._xla.types import MemoryColor

TIMEOUT_S = 120.0
_XPLANE, _REQUESTS, _RESULTS = "host.xplane.pb", "requests.json", "results.json"
_ERRORS_ONLY = {"TF_CPP_MIN_LOG_LEVEL": "2"}  # XProf's C++ logs there why it has no result
_KINDS: Mapping[str, Kind] = {
    "Parameter": "parameter",
    "Output": "output",
    "Thread-local": "thread-local",
    "Constant": "constant",
    "Temporary": "temporary",
}
_PARAMETER, _LIVE_OUT = "entry computation parameter", "may-be live out"
_FRAME = re.compile(r"(?P<line>[^:].*?:-?\d+)(:-?\d+)*")


def peak_summary(
    xplane: str | os.PathLike[str] | bytes,
    module: str,
    memory_space: str = "hbm",
    *,
    timeout_s: float = TIMEOUT_S,
) -> PeakSummary:
    """The peak of one module that XProf's Memory Viewer shows.

    Args:
        xplane: An .xplane.pb file, or its bytes.
        module: The module as the profile names it ("jit_step(12)").
        memory_space: As for load_peak_summary.
        timeout_s: Seconds after which the child is killed.

    Raises:
        ProfileError: XProf is missing, fails, hangs or crashes, or has no data for the module.
        ValueError: No such memory space.
    """
    (result,) = preprocess_results(xplane, [(module, memory_space)], timeout_s=timeout_s)
    return to_summary(result, module, memory_space)


# --- the child ------------------------------------------------------------------------------------


def preprocess_results(
    xplane: str | os.PathLike[str] | bytes,
    requests: Sequence[tuple[str, str]],
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[dict[str, Any] | None]:
    """XProf's PreprocessResults with their JSON names, without zeros; one child gives all.

    Args:
        xplane: An .xplane.pb file, or its bytes.
        requests: (module, memory_space) of each result.
        timeout_s: Seconds after which the child is killed.

    Returns:
        A result for each request; None if XProf has none.

    Raises:
        ProfileError: XProf is missing, fails, hangs or crashes.
        ValueError: No such memory space.
    """
    queries = [(module, memory_color(space)) for module, space in requests]
    data = xplane if isinstance(xplane, bytes) else _read(Path(xplane))
    with tempfile.TemporaryDirectory(prefix="hbmwatch-xprof-") as folder:
        Path(folder, _XPLANE).write_bytes(data)
        Path(folder, _REQUESTS).write_text(json.dumps(queries))
        log = _run(Path(folder), timeout_s)
        return _results(Path(folder, _RESULTS), len(queries), log)


def _read(path: Path) -> bytes:
    """A file's content."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror}", str(path)) from error


def _run(folder: Path, timeout_s: float) -> str:
    """Run the child in a folder; returns the end of its output."""
    python = interpreter("XProf runs")
    environment = {**os.environ, "PYTHONPATH": python_path(), **_ERRORS_ONLY}
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-P", __file__, str(folder)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProfileError(
                f"XProf did not answer within {timeout_s:g} s and was stopped{_said(log)}"
            ) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status:
        raise ProfileError(f"XProf failed in its process ({ended_by(status)}){_said(log)}")
    return _said(log)


def _said(log: Path) -> str:
    """The last lines of the child's output, as the end of a sentence."""
    return last_lines(log.read_bytes())


def _results(path: Path, count: int, log: str) -> list[dict[str, Any] | None]:
    """The results that the child wrote."""
    try:
        results = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ProfileError(f"XProf's process ended without an answer ({error}){log}") from error
    if len(results) != count or not all(r is None or isinstance(r, dict) for r in results):
        raise ProfileError(f"unexpected XProf output: no Memory Viewer data{log}")
    return list(results)


def _child(folder: Path) -> None:
    """Write XProf's result for each request in the folder; listing the tools extracts the HLO."""
    _limit_memory(40 * (folder / _XPLANE).stat().st_size)
    from xprof.convert import raw_to_tool_data

    xplanes = [str(folder / _XPLANE)]
    raw_to_tool_data.xspace_to_tool_names(xplanes)
    results = []
    for module, color in json.loads((folder / _REQUESTS).read_text()):
        options = {"module_name": module, "memory_space": str(color)}
        data, _ = raw_to_tool_data.xspace_to_tool_data(xplanes, "memory_viewer", options)
        results.append(None if data is None else json.loads(data))
    (folder / _RESULTS).write_text(json.dumps(results))


def _limit_memory(enough_bytes: int) -> None:
    """Limit the child's memory: XProf collects without end on some protos."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (max(2 * 2**30, enough_bytes), hard))


# --- its results ----------------------------------------------------------------------------------


def to_summary(result: Mapping[str, Any] | None, module: str, memory_space: str) -> PeakSummary:
    """The record of a PreprocessResult.

    Some totals are derived: outputs are the allocations that may live out and are not parameters,
    aliased bytes the parameters that may live out, temporaries the total without the allocations
    of indefinite lifetime. Outside of HBM, XProf has no rows for the latter; they come from its
    list of indefinite lifetimes, which has neither op_name nor opcode nor padding.

    Args:
        result: As preprocess_results gives it.
        module: The module as the profile names it ("jit_step(12)").
        memory_space: The memory space of the request.

    Raises:
        ProfileError: XProf has no result, or an unexpected one.
    """
    if result is None:
        raise ProfileError(f"XProf returned no Memory Viewer data for {module}")
    try:
        match = MODULE_NAME.fullmatch(module)
        indefinite = result.get("indefiniteLifetimes", ())
        heap = np.array([_bytes(size) for size in result.get("heapSizes", ())], dtype=np.int64)
        heap.flags.writeable = False
        peak, total = _field(result, "peakHeapMib"), _field(result, "totalBufferAllocationMib")
        return PeakSummary(
            module=result.get("moduleName", match["module"] if match else module),
            program_id=int(match["id"]) % 2**64 if match else None,
            memory_space=memory_space,
            peak_bytes=peak,
            peak_unpadded_bytes=_field(result, "peakUnpaddedHeapMib"),
            peak_position=int(heap.argmax()) if len(heap) else None,
            heap_bytes=heap,
            parameter_bytes=_field(result, "entryComputationParametersMib"),
            output_bytes=_live_out_bytes(indefinite, parameters=False),
            aliased_bytes=_live_out_bytes(indefinite, parameters=True),
            temporary_bytes=max(total - _field(result, "indefiniteBufferAllocationMib"), 0),
            total_allocation_bytes=total,
            fragmentation_bytes=max(total - peak, 0) if len(heap) else 0,
            ops=_rows(result, memory_space),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"unexpected XProf output for {module}: {error!r}") from error


def _bytes(mib: float) -> int:
    """Bytes of a size in MiB; exact, as a double holds every multiple of 2**-20 below 8 PiB."""
    return round(mib * 2**20)


def _field(result: Mapping[str, Any], name: str) -> int:
    """A size of a result, in bytes; XProf leaves zeros out."""
    return _bytes(result.get(name, 0))


def _live_out_bytes(indefinite: Iterable[Mapping[str, Any]], *, parameters: bool) -> int:
    """Bytes of the allocations that may live out: of the parameters, or of the others."""
    attributes = ((_field(a, "sizeMib"), a.get("attributes", ())) for a in indefinite)
    return sum(
        size for size, has in attributes if _LIVE_OUT in has and (_PARAMETER in has) is parameters
    )


def _rows(result: Mapping[str, Any], memory_space: str) -> tuple[PeakOp, ...]:
    """The rows of a result, the small buffers last."""
    spans = result.get("logicalBufferSpans", {})
    rows = [_row(o, spans, memory_space) for o in result.get("maxHeap", ())]
    if memory_color(memory_space) != MemoryColor.HBM:
        rows = [*_indefinite_rows(result.get("indefiniteLifetimes", ()), memory_space), *rows]
    large = [row for row in rows if row.instruction and row.size_bytes >= SMALL_BYTES]
    small_bytes = sum(row.size_bytes for row in rows) - sum(row.size_bytes for row in large)
    if small_bytes:
        large.append(PeakOp(instruction="", size_bytes=small_bytes, memory_space=memory_space))
    return tuple(large)


def _row(heap_object: Mapping[str, Any], spans: Mapping[str, Any], memory_space: str) -> PeakOp:
    """The row of a HeapObject."""
    span = spans.get(str(heap_object.get("logicalBufferId", 0)))
    stack = _stack(heap_object.get("sourceInfo", {}))
    return PeakOp(
        instruction=heap_object.get("instructionName", ""),
        opcode=heap_object.get("opCode", ""),
        op_name=heap_object.get("tfOpName", ""),
        shape=heap_object.get("shapeString", ""),
        size_bytes=_field(heap_object, "logicalBufferSizeMib"),
        unpadded_bytes=_field(heap_object, "unpaddedShapeMib"),
        kind=_KINDS.get(heap_object.get("groupName", ""), ""),
        memory_space=memory_space,
        source=user_frame(stack),
        stack=stack,
        start=None if span is None else int(span.get("start", 0)),
        end=None if span is None else int(span.get("limit", 0)),
    )


def _stack(source_info: Mapping[str, Any]) -> tuple[str, ...]:
    """The frames of a SourceInfo, as "/path/file.py:line", innermost first."""
    lines = (_FRAME.fullmatch(line) for line in source_info.get("stackFrame", "").splitlines())
    frames = tuple(match["line"] for match in lines if match and not is_own(match["line"]))
    if not frames and "fileName" in source_info:
        return (f"{source_info['fileName']}:{source_info.get('lineNumber', 0)}",)
    return frames


def _indefinite_rows(
    indefinite: Iterable[Mapping[str, Any]], memory_space: str
) -> Iterable[PeakOp]:
    """A row for each allocation of indefinite lifetime: its largest buffer."""
    for allocation in indefinite:
        buffers = allocation.get("logicalBuffers", ())
        largest: Mapping[str, Any] = max(buffers, key=lambda b: _field(b, "sizeMib"), default={})
        if not _field(largest, "sizeMib"):
            continue
        has = allocation.get("attributes", ())
        index = largest.get("shapeIndex", ())
        yield PeakOp(
            instruction=largest.get("hloName", "") + (f"{{{','.join(index)}}}" if index else ""),
            shape=largest.get("shape", ""),
            size_bytes=_field(largest, "sizeMib"),
            unpadded_bytes=_field(largest, "sizeMib"),
            kind="parameter" if _PARAMETER in has else "output" if _LIVE_OUT in has else "constant",
            memory_space=memory_space,
        )


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
