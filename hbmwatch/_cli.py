"""The command `hbmwatch`: what a shell can ask, and how it answers.

Heavy packages are imported by the command that needs them: `explain` loads neither jax nor numpy
nor protobuf.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hbmwatch
from hbmwatch import _render
from hbmwatch._records import OomReport, ProfileError
from hbmwatch._terms import MEMORY_SPACES

DONE, NOTHING_FOUND, WRONG_USAGE, UNREADABLE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141

_EXIT_CODES = """\
exit status:
  0    done
  1    nothing to show: the text holds no out-of-memory error
  2    wrong usage
  3    the input cannot be read: it is missing, empty, damaged, or has no such module
  130  interrupted
  141  the reader of the output went away
"""
_PACKAGES = ("jax", "jaxlib", "libtpu", "xprof")
_SLOW_S = 1.0


class _Unreadable(Exception):
    """An input that cannot be read: what is wrong with it, in a sentence."""


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
        options = _parser().parse_args(argv)
        status: int = options.run(options)
        sys.stdout.flush()
    except (ProfileError, _Unreadable) as error:
        print(f"hbmwatch: {_render.clean(str(error), 2000)}", file=sys.stderr)
        return UNREADABLE
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


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
        "hbmwatch peak /tmp/xprof\n  hbmwatch peak /tmp/xprof --module jit_train_step --top 20",
    )
    command.add_argument("logdir", metavar="LOGDIR", help="a log folder, a run, or an .xplane.pb")
    command.add_argument("--module", metavar="M", help="the default is the one with the most bytes")
    command.add_argument(
        "--memory-space", choices=tuple(MEMORY_SPACES), default="hbm", metavar="S",
        help=f"{', '.join(MEMORY_SPACES)} (default: hbm, which is a GPU's memory too)",
    )
    command.add_argument("--top", type=int, default=10, metavar="N", help="rows (default: 10)")
    _add_json(command)


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
        _print_json([OomReport(message).to_dict() for message in messages])
    elif messages:
        print("\n\n".join(str(OomReport(message)) for message in messages))
    else:
        print("hbmwatch: this text holds no out-of-memory error of a device", file=sys.stderr)
    return DONE if messages else NOTHING_FOUND


def _peak(options: argparse.Namespace) -> int:
    import dataclasses

    with _progress("reading the profile"):
        summary = hbmwatch.load_peak_summary(
            options.logdir, module=options.module, memory_space=options.memory_space
        )
    summary = dataclasses.replace(summary, top=options.top)
    if options.json:
        _print_json(_render.plain(summary))
    else:
        print(summary)
    return DONE


def _demo(options: argparse.Namespace) -> int:
    from hbmwatch import _demo as demo

    return demo.run(options.topology)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _read_text(file: str) -> str:
    """A log as text; what is not UTF-8 in it becomes the replacement character."""
    try:
        if file == "-":
            if sys.stdin.isatty():
                print("hbmwatch: paste the error, then press Ctrl-D", file=sys.stderr)
            data = sys.stdin.buffer.read()
        else:
            data = Path(file).read_bytes()
    except OSError as error:
        raise _Unreadable(f"cannot read {file}: {error.strerror}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
    """Says on the terminal what is being done, as soon as it has taken a second."""
    if not sys.stderr.isatty():
        yield
        return
    line = f"hbmwatch: {what} ..."
    say = threading.Timer(_SLOW_S, lambda: print(line, end="", file=sys.stderr, flush=True))
    say.start()
    try:
        yield
    finally:
        say.cancel()
        say.join()
        if say.finished.is_set():
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)
