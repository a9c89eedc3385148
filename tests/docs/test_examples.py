"""The training loops in examples/ run, fall back to a smaller batch, and leave a page."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import ModuleType

import pytest

from tests import programs

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
NEEDS = {"flax_nnx": ("flax", "optax"), "equinox_step": ("equinox", "optax"), "plain_jax": ()}


def _load(file: Path) -> ModuleType:
    """An example as a module."""
    for package in NEEDS[file.stem]:
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_listed() -> None:
    """No example goes untested for the lack of a line above."""
    assert {file.stem for file in EXAMPLES} == set(NEEDS)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_goes_on_with_a_smaller_batch(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The large batch fails, is logged and drawn; the small one trains from a fresh state."""
    example = _load(file)
    large, small = example.BATCHES
    with caplog.at_level(logging.INFO, logger="train"):
        batch_size, loss = example.main(["--pages", str(tmp_path)])
    assert batch_size == small
    assert 0 < loss < 2
    (page,) = tmp_path.iterdir()
    assert page.name == f"oom-batch-{large}.html"
    assert "ran out of memory at run time" in page.read_text(encoding="utf-8")
    first, last = caplog.records[0].getMessage(), caplog.records[-1].getMessage()
    assert first.startswith(f"batch {large} does not fit; see {page}\nhbmwatch: ")
    assert last == f"batch {small}: loss {loss:.3f} after {example.STEPS} steps"
    if file.stem != "flax_nnx":  # which donates nothing
        assert caplog.records[1].getMessage().startswith("the donated state is lost: ")


@pytest.mark.tpu
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_it_asks_the_compiler_of_a_topology(file: Path, tmp_path: Path) -> None:
    """Without a TPU, the TPU compiler says which batch fits, and how much that takes."""
    if reason := programs.why_not("tpu"):
        pytest.skip(reason)
    example = _load(file)
    batch_size, gib = example.main(["--topology", "v5e:2x2", "--pages", str(tmp_path)])
    assert batch_size == example.BATCHES[1]
    weights = example.LAYERS * example.WIDTH**2 * 4 if hasattr(example, "LAYERS") else 0
    assert weights / 2**30 < gib < 1
    (page,) = tmp_path.iterdir()
    assert "ran out of HBM while compiling for TPU v5 lite" in page.read_text(encoding="utf-8")
