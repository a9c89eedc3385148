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
# The runs of the log folder that is among the words before, as jax.profiler and hbmwatch name them.
# Others may write into that folder: no name of a run may get to a shell that could expand it.
_RUNS: dict[str, Any] = {
    "bash": "_hbmwatch_runs",
    "zsh": "_hbmwatch_runs",
    "fish": "(_hbmwatch_runs)",
    "preamble": {
        "bash": """\
_hbmwatch_runs() {
  local word run
  for word in "${COMP_WORDS[@]}"; do
    [[ -n $word ]] || continue
    for run in "${word/#\\~/$HOME}"/plugins/profile/*/; do
      [[ -d $run ]] || continue
      run=${run%/}
      run=${run##*/}
      [[ $run =~ ^[A-Za-z0-9_.:-]+$ && $run == "$1"* ]] && printf '%s\\n' "$run"
    done
  done
}
""",
        "zsh": """\
_hbmwatch_runs() {
  local word
  local -a runs
  for word in ${words:#}; do
    word=${(Q)word}
    runs+=("${word/#\\~/$HOME}"/plugins/profile/*(N/:t))
  done
  runs=(${runs:#*[^A-Za-z0-9_.:-]*})
  (( $#runs )) && compadd -- $runs
}
""",
        "fish": """\
function _hbmwatch_runs
  for word in (commandline -opc)
    for run in (string replace -r '^~' $HOME -- $word)/plugins/profile/*/
      string replace -rf '(?s)^.*/([A-Za-z0-9_.:-]+)/$' '$1' -- $run
    end
  end
end
""",
    },
}


class Parser(argparse.ArgumentParser):
    """A parser that can list its arguments, and that takes no empty text for a path.

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
        if options.get("metavar") in {*_FILES, "DIR"}:  # an empty FOLDER turns the cache off
            options.setdefault("type", _path)
        added: argparse.Action = super().add_argument(*names, **options)
        self.arguments.append(added)
        return added


def _path(text: str) -> str:
    """An argument that is a path; an empty one, as of an unset variable, is a usage error."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text


class PrintCompletion(argparse.Action):
    """Prints the completion script of a shell, with which a TAB starts no Python, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, options: Any, shell: Any, *_: Any) -> None:
        try:
            import shtab
        except ImportError as error:
            missing = "completion needs the package shtab: pip install 'hbmwatch[completion]'"
            raise CommandError(missing) from error
        from hbmwatch._preflight.gpus import GPUS
        from hbmwatch._preflight.targets import TPUS

        choices = {"DEVICE": (*TPUS, *GPUS), "TARGETS": (*TPUS, *GPUS), "TARGET": tuple(TPUS)}
        completes = {
            **dict.fromkeys(_FILES, shtab.FILE),
            **dict.fromkeys(_FOLDERS, shtab.DIRECTORY),
            "RUN": _RUNS,
        }
        for each in (parser, *getattr(parser, "commands", {}).values()):
            for argument in each.arguments:
                name = str(argument.metavar)
                if name in completes:
                    argument.complete = completes[name]
                elif name in choices:
                    argument.choices = choices[name]
        print(shtab.complete(parser, shell=str(shell)))
        parser.exit()
