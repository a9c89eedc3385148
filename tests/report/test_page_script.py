"""The page's script: its modules, its style rules, and its unit tests in Node.

A linter from a registry would be the only package of the project that is not Python's. Node itself
checks the syntax, in strict mode; the rules below are the ones of a linter that matter here. That
no function uses a name that does not exist shows where all of them are called in the browser.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import hbmwatch
from hbmwatch import OomMessage, OomReport
from hbmwatch._records.roles import ROLES
from hbmwatch._report import diff_html, html

FOLDER = Path(hbmwatch.__file__).parent / "_report" / "page"
TESTS = Path(__file__).parent / "page"
SOURCES = {file.stem: file.read_text() for file in FOLDER.glob("*.mjs")}
IMPORT = re.compile(r"^import \{([^}]*)\} from \"\./(\w+)\.mjs\";$", re.MULTILINE)
EXPORT = re.compile(r"^export (?:const|function|class) ([\w$]+)", re.MULTILINE)

DECLARED = re.compile(r"^(?:export )?(?:async )?(?:const|function|class) ([\w$]+)", re.MULTILINE)

# The modules of each page, in the order in which they stand in its script.
PAGES = {"report": tuple(html.SCRIPTS), "diff": tuple(diff_html.SCRIPTS)}
MODULES = [(page, module) for page, modules in PAGES.items() for module in modules]

# What a module must not have, and why not.
FORBIDDEN = {
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write": "text from a report is no markup",
    r"\beval\b|new Function|setTimeout\(\"": "text from a report is no code",
    r"setAttribute\(\"(?:style|on)|\bon\w+=": "the content security policy forbids it",
    r"\bfetch\(|XMLHttpRequest|import\(|https?://(?!www\.w3\.org)": "the page loads nothing",
    r"(?<![=!])==(?!=)|!=(?!=)": "compare with === and !==",
    r"\bvar\b": "declare with const and let",
    r"\bconsole\.|\bdebugger\b|\balert\(": "left over from a search for a fault",
    r"[ \t]+$|\t": "white space",
    r"^.{101,}$": "a line has at most 100 columns",
}


@pytest.fixture(scope="module")
def node() -> str:
    """Node; skips where there is none."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node (Debian: nodejs) is not installed")
    return found


def imported(module: str) -> dict[str, str]:
    """The names that a module imports, each with the module that it is from."""
    return {
        name.strip(): source
        for names, source in IMPORT.findall(SOURCES[module])
        for name in names.split(",")
        if name.strip()
    }


def test_the_scripts_are_made_of_all_modules() -> None:
    """No file of the folder is left out of all pages, and none is twice in one."""
    assert {module for _, module in MODULES} == SOURCES.keys()
    assert len(set(MODULES)) == len(MODULES)


@pytest.mark.parametrize(("page", "module"), MODULES)
def test_a_module_imports_what_exists_and_is_used(page: str, module: str) -> None:
    """Imports are of earlier modules, which export the names, and each name is used."""
    names = imported(module)
    body = IMPORT.sub("", SOURCES[module]).replace("...", " ")
    earlier = PAGES[page][: PAGES[page].index(module)]

    assert SOURCES[module].count("import ") == len(IMPORT.findall(SOURCES[module]))
    assert [source for source in names.values() if source not in earlier] == []
    assert [n for n, s in names.items() if n not in EXPORT.findall(SOURCES[s])] == []
    assert [n for n in names if not re.search(rf"(?<![\w$.]){re.escape(n)}(?![\w$])", body)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_name_is_declared_in_one_module(page: str) -> None:
    """The modules share one scope, in which a second function would replace the first."""
    declared = [name for module in PAGES[page] for name in DECLARED.findall(SOURCES[module])]

    assert sorted(declared) == sorted(set(declared))
    assert len(declared) > 20


def test_what_a_module_exports_another_one_uses() -> None:
    """Each export is imported by another module or by a unit test."""
    unit_tests = "\n".join(file.read_text() for file in TESTS.glob("*.mjs"))
    used = {name for module in SOURCES for name in imported(module)}
    exported = {name for source in SOURCES.values() for name in EXPORT.findall(source)}

    assert [name for name in exported - used if name not in unit_tests] == []


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_keeps_to_the_rules(module: str) -> None:
    """Nothing that the page's policy, safety or style forbids."""
    found = {
        why: match.group()
        for pattern, why in FORBIDDEN.items()
        if (match := re.search(pattern, SOURCES[module], re.MULTILINE))
    }

    assert found == {}
    assert len(SOURCES[module].splitlines()) < 200
    assert SOURCES[module].startswith("// ")


def test_every_role_has_a_color() -> None:
    """The roles of the package are those of the page; the small buffers are gray."""
    colored = set(re.findall(r'^  "([^"]+)": "\w+",$', SOURCES["roles"], re.MULTILINE))

    assert colored == ROLES.keys() - {"small buffers"}


@pytest.mark.slow
def test_the_unit_tests_pass(node: str) -> None:
    """Formatting, names, folding, chart and treemap do what their tests say, in Node."""
    files = sorted(map(str, TESTS.glob("*.test.mjs")))
    ran = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=200)

    assert ran.returncode == 0, ran.stdout
    assert len(files) >= 7


def test_the_whole_script_is_valid_and_strict(node: str, tmp_path: Path) -> None:
    """The modules are one script: no name is declared twice, no import and no export is left."""
    html = OomReport(OomMessage("x")).to_html()
    script = html.rsplit("<script>", 1)[1].split("</script>")[0]
    (tmp_path / "page.js").write_text(script, encoding="utf-8")
    ran = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert script.startswith('"use strict";\n')
    assert re.findall(r"^(?:import|export)\b", script, re.MULTILINE) == []
