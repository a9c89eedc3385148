"""A Jacobian or Hessian that is computed for a whole basis at once."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.places import stack_of
from hbmwatch._analysis.sources import everything
from hbmwatch._findings.advice import BufferAdvice
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import at_line
from hbmwatch._records.text import clean
from hbmwatch._xla.frames import user_frame

_MODE = "Use the right mode (jacfwd for few inputs, jacrev for few outputs)"
_PRODUCTS = "products (jvp, vjp, Hessian-vector) instead of the matrix"
# A loss that has a Jacobian inside, as of a physics-informed network.
_IN_LOSS = "jvp(vmap("


def _remedy(found: Sequence[Candidate]) -> str:
    """What to change: chunks alone do not help where a gradient is taken through them."""
    if not any(_IN_LOSS in candidate.names for candidate in found):
        return ADVICE.remedy
    return (
        f"{_MODE}, or {_PRODUCTS}. A gradient is taken through it: chunks of the basis need "
        "jax.checkpoint around each chunk. Or take the gradient of the loss for fewer points at a "
        "time, and add the gradients up."
    )


def _line(found: Sequence[Candidate]) -> str:
    """Where jacfwd, jacrev or hessian is called, as far as is known, and where values are made."""
    made = at_line([live for candidate in found for live in candidate.buffers])
    largest = max(found, key=lambda c: c.first.size_bytes)
    bases = largest.facts.once(_bases)
    stack = stack_of(largest.facts.buffers.graph, largest.first.instruction)
    lines = (user_frame([frame.line]) for frame in stack)
    called = next((x for x in lines if not bases.get(x, set()).isdisjoint(largest.first.dims)), "")
    if not called or made == f" at {clean(called, 60)}":
        return made
    return f" at {clean(called, 60)}" + (f" (most of its bytes are made{made})" if made else "")


def _bases(facts: ProgramFacts) -> dict[str, set[int]]:
    """The lines that make an iota outside of a vmap, as jacfwd does for its basis; its sizes."""
    found: dict[str, set[int]] = {}
    for instruction, _ in everything(facts.buffers.graph):
        name = instruction.metadata.op_name
        if name.endswith("/iota") and "vmap(" not in name:
            sizes = {size for size in instruction.shape.dimensions if size > 1}
            found.setdefault(facts.buffers.line_of(instruction), set()).update(sizes)
    return found


ADVICE = BufferAdvice(
    slug="jacobian",
    prior_weight=2.0,
    title="A Jacobian (or Hessian) is computed for its whole basis at once{at}",
    remedy=f"{_MODE}, {_PRODUCTS}, or, if the matrix itself fits, jax.lax.map over the basis in "
    "chunks.",
    remedy_for=_remedy,
    line_for=_line,
    of_results=f"The matrix is a result of the program: return {_PRODUCTS}, shard it, or call the "
    "function for a part of the basis at a time and move each part to host memory.",
    link="https://docs.jax.dev/en/latest/jacobian-vector-products.html",
    will_not_help="jax.checkpoint alone: it frees only values that a backward pass reads later",
)


def is_jacobian(candidate: Candidate) -> bool:
    """Whether the buffer belongs to a Jacobian, and not to a batch of gradients.

    jacfwd is a vmap of jvp alone; jacrev is a vmap of the transposed function, whose forward pass
    is not mapped; a Hessian is both. A vmap of grad maps the forward and the backward pass.
    """
    op_names = candidate.facts.buffers.op_names
    forward = any("vmap(jvp(" in name for name in op_names)
    reverse = any("vmap(transpose(" in name for name in op_names)
    hessian = any("vmap(jvp(jvp(" in name or "vmap(jvp(transpose(" in name for name in op_names)
    if not (hessian or forward != reverse):
        return False
    names = candidate.names
    if "vmap(jvp(" in names or "vmap(transpose(" in names:
        return True
    square = candidate.is_square and ("/eq" in names or names.endswith("iota"))
    return square or candidate.is_identity
