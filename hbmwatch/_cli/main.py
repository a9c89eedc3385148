"""The command `hbmwatch`: what a shell can ask, and how it answers.

Heavy packages are imported by the command that needs them: `explain` loads neither jax nor numpy
nor protobuf.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hbmwatch
from hbmwatch._messages.notes import message_notes
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.text import clean
from hbmwatch._report.report import OomReport
from hbmwatch._xla.terms import MEMORY_SPACES

DONE, NOTHING_FOUND, UNUSABLE, INTERRUPTED, BROKEN_PIPE = 0, 1, 3, 130, 141

_EXIT_CODES = """\
exit status:
  0    done
  1    nothing to show: no out-of-memory error in the text, or in the demo
  2    wrong usage
  3    a file is missing, empty or damaged, has no such module, or cannot be written
  130  interrupted
  141  the reader of the output went away
"""
_PACKAGES = ("jax", "jaxlib", "libtpu", "xprof")
_SLOW_S = 1.0


class _Unusable(Exception):
    """A file that cannot be read or written: what is wrong with it, in a sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments; None: those of the process.

    Returns:
        The exit status, as the help lists them.
    """
    with contextlib.suppress(AttributeError):  # a replaced stdout need not have it
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        if sys.stdout is None:  # the process was started with it closed
            raise _Unusable("cannot write: stdout is closed")
        options = _parser().parse_args(argv)
        status: int = options.run(options)
        sys.stdout.flush()
    except (ProfileError, _Unusable) as error:
        _say(str(error))
        return UNUSABLE
    except OSError as error:  # of stdout: a reader that went away, a full disk
        _drop_output()
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        _say(str(error))
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _say(sentence: str) -> None:
    """One line on stderr, if there is one; print() takes stdout for a stderr that is closed."""
    if sys.stderr is not None:
        print(f"hbmwatch: {clean(sentence, 2000)}", file=sys.stderr)


def _drop_output() -> None:
    """Python flushes stdout once more at exit, which must not fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- what can be asked ----------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hbmwatch",
        description="Says what filled the memory when a JAX program ran out of it.",
        epilog=f"example:\n  hbmwatch explain train.log\n\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show versions, of jax and its plugins too"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_explain(commands)
    _add_peak(commands)
    _add_diff(commands)
    _add_demo(commands)
    return parser


def _add_explain(commands: Any) -> None:
    command = _command(
        commands,
        "explain",
        _explain,
        "what the out-of-memory errors in a log say and mean",
        "hbmwatch explain train.log\n  kubectl logs trainer-0 | hbmwatch explain",
    )
    command.add_argument(
        "file", nargs="?", default="-", metavar="FILE", help="a log; '-' (the default) is stdin"
    )
    _add_json(command)


def _add_peak(commands: Any) -> None:
    command = _command(
        commands,
        "peak",
        _peak,
        "the memory peak of a module in an XProf profile, whoever made it",
        "hbmwatch peak /tmp/xprof\n  hbmwatch peak /tmp/xprof --module jit_step --html peak.html",
    )
    command.add_argument("logdir", metavar="LOGDIR", help="a log folder, a run, or an .xplane.pb")
    command.add_argument("--html", metavar="FILE", help="write a page with chart and table, too")
    _add_choice(command)
    _add_json(command)


def _add_diff(commands: Any) -> None:
    command = _command(
        commands,
        "diff",
        _diff,
        "what changed from one memory peak to another",
        "hbmwatch diff /tmp/xprof-batch-8 /tmp/xprof-batch-9\n"
        "  hbmwatch peak --json /tmp/xprof > before.json\n"
        "  hbmwatch diff before.json /tmp/xprof",
    )
    for name, help_ in (("A", "a profile, or a saved report (JSON)"), ("B", "the same, later")):
        command.add_argument(name.lower(), metavar=name, help=help_)
    _add_choice(command)
    _add_json(command)


def _add_choice(command: Any) -> None:
    """Which module of a profile, in which memory, and how much of it."""
    command.add_argument("--module", metavar="M", help="the default is the one with the most bytes")
    command.add_argument(
        "--memory-space",
        choices=tuple(MEMORY_SPACES),
        default="hbm",
        metavar="S",
        help=f"{', '.join(MEMORY_SPACES)} (default: hbm, which is a GPU's memory too)",
    )
    command.add_argument(
        "--top", type=_positive, default=10, metavar="N", help="rows (default: 10)"
    )


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a positive number")
    return number


def _add_demo(commands: Any) -> None:
    command = _command(
        commands,
        "demo",
        _demo,
        "run a step out of memory here, and show the report",
        "hbmwatch demo\n  hbmwatch demo --topology v5e:2x2",
    )
    command.add_argument(
        "--topology", metavar="T", help="compile for this TPU, such as v5e:2x2; needs no TPU"
    )
    _add_json(command)


def _command(commands: Any, name: str, run: Any, what: str, examples: str) -> Any:
    plural = "examples" if "\n" in examples else "example"
    command = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"{plural}:\n  {examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_json(command: Any) -> None:
    command.add_argument("--json", action="store_true", help="print JSON instead of text")


