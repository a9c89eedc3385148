"""The function of a layer, as the user writes it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._findings import layers, residuals
from tests.findings.cases import explain
from tests.findings.saved import BACKWARD, FORWARD
from tests.hlo import Hlo
from tests.oom_programs.base import array, on_one

# Frames as (function, line, parent), numbered from 1; "<" is a library's.
STEP, LOSS, BLOCK, PART = (
    ("step", 40, 0),
    ("step.<locals>.loss", 30, 1),
    ("block", 27, 2),
    ("ffn", 9, 3),
)
SUM = ("step.<locals>.loss", 31, 1)


def index(frames: list[tuple[str, int, int]]) -> dict[str, Any]:
    """The frames as XLA stores them."""
    return {
        "file_names": ["/home/me/train.py", "/usr/lib/python3.11/site-packages/optax/_src/base.py"],
        "function_names": [function for function, _, _ in frames],
        "file_locations": [
            {
                "file_name_id": 2 if name.startswith("<lib") else 1,
                "function_name_id": n,
                "line": line,
            }
            for n, (name, line, _) in enumerate(frames, start=1)
        ],
        "stack_frames": [
            {"file_location_id": n, "parent_frame_id": parent}
            for n, (_, _, parent) in enumerate(frames, start=1)
        ],
    }


def title(frames: list[tuple[str, int, int]], made: list[int], others: list[int]) -> str:
    """The title of the finding on residuals.

    Args:
        frames: All frames.
        made: The frame of each residual.
        others: The frames of the rest of the forward pass.
    """
    hlo = Hlo()
    kept = []
    for number in made:
        metadata = {"op_name": FORWARD, "stack_frame_id": number}
        kept.append(hlo.add("sort", dims=(512, 512), metadata=metadata))
        hlo.add("multiply", kept[-1], dims=(512, 512), name=BACKWARD)
    for number in others:
        hlo.add("reduce", dims=(1,), metadata={"op_name": FORWARD, "stack_frame_id": number})
    finding = residuals.find(hlo.facts(kept, stack_frame_index=index(frames)))
    assert finding is not None
    return finding.title.removeprefix("Rematerialize: put jax.checkpoint (remat) around ")


@pytest.mark.parametrize(
    ("frames", "made", "others", "expected"),
    [
        ([STEP, LOSS, BLOCK, SUM], [3, 3, 3], [4], "`block()`, called at train.py:30"),
        ([STEP, LOSS, BLOCK, PART, SUM], [3, 3, 4], [5], "`block()`, called at train.py:30"),
        ([STEP, LOSS, BLOCK, PART, SUM], [4, 4, 4, 3], [5], "`ffn()`, called at train.py:27"),
        ([STEP, LOSS, BLOCK, PART, SUM], [4, 4, 4, 2, 5], [5], "`ffn()`, called at train.py:27"),
        ([STEP, LOSS, SUM], [2, 2, 2], [3], "each layer or step at train.py:30"),
        (
            [STEP, LOSS, ("<lambda>", 27, 2), SUM],
            [3, 3, 3],
            [4],
            "each layer or step at train.py:27",
        ),
        (
            [STEP, LOSS, BLOCK, ("<library>", 9, 3), SUM],
            [4, 4, 4],
            [5],
            "`block()`, called at train.py:30",
        ),
        ([STEP, LOSS, ("", 27, 2), SUM], [3, 3, 3], [4], "each layer or step at train.py:27"),
        ([STEP, LOSS, BLOCK, SUM], [3, 3, 3], [4, 3], "each layer or step at train.py:27"),
        ([STEP, LOSS, BLOCK, SUM], [3, 3, 3], [4, 3, 3], "`block()`, called at train.py:30"),
    ],
    ids=[
        "a function",
        "with a part of it",
        "most in a part",
        "half in a part, the rest all over",
        "lines of the loss",
        "a lambda",
        "through a library",
        "no names",
        "a function with the loop over the layers and a sum after it",
        "a function with a sum in each layer",
    ],
)
def test_the_layer_is_the_innermost_function_that_makes_most_residuals(
    frames: list[tuple[str, int, int]], made: list[int], others: list[int], expected: str
) -> None:
    """Not the function that is differentiated: that would recompute everything at once."""
    assert layers.SHARES_OF_RESIDUALS == (0.75, 0.5)
    assert title(frames, made, others) == expected


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize(
    ("scans", "expected"),
    [("two", "the body of the scan at "), ("one", "`layer()`, called at ")],
)
def test_a_function_with_the_scans_over_the_layers_is_no_layer(scans: str, expected: str) -> None:
    """A checkpoint around it would recompute all of them at once."""

    def layer(x: Any, w: Any) -> Any:
        return jnp.sin(jnp.tanh(x @ w)), None

    def model(weights: Any, x: Any) -> Any:
        if scans == "one":
            return jax.lax.scan(layer, x, weights)[0]
        x = jax.lax.scan(lambda x, w: (jnp.sin(jnp.tanh(x @ w)), None), x, weights)[0]
        return jax.lax.scan(lambda x, w: (jnp.cos(jnp.tanh(x @ w)), None), x, weights)[0]

    def loss(weights: Any, x: Any) -> Any:
        return (model(weights, x) ** 2).sum()

    lowered = on_one(jax.grad(loss), array(8, 256, 256), array(32768, 256))
    found = [f for f in explain(lowered, 64).findings if f.slug == "residuals"]

    around = "Rematerialize: put jax.checkpoint (remat) around "
    assert [f.title.startswith(f"{around}{expected}") for f in found] == [True]


@pytest.mark.parametrize(("sums", "is_offered"), [(1, False), (3, True)])
def test_a_remedy_for_the_class_of_a_layer_needs_a_layer(sums: int, is_offered: bool) -> None:
    """Layers that are written out in one module have no class, nor does it run for each of them."""
    hlo = Hlo()
    linen = "/venv/lib/python3.11/site-packages/flax/linen/linear.py"
    frames = [STEP, LOSS, BLOCK, ("<library>", 9, 3), SUM]
    module = {**index(frames), "file_names": ["/home/me/train.py", linen]}
    for _ in range(3):
        metadata = {"op_name": FORWARD, "stack_frame_id": 4}
        made = hlo.add("sort", dims=(512, 512), metadata=metadata)
        hlo.add("multiply", made, dims=(512, 512), name=BACKWARD)
    kept = [i["id"] for i in hlo.instructions if i["opcode"] == "sort"]
    for frame in [5] + [3] * sums:
        hlo.add("reduce", dims=(1,), metadata={"op_name": FORWARD, "stack_frame_id": frame})
    finding = residuals.find(hlo.facts(kept, stack_frame_index=module))

    assert finding is not None
    several = "If one call of `block()` runs several layers, put it around each of them."
    assert (several in finding.remedy) == is_offered
    assert ("nn.remat(Block)" in finding.remedy) == is_offered


@pytest.mark.parametrize(
    ("path", "offer"),
    [
        ("/venv/lib/python3.11/site-packages/keras/src/ops.py", "keras.RematScope"),
        ("/venv/lib/python3.11/site-packages/flax/linen/linear.py", "nn.remat"),
        ("/venv/lib/python3.11/site-packages/flax/nnx/nn/linear.py", "nnx.remat"),
        ("/venv/lib/python3.11/site-packages/equinox/nn/_mlp.py", "equinox.filter_checkpoint"),
        ("/venv/lib/python3.11/site-packages/diffrax/_integrate.py", "RecursiveCheckpointAdjoint"),
        ("/home/me/keras/train.py", ""),
    ],
)
def test_the_remedy_of_a_library_is_offered_where_its_frames_are(path: str, offer: str) -> None:
    """It is the last sentence of the remedy."""
    hlo = Hlo()
    module = {**index([STEP, LOSS, BLOCK, SUM]), "file_names": [path, path]}
    kept = []
    for _ in range(3):
        metadata = {"op_name": FORWARD, "stack_frame_id": 3}
        kept.append(hlo.add("sort", dims=(512, 512), metadata=metadata))
        hlo.add("multiply", kept[-1], dims=(512, 512), name=BACKWARD)
    finding = residuals.find(hlo.facts(kept, stack_frame_index=module))

    assert finding is not None
    last = finding.remedy.rpartition(" In ")[2]
    assert (offer in last) if offer else (" In " not in finding.remedy)


@pytest.mark.parametrize(
    ("names", "scopes"),
    [
        (["jvp(dense_0)", "jvp(dense_1)", "jvp(dense_2)"], " (dense_*)"),
        (["jvp(dense_0)", "jvp(dense_0)", "jvp(dense_0)"], ""),
        (["jvp(Model)", "jvp(Model)", "jvp(Model)"], ""),
    ],
    ids=["numbered", "one", "no number"],
)
def test_layers_that_a_library_numbers_are_named(names: list[str], scopes: str) -> None:
    """Where a line of the user's, such as model.fit(...), runs them all."""
    hlo = Hlo()
    kept = []
    for name in names:
        kept.append(hlo.add("sort", dims=(512, 512), name=f"jit(f)/{name}/tanh"))
        hlo.add("multiply", kept[-1], dims=(512, 512), name=BACKWARD)
    finding = residuals.find(hlo.facts(kept))

    assert finding is not None
    assert finding.title == (
        f"Rematerialize: put jax.checkpoint (remat) around each layer or step{scopes}"
    )


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (PART, "`ffn()`, called at train.py:27"),
        (BLOCK, "each layer or step at train.py:9"),
    ],
    ids=["the function itself", "its caller"],
)
def test_a_function_that_only_returns_the_residuals_is_no_layer(
    reader: tuple[str, int, int], expected: str
) -> None:
    """A checkpoint around one convolution keeps what it returns."""
    frames = [STEP, LOSS, BLOCK, PART, SUM]
    hlo = Hlo()
    kept = []
    for _ in range(3):
        metadata = {"op_name": FORWARD, "stack_frame_id": frames.index(PART) + 1}
        kept.append(hlo.add("convolution", dims=(512, 512), metadata=metadata))
        moved = hlo.add("copy", kept[-1], dims=(512, 512))
        inner = hlo.inner()
        number = frames.index(reader) + 1
        read = {"op_name": FORWARD, "stack_frame_id": number}
        given = inner.parameter(512, 512)
        inner.add("logistic", given, dims=(512, 512), metadata=read)
        hlo.fusion(moved, dims=(512, 512), inside=inner)
        hlo.add("multiply", kept[-1], dims=(512, 512), name=BACKWARD)
    summed = {"op_name": FORWARD, "stack_frame_id": frames.index(SUM) + 1}
    hlo.add("reduce", dims=(1,), metadata=summed)
    finding = residuals.find(hlo.facts(kept, stack_frame_index=index(frames)))

    assert finding is not None
    assert finding.title.endswith(f"around {expected}")
