"""What a library offers for a remedy, where the frames of the buffers show the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer


class Offer(NamedTuple):
    """What a library offers.

    Attributes:
        folder: A folder of the library, as it stands in the path of a frame.
        slug: The finding.
        text: A sentence.
    """

    folder: str
    slug: str
    text: str


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
    stacks = {live.op.stack: None for live in buffers}
    for live in buffers:
        if live.loop_buffer is not None:
            stacks[facts.program.frames(facts.buffers.loop_buffers.written(live.loop_buffer))] = (
                None
            )
    lines = "\n".join(line.replace("\\", "/") for stack in stacks for line in stack)
    found = (o.text for o in OFFERS if o.slug == slug and f"-packages{o.folder}" in lines)
    text = next(found, "")
    return f" {text}" if text else ""
