"""How do time and memory grow with the number of buffers, and with the number of modules?

Programs are made up of N buffers that are all live at the peak. Each is read, summed up, searched
for findings and rendered, in a process of its own. Then one module is read from a profile of 500
modules, as a long notebook makes it, and from a profile of that module alone.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._timing import fastest, table, versions
from hbmwatch import OomReport
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import rollup, with_roles
from hbmwatch._findings.rank import find_findings
from hbmwatch._messages.parse import parse_oom
from hbmwatch._records.message import OomMessage
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.protos import HloProto, message_class
from hbmwatch._xla.xspace import pack_modules, read_modules

BUFFERS = (10, 1_000, 100_000)
MODULES = 500
PHASES = ("parse", "summary", "findings", "text")
MESSAGE = "RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes."


def hlo_proto(buffers: int, size_bytes: int = 2**20) -> bytes:
    """A program of a chain of instructions whose results, of a few shapes, all live at its end."""
    numbers = range(1, buffers + 1)
    frames = [{"file_location_id": 1 + n % 50, "parent_frame_id": n} for n in range(60)]
    proto = {
        "hlo_module": {
            "name": "jit_step",
            "id": 1,
            "entry_computation_id": 1,
            "computations": [
                {
                    "name": "main",
                    "id": 1,
                    "root_id": buffers,
                    "instructions": [_instruction(n) for n in numbers],
                }
            ],
            "stack_frame_index": {
                "file_names": ["/home/me/train.py"],
                "file_locations": [{"file_name_id": 1, "line": n} for n in range(1, 51)],
                "stack_frames": frames,
            },
        },
        "buffer_assignment": {
            "logical_buffers": [
                {"id": n, "size": size_bytes, "defined_at": {"instruction_id": n}} for n in numbers
            ],
            "buffer_allocations": [
                {
                    "index": 0,
                    "size": buffers * size_bytes,
                    "assigned": [{"logical_buffer_id": n} for n in numbers],
                }
            ],
            "heap_simulator_traces": [{"events": [{"buffer_id": n} for n in numbers]}],
        },
    }
    serialized: bytes = message_class(HloProto)(**proto).SerializeToString()
    return serialized


def _instruction(number: int) -> dict[str, Any]:
    layer = "transpose(jvp())" if number % 2 else "jvp()"
    return {
        "id": number,
        "name": f"fusion.{number}",
        "opcode": "add",
        "shape": {
            "element_type": 11,
            "dimensions": [64, 4096 // (1 + number % 7)],
            "layout": {"minor_to_major": [1, 0]},
        },
        "metadata": {"op_name": f"jit(step)/{layer}/add", "stack_frame_id": 1 + number % 60},
        "operand_ids": [number - 1] if number > 1 else [],
    }


def phases(proto: bytes) -> dict[str, Callable[[Any], Any]]:
    """The phases of a report; each takes what the one before returned."""
    message = parse_oom(MESSAGE) or OomMessage(MESSAGE)
    return {
        "parse": lambda _: parse_program(proto, "jit_step(1)"),
        "summary": lambda program: (program, peak_summary(program)),
        "findings": lambda given: (
            given[1],
            rollup(with_roles(evidence := ProgramFacts(given[0], given[1], message))),
            find_findings(evidence),
        ),
        "text": lambda given: str(
            OomReport(message=message, summary=given[0], rollup=given[1], findings=given[2])
        ),
    }


def measure(proto: bytes) -> list[float]:
    """Processor seconds of each phase, then the peak memory of all of them in MiB."""
    before = _peak_mib()
    times = []
    given: Any = None
    for phase in phases(proto).values():
        start = time.thread_time()
        given = phase(given)
        times.append(time.thread_time() - start)
    return [*times, _peak_mib() - before]


def _peak_mib() -> float:
    """The peak memory of this process so far; only Linux counts it from the start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) / 1024


def _in_a_child(proto: bytes) -> list[float]:
    """What `measure` returns in a fresh process, which has not held another program."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(proto)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.scale", file.name]
        return [float(word) for word in subprocess.check_output(command).split()]


def finding_one() -> dict[str, float]:
    """Seconds to find and read one module of a profile of one, and of one of many."""
    proto = hlo_proto(1_000)

    def read(xspace: bytes) -> object:
        modules = read_modules(xspace)
        return peak_summary(parse_program(modules["jit_step(7)"], "jit_step(7)"))

    sizes = {f"one of {count}": count for count in (1, MODULES)}
    spaces = {
        name: pack_modules([("jit_step", 7 + n, proto) for n in range(count)], "host")
        for name, count in sizes.items()
    }
    cases = {name: lambda space=space: read(space) for name, space in spaces.items()}
    return fastest(cases, runs=15, calls=1, clock=time.thread_time)


def main(arguments: Sequence[str]) -> None:
    """Print the tables; as a child, the figures of the program in a file."""
    if arguments:
        print(*measure(Path(arguments[0]).read_bytes()))
        return
    rows = []
    for buffers in BUFFERS:
        runs = [_in_a_child(hlo_proto(buffers)) for _ in range(3)]
        best = [min(figures) for figures in zip(*runs, strict=True)]
        seconds = sum(best[:-1])
        each = 1e6 * seconds / (buffers * math.log2(buffers))
        milliseconds = (f"{1e3 * second:.2f}" for second in (*best[:-1], seconds))
        rows.append([f"{buffers:,}", *milliseconds, f"{each:.2f}", f"{best[-1]:.1f}"])
    print(f"{__doc__}\n{versions('protobuf', 'numpy')}, {os.cpu_count()} cores\n")
    print(
        table(
            (
                "buffers",
                *(f"{phase}, ms" for phase in PHASES),
                "all, ms",
                "all / n log2 n, us",
                "MiB",
            ),
            rows,
        )
    )
    times = finding_one()
    first, last = times.values()
    print()
    for name, seconds in times.items():
        print(f"{name} modules of 1,000 buffers: {1e3 * seconds:.1f} ms")
    print(f"ratio {last / first:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
