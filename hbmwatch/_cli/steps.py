"""Options that several commands share: the step ("pkg.model:step"), its arguments, the target."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hbmwatch._cli.command import CommandError, positive_number
from hbmwatch._records.sizes import given_size

# What an error says to a caller in Python, and to a user of a command.
_NAMED_BY_OPTIONS = ("pass limit_bytes", "pass --on v5e or --limit SIZE")


def add_step_options(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the step, --args and --on, and how it is compiled."""
    parser.add_argument(
        "step",
        metavar="MODULE:STEP",
        nargs="?" if optional else None,
        help="the step, such as pkg.model:train_step",
    )
    parser.add_argument(
        "--args",
        metavar="MODULE:ARGS",
        default="",
        help="the step's arguments as a tuple, or a function that returns them",
    )
    parser.add_argument(
        "--on",
        metavar="TARGETS",
        default="",
        help="targets to compile for: v5e, v5e:4x4 or v5e,h100 (default: this machine's device)",
    )
    parser.add_argument(
        "--timeout",
        type=positive_number,
        default=600,
        metavar="S",
        help="time limit for each compile in seconds, tracing not included (default: 600)",
    )


def add_size_option(parser: argparse.ArgumentParser) -> None:
    """The size for one call; `largest` finds it instead."""
    parser.add_argument(
        "--size",
        type=positive_number,
        metavar="N",
        help="the size N to pass to the function that --args names",
    )


def add_verdict_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide a verdict: --proof, --limit and --memory-fraction."""
    parser.add_argument(
        "--proof",
        choices=("compiled", "assigned"),
        default="compiled",
        help="compile to the end (default), or only to the buffer assignment, which is faster",
    )
    add_limit_options(parser)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Add --limit and --memory-fraction."""
    parser.add_argument(
        "--limit",
        type=size,
        metavar="SIZE",
        help="a limit to use instead of the device's, such as 14GiB",
    )
    parser.add_argument(
        "--memory-fraction",
        type=float,
        metavar="X",
        help="the share of a GPU's memory that the step gets (default: 0.75, as in JAX)",
    )


def size(text: str) -> int:
    """An argument that is a size above 0; anything else is a usage error."""
    try:
        found = given_size(text, "80GiB")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a size such as 80GiB")
    return found


def targets(options: argparse.Namespace) -> list[str | None]:
    """The targets that --on names; [None] stands for this machine's device.

    With a target, no local device is needed, so JAX starts on the CPU.
    """
    named = [word.strip() for word in options.on.split(",") if word.strip()]
    if named:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return list(named) or [None]


def load(name: str) -> Any:
    """The object that "pkg.model:name" names.

    Raises:
        CommandError: It cannot be loaded.
    """
    module, _, path = name.partition(":")
    if path and (module.endswith(".py") or "/" in module):
        dotted = module.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise CommandError(f"{module} is a file, not a module: write {dotted}:{path}")
    if not module or not path:
        raise CommandError(f"{name!r} does not name an object in a module: write pkg.model:name")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with user_code(name):
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise CommandError(f"cannot load {name}: {error}") from error
    return found


@contextlib.contextmanager
def user_code(name: str) -> Iterator[None]:
    """Around what runs the user's code: whatever it raises ends the command with status 3.

    An error that hbmwatch raised is a sentence. So is what JAX says of the call, because JAX
    removes its own frames from the traceback. Any other error is shown with its traceback, as
    Python would, but Python's own exit status for it, 1, would say that the step does not fit.

    Raises:
        CommandError: In the place of the error.
    """
    try:
        yield
    except CommandError:
        raise
    except (Exception, SystemExit) as error:
        kind, text = type(error).__name__, " ".join(str(error).split())
        if text and _is_ours(error):
            _print_notes(error)
            raise CommandError(text.replace(*_NAMED_BY_OPTIONS)) from error
        traceback.print_exc()
        how = "ended with" if _is_ours(error) else "raised"
        raise CommandError(f"{name} {how} {kind}{': ' if text else ''}{text}") from error


def _print_notes(error: BaseException) -> None:
    """Print the notes of hbmwatch on stderr: what `largest` tried before the error."""
    for note in getattr(error, "__notes__", ()):
        if sys.stderr is not None and note.startswith("hbmwatch"):
            print(note, file=sys.stderr)


def _is_ours(error: BaseException) -> bool:
    """Whether a line of hbmwatch raised the error, itself or by a call of the standard library."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    standard, installed = Path(os.__file__).parent, Path(argparse.__file__).parent / "site-packages"
    last = next(
        file
        for file in reversed(files)
        if not file.is_relative_to(standard) or file.is_relative_to(installed)
    )
    return last.is_relative_to(Path(__file__).parent.parent)


def step_and_arguments(options: argparse.Namespace) -> tuple[Any, tuple[Any, ...]]:
    """The step and its arguments.

    Raises:
        CommandError: They cannot be loaded, or the step needs arguments and --args is missing.
    """
    step = load(options.step)
    if not options.args and callable(step) and _needs_arguments(step):
        raise CommandError(f"{options.step} needs arguments: pass --args MODULE:ARGS")
    return step, arguments(options.args, options.size)


def _needs_arguments(function: Callable[..., Any]) -> bool:
    """Whether a call without arguments would fail, as far as the signature tells."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is p.empty and p.kind not in variadic for p in parameters)


def arguments(name: str, size: int | None) -> tuple[Any, ...]:
    """The step's arguments, for a size if one is given.

    Raises:
        CommandError: They are not a tuple, or a size is missing or has no use.
    """
    if not name:
        return ()
    found = load(name)
    if size is not None and not callable(found):
        raise CommandError(f"--size needs a function, and {name} is {type(found).__name__}")
    if callable(found):
        if size is None and _needs_arguments(found):
            raise CommandError(f"{name} needs an argument: pass --size N")
        with user_code(name):
            found = found() if size is None else found(size)
    if not isinstance(found, (tuple, list)):
        raise CommandError(f"{name} gives {type(found).__name__}, not a tuple of arguments")
    return tuple(found)
