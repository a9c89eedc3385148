"""Changes of the kinds A and B compute what the step computes: gradients, loss and new state."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes import CHANGES
from hbmwatch._preflight.changes.call import NothingToChange
from hbmwatch._preflight.changes.change import Asked, Change, Edit
from hbmwatch._preflight.changes.tracing import call_of
from tests.preflight.changes.steps import arguments, differences, on_a_mesh, shapes, train_step

KEEPING = [change for change in CHANGES if change.kind != "C"]
# These are chosen by the figures of a compiled program, or need a place to apply to.
BY_FIGURES = {"donation": ("state",)}
# What has nothing to apply to in this step, and why.
REFUSES = {
    ("output-sharding", "one"): "the step is not on a mesh of several devices",
    ("state-sharding", "one"): "no argument is on a mesh of several devices",
    ("sharding", "one"): "no argument is on a mesh of several devices",
    ("constraint", "one"): "the step is not on a mesh of several devices",
    **{
        ("in-loop", place): "no value is cast, or fetched from the host, before a loop that is "
        "its only reader"
        for place in ("one", "mesh")
    },
    ("inner-pieces", "one"): "the program has no loop and no checkpoint",
    ("inner-pieces", "mesh"): "the program has no loop and no checkpoint",
    ("host-outputs", "one"): "no output is large, or all large ones replace donated arguments",
    ("host-outputs", "mesh"): "no output is large, or all large ones replace donated arguments",
}
if jax.__version_info__ < (0, 7):  # the CPU backend has no memory of this kind
    for place in ("one", "mesh"):
        REFUSES["host-state", place] = "the devices have no memory 'pinned_host'"


def edits_of(change: Change, args: Any) -> Iterator[Edit]:
    """The edits that the change proposes for the step."""
    call = call_of(jax.jit(train_step), shapes(args), {}, None)
    yield from change.edits(call, None, Asked(BY_FIGURES.get(change.name, ())))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["one", "mesh"])
@pytest.mark.parametrize("change", KEEPING, ids=lambda change: str(change.name))
def test_a_change_keeps_the_values(change: Change, place: str) -> None:
    """Each edit, applied to the step, gives the same outputs to 1e-5 of their maximum."""
    args = arguments() if place == "one" else on_a_mesh(arguments())
    expected = jax.jit(train_step)(*args)
    if (change.name, place) in REFUSES:
        with pytest.raises(NothingToChange) as refused:
            next(edits_of(change, args))
        assert str(refused.value) == REFUSES[change.name, place]
        return
    count = 0
    for edit in itertools.islice(edits_of(change, args), 4):
        fresh = arguments() if place == "one" else on_a_mesh(arguments())
        found = apply(jax.jit(train_step), (edit,))(*fresh)
        assert differences(found, expected) == {}, edit.what
        count += 1
    assert count > 0
