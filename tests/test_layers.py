"""The imports go one way, and what is heavy is imported in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hbmwatch

PACKAGE = Path(hbmwatch.__file__).parent
MODULES = sorted(file.stem for file in PACKAGE.glob("_*.py") if not file.stem.startswith("__"))

# Who alone imports what is heavy, or private.
OWNERS = {
    "xprof": {"_xprof"},
    "google": {"_protos"},
    "jax._src": {"_profiler"},
}
# Reading a message, a stored report or a log must not load these.
LIGHT = {
    "_sizes", "_records", "_render", "_stored", "_message", "_wording", "_unwrap", "_tpu_wordings",
    "_gpu_wordings",
}
HEAVY = {"jax", "numpy", "google", "xprof"}


def imports(module: str, at_top: bool = False) -> set[str]:
    """The modules that a module of ours imports, but for type checking; or only at its top."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    nodes = [node for node in tree.body if ast.unparse(node) and not is_typing(node)]
    inner = nodes if at_top else [n for node in nodes for n in ast.walk(node)]
    names: set[str] = set()
    for node in inner:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "hbmwatch":
            names |= {f"hbmwatch.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return names


def is_typing(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def ours(module: str) -> set[str]:
    """Which of our modules a module imports."""
    found = {name.removeprefix("hbmwatch.") for name in imports(module) if "hbmwatch." in name}
    return {name for name in found if name in MODULES}


def test_no_module_imports_one_that_imports_it() -> None:
    """There is an order of the modules in which each imports only earlier ones."""
    left = {module: ours(module) - {module} for module in MODULES}
    while left:
        free = {module for module, needs in left.items() if not needs & left.keys()}
        assert free, f"these import each other: {sorted(left)}"
        left = {module: needs for module, needs in left.items() if module not in free}


@pytest.mark.parametrize("package", OWNERS)
def test_what_is_heavy_or_private_has_one_home(package: str) -> None:
    """One module alone imports it."""
    importers = {
        module
        for module in MODULES
        if any(f"{name}.".startswith(f"{package}.") for name in imports(module))
    }

    assert importers == OWNERS[package]


@pytest.mark.parametrize("module", sorted(LIGHT))
def test_reading_a_message_loads_nothing_heavy(module: str) -> None:
    """The modules that a log's reader needs, and what those import, load none of it."""
    reached: set[str] = set()
    todo = {module}
    while todo:
        reached |= todo
        todo = {n for m in todo for n in ours(m) if f"hbmwatch.{n}" in imports(m, at_top=True)
                or "hbmwatch" in imports(m, at_top=True)} - reached
    heavy = {m: imports(m, at_top=True) for m in reached}

    assert {m: tops for m, names in heavy.items()
            if (tops := {n.partition(".")[0] for n in names} & HEAVY)} == {}
