"""Faults are injected into every function between the catch and the raise: the OOM gets out."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import hbmwatch
from hbmwatch import watch_hbm
from tests.live import SMALL, fill

TEXT = "Out of memory allocating"
PACKAGE = Path(hbmwatch.__file__).parent
# What is not between the catch and the raise: the watch's own closures, and what runs before it.
OUTSIDE = {"watched", "wrap_call", "watch_function", "watch_hbm", "raise_explained", "on_duration"}


class Fault(Exception):
    """What a function raises that is broken on purpose."""


def raising(*_: Any, **__: Any) -> Any:
    """A function that fails."""
    raise Fault("broken on purpose")


FAULTS: dict[str, Callable[..., Any]] = {
    "raises": raising,
    "gives None": lambda *_, **__: None,
    "gives an object": lambda *_, **__: object(),
    "gives 42": lambda *_, **__: 42,
    "gives text": lambda *_, **__: "ab",
    "gives a pair": lambda *_, **__: ("a", "b"),
}
# The suite injects a few of them into a part of the functions; this variable asks for all.
ALL = os.environ.get("HBMWATCH_ALL_FAULTS") == "1"
MODES = ("on_oom", "never", "always")


def modules() -> list[types.ModuleType]:
    """All modules of the package that can be imported here."""
    names = [m.name for m in pkgutil.walk_packages([str(PACKAGE)], "hbmwatch.")]
    names = [name for name in names if "__main__" not in name and "pytest_plugin" not in name]
    return [importlib.import_module(name) for name in names]


def called(mode: str) -> set[tuple[str, str]]:
    """The functions of the package that run between the call and the raise, as (file, name)."""
    found: set[tuple[str, str]] = set()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            found.add((code.co_filename, code.co_qualname))

    step = watch_hbm(fill, capture=mode)  # type: ignore[call-overload]
    sys.setprofile(note)
    try:
        step(SMALL)
    except jax.errors.JaxRuntimeError:
        pass
    finally:
        sys.setprofile(None)
    return found


def places(mode: str) -> Iterator[tuple[str, list[tuple[Any, str]]]]:
    """Each function that runs, and where the package refers to it: (owner, attribute)."""
    loaded = modules()
    # A trace around the call replaces Python's profile function.
    for file, name in sorted(called("on_oom") | called(mode)):
        if "<" in name or name.rpartition(".")[2] in OUTSIDE:
            continue
        home = next((m for m in loaded if m.__file__ == file), None)
        if home is None:
            continue
        owner, _, attribute = name.rpartition(".")
        if owner:
            kind: Any = home
            for part in owner.split("."):
                kind = getattr(kind, part, None)
            if isinstance(kind, type) and isinstance(vars(kind).get(attribute), types.FunctionType):
                yield f"{home.__name__}.{name}", [(kind, attribute)]
            continue
        function = vars(home).get(attribute)
        refers = [(m, n) for m in loaded for n, value in vars(m).items() if value is function]
        if function is not None and refers:
            yield f"{home.__name__}.{name}", refers


def decorated(mode: str, other: Callable[..., Any] = fill) -> Callable[..., Any]:
    """A watched step; the other one where a broken function does not even let us watch it."""
    try:
        step: Callable[..., Any] = watch_hbm(fill, capture=mode)  # type: ignore[call-overload]
        return step
    except Exception:
        return other


def outcome(step: Callable[..., Any]) -> str:
    """What a step that runs out of memory raises: "" if it is the OOM."""
    try:
        step(SMALL)
    except jax.errors.JaxRuntimeError as error:
        return "" if TEXT in str(error) else f"lost its text: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_whatever_function_is_broken_the_oom_gets_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    """Exceptions and wrong types from each function that runs, one at a time."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # a text that is no folder is one below this
    unbroken = decorated(mode)
    assert outcome(unbroken) == ""
    lost, count = {}, 0
    for number, (name, refers) in enumerate(places(mode)):
        tail = "._explain." in name or "._watch." in name
        for fault, broken in FAULTS.items():
            few = fault == "raises" and number % 8 == MODES.index(mode)
            if not (ALL or few or (tail and number % 6 == MODES.index(mode))):
                continue
            count += 1
            with monkeypatch.context() as patch:
                for owner, attribute in refers:
                    patch.setattr(owner, attribute, broken)
                result = outcome(decorated(mode, unbroken))
            if result:
                lost[name, fault] = result
    assert lost == {}
    assert count > 30
