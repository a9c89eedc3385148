"""A result of a scan that is stacked over its steps."""

from __future__ import annotations

import pytest

from hbmwatch._findings import classify
from hbmwatch._findings.stacked_outputs import is_loop_state
from tests.findings.small import classified, largest
from tests.hlo import Hlo

STEPS = (8, 256, 256)


def scan(start: str = "broadcast", context: str = "jit(f)/while") -> tuple[Hlo, int]:
    """A loop that fills one buffer slice by slice, and the buffer's id."""
    hlo = Hlo()
    x = hlo.parameter(*STEPS, path="x")
    zero = hlo.add(start, x, dims=STEPS)
    begin = hlo.add("tuple", zero)
    body = hlo.inner()
    carried = body.add("parameter", shape=hlo.known[begin]["shape"])
    whole = body.add("get-tuple-element", carried, dims=STEPS, tuple_index=0)
    value = body.add("exponential", dims=(1, 256, 256), name=f"{context}/body/exp")
    update = body.add("dynamic-update-slice", whole, value, dims=STEPS, name=f"{context}/body/x")
    body.add("tuple", update)
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    return hlo, zero


@pytest.mark.parametrize(
    ("start", "context", "slug"),
    [
        ("broadcast", "jit(f)/while", "stacked-outputs"),
        ("copy", "jit(f)/while", None),
        ("broadcast", "jit(f)/transpose(jvp())/while", None),
    ],
    ids=["from zeros", "from an argument", "in a backward pass"],
)
def test_a_loop_that_fills_a_buffer_stacks_its_outputs(
    start: str, context: str, slug: str | None
) -> None:
    """Not where it updates an argument, or a gradient, in place."""
    hlo, buffer = scan(start, context)
    facts = hlo.facts((buffer,))

    assert classified(facts) == slug
    assert is_loop_state(largest(facts)) == (slug is None)


def test_the_evidence_says_how_many_steps() -> None:
    """Steps, and the bytes of each."""
    hlo, buffer = scan()
    (finding,) = classify.find(hlo.facts((buffer,)))

    assert "8 steps of 256 KiB" in finding.evidence
