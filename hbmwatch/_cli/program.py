"""Runs a script or a module in this process, as the interpreter runs it.

The standard library's runpy puts this process's own `__main__` back when the code has ended, but
exit handlers and threads still read that of the program.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
import types
from collections.abc import Mapping
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader
from types import CodeType, TracebackType
from typing import Any

from hbmwatch._cli.command import CommandError

_own_main: list[types.ModuleType] = []  # its code still runs below the program's


def run_script(script: str) -> None:
    """Run a file of source, or a folder or an archive that has a `__main__`.

    Raises:
        CommandError: There is no such file, or it has no `__main__`.
    """
    if not os.path.exists(script):
        raise CommandError(f"there is no file {script}")
    path = os.path.abspath(script)
    importer = pkgutil.get_importer(path)
    if importer is not None:
        _put_first(path)
        spec = importer.find_spec("__main__", None)
        if spec is None:
            raise CommandError(f"{script} has no __main__")
        _run(_code_of(spec), _attributes(spec))
        return
    _put_first(os.path.dirname(os.path.realpath(script)))
    loader = SourceFileLoader("__main__", path)
    with io.open_code(path) as opened:
        code = pkgutil.read_code(opened)  # of a compiled file
    attributes = {"__file__": path, "__loader__": loader, "__package__": None, "__spec__": None}
    source = loader.get_data(path) if code is None else code
    _run(source, attributes | {"__cached__": None}, path)


def run_module(name: str) -> None:
    """Run a module by its name, or the `__main__` of a package.

    Raises:
        CommandError: There is no such module.
    """
    _put_first(os.getcwd())
    spec = _find(name)
    if spec.submodule_search_locations is not None:
        spec = _find(f"{name}.__main__")
    sys.argv[0] = spec.origin or name
    _run(_code_of(spec), _attributes(spec))


def run_stdin() -> None:
    """Run the source that stdin holds, as `python -` does.

    Raises:
        CommandError: stdin is closed.
    """
    if sys.stdin is None:
        raise CommandError("cannot read stdin: it is closed")
    _put_first("")
    file = "<stdin>"
    attributes = {"__file__": file, "__loader__": BuiltinImporter, "__package__": None}
    _run(sys.stdin.buffer.read(), attributes | {"__spec__": None, "__cached__": None}, file)


def programs_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback from the program's first one on."""
    below = frames
    while below is not None:
        is_last_of_ours = below.tb_frame.f_code in (_run.__code__, _find.__code__)
        below = below.tb_next
        if is_last_of_ours:
            return below
    return frames


def _put_first(folder: str) -> None:
    """Replace the folder that the interpreter has put first for this process's own program."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _find(name: str) -> ModuleSpec:
    """Where a module is; its packages are run on the way."""
    if name.startswith("."):
        raise CommandError(f"{name} is relative to a package: give the full name of the module")
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None:
        raise CommandError(f"there is no module {name}")
    return spec


def _code_of(spec: ModuleSpec) -> CodeType:
    """The compiled code of a module."""
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise CommandError(f"{spec.name} has no code")
    return code  # type: ignore[no-any-return]


def _attributes(spec: ModuleSpec) -> dict[str, Any]:
    """The attributes that the import system gives a module."""
    return {
        "__file__": spec.origin,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__spec__": spec,
        "__cached__": spec.cached,
    }


def _run(code: CodeType | bytes, attributes: Mapping[str, Any], file: str = "") -> None:
    """Run code, or the source of a file, as `__main__`, which stays so until the end."""
    own = sys.modules["__main__"]
    _own_main.append(own)
    main = types.ModuleType("__main__")
    if "__annotations__" in vars(own):  # some versions of Python give it to every program
        vars(main)["__annotations__"] = {}
    vars(main).update(attributes, __builtins__=builtins)
    sys.modules["__main__"] = main
    if isinstance(code, bytes):
        code = compile(code, file, "exec", dont_inherit=True)
    exec(code, vars(main))
