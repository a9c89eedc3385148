"""A message reads the same inside anything that a log, a terminal or a quote puts around it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from hbmwatch import parse_oom
from hbmwatch._messages.parse import locate_ooms
from tests.messages.samples import SAMPLES, sample, without_text


def each_line(prefix: str) -> Callable[[str], str]:
    """Puts a prefix before each line."""
    return lambda text: "\n".join(prefix + line for line in text.split("\n"))


def colored(text: str) -> str:
    """Red, line by line, the status bold."""
    bold = text.replace("RESOURCE_EXHAUSTED", "\x1b[1mRESOURCE_EXHAUSTED\x1b[22m")
    return "\n".join(f"\x1b[31m{line}\x1b[0m" for line in bold.split("\n"))


def rewrapped(width: int) -> Callable[[str], str]:
    """Breaks all lines at spaces, as a mail program does."""
    return lambda text: "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


def boxed(text: str) -> str:
    """A panel, as rich prints it."""
    return "\n".join(f"│ {line:<120} │" for line in text.split("\n"))


def traceback(text: str) -> str:
    """The exception at the end of a traceback, with more of the program's output after it."""
    return (
        'Traceback (most recent call last):\n  File "train.py", line 88, in <module>\n'
        "    state, loss = step(state, batch)  # ran out of time\n"
        f"jaxlib.xla_extension.XlaRuntimeError: {text}\n"
        "srun: error: node7: task 3: Exited with exit code 1\n"
    )


def source(text: str) -> str:
    """Python source: one string literal per line."""
    lines = (json.dumps(line + "\n") for line in text.split("\n"))
    return "OOM = (\n" + "\n".join(f"    {line}" for line in lines) + "\n)"


def separated(separator: str) -> Callable[[str], str]:
    """Puts thousands of numbers of bytes apart, as a person writes them."""

    def written(number: re.Match[str]) -> str:
        return f"{int(number[0]):,}".replace(",", separator)

    return lambda text: re.sub(r"(?<![\w.,/=])\d{4,}(?= bytes\b|B\))", written, text)


# Between two sentences of XLA; "Operator: ..." and other lists are no sentences.
SENTENCE_END = re.compile(
    r"\. (?=(?:Used|Exceeded|Requires|That was|There are|[Tt]he largest|Due to|The HBM)\b)"
)


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "exception class": lambda text: f"jax.errors.JaxRuntimeError: {text}",
    "numbered": lambda text: f"2 root error(s) found.\n  (0) {text}",
    "torchrun": each_line("[rank0]: "),
    "mpirun": each_line("[1,2]<stderr>:"),
    "color": colored,
    "color as text": lambda text: colored(text).replace("\x1b", "\\x1b"),
    "Ray": each_line("(RayTrainWorker pid=1234, ip=10.0.0.7) "),
    "Ray in color": each_line("\x1b[36m(step pid=1234)\x1b[0m "),
    "Ray of several hosts": lambda text: re.sub(
        "(?m)^.+$",
        r"(pid=, ip=10.0.0.7) \g<0> [repeated 3x across cluster]",
        text,
    ),
    "vLLM": each_line("(EngineCore pid=106339) ERROR 06-03 07:41:11 [core.py:1184] "),
    "timestamps": each_line("2026-03-01 10:00:00.123456: "),
    "ISO timestamps": each_line("2026-03-01T10:00:00Z "),
    "logging": each_line("2026-03-01 10:00:00,123 ERROR "),
    "absl": each_line("E0601 10:00:00.123456 140408571025152 train.py:81] "),
    "XLA in absl": each_line(
        "I0226 14:42:37.250163 1398 run.py:247] 2022-02-26 05:42:37.249592: E "
        "external/xla/xla/pjrt/client.cc:764] "
    ),
    "srun": each_line("12: "),
    "compose": each_line("worker-1  | "),
    "Kubernetes": each_line("2026-03-01T10:00:00.123456789Z stderr F "),
    "syslog": each_line("Mar  1 10:00:00 tpu-vm-0 python3[1234]: "),
    "loguru": each_line("2026-03-01 10:00:00.123 | ERROR    | train:step:81 - "),
    "a comment": each_line("# "),
    "a comment of C++": each_line("    // "),
    "source": source,
    "lines of HTML": lambda text: text.replace("\n", "<br>").replace("'", "&#39;"),
    "mail": each_line("> > "),
    "pytest": each_line("E       "),
    "indented": each_line("        "),
    "bold": lambda text: f"**_{text}_**",
    "bold lines": lambda text: re.sub(r"\S.*\S", r"**\g<0>**", text),
    "separated thousands": separated(","),
    "thousands apart": separated(" "),
    "thousands in French": separated("\N{NARROW NO-BREAK SPACE}"),
    "a link": lambda text: f"https://example.com/issues/new?title=OOM&body={quote(text)}",
    "a form": lambda text: f"title=OOM&body={quote_plus(text)}&labels=bug",
    "a link in a link": lambda text: quote(f"https://example.com/?q={quote(text)}"),
    "ellipses of a person": lambda text: text.replace(". ", ". ... ").replace(": ", ": [...] ", 1),
    "bullets": each_line("- "),
    "lines of code": lambda text: re.sub(r"(?m)^([ \t]*)(\S.*?)[ \t\r]*$", r"\1- `\2`", text),
    "sentences of code": lambda text: SENTENCE_END.sub("`\n  - `", f"- `{text}`"),
    "sentences of code in a row": lambda text: SENTENCE_END.sub("`, `", f"`{text}`"),
    "sentences apart": lambda text: SENTENCE_END.sub(" … / … ", text),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "repr": lambda text: repr(RuntimeError(text)),
    "JSON": lambda text: json.dumps({"severity": "ERROR", "message": text}),
    "JSON of a repr": lambda text: json.dumps({"error": repr(text)}),
    "HTML": lambda text: text.replace(">", "&gt;").replace("<", "&lt;").replace('"', "&quot;"),
    "broken at 60": rewrapped(60),
    "broken at 20": rewrapped(20),
    "broken at each space": lambda text: text.replace(" ", "\n"),
    "a box": boxed,
    "a traceback": traceback,
    "a traceback of rank 3": lambda text: each_line("[rank3]: ")(traceback(text)),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_message_is_read_as_the_bare_one(wrapping: str) -> None:
    """Every sample gives the same message inside a wrapping, with the wrapped text as its text."""
    texts = {name: sample(name) for name in SAMPLES}
    bare = {name: without_text(parse_oom(text)) for name, text in texts.items()}
    wrapped = {name: WRAPPINGS[wrapping](text) for name, text in texts.items()}
    read = {name: parse_oom(text) for name, text in wrapped.items()}
    assert {name: without_text(message) for name, message in read.items()} == bare
    assert [message and message.text for message in read.values()] == list(wrapped.values())


