"""The colors of the roles: apart for everybody, with text that reads on them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import hbmwatch
from hbmwatch import OomReport, PeakOp
from tests.report.color_vision import VISIONS, closest, linear
from tests.report.pages import MESSAGE, Show, op, peak

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


# A role of each color, and the small buffers.
ROLES = (
    "parameters", "optimizer state", "batch", "other arguments", "outputs",
    "residuals saved for backward", "recomputed by jax.checkpoint", "gradients",
    "backward temporaries", "forward temporaries", "collectives", "other temporaries", "constants",
)  # fmt: skip
# As Chromium names them; "none" is normal color vision.
DEFICIENCIES = ("none", "protanopia", "deuteranopia", "tritanopia")
_DOTS = """
document.getElementById("legend").scrollIntoView({ block: "center" });
return [...document.querySelectorAll(".chip .dot")].map((dot) => {
  const box = dot.getBoundingClientRect();
  return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
});
"""
_PIXELS = """
const [png, places, done] = arguments;
const bytes = Uint8Array.from(atob(png), (char) => char.charCodeAt(0));
createImageBitmap(new Blob([bytes])).then((image) => {
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  done(places.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data.slice(0, 3)]));
});
"""


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_that_simulates_each_color_vision_shows_roles_apart(
    show: Show, dark: bool
) -> None:
    """As pixels of a screenshot: what a person sees, not what the style sheet says."""
    ops = (*(op(f"op{n}", 64, role=role) for n, role in enumerate(ROLES)), PeakOp("", size_bytes=9))
    browser = show(OomReport(MESSAGE, peak(ops)), dark=dark)
    places = browser.execute_script(_DOTS)
    assert len(places) == len(FILLS)
    try:
        for vision in DEFICIENCIES:
            browser.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": vision})
            png = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
            pixels = browser.execute_async_script(_PIXELS, png, places)
            colors = {f"dot {n}": "#" + bytes(rgb).hex() for n, rgb in enumerate(pixels)}
            assert closest(colors, "normal")[0] >= LEAST_DIFFERENCE - 0.005, vision  # rounded
            assert (set(colors.values()) == set(FILLS.values())) == (vision == "none")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": "none"})


@pytest.mark.parametrize(("role", "fill", "ink"), RULE.findall(STYLE))
def test_text_reads_on_every_fill(role: str, fill: str, ink: str) -> None:
    """A label on a tile has a contrast of 4.5 (WCAG AA)."""
    light = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(light @ linear(color)) for color in (fill, ink))

    assert (high + 0.05) / (low + 0.05) >= 4.5, role
