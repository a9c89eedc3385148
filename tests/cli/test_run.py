"""`hbmwatch run`: a script runs as without it, and an OOM shows its report."""

from __future__ import annotations

import re
import subprocess
import sys
import zipapp
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.cli.support import run_in_child

pytestmark = pytest.mark.slow

# What a script can see of how it was started, and of how it ends.
PROGRAMS = {
    "what it sees": """
import multiprocessing.spawn, os, pickle, sys
class Here: pass
print(__name__, sys.argv, __file__, __spec__, __package__, __doc__, sorted(globals()), __loader__)
print(vars(sys.modules["__main__"]) is globals(), type(__builtins__), sys.path, sys.stdout.errors)
print(type(pickle.loads(pickle.dumps(Here()))) is Here, "jax" in sys.modules, sys.excepthook)
print({k: v for k, v in multiprocessing.spawn.get_preparation_data("x").items() if "main" in k})
""",
    "exit handlers": """
import atexit, sys, threading, time
class Last:
    def __del__(self):
        print("freed", flush=True)
last = Last()
def handler():
    print("handler", sys.modules["__main__"].__dict__ is globals(), last is not None)
atexit.register(handler)
def thread():
    time.sleep(0.1)
    print("thread", sys.modules["__main__"].__dict__ is globals())
threading.Thread(target=thread).start()
print("end of main")
""",
    "status": "import sys; sys.exit(7)",
    "a sentence": "import sys; sys.exit('a sentence')",
    "an error": "import atexit; atexit.register(print, 'bye')\ndef f():\n    1 / 0\nf()",
    "a chain of errors": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise OSError('second')",
    "broken pipe": "raise BrokenPipeError('of the script')",
    "syntax": "x = 1\nif\n",
    "no encoding": "print('\\ud800')",
    "its own hook": """
import sys
sys.excepthook = lambda kind, error, frames: print(kind, error, frames.tb_lineno, frames.tb_next)
raise OSError("of the script")
""",
    "interrupted": """
import atexit, threading, time
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
raise KeyboardInterrupt
""",
    "Ctrl-C": "import atexit, os; atexit.register(print, 'bye'); os.kill(os.getpid(), 2)",
    "a handled Ctrl-C": """
import os
try:
    os.kill(os.getpid(), 2)
    while True: pass
except KeyboardInterrupt:
    print("handled")
""",
    "terminated": "import os; print('lost'); os.kill(os.getpid(), 15)",
    "at once": "import os; os._exit(3)",
    "an error in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
    "a closed stdout": "import os; print('lost'); os.close(1)",
    "future": "def f(x: undefined): pass\n",  # our own modules have the annotations of the future
}
OOM = """
import jax, jax.numpy as jnp, sys
def fill(x): return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1
print("step 0", sys.argv[1:])
jax.block_until_ready(jax.jit(fill)(jnp.ones(8)))
"""


# What JAX calls its error differs between versions.
ERROR = jax.errors.JaxRuntimeError


def outcome(*command: str, **options: Any) -> tuple[int, str, str]:
    """The exit status, and what was printed to stdout and stderr, without addresses of objects."""
    ran = subprocess.run(
        [sys.executable, *command], capture_output=True, check=False, timeout=250, **options
    )
    out, err = (re.sub("0x[0-9a-f]+", "0x", text.decode()) for text in (ran.stdout, ran.stderr))
    return ran.returncode, out, err


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_runs_as_without(name: str, tmp_path: Path) -> None:
    """What it sees, prints and does at its end, its exit status, and the traceback of an error."""
    (tmp_path / "script.py").write_text(PROGRAMS[name])
    arguments = ["script.py", "--steps", "3", "-m"]

    ran = outcome("-m", "hbmwatch", "run", *arguments, cwd=tmp_path)

    assert ran == outcome(*arguments, cwd=tmp_path)


@pytest.mark.parametrize("name", ["what it sees", "status", "an error", "syntax", "future"])
def test_the_source_on_stdin_runs_as_without(name: str, tmp_path: Path) -> None:
    """As with python -."""
    source = PROGRAMS[name].encode()
    arguments = ["-", "--steps", "3", "-m"]

    ran = outcome("-m", "hbmwatch", "run", *arguments, cwd=tmp_path, input=source)

    assert ran == outcome(*arguments, cwd=tmp_path, input=source)


@pytest.mark.parametrize("name", ["what it sees", "exit handlers", "an error", "interrupted"])
def test_a_module_runs_as_without(name: str, tmp_path: Path) -> None:
    """A module of a package, and a package with a main module, as with python -m."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(PROGRAMS[name])
    (package / "__main__.py").write_text(PROGRAMS[name])
    for module in ("pkg.train", "pkg"):
        arguments = ["-m", module, "--steps", "3"]

        ran = outcome("-m", "hbmwatch", "run", *arguments, cwd=tmp_path)

        expected = outcome(*arguments, cwd=tmp_path)
        assert (ran[:2], ran[2]) == (expected[:2], without_library(expected[2]))


def test_a_package_fails_as_without(tmp_path: Path) -> None:
    """The frames of its error begin where Python looks for the module."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text(PROGRAMS["an error"])
    (package / "train.py").touch()

    ran = outcome("-m", "hbmwatch", "run", "-m", "pkg.train", cwd=tmp_path)

    expected = outcome("-m", "pkg.train", cwd=tmp_path)
    frames = [without_library(err) for _, _, err in (ran, expected)]
    assert (ran[:2], frames[0]) == (expected[:2], frames[1])