class _Version(argparse.Action):
    """Prints the versions and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> None:
        print("\n".join(f"{name} {version}" for name, version in _versions().items()))
        parser.exit()


def _versions() -> dict[str, str]:
    """The versions of what is installed, without importing any of it."""
    import importlib.metadata  # as slow to load as all of `explain`

    versions = {"hbmwatch": hbmwatch.__version__}
    plugins = {e.dist.name for e in importlib.metadata.entry_points(group="jax_plugins") if e.dist}
    for package in (*_PACKAGES, *sorted(plugins)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


# --- the answers ----------------------------------------------------------------------------------


def _explain(options: argparse.Namespace) -> int:
    messages = hbmwatch.parse_ooms(_read_text(options.file))
    if options.json:
        _print_json([OomReport(one, notes=message_notes(one)).to_dict() for one in messages])
    elif messages:
        print("\n\n".join(map(str, _told_once(messages))))
    else:
        _say("this text holds no out-of-memory error of a device")
    return DONE if messages else NOTHING_FOUND


def _told_once(messages: Sequence[OomMessage]) -> list[OomReport]:
    """A report of each message; of those that are equal, as of several hosts, one with a count."""
    said = [repr(dataclasses.replace(message, text="")) for message in messages]
    first = dict(zip(reversed(said), reversed(messages)))
    return [
        OomReport(
            first[one],
            notes=(
                *message_notes(first[one]),
                *([f"This stands there {n} times."] if n > 1 else []),
            ),
        )
        for one, n in Counter(said).items()
    ]


def _peak(options: argparse.Namespace) -> int:
    with _progress("reading the profile"):
        report = _peak_report(options)
    if options.html is not None:
        with _progress("writing the page"):
            _save(report, options.html)
    if options.json:
        _print_json(report.to_dict())
    else:
        print(report.text(top=options.top))
    return DONE


def _peak_report(options: argparse.Namespace) -> OomReport:
    """The report of a program that need not have failed: its message is empty."""
    from hbmwatch._explain.breakdown import breakdown
    from hbmwatch._explain.conclude import add_findings
    from hbmwatch._explain.problems import Problems
    from hbmwatch._profiles.load import load_program
    from hbmwatch._xla.peak import caveats

    loaded = load_program(options.logdir, module=options.module, memory_space=options.memory_space)
    several = f"the largest of {len(loaded.modules)} modules; --module shows another one"
    is_log_folder = (Path(options.logdir) / "plugins" / "profile").is_dir()
    summary = loaded.summary
    report = OomReport(
        OomMessage(""),
        summary,
        notes=(several,) if options.module is None and len(loaded.modules) > 1 else (),
        logdir=options.logdir if is_log_folder else None,
    )
    missing = Problems(caveats(summary))
    if options.memory_space == "hbm":
        given = (loaded.program, summary, report.message)
        sizes = missing.attempt("the breakdown", {}, breakdown, *given)
        report = dataclasses.replace(report, breakdown=sizes)
        report = add_findings(report, summary, loaded.program, None, missing)
    return dataclasses.replace(report, missing=tuple(missing))


def _diff(options: argparse.Namespace) -> int:
    from hbmwatch._report.diff import diff_dict, diff_text

    with _progress("reading the two peaks"):
        before, after = (_peak_of(path, options) for path in (options.a, options.b))
    if options.json:
        _print_json(diff_dict(before, after))
    else:
        print(diff_text(before, after, options.top))
    return DONE


def _peak_of(path: str, options: argparse.Namespace) -> PeakSummary:
    """The peak in a profile, or in a report that was saved as JSON."""
    if not _is_stored(path):
        return hbmwatch.load_peak_summary(
            path, module=options.module, memory_space=options.memory_space
        )
    try:
        report = OomReport.from_dict(json.loads(_read_text(path)))
    except (ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
        raise _Unusable(f"{path} holds no report: {error}") from error
    if report.summary is None:
        raise _Unusable(f"the report in {path} has no memory peak")
    return report.summary


def _is_stored(path: str) -> bool:
    """Whether a path is text and not a profile, which cannot begin with a brace."""
    file = Path(path)
    if path == "-" or path.endswith(".json") or file.is_fifo():
        return True
    try:
        with file.open("rb") as opened:
            return opened.read(1) == b"{"
    except OSError:  # a folder, or nothing at all
        return False


def _save(report: OomReport, file: str) -> None:
    try:
        report.save_html(file)
    except OSError as error:
        raise _Unusable(f"cannot write {file}: {error.strerror}") from error


def _demo(options: argparse.Namespace) -> int:
    from hbmwatch._cli.demo import run

    return run(options.topology, options.json)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _read_text(file: str) -> str:
    """A log as text; what is not UTF-8 in it becomes the replacement character."""
    try:
        if file == "-":
            if sys.stdin is None:
                raise _Unusable("cannot read stdin: it is closed")
            if sys.stdin.isatty():
                _say("paste the error, then press Ctrl-D")
            data = sys.stdin.buffer.read()
        else:
            data = Path(file).read_bytes()
    except OSError as error:
        raise _Unusable(f"cannot read {file}: {error.strerror}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
    """Says on the terminal what is being done, as soon as it has taken a second."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    line = f"hbmwatch: {what} ..."
    said = threading.Event()

    def say() -> None:
        print(line, end="", file=sys.stderr, flush=True)
        said.set()

    timer = threading.Timer(_SLOW_S, say)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if said.is_set():
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)
