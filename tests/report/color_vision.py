"""Colors as people with and without color vision see them, and how far apart they are.

The simulation is that of Machado, Oliveira and Fernandes (2009) at full severity, in linear RGB.
The difference is the distance in OKLab (Ottosson 2020): 0.02 is just noticeable side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

VISIONS: dict[str, Array] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
_TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(color: str) -> Array:
    """Linear RGB of "#rrggbb", each from 0 to 1."""
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def seen(color: str, vision: str) -> Array:
    """A color in OKLab, as a kind of color vision sees it."""
    rgb = np.clip(VISIONS[vision] @ linear(color), 0, 1)
    lab: Array = _TO_LAB @ np.cbrt(_TO_CONES @ rgb)
    return lab


def closest(colors: Mapping[str, str], vision: str) -> tuple[float, str, str]:
    """The smallest difference between any two named colors, and which they are."""
    labs = {name: seen(color, vision) for name, color in colors.items()}
    return min(
        (float(np.linalg.norm(labs[one] - labs[other])), one, other)
        for one, other in itertools.combinations(labs, 2)
    )
