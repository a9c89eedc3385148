"""Which frame of a stack is the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import hbmwatch
from hbmwatch import HbmOomError
from hbmwatch._records.libraries import LIBRARIES, is_own
from hbmwatch._xla.frames import user_frame

SITE = "/venv/lib/python3.11/site-packages"
TRAIN = "/home/me/train.py:88"


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        pytest.param((), "", id="no stack"),
        pytest.param((TRAIN,), "train.py:88", id="a script"),
        pytest.param(("train.py:3",), "train.py:3", id="a relative path"),
        pytest.param((f"{SITE}/flax/linen/linear.py:271", TRAIN), "train.py:88", id="flax"),
        pytest.param(
            (f"{SITE}/flax/linen/linear.py:10", f"{SITE}/acme_train/loop.py:5"),
            "loop.py:5",
            id="training code in site-packages",
        ),
        pytest.param(
            (f"{SITE}/equinox/nn/_mlp.py:3", f"{SITE}/acme_train.py:5", "/venv/bin/acme-train:8"),
            "acme_train.py:5",
            id="a console script whose code is one installed module",
        ),
        pytest.param(
            ("/usr/lib/python3/dist-packages/numpy/core/numeric.py:1", TRAIN),
            "train.py:88",
            id="a library of the distribution",
        ),
        pytest.param(
            ("/opt/conda/lib/python3.11/contextlib.py:81", TRAIN), "train.py:88", id="stdlib"
        ),
        pytest.param(
            ("/usr/lib64/python3.12/functools.py:81", TRAIN), "train.py:88", id="stdlib of Fedora"
        ),
        pytest.param(
            ("/src/jax/jax/_src/numpy/lax_numpy.py:3", TRAIN), "train.py:88", id="a checkout of jax"
        ),
        pytest.param(
            ("/src/hbmwatch/hbmwatch/_watch/guard.py:3", TRAIN),
            "train.py:88",
            id="a checkout of us",
        ),
        pytest.param(("/home/me/hbmwatch/train.py:3",), "train.py:3", id="a folder with our name"),
        pytest.param(("<frozen runpy>:88", "/home/me/train.py:1"), "train.py:1", id="frozen"),
        pytest.param(("<string>:1", TRAIN), "train.py:88", id="generated code"),
        pytest.param(
            ("<ipython-input-3-a>:3", "/home/me/run.py:1"), "<ipython-input-3-a>:3", id="a cell"
        ),
        pytest.param(
            ("/tmp/ipykernel_7/3.py:2", f"{SITE}/IPython/core/interactiveshell.py:9"),
            "3.py:2",
            id="a cell of a kernel",
        ),
        pytest.param(
            (f"{SITE}/hbmwatch/_cli/demo.py:98", "/venv/bin/hbmwatch:8"),
            "demo.py:98",
            id="our demo",
        ),
        pytest.param(
            (r"C:\Python\Lib\site-packages\optax\a.py:5", r"C:\me\train.py:7"),
            "train.py:7",
            id="Windows",
        ),
        pytest.param(
            (r"C:\Python\Lib\site-packages\acme_train\a.py:5", r"C:\me\run.py:7"),
            "a.py:5",
            id="training code on Windows",
        ),
        pytest.param(
            (f"{SITE}/flax/linen/linear.py:271", f"{SITE}/optax/_src/base.py:3"),
            "linear.py:271",
            id="libraries alone",
        ),
        pytest.param(
            (f"{SITE}/jax_acme/model.py:3", TRAIN), "model.py:3", id="a prefix is no name"
        ),
    ],
)
def test_the_source_is_the_innermost_line_of_the_user(
    stack: tuple[str, ...], expected: str
) -> None:
    """Named libraries and Python's own are passed over, unless there is nothing else."""
    assert user_frame(stack) == expected


def test_a_named_library_is_not_the_user_s_code() -> None:
    """As a package and as a single module, in every folder that pip installs into."""
    installed = [f"{SITE}/{library}/_src/inner.py:5" for library in LIBRARIES]
    installed += [f"/usr/lib/python3/dist-packages/{library}.py:5" for library in LIBRARIES]

    assert {user_frame((frame, TRAIN)) for frame in installed} == {"train.py:88"}


def test_the_stacks_of_a_report_have_no_frame_of_hbmwatch(watch: Callable[..., Any]) -> None:
    """A watched call runs through our functions; a stack has those of the user and of libraries."""
    step = watch(lambda x: jnp.broadcast_to(x, (2**48, 8)) * 2)
    with pytest.raises(HbmOomError) as caught:
        step(jnp.ones(8))
    summary = caught.value.report.summary
    assert summary is not None
    stacks = {op.stack for op in summary.ops if op.stack}
    ours = str(Path(hbmwatch.__file__).parent)
    of_ours = [frame for stack in stacks for frame in stack if frame.startswith(ours)]

    assert (len(stacks) > 0, of_ours) == (True, [])
    assert all(__file__ in frame for stack in stacks for frame in stack[:1])


def test_every_room_of_the_package_is_known_as_hbmwatch_s() -> None:
    """A folder of the user that is called hbmwatch is not; nor is the program of the demo."""
    package = Path(hbmwatch.__file__).parent
    rooms = sorted(file.parent for file in package.glob("_*/__init__.py"))
    ours = [str(room / "some.py:3") for room in rooms]
    users = ["/home/me/hbmwatch/_models/train.py:3", str(package / "_cli" / "demo.py:3")]

    assert [is_own(path) for path in (*ours, *users)] == [True] * len(rooms) + [False] * 2
    assert len(rooms) > 10
