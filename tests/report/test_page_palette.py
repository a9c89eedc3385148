"""The colors of the roles: apart for everybody, with text that reads on them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import hbmwatch
from tests.report.color_vision import VISIONS, closest, linear

STYLE = (Path(hbmwatch.__file__).parent / "_report" / "page" / "page.css").read_text()
RULE = re.compile(r"^\.r-(\w+) \{ --role: (#\w{6}); --on: (#\w{6}); \}$", re.MULTILINE)
FILLS = {name: fill for name, fill, _ in RULE.findall(STYLE)}

LEAST_DIFFERENCE = 0.11  # five times what is just noticeable


@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_roles_differ_for_everybody(vision: str) -> None:
    """Colors of roles differ with and without color vision; both schemes use the same ones."""
    difference, one, other = closest(FILLS, vision)

    assert difference >= LEAST_DIFFERENCE, f"{one} and {other}"
    assert len(FILLS) == 14


def test_the_measure_sees_colors_that_are_confused() -> None:
    """Red and green of one lightness are apart for most people, and close without the cones."""
    colors = {"red": "#c05a5a", "green": "#6f8a3c"}
    found = {vision: closest(colors, vision)[0] for vision in VISIONS}

    assert found["normal"] > LEAST_DIFFERENCE
    assert min(found["protanopia"], found["deuteranopia"]) < LEAST_DIFFERENCE / 2


@pytest.mark.parametrize(("role", "fill", "ink"), RULE.findall(STYLE))
def test_text_reads_on_every_fill(role: str, fill: str, ink: str) -> None:
    """A label on a tile has a contrast of 4.5 (WCAG AA)."""
    light = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(light @ linear(color)) for color in (fill, ink))

    assert (high + 0.05) / (low + 0.05) >= 4.5, role