def without_library(traceback: str) -> str:
    """A traceback without the frames of runpy and importlib, whose code Python does not show."""
    return re.sub(r'  File "<frozen [\w.]+>", line \d+, in \w+\n', "", traceback)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_folder_and_an_archive_run_as_without(kind: str, tmp_path: Path) -> None:
    """By their main module."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "__main__.py").write_text(PROGRAMS["what it sees"])
    name = "app"
    if kind == "archive":
        zipapp.create_archive(folder, tmp_path / "app.pyz")
        name = "app.pyz"

    ran = outcome("-m", "hbmwatch", "run", name, "--steps", cwd=tmp_path)

    assert ran == outcome(name, "--steps", cwd=tmp_path)


def test_an_oom_prints_the_report_in_place_of_frames(tmp_path: Path) -> None:
    """On stderr, with exit status 1, in the log folder and as a page, wherever the script goes."""
    (tmp_path / "outputs").mkdir()
    (tmp_path / "train.py").write_text(f"import os\nos.chdir('outputs')\n{OOM}")
    options = ["--html", "oom.html", "--logdir", "logs"]

    ran = run_in_child("run", *options, "train.py", "--html", cwd=tmp_path)

    err = ran.stderr.decode()
    assert (ran.returncode, ran.stdout) == (1, b"step 0 ['--html']\n")
    assert "Traceback" not in err.partition("Peak of")[2]
    error = f"{ERROR.__module__}.{ERROR.__qualname__}: RESOURCE_EXHAUSTED: Out of memory allocating"
    line = "jax.block_until_ready(jax.jit(fill)(jnp.ones(8)))"
    assert f'  File "{tmp_path / "train.py"}", line 7, in <module>\n    {line}\n' in err
    assert f"\n{error} 1125899906842624 bytes.\nhbmwatch: " in err
    assert "Peak of jit_fill: 1.00 PiB" in err
    assert "the report is in oom.html" in err
    assert (tmp_path / "oom.html").read_text().startswith("<!doctype html>")
    assert len(list((tmp_path / "logs").rglob("report.json"))) == 1


STEP = """
import jax, jax.numpy as jnp, threading
def fill(x): return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1
step = jax.jit(fill)
x = jnp.ones(8)
"""
OF_THREADS = {
    "in a thread": "threading.Thread(target=lambda: step(x).block_until_ready(), name='w').start()",
    "from stdin": "step(x).block_until_ready()",
    "in a group": """
try:
    step(x).block_until_ready()
except Exception as error:
    raise ExceptionGroup("all errors", [ValueError("another one"), error])
""",
    "in a group of tasks": """
import asyncio
async def work(): step(x).block_until_ready()
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(work())
asyncio.run(main())
""",
    "a cause": """
try:
    step(x).block_until_ready()
except Exception as error:
    raise OSError("the worker failed") from error
""",
}


@pytest.mark.parametrize("name", OF_THREADS)
def test_an_oom_elsewhere_than_at_the_end_of_a_script_has_its_report(
    name: str, tmp_path: Path
) -> None:
    """It names the program that failed, and --html writes it; the frames of a group stay."""
    source = f"{STEP}{OF_THREADS[name]}\nprint('end')\n"
    (tmp_path / "script.py").write_text(source)
    script = "-" if name == "from stdin" else "script.py"

    status, out, err = outcome(
        "-m", "hbmwatch", "run", "--html", "oom.html", script, cwd=tmp_path, input=source.encode()
    )

    in_thread = name == "in a thread"
    assert (status, out) == ((0, "end\n") if in_thread else (1, ""))
    guess = r"probably jit_fill\(\d\)" if name == "from stdin" else "jit_fill"  # stdin has no lines
    assert re.search(f"hbmwatch: {guess} ran out of memory at run time on CPU\n", err)
    assert ("Traceback" in err) == (name not in ("in a thread", "from stdin"))
    place = f'  File "{tmp_path / "script.py"}", line 6, in <lambda>\n    threading.Thread('
    assert err.startswith(f"Exception in thread w:\n{place}") == in_thread
    assert f"{ERROR.__module__}.{ERROR.__qualname__}: RESOURCE_EXHAUSTED: Out of memory" in err
    assert "1.00 PiB" in (tmp_path / "oom.html").read_text()


HOOK_OF_THREADS = """
threading.excepthook = lambda failed: print("own", failed.exc_type.__name__, failed.thread.name)
"""


def test_the_programs_own_hook_of_threads_is_called_as_without(tmp_path: Path) -> None:
    """It replaces ours, as it replaces Python's."""
    source = STEP + HOOK_OF_THREADS + OF_THREADS["in a thread"]
    (tmp_path / "script.py").write_text(source)

    ran = outcome("-m", "hbmwatch", "run", "script.py", cwd=tmp_path)

    assert ran == (0, f"own {jax.errors.JaxRuntimeError.__name__} w\n", "")


