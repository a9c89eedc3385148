"""Removes what logs, terminals and quotes put around a text.

Everything here takes time in proportion to the text, whatever the text is.
"""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import unquote

# Each quote of a quote doubles the backslashes before a letter.
_ESCAPE = r"(?<!\\)\\{1,64}+"
_COLOR = re.compile(rf"(?:\x1b|{_ESCAPE}(?:x1b|033)|\^\[)\[[0-9;?]{{0,20}}[A-Za-z]")
_LOST_COLOR = re.compile(r"\[(?:\d{1,3};){0,4}\d{1,3}m")
# Go's JSON writes ">" as \u003e. Surrogates stay as they are, because they cannot be printed.
_UNICODE = re.compile(rf"{_ESCAPE}u(?!d[89a-f])([0-9a-f]{{4}})", re.IGNORECASE)
_NEWLINE = re.compile(rf"{_ESCAPE}(?:r\\{{1,64}}+)?[nr]")
_TAB = re.compile(rf"{_ESCAPE}t")
_QUOTE = re.compile(rf"{_ESCAPE}([\"'])")
# What Markdown needs a backslash for: "RESOURCE\_EXHAUSTED", "1\. Size: 14.00G".
_MARKDOWN = re.compile(rf"{_ESCAPE}([_.*\[\]])")
# XLA:TPU logs the memory of programs that fit in the words of an OOM. Ray cuts long prefixes.
_REPORT = re.compile(
    r"(?:I\d{4}\s[^\]]{0,100}compiler_\w{1,40}\.cc:\d{1,6}|\)\s(?:[\w.]{0,60}:)?\d{1,6})\]"
    r"\s{1,20}(?:Total|Program)\s\w{1,30}\s(?:usage\s>=|requirement)\s[^\n]*",
    re.IGNORECASE,
)
_REPORT_WORDS = ("usage", "requirement", "USAGE", "REQUIREMENT")
# The BFC allocator lists each of its chunks when it fails: megabytes, between the lines that count.
_CHUNK = re.compile(
    r"(?:InUse|Free ?) at [0-9a-f]{1,16} of size \d{1,20} next \d{1,20}"
    r"|Bin \(\d{1,20}\): Total Chunks: \d{1,20}, Chunks in use: \d{1,20}[^\n]{0,200}"
)
# What loggers, launchers, containers, syslog, mail and pytest put before a line, and the bullets
# and the marks of code that people put there. The name of an autotuner stays, as it says the phase.
_PREFIX = re.compile(
    r"""\n(?:[ \t]*+(?:
    \[(?!Op:)[^\[\]\n='"]{1,80}\](?:<std(?:err|out)>)?:?
    |\((?:[\w.-]{1,60}[ ])?(?:pid|ip|rank|worker|process|task|actor)\b[^()\n]{0,120}\)
    |\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?:?(?=\s)
    |(?:\d\d-\d\d[ ])?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?:?(?=\s)
    |[IWEF](?:\d{4}|\d{8})[ ]\d\d:\d\d:\d\d\.\d{1,9}[ ]+\d{1,20}[ ][\w./+-]{1,300}
     (?<!(?i:algorithm_picker\.cc))(?<!(?i:autotuner\.cc)):\d{1,6}\]
    |[IWEF][ ]{1,8}(?:\d{1,20}[ ])?[\w./+-]{1,300}
     (?<!(?i:algorithm_picker\.cc))(?<!(?i:autotuner\.cc)):\d{1,6}\]
    |[A-Z][a-z]{2}[ ]{1,2}\d{1,2}[ ]\d\d:\d\d:\d\d[ ][\w.-]{1,80}[ ][\w./-]{1,80}
     (?:\[\d{1,9}\])?:(?=[ ])
    |std(?:out|err)[ ][FP](?=[ ])
    |(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?::[\w.]{1,80})?
     (?::|[ ]-|[ ]{1,8}\||(?=[ ]))
    |[\w.]{1,80}:[\w.<>]{1,80}:\d{1,6}[ ]-(?=[ ])
    |\d{1,6}:(?=[ ])
    |[\w.-]{1,80}[ ]{0,20}\|(?=[ ])
    |(?:[>│┃|*•–-]|\#{1,6}|//)(?=[ ])
    |`{1,3}(?=[^\s`])
    |E(?=[ ]{2})
    ))++""",
    re.VERBOSE,
)
# A string literal that continues on the next line of source text: "..." "...".
_CONTINUED = re.compile(r"""(?<!\\)(["'])[ \t]*+\n[ \t]*+[fFrRbBuU]{0,2}\1(?=[^\n"',)\]])""")
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_CODE_POINT = re.compile(r"&#(?:x([0-9a-f]{1,4})|(\d{1,5}));", re.IGNORECASE)
# Bold text, with or without italics: "**_RESOURCE_EXHAUSTED: ..._**".
_BOLD = re.compile(r"(?<![\w*])(?:\*\*_?){1,3}(?=[^\s*])|(?<=[^\s*])(?:_?\*\*){1,3}(?![\w*])")
# What a person leaves out: " ... ", " [...] ", and "hbm... ", but not "1073... ".
_ELLIPSIS = re.compile(r"(?<!\S)(?:\.{3,8}|…|\[(?:\.{3}|…)\]|\((?:\.{3}|…)\))(?!\S)")
_ATTACHED_ELLIPSIS = re.compile(r"(?<=[A-Za-z)])(?:\.{3}|…)(?=\s)")
_EMPHASIS = re.compile(r"(`|\*\*)(?!_\1)([\w.]{1,40})\1")
_CODE_END = re.compile(r"(?<=[^\s`])`{1,3}(?=[ \t]{0,20}\v?(?:\n|$))")
_RAY_REPEATED = re.compile(
    r"[ ]?\[repeated \d{1,7}x across cluster\](?: \(Ray deduplicates [^()\n]*\))?"
)
_ENTITIES = {"&gt;": ">", "&lt;": "<", "&quot;": '"', "&#39;": "'", "&nbsp;": " ", "&amp;": "&"}
# The right side of a panel, before a line break (marked, where it was an escape) or a quote's end.
_BOX_END = re.compile(r"""(?<![│┃ \t])(?:[│┃ \t]++(?=\v?\n|$)|[ \t]*+[│┃]++(?=['"<]))""")

