"""The imports go one way: each package imports from lower floors only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hbmwatch
from hbmwatch._findings.rank import ADVICE

PACKAGE = Path(hbmwatch.__file__).parent

# The rooms by floor, the top one first. A package imports from lower floors only, never from its
# own, whether it does so at the top of a module, in a function or for type checking.
FLOORS = {
    9: ("__init__", "__main__"),  # the public names; `python -m hbmwatch`
    8: ("_cli",),  # one file per command
    7: ("_watch",),  # when and how we listen
    6: ("_preflight",),  # from shapes to a verdict, before anything runs
    5: ("_explain",),  # from a failed call to HbmOomError
    4: ("_findings",),  # one file per finding
    3: ("_analysis", "_profiles"),  # what is known of one program; where profiles are
    2: ("_messages", "_xla", "_jax", "_report"),  # texts; protos; private JAX; how a report reads
    1: ("_records", "_version"),  # the nouns
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}

# The only modules that import what is heavy, or private.
OWNERS = {
    "xprof": {"_profiles.xprof"},
    "fsspec": {"_profiles.store_child"},
    "google": {"_xla.protos"},
    "jax._src": {"_jax"},
}
# To read a message, a stored report or a log, these are enough.
LIGHT = (
    "_messages.parse",
    "_messages.notes",
    "_report.report",
    "_report.diff_text",
    "_report.comparison",
    "_xla.terms",
)
HEAVY = {"jax", "numpy", "google", "xprof"}


def module_name(file: Path) -> str:
    """A file of the package as a module ("_xla.peak"); "__init__" for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if parts == ("__init__",) else [p for p in parts if p != "__init__"])


MODULES = {module_name(file): ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}


def imports(module: str, at_top: bool = False) -> set[str]:
    """What a module imports, as full names; or only what it loads when it is imported."""
    tree = MODULES[module]
    top = [node for node in tree.body if not is_typing(node)]
    names: set[str] = set()
    for node in top if at_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_typing(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def ours(module: str, at_top: bool = False) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for name in imports(module, at_top):
        parts = name.split(".")
        if parts[0] == "hbmwatch":
            inner = [".".join(parts[1:n]) for n in range(len(parts), 1, -1)]
            found.add(next((n for n in inner if n in MODULES), "__init__"))
    return found


def room(module: str) -> str:
    """The room that a module is in."""
    return module.partition(".")[0]


def test_every_room_is_on_a_floor() -> None:
    """The table above names the rooms that exist."""
    assert {room(module) for module in MODULES} == set(FLOOR)


@pytest.mark.parametrize("name", sorted({room(module) for module in MODULES}))
def test_a_room_imports_from_lower_floors_only(name: str) -> None:
    """No arrow goes up, and none to a neighbor; nothing imports from the package itself."""
    arrows = {
        (module, target)
        for module in MODULES
        if room(module) == name
        for target in ours(module)
        if room(target) != name and FLOOR[room(target)] >= FLOOR[name]
    }

    assert arrows == set()


def test_no_module_imports_one_that_imports_it() -> None:
    """There is an order of the modules in which each imports only earlier ones."""
    left = {module: ours(module) - {module} for module in MODULES}
    while left:
        free = {module for module, needs in left.items() if not needs & left.keys()}
        assert free, f"these import each other: {sorted(left)}"
        left = {module: needs for module, needs in left.items() if module not in free}


@pytest.mark.parametrize("package", OWNERS)
def test_what_is_heavy_or_private_has_one_home(package: str) -> None:
    """One module, or one room, alone imports it."""
    importers = {
        module
        for module in MODULES
        if any(f"{name}.".startswith(f"{package}.") for name in imports(module))
    }

    assert importers
    assert {m if m in OWNERS[package] else room(m) for m in importers} == OWNERS[package]


NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
DOCUMENTED = {"_exit"}  # of os


def foreign_private_names(module: str) -> set[str]:
    """The names with a leading underscore that a module reads from objects of other modules."""
    nodes = list(ast.walk(MODULES[module]))
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
    }
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    read |= {
        str(ast.literal_eval(node.args[1]))
        for node in nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("getattr", "hasattr", "setattr")
        and isinstance(node.args[1], ast.Constant)
    }
    private = {name for name in read if name.startswith("_") and not name.startswith("__")}
    return private - own - NAMED_TUPLE - DOCUMENTED


def test_private_names_of_jax_are_read_in_one_room() -> None:
    """No other room reads a private attribute that it does not define, by name or by getattr."""
    found = {module: foreign_private_names(module) for module in MODULES}
    found = {module: names for module, names in found.items() if names}

    assert {room(module) for module in found} == {"_jax"}, found


def test_each_slug_is_given_in_one_file() -> None:
    """A finding's file has the name of its slug, and no other file gives that slug."""
    given = [
        (ast.literal_eval(node.value), module)
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "slug"
        if isinstance(node.value, ast.Constant)
    ]

    assert sorted(given) == [
        (slug, f"_findings.{slug.replace('-', '_')}") for slug in sorted(ADVICE)
    ]


@pytest.mark.parametrize("module", LIGHT)
def test_reading_a_message_loads_nothing_heavy(module: str) -> None:
    """The modules that a log's reader needs, and what those import, load none of it."""
    reached: set[str] = set()
    todo = {module}
    while todo:
        reached |= todo
        todo = {n for m in todo for n in ours(m, at_top=True)} - reached
    heavy = {m: {n.partition(".")[0] for n in imports(m, at_top=True)} & HEAVY for m in reached}

    assert {m: names for m, names in heavy.items() if names} == {}


LARGEST_FUNCTION = 40


def test_modules_and_functions_stay_small() -> None:
    """A module has fewer than 400 lines, and a function at most 40."""
    files = {module_name(file): file for file in PACKAGE.rglob("*.py")}
    long_modules = {m: n for m, f in files.items() if (n := len(f.read_text().splitlines())) >= 400}
    long_functions = {
        f"{module}.{node.name}": lines
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := body_lines(node)) > LARGEST_FUNCTION
    }

    assert (long_modules, long_functions) == ({}, {})


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's code, without its signature and docstring."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
