"""`hbmwatch demo`: the program of OpenXLA's "Debug OOM errors with XProf" page, and its report."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from hbmwatch._cli.command import DONE, NOTHING_FOUND, Command, add_json_option
from hbmwatch._cli.console import look_of, print_json, print_on_stderr
from hbmwatch._report.text import report_text

_PAGE = "https://openxla.org/xla/oom_debugging"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on",
        metavar="TARGET",
        help="compile for this TPU, such as v5e or v5e:2x2; needs libtpu, but no TPU",
    )
    add_json_option(parser)


def _run(options: argparse.Namespace) -> int:
    """Run the page's program out of memory, and print what HbmOomError says."""
    _prepare(options.on)
    import jax

    from hbmwatch._explain.errors import HbmOomError

    try:
        program = _step_here() if options.on is None else _step_for(options.on)
    except Exception as error:
        problem = f"compile for {options.on!r}" if options.on is not None else "start a JAX backend"
        print_on_stderr(f"cannot {problem}: {error}")
        return NOTHING_FOUND
    if not options.json:
        _announce(options.on)
    try:
        jax.block_until_ready(program())
    except HbmOomError as oom:
        if options.json:
            print_json(oom.report.to_dict())
        else:
            print(f"{oom.message.text}\n\n{report_text(oom.report, look=look_of(options))}")
        return DONE
    print_on_stderr("the demo program did not run out of memory")
    return NOTHING_FOUND


def _prepare(on: str | None) -> None:
    """Set the environment that JAX, libtpu and hbmwatch read when they are imported."""
    from hbmwatch._jax.libtpu_environment import BACKENDS_LOGGER, WITHOUT_TPU

    os.environ.pop("HBMWATCH_DISABLE", None)  # disabled, the demo would show nothing
    # A plugin without its device would otherwise print a traceback around the report.
    logging.getLogger(BACKENDS_LOGGER).setLevel(logging.CRITICAL)
    if on is None:
        return
    for name, value in WITHOUT_TPU.items():
        os.environ.setdefault(name, value)


def _announce(on: str | None) -> None:
    """Show the program before it runs."""
    import jax

    where = f"for a {on}" if on else f"on {jax.devices()[0].device_kind}"
    print(f"The program of {_PAGE}, {where}:\n")
    print("    a = jax.random.normal(jax.random.PRNGKey(1), shape, dtype=jnp.bfloat16)")
    print("    return a @ a\n")


def _step_for(on: str) -> Any:
    """The program, to compile for a TPU."""
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from hbmwatch._preflight.targets import resolve
    from hbmwatch._watch.decorator import watch_hbm

    target = resolve(on)
    if target.platform != "tpu":
        raise ValueError("only a TPU's compiler rejects a program that does not fit")
    lists = target.topology_options.items()
    kwargs = {name: tuple(v) if isinstance(v, list) else v for name, v in lists}
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=target.topology, **kwargs
    ).devices
    step = watch_hbm(_oom(327_680), out_shardings=SingleDeviceSharding(devices[0]))
    return lambda: step.lower().compile()


def _step_here() -> Any:
    """The program, to run on the device that JAX uses by default."""
    import jax

    from hbmwatch._watch.decorator import watch_hbm

    # The page's size fills 300 GiB; a CPU may have that, or overcommit, so there it is 1 PiB.
    size = 2**24 if jax.devices()[0].platform == "cpu" else 327_680
    return watch_hbm(_oom(size))


def _oom(size: int) -> Any:
    """The page's function for matrices of size x size."""
    import jax
    import jax.numpy as jnp

    def oom() -> jax.Array:
        a = jax.random.normal(jax.random.PRNGKey(1), (size, size), dtype=jnp.bfloat16)
        return a @ a

    return oom


COMMAND = Command(
    name="demo",
    purpose="run out of memory on purpose and show the report",
    examples=("hbmwatch demo", "hbmwatch demo --on v5e"),
    add_arguments=_add_arguments,
    run=_run,
)
