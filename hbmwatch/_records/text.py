"""Text that every room prints alike: foreign text made safe, names of buffers, tables of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hbmwatch._records.look import PLAIN, Look
from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.paths import shortened
from hbmwatch._records.sizes import format_size

if TYPE_CHECKING:
    from hbmwatch._records.peak_op import PeakOp

# How long foreign text is at most: a name, a word of a sentence, and a sentence.
_NAME, _WORD, _SENTENCE = 99, 240, 1200
_SPACES = {"hbm": "HBM", "host": "host memory"} | {
    name: name.upper() for name in (*ON_CHIP, "dram", "l1")
}
SMALL_BUFFERS = "buffers smaller than 16 KiB, combined"
_PLURALS = {
    "parameter": "arguments",
    "output": "outputs",
    "temporary": "temporaries",
    "constant": "constants",
    "thread-local": "thread-local",
    "": "other",
}
_OUTER_JIT = re.compile(r"^jit\([^()/]*\)/(?:jit\(main\)/)?")
_NUMBER = re.compile(r"\d+")
# As textwrap splits a text.
_WORDS, _WHITESPACE = re.compile(r" +|[^ ]+"), re.compile(r"[\t\n\x0b\x0c\r]")
_LAYOUT = re.compile(r"\{[^{}]*\}")
# Parts of an op_name that name no block: what JAX's transformations and loops add.
_TRANSFORMS = re.compile(
    r"\b(?:jvp|transpose|vmap|pmap|remat|checkpoint|shard_map|custom_\w+)\(", re.ASCII
)
_UNNAMED = re.compile(
    r"while|body|body_pred|cond|branch_\d+_fun|scan|closed_call|core_call|pjit|eval_jaxpr|"
    r"checkpoint|remat\d*|rematted_computation|shard_map|shmap_body|custom_\w+_call\w*",
    re.ASCII,
)


def clean(text: str, width: int = _NAME) -> str:
    """Foreign text without control and bidirectional characters, shortened in the middle.

    Args:
        text: The text.
        width: The columns of a terminal that it takes at most.
    """
    cut = text if len(text) <= 2 * width else text[:width] + text[-width:]
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)
    if columns(shown) <= width:
        return shown
    head = (width - 1) // 3
    start, end = _fitting(shown, head), _fitting(shown[::-1], width - 1 - head)[::-1]
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"


def columns(text: str) -> int:
    """The columns of a terminal that a text takes at most: two for a wide character, as of Chinese.

    A combining mark counts as one: what has no columns would have no limit.
    """
    if text.isascii():
        return len(text)
    import unicodedata  # most reports are ASCII

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, width: int) -> str:
    """The text with spaces up to this many columns."""
    return text + " " * (width - columns(text))


def _fitting(text: str, width: int) -> str:
    """As much of the start of a text as has this many columns."""
    if text.isascii():
        return text[:width]
    used = 0
    for number, character in enumerate(text):
        used += columns(character)
        if used > width:
            return text[:number]
    return text


def sentence(text: str) -> str:
    """A sentence with foreign names in it: only long names are shortened, and only at its end."""
    words = [clean(word, _WORD) for word in text[: 16 * _SENTENCE].split()]
    length = 0
    for number, word in enumerate(words):
        length += len(word) + 1
        if length > _SENTENCE:
            return " ".join([*words[:number], "\N{HORIZONTAL ELLIPSIS}"])
    return " ".join(words)


def memory_space_name(memory_space: str) -> str:
    """A memory space as the XLA documentation writes it: "HBM", "host memory"."""
    return _SPACES.get(memory_space, clean(memory_space, 20))


def unnumbered(name: str) -> str:
    """A name with "*" in place of each number, so that all layers have the same name."""
    return _NUMBER.sub("*", name)


def without_outer_jit(name: str) -> str:
    """An op_name without the outermost jit, which is the same for every buffer of a program."""
    return _OUTER_JIT.sub("", name)


def named_blocks(op_name: str) -> tuple[str, ...]:
    """The named blocks that an operation is in, outermost first: "block_3", "attention"."""
    parts = _TRANSFORMS.sub("", without_outer_jit(op_name)).split("/")[:-1]
    # Most jitted functions are of jax.numpy and jax.nn: jit(norm), jit(silu).
    names = (part.replace("(", "").replace(")", "") for part in parts if "jit(" not in part)
    return tuple(n for n in names if n and n[0] != "_" and not _UNNAMED.fullmatch(n))


def without_layout(shape: str) -> str:
    """A shape without its layout: "f32[8,8]" of "f32[8,8]{1,0}"."""
    return _LAYOUT.sub("", shape)


def kind_name(kind: str) -> str:
    """A kind of buffer as JAX calls it: XLA's parameters are arguments."""
    return "argument" if kind == "parameter" else clean(kind, 20)


