"""docs/messages.md: each wording by a real message, and what it means."""

from __future__ import annotations

import os
from pathlib import Path

from hbmwatch import OomMessage, parse_oom
from hbmwatch._messages.notes import message_notes
from hbmwatch._messages.table import WORDINGS
from hbmwatch._records.memory_spaces import ON_CHIP

SAMPLES = Path(__file__).parent / "samples"
CATALOGUE = Path(__file__).parents[2] / "docs" / "messages.md"
MARK = "<!-- from tests/messages/samples; HBMWATCH_UPDATE_GOLDEN=1 writes what is below -->\n"
WIDTH = 160

PLATFORMS = {"tpu": "TPU", "gpu": "GPU", "cpu": "CPU", None: "Any platform"}
POOLS = {
    "reservation": " for JAX's array pool",
    "driver": ", outside JAX's array pool",
    **dict.fromkeys(("allocator", "host", None), ""),
}


def memory(message: OomMessage) -> str:
    """The heading of a message: the platform and the memory that ran out."""
    space = {"hbm": "device memory", "host": "host memory"}
    name = space.get(message.memory_space or "", (message.memory_space or "").upper())
    if message.platform == "cpu":
        name = "memory"
    return f"{PLATFORMS[message.platform]}: {name or 'unknown memory'}{POOLS[message.pool]}"


def line(text: str, anchor: str) -> str:
    """The line of a message that a wording is known by, short."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next((line for line in lines if anchor.strip() in line), lines[0])
    if len(found) <= WIDTH:
        return found
    start = max(0, found.find(anchor.strip()) - 40)
    return ("... " if start else "") + found[start : start + WIDTH - 8] + " ..."


def section(message: OomMessage) -> str:
    """The section of a message: when it fails."""
    when = {"compile": "While compiling", "run": "At run time", None: "While compiling or running"}
    return when[message.phase] + (", on-chip memory" if message.memory_space in ON_CHIP else "")


def catalogue() -> str:
    """The messages by section and memory, each with its note once."""
    sections: dict[str, dict[str, list[tuple[OomMessage, str]]]] = {}
    for wording in WORDINGS:
        file = SAMPLES / f"{wording.name}.txt"
        if not file.exists() or wording.source in ("continuation", "extra_figures", "report"):
            continue
        text = file.read_text(encoding="utf-8")
        message = parse_oom(text)
        assert message is not None, file
        memories = sections.setdefault(section(message), {})
        memories.setdefault(memory(message), []).append((message, line(text, wording.anchor)))
    paragraphs = []
    for when, memories in sorted(sections.items()):
        first, _ = next(iter(memories.values()))[0]
        on_chip = first.memory_space in ON_CHIP
        shared = () if on_chip else message_notes(OomMessage("", phase=first.phase))
        paragraphs += [f"## {when}", *shared]
        for heading, rows in sorted(memories.items()):
            alike, _ = rows[0]
            own = OomMessage("", alike.platform, memory_space=alike.memory_space, pool=alike.pool)
            lines = "\n".join(dict.fromkeys(text for _, text in rows))
            paragraphs += [f"### {heading}", *message_notes(own), f"```text\n{lines}\n```"]
    return "\n\n".join(paragraphs) + "\n"


def test_the_catalogue_lists_every_wording() -> None:
    """docs/messages.md shows a real message for each wording that is an OOM by itself."""
    head, mark, shown = CATALOGUE.read_text(encoding="utf-8").partition(MARK)
    if os.environ.get("HBMWATCH_UPDATE_GOLDEN") == "1":
        CATALOGUE.write_text(f"{head}{MARK}\n{catalogue()}", encoding="utf-8")
    else:
        assert (mark, shown) == (MARK, f"\n{catalogue()}")
