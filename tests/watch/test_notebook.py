"""A notebook that runs out of memory, in a real kernel of Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.slow

CELLS = (
    "import jax, jax.numpy as jnp\n%load_ext hbmwatch",
    "def fill(x): return jnp.broadcast_to(x[0], (2**24, 2**24)) + 1",
    "%%hbm profiles\nx = jnp.ones(8)\njax.jit(fill)(x)",
    "%%hbm\nx.sum().item()",
)


def test_a_cell_shows_the_page_of_its_oom(tmp_path: Path) -> None:
    """The failing cell has the traceback, with the report as a note, and the page once."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    kernel = {"name": "python3", "display_name": "", "language": "python"}
    notebook.metadata["kernelspec"] = kernel
    nbclient.NotebookClient(
        notebook, timeout=250, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs: list[list[dict[str, Any]]] = [cell.outputs for cell in notebook.cells]

    assert (outputs[0], outputs[1]) == ([], [])
    error, page = outputs[2]
    assert (error["ename"], error["output_type"]) == ("HbmOomError", "error")
    assert "Largest buffers at the peak" in "\n".join(error["traceback"])
    assert "Peak of jit_fill: 1.00 PiB" in page["data"]["text/plain"]
    assert '<iframe class="hbmwatch"' in page["data"]["text/html"]
    assert "Peak of jit_fill: 1.00 PiB" in page["data"]["text/html"]
    assert [output["data"] for output in outputs[3]] == [{"text/plain": "8.0"}]
    assert len(json.dumps(page)) < 400_000
