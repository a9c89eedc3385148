"""What do the findings cost, compared with reading the program?

A train step of a 48-layer transformer, unrolled, does not fit on a v5e. The breakdown, the roll-up
and the findings are compared with reading the program and its peak, which a failure needs anyway.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks._timing import table, versions
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import breakdown, rollup, with_roles
from hbmwatch._findings.rank import find_findings
from hbmwatch._jax.dump import dump
from hbmwatch._jax.libtpu_environment import WITHOUT_TPU
from hbmwatch._jax.lowered import call_info
from hbmwatch._records.message import OomMessage
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from tests.oom_programs import base

LAYERS = 48
WIDTH = 1024
# With so little memory the compiler gives up at once, and still leaves the program.
TIGHT = {"xla_tpu_max_hbm_size_mib": "2048"}
TARGET_MS = 50
RUNS = 12


def lowered_step() -> Any:
    """A train step with momentum, nothing donated: more than 1,200 buffers at its peak."""

    def block(p: Any, x: Any) -> Any:
        x = x + base.attention(p, x, 8)
        return x + base.ffn(p, x)

    def train_step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for p in params:
                h = block(p, h)
            return (h.astype(jnp.float32) ** 2).mean()

        grads = jax.grad(loss)(state["params"])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}

    params = [base.decoder_params(WIDTH)] * LAYERS
    state = {"params": params, "momentum": params}
    return base.on_one(train_step, state, base.array(8, 1024, WIDTH))


def read(hlo_proto: bytes) -> tuple[Program, Any]:
    """The program and its peak: the bare case."""
    program = parse_program(hlo_proto, "jit_train_step(0)")
    return program, peak_summary(program)


def main() -> int:
    """Print the table; the exit status is 1 where the findings take longer than the target."""
    os.environ |= WITHOUT_TPU
    jax.config.update("jax_platforms", "cpu")
    lowered = lowered_step()
    hlo_proto = dump(lowered, TIGHT)
    call = call_info(lowered)
    program, summary = read(hlo_proto)
    message = OomMessage(
        "", used_bytes=summary.total_allocation_bytes, limit_bytes=summary.peak_bytes // 2
    )

    def conclude(program: Program, summary: Any) -> None:
        evidence = ProgramFacts(program, summary, message, call)
        breakdown(program, summary, message)
        rollup(with_roles(evidence))
        find_findings(evidence)

    gc.disable()  # as a report does
    seconds: dict[str, list[float]] = {"read": [], "conclude": []}
    for _ in range(RUNS):
        start = time.thread_time()
        fresh = read(hlo_proto)
        middle = time.thread_time()
        conclude(*fresh)
        seconds["read"].append(middle - start)
        seconds["conclude"].append(time.thread_time() - middle)
    reading, concluding = (1000 * min(taken) for taken in seconds.values())
    print(versions("jax", "libtpu", "protobuf"))
    print(f"{len(summary.ops)} buffers at the peak, {len(hlo_proto) / 1e6:.1f} MB of HloProto")
    rows = [
        ["program and peak read", f"{reading:.0f}", "1.00"],
        ["breakdown, roll-up, findings", f"{concluding:.0f}", f"{concluding / reading:.2f}"],
    ]
    print(table(["", "ms", "ratio"], rows))
    return int(concluding > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