# A word of a link or of a form, and what stands in it for an ASCII character: instructions of HLO
# have names such as "%add.1" and "%batch".
_URL_WORD = re.compile(r"(?<!\S)[^\s%+]*+[%+]\S*")
_URL_ESCAPE = re.compile(r"%(?:0[9ad]|1b|[2-7][0-9a-f])|(?<=[\w.,:;)])\+(?=[\w%(])", re.IGNORECASE)
_FEWEST_ESCAPES = 2
_URL_LAYERS = 4  # a link in a link is encoded twice


# How a container runtime begins each line; after "P" it has broken the line at its longest length.
_OF_RUNTIME = re.compile(r"\d{4}-\d\d-\d\dT\S{1,40} std(?:out|err) (?P<tag>[FP]) ")
# How long a line is at least that a terminal breaks, and how many there are at least.
_NARROWEST, _LEAST_FULL_LINES = 60, 2
# The next line does not begin as a logged one does.
_IN_WORD = re.compile(r"\S(?!\[|\d{4}-\d\d-\d\d|[IWEF](?:\d{4})? )\S")


def strip_log_decoration(text: str, mark: str = "") -> str:
    """The text without colors, escapes, payloads, prefixes of lines, and logs of what fits.

    Args:
        text: The text.
        mark: What to put before each line break that the text does not have as such, so that the
            lines of the text can be counted.
    """
    line_break = f"{mark}\n"
    if "%" in text or "+" in text:
        text = _URL_WORD.sub(lambda word: _url_decoded(word[0], mark), text)
    text = _without_payloads(text).replace("\r\n", "\n").replace("\r", line_break)
    if "&" in text:
        for entity, character in _ENTITIES.items():
            text = text.replace(entity, character)
        if "&#" in text:
            text = _CODE_POINT.sub(_character, text)
    if "<" in text:
        text = _BREAK.sub(line_break, text)
    text = _without_emphasis(text)
    if '"\n' in text or "'\n" in text:
        text = _CONTINUED.sub("", text)
    if "\\u" in text:
        text = _UNICODE.sub(lambda escape: chr(int(escape[1], 16)), text)
    if "[" in text:
        text = _COLOR.sub("", text)
        if "[0m" in text:
            text = _LOST_COLOR.sub("", text)
    if "\\" in text:
        text = _QUOTE.sub(r"\1", _TAB.sub(" ", _NEWLINE.sub(line_break, text)))
        text = _MARKDOWN.sub(r"\1", text)
    text = _without_emphasis(text)  # after an escaped line break or a color
    if "..." in text or "…" in text:
        text = _ATTACHED_ELLIPSIS.sub(".", _ELLIPSIS.sub("", text))
    if any(word in text for word in _REPORT_WORDS):
        text = _REPORT.sub("", text)
    if "[repeated " in text:
        text = _RAY_REPEATED.sub("", text)
    if " next " in text or "Bin (" in text:
        text = _CHUNK.sub("", text)
    if "│" in text or "┃" in text:
        text = _BOX_END.sub("", text)
    return _PREFIX.sub("\n", "\n" + text)[1:]


