"""`hbmwatch --print-completion SHELL`: a script that completes the words of the command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from hbmwatch._cli.command import CommandError

SHELLS = ("bash", "zsh", "fish")
# What the metavar of an argument stands for, where that is a path.
_FILES = {"FILE", "PATH", "SOURCE", "SCRIPT", "A", "B"}
_FOLDERS = {"DIR", "FOLDER"}


class Parser(argparse.ArgumentParser):
    """A parser that can list its arguments.

    Attributes:
        arguments: Its arguments.
        commands: The parsers of its commands, by name.
    """

    def __init__(self, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []
        self.commands: Mapping[str, Parser] = {}
        super().__init__(**options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument, and remember it."""
        added: argparse.Action = super().add_argument(*names, **options)
        self.arguments.append(added)
        return added


class PrintCompletion(argparse.Action):
    """Prints the completion script of a shell, with which a TAB starts no Python, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, options: Any, shell: Any, *_: Any) -> None:
        try:
            import shtab
        except ImportError as error:
            missing = "completion needs the package shtab: pip install 'hbmwatch[completion]'"
            raise CommandError(missing) from error
        for each in (parser, *getattr(parser, "commands", {}).values()):
            for argument in each.arguments:
                if argument.metavar in _FILES:
                    argument.complete = shtab.FILE
                elif argument.metavar in _FOLDERS:
                    argument.complete = shtab.DIRECTORY
        print(shtab.complete(parser, shell=str(shell)))
        parser.exit()
