"""The command `hbmwatch`: parses the arguments and dispatches to a command.

Each command is a file of this package that defines `COMMAND`, a `Command`: its name, its purpose,
examples, a function that adds its arguments, and one that runs it and returns the exit status. To
add a command, write that file and name it in `COMMANDS` below; `hbmwatch --help` lists it from
there.

A command's file imports only what is light at its top, because every start of `hbmwatch` imports
it: jax, numpy, protobuf and what loads them belong inside the function that runs the command.
A command raises `CommandError`, or lets a `ProfileError` or `SettingError` pass, to end with one
sentence on stderr and exit status 3. `console` prints, reads files and shows progress.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import textwrap
from collections.abc import Callable, Sequence

from hbmwatch._cli import budget, demo, diff, explain, fits, fold, largest, peak, plan, run, show
from hbmwatch._cli.command import (
    BROKEN_PIPE,
    INTERRUPTED,
    UNUSABLE,
    CommandError,
    add_color_option,
)
from hbmwatch._cli.completion import SHELLS, Parser, PrintCompletion
from hbmwatch._cli.console import discard_output, print_on_stderr
from hbmwatch._cli.versions import ShowVersions
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.setting_error import SettingError

COMMANDS = (
    run.COMMAND,
    explain.COMMAND,
    peak.COMMAND,
    diff.COMMAND,
    show.COMMAND,
    fold.COMMAND,
    fits.COMMAND,
    largest.COMMAND,
    plan.COMMAND,
    budget.COMMAND,
    demo.COMMAND,
)

_EXIT_CODES = """\
exit status:
  0    done
  1    no OOM found; a step does not fit, is over budget or has no verdict; script of `run` failed
  2    usage error
  3    an input cannot be read or used, or an output cannot be written
  130  interrupted
  141  output pipe closed
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal; an example stays on one line, so that it can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """The lines of a text, each broken at spaces below its own first word."""
        lines: list[str] = []
        for line in text.splitlines():
            is_example = line.startswith("  hbmwatch ")
            match = re.match(r"\s*(?:\d+\s+)?", line)
            hang = " " * (match.end() if match else 0)
            broken = textwrap.wrap(line, width, subsequent_indent=hang, break_on_hyphens=False)
            lines += [line] if is_example else broken or [""]
        return "\n".join(f"{indent}{line}" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments; None: those of the process.

    Returns:
        The exit status, as the help lists them.
    """
    usual = getattr(sys.stdout, "errors", None)
    _set_stdout_errors("replace")
    try:
        options = _parser().parse_args(argv)
        if sys.stdout is None and options.run is not run.COMMAND.run:  # as the process was started
            raise CommandError("cannot write: stdout is closed")
        status: int | Callable[[], int] = options.run(options)
        if isinstance(status, int):
            sys.stdout.flush()
            return status
    except (ProfileError, CommandError, SettingError) as error:
        print_on_stderr(str(error))
        return UNUSABLE
    except OSError as error:  # of stdout: its reader is gone, or the disk is full
        discard_output()
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        print_on_stderr(str(error))
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    _set_stdout_errors(usual)
    try:
        return status()
    except CommandError as error:
        print_on_stderr(str(error))
        return UNUSABLE


def _set_stdout_errors(errors: str | None) -> None:
    """Choose what becomes of characters that stdout cannot encode."""
    with contextlib.suppress(AttributeError):  # a replaced stdout need not have it
        sys.stdout.reconfigure(errors=errors)  # type: ignore[union-attr]


def _parser() -> Parser:
    parser = Parser(
        prog="hbmwatch",
        description="Explain what filled device memory when a JAX program ran out of it.",
        epilog=f"example:\n  hbmwatch explain train.log\n\n{_EXIT_CODES}",
        formatter_class=_Help,
    )
    parser.add_argument(
        "--version",
        action=ShowVersions,
        nargs=0,
        help="show the versions of hbmwatch, JAX and its plugins",
    )
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help=f"print a completion script for a shell: {', '.join(SHELLS)}",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    parser.commands = subparsers.choices
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.purpose,
            description=command.description,
            epilog=command.epilog,
            formatter_class=_Help,
        )
        command.add_arguments(subparser)
        add_color_option(subparser)
        subparser.set_defaults(run=command.run)
    return parser
