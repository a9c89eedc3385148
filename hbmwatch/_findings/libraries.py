"""What a library offers for a remedy, where the frames of the buffers show the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer


class Offer(NamedTuple):
    """What a library offers.

    Attributes:
        folder: A folder of the library, as it appears in the path of a frame.
        slug: The finding, or IN_GROUPS.
        text: A sentence.
    """

    folder: str
    slug: str
    text: str


# The finding "residuals" where a checkpoint goes around several layers.
IN_GROUPS = "residuals in groups"
# One row a library and finding; the first row whose folder is in a frame counts.
OFFERS = (
    Offer("/keras/", "residuals", "In Keras: build the layers under keras.RematScope."),
    Offer("/flax/nnx/", "residuals", "In flax nnx: nnx.remat around the layer's call."),
    Offer("/flax/linen/", "residuals", "In flax linen: nn.remat(Block) for the layer's class."),
    Offer(
        "/diffrax/",
        "residuals",
        "In diffrax: RecursiveCheckpointAdjoint(checkpoints=...) with fewer checkpoints.",
    ),
    Offer("/equinox/", "residuals", "In equinox: equinox.filter_checkpoint around the layer."),
    Offer("/flax/nnx/", IN_GROUPS, "In flax nnx: nnx.remat around a function of several layers."),
    Offer(
        "/flax/linen/", IN_GROUPS, "In flax linen: nn.remat(Group) for a module of several layers."
    ),
    Offer(
        "/equinox/",
        IN_GROUPS,
        "In equinox: equinox.filter_checkpoint around a function of several layers.",
    ),
    Offer(
        "/diffrax/",
        "stacked-outputs",
        "In diffrax: SaveAt(t1=True), or fewer times in SaveAt(ts=...).",
    ),
    Offer(
        "/numpyro/",
        "stacked-outputs",
        'In numpyro: MCMC(..., thinning=n), chain_method="sequential", or fewer sites in '
        "extra_fields.",
    ),
    Offer(
        "/numpyro/",
        "samples",
        "In numpyro: Predictive(..., parallel=False), or a batch of the draws at a time.",
    ),
)


def offered(facts: ProgramFacts, slug: str, buffers: Sequence[LiveBuffer]) -> str:
    """ " In equinox: ...", what a library in the frames of the buffers offers; "" for none."""
    stacks = dict.fromkeys(_frames(facts, live) for live in buffers)
    lines = "\n".join(line.replace("\\", "/") for stack in stacks for line in stack)
    found = (o.text for o in OFFERS if o.slug == slug and f"-packages{o.folder}" in lines)
    text = next(found, "")
    return f" {text}" if text else ""


def uses(facts: ProgramFacts, library: str) -> bool:
    """Whether a frame of the program is in a library."""
    names = facts.program.proto.hlo_module.stack_frame_index.file_names
    return any(f"-packages/{library}/" in name.replace("\\", "/") for name in names)


def _frames(facts: ProgramFacts, live: LiveBuffer) -> Sequence[str]:
    """The stack of what makes a buffer, or of what is inside of it or reads it; () where unknown.

    Of a buffer that a loop fills, both the stack of the buffer and that of what the loop writes.
    """
    graph, made = facts.buffers.graph, live.instruction
    if live.loop_buffer is not None:
        return live.op.stack + facts.program.frames(
            facts.buffers.loop_buffers.written(live.loop_buffer)
        )
    near = (made, *graph.everything_in(made), *graph.users(made))
    return live.op.stack or next(filter(None, map(facts.program.frames, near)), ())