@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("fault", ["encoding", "report", "closed"])
def test_an_oom_gets_out_where_its_report_cannot_be_printed(
    where: str, fault: str, tmp_path: Path
) -> None:
    """A stderr that cannot encode it, a report that cannot be made, and no stderr."""
    faults = {
        "encoding": "sys.stderr = open(2, 'w', encoding='ascii', closefd=False)\n",
        "report": "import hbmwatch._cli.run as r\n"
        "def fail(*_, **__): raise OSError('no descriptor')\nr.report_text = fail\n",
        "closed": "sys.stderr = None\n",
    }
    step = "def größe(): step(x).block_until_ready()\n"
    calls = {"main": "größe()\n", "thread": "threading.Thread(target=größe).start()\n"}
    source = f"{STEP}import sys\n{faults[fault]}{step}{calls[where]}"
    (tmp_path / "script.py").write_text(source)

    _, out, err = outcome("-m", "hbmwatch", "run", "script.py", cwd=tmp_path)

    assert out == ""
    if fault == "closed":
        assert "hbmwatch: " not in err
    else:
        assert "RESOURCE_EXHAUSTED: Out of memory" in err
        assert "Error in" not in err and "excepthook" not in err
        assert ("Peak of jit_fill" in err) == (fault == "encoding" or where == "main")


THREE_THREADS = """
threads = [
    threading.Thread(target=lambda: step(x).block_until_ready(), name=f"w{n}\\x1b[2J")
    for n in range(3)
]
for thread in threads: thread.start()
"""


def test_the_reports_of_several_threads_stay_whole(tmp_path: Path) -> None:
    """One after another; the page keeps the first; names have no control characters."""
    (tmp_path / "script.py").write_text(STEP + THREE_THREADS)

    status, out, err = outcome(
        "-m", "hbmwatch", "run", "--html", "oom.html", "script.py", cwd=tmp_path
    )

    assert (status, out) == (0, "")
    names = re.findall(r"^Exception in thread (.*):$", err, re.MULTILINE)
    assert sorted(names) == [f"w{n}\N{REPLACEMENT CHARACTER}[2J" for n in range(3)]
    says = re.findall(r"^hbmwatch: (.*oom\.html.*)$", err, re.MULTILINE)
    keeps = "oom.html keeps the report of an earlier error"
    assert sorted(says) == [keeps, keeps, "the report is in oom.html"]


NO_DESCRIPTOR = """
import jax, jax.numpy as jnp, resource, sys
x = jnp.ones(8)
step = jax.jit(lambda x: jnp.broadcast_to(x[0], (2**24, 2**24)) + 1).lower(x).compile()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
if sys.argv[1] == "oom":
    step(x)
open("data")
"""


@pytest.mark.parametrize(
    ("step", "error"),
    [("oom", "RESOURCE_EXHAUSTED: Out of memory"), ("other", "OSError: [Errno 24]")],
)
def test_an_error_gets_out_without_a_free_file_descriptor(
    step: str, error: str, tmp_path: Path
) -> None:
    """Nothing can be loaded then; a note on an OOM says why there is no report."""
    (tmp_path / "train.py").write_text(NO_DESCRIPTOR)

    status, out, err = outcome("-m", "hbmwatch", "run", "train.py", step, cwd=tmp_path)

    assert (status, out) == (1, "")
    assert error in err
    assert ("\nhbmwatch: no report: OSError: " in err) == (step == "oom")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.py"], "there is no file none.py"),
        (["-m", "none"], "there is no module none"),
        (["-m", "none.train"], "there is no module none.train"),
        (["-m", ".train"], ".train is relative to a package: give the full name of the module"),
    ],
)
def test_what_is_not_there_is_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    """With exit status 3."""
    ran = run_in_child("run", *arguments, cwd=tmp_path)

    assert (ran.returncode, ran.stderr.decode()) == (3, f"hbmwatch: {sentence}\n")


CHAINED = """
try:
    {}
except KeyError:
    step(x).block_until_ready()
"""


def test_an_oom_that_is_chained_has_the_name_of_what_was_raised(tmp_path: Path) -> None:
    """JAX's own error is not kept then."""
    (tmp_path / "script.py").write_text(STEP + CHAINED.format("{}['a']"))

    _, _, err = outcome("-m", "hbmwatch", "run", "script.py", cwd=tmp_path)

    assert "\nhbmwatch.HbmOomError: RESOURCE_EXHAUSTED: Out of memory allocating 11258" in err


def test_the_help_says_when_an_asynchronous_failure_is_explained() -> None:
    """A script that never waits ends as without hbmwatch."""
    said = run_in_child("run", "--help").stdout.decode()

    assert "An asynchronous failure is explained where the script waits for its result." in said