ERRORS = "".join(
    f"[{rank}] 2019-05-29 23:55:5{rank}.555823: E external/xla/cuda_driver.cc:828] failed to "
    f"allocate {size / 2**20:.2f}M ({size} bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of "
    f"memory\n[{rank}] 2019-05-29 23:55:5{rank}.581962: E external/xla/cudnn_conv_algorithm_picker"
    f".cc:525] Resource exhausted: Failed to allocate request for {size / 2**20:.2f}MiB ({size}B) "
    "on device ordinal 0\n"
    for rank, size in ((1, 553648128), (7, 1224736768), (3, 2097152))
)


@pytest.mark.parametrize("width", range(80, 150))
def test_errors_that_a_terminal_breaks_in_words_are_all_read(width: int) -> None:
    """Each with its figures, at the line on which it begins."""
    rows = [
        line[start : start + width]
        for line in ERRORS.split("\n")
        for start in range(0, max(len(line), 1), width)
    ]
    found = locate_ooms("\n".join(["step 7", *rows]))

    sizes = [one.message.requested_bytes for one in found]
    assert sizes == [553648128, 1224736768, 2097152]
    begins = [
        2 + sum(-(-len(line) // width) for line in ERRORS.split("\n")[: 2 * n]) for n in range(3)
    ]
    assert [one.line for one in found] == begins
    assert {one.message.pool for one in found} == {"allocator"}


def test_lines_that_a_container_runtime_breaks_are_whole() -> None:
    """Kubernetes marks the parts of a long line with P, and its last part with F."""
    stamp = "2026-03-01T10:00:00.123456789Z stderr"
    text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4306723224 bytes."
    for cut in range(text.index("Out of") + 1, len(text) - 5):
        log = f"{stamp} F step 7\n{stamp} P {text[:cut]}\n{stamp} F {text[cut:]}\n"
        assert [(one.line, one.message.requested_bytes) for one in locate_ooms(log)] == [
            (2, 4306723224)
        ]


def test_equal_errors_whose_lines_take_turns_are_one_each() -> None:
    """As many as there are processes, and the totals are those of the last one."""
    text = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 24.12G of 15.75G hbm. "
        "Exceeded hbm capacity by 8.37G.\n\nTotal hbm usage >= 24.38G:\n"
        "    reserved        258.00M \n    program          24.12G \n    arguments         6.00G"
    )
    log = "\n".join(f"{rank}: {line}" for line in text.split("\n") for rank in range(3))
    found, alone = [one.message for one in locate_ooms(log)], parse_oom(text)

    assert alone is not None
    assert [one.exceeded_by_bytes for one in found] == [alone.exceeded_by_bytes] * 3
    assert [one.totals.get("arguments") for one in found] == [None, None, 6 * 2**30]
