"""`hbmwatch run`: a script or a module, with no change to it, inside a watch."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from hbmwatch._cli.command import DONE, Command, CommandError
from hbmwatch._cli.console import look_of, print_on_stderr, write_on_stderr, write_text
from hbmwatch._cli.program import programs_frames, run_module, run_script, run_stdin
from hbmwatch._records.libraries import is_library
from hbmwatch._records.text import clean
from hbmwatch._report.text import report_text

if TYPE_CHECKING:
    from hbmwatch._records.look import Look
    from hbmwatch._report.report import OomReport

_LONGEST_LINE = 1000  # of an error


@dataclass(slots=True)
class _Page:
    """The page of the first report: several threads may run out of memory.

    `name` is how the user named the file, and `path` its absolute path.
    """

    name: str
    path: str
    _is_written: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, report: OomReport) -> None:
        """Write the page, unless an earlier report is in it; say on stderr what was done."""
        with self._lock:
            try:
                if self._is_written:
                    says = f"{self.name} keeps the report of an earlier error"
                else:
                    write_text(self.path, report.to_html())
                    self._is_written = True
                    says = f"the report is in {self.name}"
            except CommandError as failed:
                says = str(failed)
            except Exception as failed:  # as without a free file descriptor
                says = f"cannot write {self.name}: {type(failed).__name__}: {failed}"
        print_on_stderr(says)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--logdir",
        metavar="DIR",
        help="the folder to write the profile to, or its address, such as gs://bucket/xprof",
    )
    parser.add_argument("--html", metavar="FILE", help="write the report of an OOM as an HTML page")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module by name")
    parser.add_argument(
        "script", metavar="SCRIPT", help="a Python file, '-' for stdin, or with -m a module"
    )
    parser.add_argument(
        "arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own arguments"
    )


def _run(options: argparse.Namespace) -> Callable[[], int]:
    """The program, which runs as `python SCRIPT ARGS` does."""
    from hbmwatch._records.addresses import check_address, remote_address
    from hbmwatch._watch.switch import is_disabled

    is_disabled()  # raises SettingError now, not when the program has failed
    # The program may change the working directory before it fails.
    page = None if options.html is None else _Page(options.html, os.path.abspath(options.html))
    if options.logdir is not None:
        check_address(options.logdir)
        if remote_address(options.logdir) is None:
            options.logdir = os.path.abspath(options.logdir)
    return functools.partial(_program, options, page)


def _program(options: argparse.Namespace, page: _Page | None) -> int:
    """Run the program, and leave an error of it to the interpreter, with our report of an OOM."""
    sys.argv = [options.script, *options.arguments]
    of_threads = threading.excepthook
    threading.excepthook = functools.partial(_print_thread_error, options, page, of_threads)
    error: BaseException
    try:
        if options.is_module:
            run_module(options.script)
        elif options.script == "-":
            run_stdin()
        else:
            run_script(options.script)
        return DONE
    except (CommandError, SystemExit):
        raise
    except Exception as raised:
        error = _explained(raised, options.logdir)
    except BaseException as raised:
        error = raised
    sys.excepthook = functools.partial(_print_error, options, page, sys.excepthook)
    raise error


def _explained(error: Exception, logdir: str | None) -> BaseException:
    """The error as the end of a watch raises it.

    The program runs without the watch, which would import jax before the program has chosen its
    settings: a block that does not wait for arrays does its work at the end.
    """
    if "jax" not in sys.modules:
        return error
    try:
        from hbmwatch._watch.decorator import watch_hbm

        watch = watch_hbm(logdir=logdir, sync="never")
    except Exception as failed:  # as without a free file descriptor
        if "emory" in str(error):
            error.add_note(f"hbmwatch: no report: {type(failed).__name__}: {failed}")
        return error
    try:
        with watch:
            raise error
    except BaseException as explained:
        return explained


def _print_error(
    options: argparse.Namespace,
    page: _Page | None,
    hook: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    frames: TracebackType | None,
) -> None:
    """Print an OOM as its report, any other error as without us; write the page of a report."""
    report, in_place = _report_of(error)
    if (
        report is None
        or not in_place
        or hook is not sys.__excepthook__
        or not _is_printed("", error, frames, report, options)
    ):  # the report is among its notes, or those of its cause
        frames = programs_frames(frames)
        hook(kind, error.with_traceback(frames), frames)
    if page is not None and report is not None:
        page.write(report)


def _print_thread_error(
    options: argparse.Namespace,
    page: _Page | None,
    hook: Callable[..., object],
    failed: threading.ExceptHookArgs,
) -> None:
    """Print an OOM that ended a thread as its report, any other error as without us."""
    error, frames, thread = failed.exc_value, failed.exc_traceback, failed.thread
    explained, report, in_place = error, None, False
    try:
        if isinstance(error, Exception):
            explained = _explained(error, options.logdir)
            error.__traceback__ = frames
        report, in_place = _report_of(explained)
    except Exception:  # threading would print this one, and not that of the program
        explained = error
    name = "" if thread is None else f" in thread {clean(thread.name)}"
    if explained is None or explained is error:
        hook(failed)
    elif report is None or not in_place or hook is not threading.__excepthook__:
        hook(threading.ExceptHookArgs((type(explained), explained, frames, thread)))
    elif not _is_printed(f"Exception{name}:\n", explained, frames, report, options):
        hook(failed)
    if page is not None and report is not None:
        page.write(report)


def _is_printed(
    lead: str,
    error: BaseException,
    frames: TracebackType | None,
    report: OomReport,
    options: argparse.Namespace,
) -> bool:
    """Whether an OOM could be printed as its report; if not, Python's hook prints the error."""
    try:
        if sys.stderr is not None:
            text = _oom_text(error, frames, report, look_of(options, sys.stderr))
            write_on_stderr(f"{lead}{text}\n")
    except Exception:
        return False
    return True


def _oom_text(
    error: BaseException, frames: TracebackType | None, report: OomReport, look: Look
) -> str:
    """The user's line that raised an OOM, the first line of JAX's error, and the report.

    A search of a job's log for RESOURCE_EXHAUSTED finds the error.
    """
    places = [place for place in traceback.extract_tb(frames) if not is_library(place.filename)]
    first = next(filter(None, map(str.strip, str(error).splitlines())), "")
    original = error.__context__  # unless JAX's error was itself chained to another one
    kind = type(error if original is None or first not in str(original) else original)
    where = "".join(traceback.format_list(places[-1:]))
    what = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"{where}{what}: {clean(first, _LONGEST_LINE)}\n{report_text(report, look=look)}"


def _report_of(error: BaseException | None) -> tuple[OomReport | None, bool]:
    """The report of an error, and whether the error is that OOM itself."""
    # To load a module now would make the interpreter forget that it ends by KeyboardInterrupt.
    if error is None or "hbmwatch._explain.errors" not in sys.modules:
        return None, False
    from hbmwatch._explain.errors import HbmOomError, report_of

    return report_of(error), isinstance(error, HbmOomError)


COMMAND = Command(
    name="run",
    purpose="run a script, and show the report if it runs out of device memory",
    details="An asynchronous failure is explained where the script waits for its result.\n"
    "Where it never waits, there is no report, and the exit status is that of the script.",
    examples=(
        "hbmwatch run train.py --steps 100",
        "hbmwatch run --html oom.html -m pkg.train --steps 100",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
