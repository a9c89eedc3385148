"""`hbmwatch run`: a script or a module, with no change to it, inside a watch."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
from pathlib import Path
from types import TracebackType

from hbmwatch._cli.command import DONE, FAILED, Command, CommandError
from hbmwatch._cli.console import look_of, print_on_stderr, write_text
from hbmwatch._report.text import report_text

_BEFORE_THE_SCRIPT = (runpy.__file__, __file__)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--logdir", metavar="DIR", help="the folder that receives the profile")
    parser.add_argument("--html", metavar="FILE", help="write the report of an OOM as an HTML page")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module by name")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or with -m a module")
    parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own arguments"
    )


def _run(options: argparse.Namespace) -> int:
    """Run the program as `python SCRIPT ARGS` does, and show the report of an OOM."""
    if not options.is_module and not Path(options.script).is_file():
        raise CommandError(f"there is no file {options.script}")
    sys.argv = [options.script, *options.arguments]
    # `hbmwatch` put its own folder, or "", first; `python` puts the script's there.
    first = os.getcwd() if options.is_module else str(Path(options.script).resolve().parent)
    sys.path.insert(0, first)
    try:
        _execute(options)
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        _print_as_python(error)
        return _interrupted()
    except BaseException as error:
        _show(error, options)
        return FAILED
    return DONE


def _execute(options: argparse.Namespace) -> None:
    """Run the program inside a watch."""
    from hbmwatch._watch.decorator import watch_hbm

    with watch_hbm(logdir=options.logdir, sync="never"):
        if options.is_module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(os.path.abspath(options.script), run_name="__main__")


def _show(error: BaseException, options: argparse.Namespace) -> None:
    """Print an OOM as its report, any other error as Python does; write the page of a report."""
    from hbmwatch._explain.errors import HbmOomError, report_of

    report = report_of(error)
    if isinstance(error, HbmOomError):
        print(report_text(error.report, look=look_of(options, sys.stderr)), file=sys.stderr)
    else:  # the report is among its notes, or those of its cause
        _print_as_python(error)
    if options.html is None or report is None:
        return
    try:
        write_text(options.html, report.to_html())
    except CommandError as failed:
        print_on_stderr(str(failed))
    else:
        print_on_stderr(f"the report is in {options.html}")


def _print_as_python(error: BaseException) -> None:
    """Print an uncaught exception as the interpreter does, from the script's frames on."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)


def _is_ours(frames: TracebackType) -> bool:
    """Whether the frame is of this command or of runpy, which lie above the script's."""
    name = frames.tb_frame.f_code.co_filename
    return name in _BEFORE_THE_SCRIPT or name == "<frozen runpy>"


def _interrupted() -> int:
    """End by SIGINT, as Python does after KeyboardInterrupt, so that a shell script stops too."""
    if os.name == "posix":
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
    return 130


COMMAND = Command(
    name="run",
    purpose="run a script, and show the report if it runs out of device memory",
    examples=(
        "hbmwatch run train.py --steps 100",
        "hbmwatch run --html oom.html -m pkg.train --steps 100",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
