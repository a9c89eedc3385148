"""What each file of this package gives to `main`: a command, and the options that several share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from hbmwatch._xla.terms import MEMORY_SPACES

DONE, FAILED, NOTHING_FOUND, UNUSABLE, INTERRUPTED, BROKEN_PIPE = 0, 1, 1, 3, 130, 141


class CommandError(Exception):
    """The command cannot go on: the text says why in one sentence, and the exit status is 3."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `hbmwatch`.

    Attributes:
        name: The word that follows `hbmwatch`.
        purpose: What the command does, in lower case: "show the memory peak of ...".
        examples: Lines that a reader of its help can type.
        add_arguments: Adds the command's arguments to its parser.
        run: Does what the arguments ask for, and returns the exit status; or returns the user's own
            program, which then runs without what `main` does around a command.
        details: What its help says after the purpose, as lines.
    """

    name: str
    purpose: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | Callable[[], int]]
    details: str = ""

    @property
    def description(self) -> str:
        """The beginning of its help: the purpose and the details."""
        return f"{self.purpose[0].upper()}{self.purpose[1:]}.\n\n{self.details}".rstrip()

    @property
    def epilog(self) -> str:
        """The end of its help: the examples."""
        heading = "examples" if len(self.examples) > 1 else "example"
        return "\n  ".join((f"{heading}:", *self.examples))


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json, which every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_color_option(parser: argparse.ArgumentParser) -> None:
    """Add --color, which every command has."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="color limits and the figures that exceed them, and draw a bar for each size "
        "(default: auto, which does so on a terminal, unless NO_COLOR or CI is set)",
    )


def add_peak_options(parser: argparse.ArgumentParser, rows: str = "buffers") -> None:
    """Add the options that choose a peak of a profile: --module, --memory-space and --top.

    Args:
        parser: The parser of the command.
        rows: What --top counts.
    """
    parser.add_argument(
        "--module",
        metavar="MODULE",
        help="HLO module to read (default: the one with the highest peak)",
    )
    parser.add_argument(
        "--memory-space",
        choices=tuple(MEMORY_SPACES),
        default="hbm",
        metavar="SPACE",
        help=f"one of {', '.join(MEMORY_SPACES)} (default: hbm, the device memory of a TPU or GPU)",
    )
    parser.add_argument(
        "--top",
        type=positive_number,
        default=10,
        metavar="N",
        help=f"number of {rows} to show (default: 10)",
    )


def positive_number(text: str) -> int:
    """An argument that is a whole number above 0; anything else is a usage error."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a positive number")
    return number
