"""What an import loads: parsing needs no jax, and a watch no protobuf and no xprof."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import hbmwatch

HEAVY = {"jax", "jaxlib", "numpy", "google.protobuf", "xprof"}
CASES = {
    "the package": ("import hbmwatch", set()),
    "parse_oom": (
        "import hbmwatch; assert hbmwatch.parse_oom("
        "'RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.').requested_bytes == 8",
        set(),
    ),
    "the records": ("from hbmwatch import OomReport, PeakOp, PeakSummary", set()),
    "the watch": ("from hbmwatch import HbmOomError, watch_hbm", {"jax", "jaxlib", "numpy"}),
    "the reader": ("from hbmwatch import load_peak_summary", {"google.protobuf", "numpy"}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_import_loads_no_more_than_it_needs(case: str) -> None:
    """In a fresh interpreter, of the heavy packages only the expected ones are loaded."""
    code, expected = CASES[case]
    code += f"; import sys; print(sorted({HEAVY!r} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == f"{sorted(expected)}\n"


def test_parsing_starts_no_backend() -> None:
    """With jax imported, parse_oom initializes no device."""
    code = (
        "import jax, hbmwatch; hbmwatch.parse_oom('RESOURCE_EXHAUSTED: Out of memory')\n"
        "from jax._src import xla_bridge; print(xla_bridge._backends)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "{}\n"


def test_every_public_name_is_there() -> None:
    """Each name of __all__ is had, sorted, and nothing else is listed."""
    assert hbmwatch.__all__ == sorted(hbmwatch.__all__)
    assert dir(hbmwatch) == sorted(hbmwatch.__all__)
    assert all(hasattr(hbmwatch, name) for name in hbmwatch.__all__)


def test_another_name_is_an_attribute_error() -> None:
    """The lazy module answers as any module does."""
    with pytest.raises(AttributeError, match="module 'hbmwatch' has no attribute 'watch'"):
        _ = importlib.import_module("hbmwatch").watch


STEP = """
import sys, jax, jax.numpy as jnp
from hbmwatch import watch_hbm
step = watch_hbm(lambda x: x + 1, logdir="xprof", on_oom="exit")
step(jnp.ones(8))
names = [name.split(".") for name in sys.modules if name.startswith("hbmwatch._")]
print(sorted({room for _, room, *_ in names}), *sorted(m for _, r, *m in names if r == "_report"))
print([name for name in sys.modules if "fold" in name or name == "fsspec"])
"""


@pytest.mark.slow
def test_a_step_that_succeeds_loads_nothing_of_reports_and_jobs() -> None:
    """It loads the watch, and what a failure needs if no file can be opened: no fold, no store."""
    ran = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)

    rooms = ["_explain", "_jax", "_records", "_report", "_version", "_watch"]
    assert ran.stdout == f"{rooms} [] ['text']\n[]\n"