def listed(words: Sequence[str]) -> str:
    """ "1", "1 and 2", "1, 2 and 3"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def packed(items: Iterable[str], indent: int, look: Look = PLAIN, joint: str = "   ") -> list[str]:
    """Items side by side, on as few lines as possible without breaking one."""
    lines: list[str] = []
    for item in items:
        if lines and columns(lines[-1]) + len(joint) + columns(item) <= look.width:
            lines[-1] += f"{joint}{item}"
        else:
            lines[-1:] = [line + joint.rstrip() for line in lines[-1:]]
            lines.append(" " * indent + item)
    return lines


def wrapped(
    text: str, indent: int = 2, hang: int = 3, whole_words: bool = False, look: Look = PLAIN
) -> list[str]:
    """Text broken at spaces; with `whole_words` only there, so that a path can be copied."""
    if columns(text) != len(text):
        return _wrapped_by_columns(text, " " * indent, " " * (indent + hang), whole_words, look)
    import textwrap

    return textwrap.wrap(
        text,
        look.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=not whole_words,
        break_on_hyphens=False,
    )


def _wrapped_by_columns(
    text: str, first: str, others: str, whole_words: bool, look: Look
) -> list[str]:
    """What textwrap does, which counts characters, for text that has wide ones.

    A word that is longer than a line is broken, as Chinese has no spaces.
    """
    words = _WORDS.findall(_WHITESPACE.sub(" ", text.expandtabs()))
    lines: list[str] = []
    number = start = 0  # the word, and the place in it, that come next
    while number < len(words):
        if lines and words[number][0] == " ":
            number, start = number + 1, 0
            continue
        indent, line = others if lines else first, ""
        room = left = max(look.width - len(indent), 1)
        while number < len(words):
            part = _fitting(words[number][start : start + left + 1], left)
            if start + len(part) < len(words[number]):
                break
            line, left = line + part, left - columns(part)
            number, start = number + 1, 0
        if number < len(words):
            rest = words[number][start : start + room + 1]
            is_long = len(_fitting(rest, room)) < len(rest)
            if is_long and not whole_words:
                if not part and not line:  # a wide character where one column is left
                    part = rest[0]
                line, start = line + part, start + len(part)
            elif is_long and not line:
                line, number = words[number], number + 1
        if line := line.rstrip(" "):
            lines.append(indent + line)
    return lines


def plural(number: int, noun: str) -> str:
    """ "1 buffer", "3 buffers", "2 leaves", "2 temporaries", "2 arrays"."""
    endings = {"f": "ves", "y": "ies"}
    irregular = noun[-1] in endings and noun[-2:] not in ("ay", "ey", "oy", "uy")
    many = noun[:-1] + endings[noun[-1]] if irregular else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers, neighbors joined: "3, 18-28"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def bytes_by_kind(ops: Iterable[PeakOp]) -> dict[str, int]:
    """Bytes at the peak by kind of buffer, as JAX calls it: "arguments"."""
    totals: dict[str, int] = {}
    for op in ops:
        name = _PLURALS.get(op.kind) or kind_name(op.kind) if op.instruction else "small buffers"
        totals[name] = totals.get(name, 0) + op.size_bytes
    return totals


def by_kind(ops: Sequence[PeakOp]) -> list[str]:
    """Bytes at the peak by kind of buffer, most first, and the padding in them."""
    totals = dict(sorted(bytes_by_kind(ops).items(), key=lambda item: -item[1]))
    totals["padding"] = sum(op.padding_bytes for op in ops if op.instruction)
    return [f"{name} {format_size(total)}" for name, total in totals.items()]


def buffer_name(op: PeakOp, several: bool) -> str:
    """The name of a buffer, or of several equal ones, for a row."""
    if not op.instruction:
        return SMALL_BUFFERS
    name = without_outer_jit(op.shown_name) or op.instruction
    return unnumbered(name) if several else name


def name_and_source(op: PeakOp, several: bool) -> tuple[str, str]:
    """The name of a buffer with its padding, and its source line, both shortened."""
    if not op.instruction:
        return SMALL_BUFFERS, ""
    padded = padding_note(op)
    name, width = buffer_name(op, several), 34 - len(padded)
    name = shortened(name, width) if op.kind == "parameter" else name
    return clean(name, width) + padded, clean(op.shown_source, 24)


def padding_note(op: PeakOp) -> str:
    """How much larger padding makes a buffer, to stand after its name; "" for a little."""
    return f" [{op.expansion:.1f}x padded]" if op.instruction and op.expansion >= 1.2 else ""


def program_point(position: int | None, points: int) -> str:
    """A program point as " (program point 12 of 37)"; "" where it is unknown."""
    return "" if position is None else f" (program point {position} of {points})"
