"""Tools that show, log, move or launch: what they make of an OOM."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from hbmwatch import HbmOomError, watch_hbm
from tests.live import IMPORTS, SMALL, fill, outputs, start

pytestmark = pytest.mark.clients

HEADLINE = "hbmwatch: fill ran out of memory at run time on CPU: requested 1.00 PiB"
TEXT = f"RESOURCE_EXHAUSTED: Out of memory allocating 1125899906842624 bytes.\n{HEADLINE}"


RAY = """
import ray
def task(logdir):  # a worker has another sys.argv
    watch_hbm(fill, logdir=logdir)(jnp.ones(8))
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
try:
    ray.get(ray.remote(max_retries=0)(task).remote(sys.argv[1]))
except ray.exceptions.RayTaskError as error:
    assert isinstance(error.cause, HbmOomError)
    print(error.cause, error.cause.summary.module)
finally:
    ray.shutdown()
"""


def test_ray_brings_the_report_to_the_driver(tmp_path: Path) -> None:
    """The cause of Ray's error is the whole HbmOomError."""
    pytest.importorskip("ray")
    (printed,) = outputs([start(RAY, tmp_path, prelude=IMPORTS)])

    assert printed.endswith(f"{TEXT} jit_fill\n")


def test_sentry_has_the_report_and_ends_at_the_users_line(tmp_path: Path) -> None:
    """In the event that Sentry would send."""
    sentry_sdk = pytest.importorskip("sentry_sdk")
    events: list[Any] = []
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        before_send=lambda event, _: events.append(event),
        default_integrations=False,
    )
    try:
        caught_here(tmp_path)
    except HbmOomError as oom:
        (note,) = oom.__notes__
        sentry_sdk.capture_exception()
    finally:
        sentry_sdk.init()

    value = events[0]["exception"]["values"][-1]
    frames = [frame["function"] for frame in value["stacktrace"]["frames"]]
    # Sentry prefers an error's `message`, and adds its notes.
    assert value["type"] == "HbmOomError"
    assert value["value"] == TEXT.replace(HEADLINE, note)
    assert frames[-1] == "caught_here"


def caught_here(folder: Path) -> None:
    """The user's line."""
    watch_hbm(fill, logdir=folder)(SMALL)


def test_structlog_has_the_error_as_data(tmp_path: Path) -> None:
    """Type, text, the report as a note, and the user's frames."""
    tracebacks = pytest.importorskip("structlog.tracebacks")
    try:
        caught_here(tmp_path)
    except HbmOomError as oom:
        (stack,) = tracebacks.ExceptionDictTransformer(show_locals=False)(sys.exc_info())
        notes = oom.__notes__

    assert (stack["exc_type"], stack["exc_value"]) == ("HbmOomError", TEXT)
    assert stack["exc_notes"] == notes
    assert [frame["name"] for frame in stack["frames"]][-1] == "caught_here"


def test_loguru_ends_at_the_users_line(tmp_path: Path) -> None:
    """The last frame is the user's, and then come text and report."""
    loguru = pytest.importorskip("loguru")
    out = io.StringIO()
    sink = loguru.logger.add(out, backtrace=True, diagnose=False, colorize=False)
    try:
        caught_here(tmp_path)
    except HbmOomError:
        loguru.logger.exception("step failed")
    finally:
        loguru.logger.remove(sink)

    lines = out.getvalue().splitlines()
    frames = [line for line in lines if line.lstrip("> ").startswith("File ")]
    assert frames[-1].endswith("in caught_here")
    assert HEADLINE in lines
    assert not any("hbmwatch/_" in line for line in frames)


def test_rich_ends_at_the_users_line(tmp_path: Path) -> None:
    """Of the traceback that rich prints."""
    console = pytest.importorskip("rich.console")
    out = io.StringIO()
    try:
        caught_here(tmp_path)
    except HbmOomError:
        console.Console(file=out, width=200).print_exception(suppress=[jax])

    shown = out.getvalue()
    assert "in caught_here" in shown
    assert HEADLINE in shown
    assert "hbmwatch/_" not in shown


def test_pytest_shows_the_headline_and_the_users_lines(tmp_path: Path) -> None:
    """In its summary of failures, and no frame of ours."""
    (tmp_path / "test_step.py").write_text(
        "import jax.numpy as jnp\nfrom hbmwatch import watch_hbm\n"
        "def fill(x): return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1\n"
        "def test_step(): watch_hbm(fill)(jnp.ones(8))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_step.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert f"E   {HEADLINE}" in ran.stdout
    assert "hbmwatch/_" not in ran.stdout.split("E   ")[0]
    assert "1 failed" in ran.stdout


def test_a_notebook_names_cells(tmp_path: Path) -> None:
    """A line reads In[2]:2, also where the code was compiled under the name of a file."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [
        "import jax, jax.numpy as jnp\nfrom hbmwatch import watch_hbm",
        "def train_step(x):\n    return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1",
        "history = [jnp.ones((256, 1024))]\nwatch_hbm(train_step)(jnp.ones(8))",
        "import numpy as np\nwith watch_hbm() as watch:\n"
        "    jax.device_put(np.broadcast_to(np.float32(1), (2**24, 2**24)))",
        "print(watch.report)",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nbclient.NotebookClient(notebook, allow_errors=True, timeout=250).execute()
    errors = ["\n".join(o.get("traceback", [])) for cell in notebook.cells for o in cell.outputs]
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.outputs]

    shown = next(text for text in errors if "1.00 PiB  f32[" in text)
    (largest,) = [line for line in shown.splitlines() if "1.00 PiB  f32[" in line]
    assert largest.split()[-1] == "In[2]:2"
    assert "ipykernel_" not in "".join(texts)
    assert " ".join(texts[-1].split()).startswith(
        "hbmwatch: device_put of 1.00 PiB f32[16777216,16777216] at In[4]:3 ran out of memory at "
        "run time on CPU"
    )


DISTRIBUTED = """
import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
jax.distributed.initialize(address, num_processes=1, process_id=0)
try:
    watch_hbm(fill, logdir=sys.argv[1])(jnp.ones(8))
except HbmOomError as oom:
    print(str(oom).splitlines()[-1])
"""


def test_jax_distributed(tmp_path: Path) -> None:
    """In a job of one process; tests/reliability has jobs of several."""
    (printed,) = outputs([start(DISTRIBUTED, tmp_path, prelude=IMPORTS)])

    assert printed.splitlines()[-1] == HEADLINE
