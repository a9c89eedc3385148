"""Phrases and links that several findings use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hbmwatch._analysis.live_buffers import LiveBuffer

ERROR_1000 = "https://openxla.org/xla/errors/error_1000"
CHECKPOINT = "https://docs.jax.dev/en/latest/gradient-checkpointing.html"
LAX_MAP = "https://docs.jax.dev/en/latest/_autosummary/jax.lax.map.html"
DONATION = "https://docs.jax.dev/en/latest/buffer_donation.html"
SHARDING = (
    "https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html"
)


def counted(number: int, what: str) -> str:
    """ "1 buffer", "3 buffers"."""
    plural = f"{what[:-1]}ves" if what.endswith("f") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def some(paths: Iterable[str], most: int = 3) -> str:
    """A few paths, and how many more."""
    known = list(dict.fromkeys(paths))
    text = ", ".join(known[:most])
    return text if len(known) <= most else f"{text} and {len(known) - most} more"


def lines(lives: Sequence[LiveBuffer], most: int = 2) -> str:
    """The source lines of buffers, those with the most bytes first."""
    weight: dict[str, int] = {}
    for live in lives:
        if live.source:
            weight[live.source] = weight.get(live.source, 0) + live.size_bytes
    best = sorted(weight, key=lambda source: -weight[source])
    return some(best, most) if best else ""