def join_broken_words(text: str) -> tuple[str, list[int]]:
    """The text without the line breaks that a terminal or a container runtime has put into words.

    A terminal breaks each line at its width: the lines of the most common length, of those that are
    long enough, are the full ones. A word that ends such a line need not be broken, so the result
    is worth trying, and no more.

    Returns:
        The text, and the numbers that its lines have where one has been joined to the next one.
    """
    lines = text.split("\n")
    lengths = Counter(map(len, lines[:-1]))
    width = max((n for n in lengths if n >= _NARROWEST), key=lambda n: lengths[n], default=0)
    width = width if lengths[width] >= _LEAST_FULL_LINES else 0
    kept, joined = [""], []
    for before, line in zip(["", *lines], lines, strict=False):
        rest = _rest_of_line(before, line, width)
        if rest is None:
            kept.append(line)
        else:
            kept[-1] += rest
            joined.append(len(kept) - 1)
    return "\n".join(kept[1:]), joined


def _rest_of_line(before: str, line: str, width: int) -> str | None:
    """What a line adds to the line before it; None if it is one of its own."""
    runtime, continued = _OF_RUNTIME.match(before), _OF_RUNTIME.match(line)
    if runtime and continued:
        return line[continued.end() :] if runtime["tag"] == "P" else None
    is_full = width > 0 and len(before) == width
    return line if is_full and _IN_WORD.match(before[-1:] + line[:10]) else None


def _without_emphasis(text: str) -> str:
    """The text without the marks of bold text and of short code."""
    if "`" in text or "**" in text:
        return _CODE_END.sub("", _BOLD.sub("", _EMPHASIS.sub(r"\2", text)))
    return text


def _url_decoded(word: str, mark: str) -> str:
    """A word of a URL as the text that it encodes; "+" is a space where none is "%20"."""
    for _ in range(_URL_LAYERS):
        if len(_URL_ESCAPE.findall(word)) < _FEWEST_ESCAPES or " " in word:
            break
        spaced = word if "%20" in word or "%2520" in word else word.replace("+", " ")
        word = unquote(spaced)
    return word.replace("\r\n", "\n").replace("\n", f"{mark}\n")


def _character(reference: re.Match[str]) -> str:
    """The character of a numeric HTML reference; surrogates stay, as they cannot be printed."""
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    return reference[0] if 0xD800 <= code < 0xE000 else chr(code)


def _without_payloads(text: str) -> str:
    """The text without payloads that quote the message: [type.googleapis.com/...='\\x08...']."""
    kept = []
    start = 0
    while (opened := text.find("[type.googleapis.com/", start)) >= 0:
        kept.append(text[start:opened])
        closed = text.find("']", opened)
        start = closed + 2 if closed >= 0 else len(text)
    return "".join(kept) + text[start:] if kept else text


def collapse_whitespace(text: str) -> str:
    """The text with one space for every run of white space, and none at its beginning."""
    # The space at the end stays: a number before it has not been cut.
    return " ".join(text.split()) + (" " if text[-1:].isspace() else "")
