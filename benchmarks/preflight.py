"""What does it cost to know whether a step fits, and how exact is the answer?

One model, one target (v5e), processor seconds of each way in a process of its own:

* hbmwatch, to the buffer assignment and to the end;
* a whole compile with JAX alone, as MaxText's train_compile does, and whether it was refused;
* the arithmetic of memory_analysis() after it: arguments + outputs + temporaries - aliased;
* the largest batch: hbmwatch's search against the search of MaxText's estimator
  (largest_batch_size in src/maxtext/utils/estimator.py of AI-Hypercomputer/maxtext): whole compiles
  of both ends of a range that the user gives, then of the middle. MaxText compiles its own models
  only, so the search is written here, on this model.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

from benchmarks._timing import table, versions
from hbmwatch._jax.libtpu_environment import WITHOUT_TPU

MODEL = """
import json, sys
import jax, jax.numpy as jnp
S = jax.ShapeDtypeStruct

def train_step(params, x):
    def loss(params):
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return (h ** 2).mean()
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))

step = jax.jit(train_step, donate_argnums=0)

def args_of(n, sharding=None):
    params = [S((2048, 2048), jnp.float32, sharding=sharding)] * 4
    return params, S((n, 2048), jnp.float32, sharding=sharding)

def answer(**values):
    print(json.dumps(values))
"""
ONE_CHIP = """
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
chip = topologies.get_topology_desc(
    "v5e:1x1", platform="tpu", chips_per_host_bounds=(1, 1, 1), num_slices=1
).devices[0]

def compiled(n):
    return step.lower(*args_of(n, SingleDeviceSharding(chip))).compile()

def is_refused(n):
    try:
        compiled(n)
    except jax.errors.JaxRuntimeError:
        return True
    return False
"""
ROWS = 65536
WAYS = {
    "fits, assigned": MODEL
    + f"""
from hbmwatch import fits
fit = fits(step, *args_of({ROWS}), on="v5e", proof="assigned")
answer(fits=fit.fits, needs=fit.total_bytes, tries=1)
""",
    "fits, compiled": MODEL
    + f"""
from hbmwatch import fits
fit = fits(step, *args_of({ROWS}), on="v5e")
answer(fits=fit.fits, needs=fit.total_bytes, tries=1)
""",
    "a whole compile, memory_analysis()": MODEL
    + ONE_CHIP
    + f"""
m = compiled({ROWS}).memory_analysis()
needs = (m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
         - m.alias_size_in_bytes)
answer(fits=True, needs=needs, tries=1)
""",
    "largest, assigned": MODEL
    + """
from hbmwatch import largest
r = largest(step, args_of, on="v5e", multiple_of=1024, proof="assigned")
answer(size=r.size, tries=len(r.tried))
""",
    "largest, compiled": MODEL
    + """
from hbmwatch import largest
r = largest(step, args_of, on="v5e", multiple_of=1024)
answer(size=r.size, tries=len(r.tried))
""",
    "MaxText's search, from 1,024 to 1,048,576": MODEL
    + ONE_CHIP
    + """
low, high, tries = 1, 1024, 2
assert not is_refused(low * 1024) and is_refused(high * 1024)
while high - low > 1:
    size, tries = (low + high) // 2, tries + 1
    low, high = (low, size) if is_refused(size * 1024) else (size, high)
answer(size=low * 1024, tries=tries)
""",
}


def measured(code: str) -> tuple[float, dict[str, Any]]:
    """Processor seconds of a process and its children, and what it answered."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**WITHOUT_TPU, **os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return seconds, answer


def main() -> None:
    """Print a row for each way."""
    rows = []
    for name, code in WAYS.items():
        seconds, answer = measured(code)
        needs = f"{answer['needs'] / 2**20:.1f} MiB" if "needs" in answer else ""
        size = str(answer.get("size", ""))
        rows.append([name, f"{seconds:.1f}", str(answer["tries"]), needs, size])
        print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    print(f"{__doc__}\n{versions('jax', 'jaxlib', 'libtpu')}, {os.cpu_count()} cores\n")
    print(table(("", "processor s", "tries", "needs", "largest batch"), rows))


if __name__ == "__main__":
    main()
