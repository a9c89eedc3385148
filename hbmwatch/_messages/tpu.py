"""How XLA:TPU says that memory ran out, from 2019 to libtpu 0.0.50.

https://openxla.org/xla/errors/error_1000 and its neighbors document a few of these texts. libtpu is
closed, so the others come from messages that people posted and from failures that we provoked.
"""

from __future__ import annotations

from hbmwatch._messages.wording import BETWEEN, STATISTICS, Wording, optional
from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.message import OomMessage, Phase
from hbmwatch._records.sizes import COUNT, SIZE

SCOPED_ALLOCATION = "Scoped allocation with size "

_COMPILE = OomMessage("", platform="tpu", phase="compile")
_COMPILE_HBM = OomMessage("", platform="tpu", phase="compile", memory_space="hbm")
_RUN = OomMessage("", platform="tpu", phase="run", memory_space="hbm", pool="allocator")

# A disk has a usage and a capacity too.
_KNOWN_SPACE = rf"(?=(?:{'|'.join(('hbm', *ON_CHIP))})\b)"
# Other programs attempt to allocate "4G of swap" or "512M for the page cache".
_REQUEST_END = (
    r"(?=\.? ?$|\. ?[A-Zt;(]|[^\w\s.]"
    rf"|{BETWEEN}(?:That was not possible|There are {SIZE} free|[Tt]he largest contiguous)\b)"
)
_ATTEMPT = (
    rf"Attempting to (?:allocate {SIZE}{_REQUEST_END}|reserve {SIZE} at the bottom of memory)"
)

_IMPOSSIBLE = f"(?:{BETWEEN}That was not possible)?"
_RESERVED = (
    f"{BETWEEN}<total_reserved> reserved",
    f"{BETWEEN}(?:and )?<total_reservable> reservable",
)
_PROGRAM = r"(?: '[^']{1,500}')?"
_THEN = f"(?:: ?|{BETWEEN})"

_CODES: tuple[tuple[str, str, Phase, str | None], ...] = (
    ("E0100", "RuntimeBufferAllocationFailure", "run", "hbm"),
    ("E0101", "RuntimeProgramAllocationFailure", "run", "hbm"),
    ("E1000", "CompileTimeHbmOom", "compile", "hbm"),
    ("E1001", "CompileTimeScopedVmemOom", "compile", "vmem"),
    ("E3000", "CompileTimeSparseCoreAllocationFailure", "compile", None),
)

_SHORT = ":?(?: Used)? <used_bytes> ?(?:/|of) ?<limit_bytes>"
# The figures after the name of an error, also in a person's words: "required HBM: ~19.12 GiB".
_OWN_WORDS = (
    rf"{BETWEEN}(?:(?i:used?|uses|requires?|required|needs?|needed)(?: (?:HBM|VMEM|memory))?:? "
    rf"(?:about )?|(?=~?{SIZE} ?(?:/|of) ?~?{SIZE}))~?<used_bytes>(?: program)?",
    rf"(?: ?(?:/|of) ?|{BETWEEN}(?i:available|limit|capacity|has)(?: (?:HBM|VMEM|memory))?:? "
    "(?:about )?)~?<limit_bytes>",
)


# "The allocation requires ~768MB per request but only ~389MB is free", in the next sentence.
# "trying to reserve 29.33G with 29.30G reservable".
_OWN_REQUEST = (
    r"(?:(?!Attempting to |RESOURCE_EXHAUSTED).){0,200}?"
    r"\b(?:[Aa]llocation (?:requires|needs)"
    r"|(?:trying|tried|failed|attempting) to (?:reserve|allocate))"
    r" (?:about )?~?<requested_bytes>(?: [a-z ]{1,30})?,? (?:but|and|with) (?:only )?(?:about )?"
    r"~?(?:<free_bytes> (?:(?:is|are|was|were) )?(?:free|available)"
    r"|<total_reservable> (?:is )?reservable)\b"
)


def _figures_of(phase: Phase) -> str:
    """A pattern for the figures after the name of an error."""
    if phase == "compile":
        return optional(*_OWN_WORDS)
    return f"(?:{_SHORT}|{_OWN_REQUEST})?"


WORDINGS = (
    Wording(
        "tpu-stack",
        _COMPILE,
        "Ran out of memory in memory space ",
        "<memory_space> while allocating on stack",
    ),
    Wording(
        "tpu-scoped",
        _COMPILE,
        SCOPED_ALLOCATION,
        "<requested_bytes>"
        + optional(
            " and limit <limit_bytes>",
            " exceeded scoped <memory_space> limit",
            " by <exceeded_by_bytes>",
        ),
        "continuation",
    ),
    Wording(
        "tpu-space",
        _COMPILE,
        "Ran out of memory in memory space ",
        "<memory_space>"
        + optional(
            rf"{BETWEEN}Used <used_bytes>",
            r" of <limit_bytes>",
            rf" \w{{1,30}}{BETWEEN}Exceeded \w{{1,30}} capacity by ~?<exceeded_by_bytes>",
        ),
    ),
    Wording(
        "tpu-used",
        _COMPILE,
        "Used ",
        rf"<used_bytes> of <limit_bytes> {_KNOWN_SPACE}<memory_space>{BETWEEN}Exceeded "
        r"\w{1,30} capacity by ~?<exceeded_by_bytes>",
        "continuation",
        needle=" capacity by ",
    ),
    Wording(
        "tpu-retold",
        _COMPILE,
        "sed ",
        # Other programs say such sentences of a GPU's memory, or of a disk's.
        r"(?<=[Uu]sed )(?:about )?~?<used_bytes> of (?:the )?<limit_bytes> (?:of )?"
        rf"(?i:{_KNOWN_SPACE})<named_space>{BETWEEN}[Ee]xceed(?:ed|ing|s)(?: the)?"
        r"(?: \w{1,30})? (?:capacity|limit) by (?:about )?~?<exceeded_by_bytes>",
        "continuation",
        needle="xceed",
        after="TPU",
    ),
    Wording(
        "tpu-exceeded",
        _COMPILE,
        "Exceeded ",
        f"{_KNOWN_SPACE}<memory_space> capacity by ~?<exceeded_by_bytes>",
        "continuation",
    ),
    Wording(
        "tpu-total",
        _COMPILE_HBM,
        "Ran out of memory on HBM",
        optional(
            rf"{BETWEEN}the total memory required for HLO temporaries \(<used_bytes>\)",
            r" exceeds available HBM \(<limit_bytes>\)",
        ),
    ),
    Wording(
        "tpu-total-alone",
        _COMPILE_HBM,
        "otal memory required for HLO temporaries (",
        r"<used_bytes>\)" + optional(r" exceeds available HBM \(<limit_bytes>\)"),
        "continuation",
    ),
    Wording(
        "tpu-temporaries",
        _COMPILE_HBM,
        "HLO temporaries",
        r"(?: \(<used_bytes>\))? exceeds available HBM(?: \(<limit_bytes>\))?",
        "continuation",
    ),
    Wording(
        "tpu-allocation",
        _COMPILE,
        "Allocation (size=",
        r"<#requested_bytes>\) would exceed memory"
        + optional(
            r" \(size=<#limit_bytes>\)",
            # People leave the brackets and the quotes out.
            r"(?: ?::)?(?: ?#allocation\d{1,9})? ?\[?shape = '?[^'=]{0,2000}'?"
            ", space=<memory_space>",
        ),
    ),
    Wording(
        "tpu-allocation-limit",  # a person left out the size of the allocation
        _COMPILE,
        "Allocation would exceed memory (size=",
        r"<#limit_bytes>\)",
    ),
    Wording(
        "tpu-early",
        _COMPILE_HBM,
        "unlikely to have enough ",
        "(?:device )?memory"
        + optional(f"{BETWEEN}Requires <used_bytes>", f"{BETWEEN}has <limit_bytes> available"),
    ),
    Wording(
        "tpu-cores",
        _COMPILE_HBM,
        "TensorCore Hbm usage: ",
        "<total_TensorCore_Hbm_usage>"
        + optional(
            ", SparseCore Hbm usage:? <total_SparseCore_Hbm_usage>",
            ", exceeding available bytes: <limit_bytes>",
        ),
    ),
    Wording(
        "tpu-embedding",
        _COMPILE_HBM,
        "due to lack of HBM space",
        optional(
            rf"{BETWEEN}The HBM capacity available per TPU core \(<limit_bytes>\)",
            r" is smaller than the HBM requirement after padding \(<used_bytes>\)",
        ),
    ),
    Wording(
        "tpu-embedding-run",
        _RUN,
        "TPU embedding: out of memory allocating ",
        "<requested_bytes>",
    ),
    Wording(
        "tpu-host",
        OomMessage("", platform="tpu", phase="run", memory_space="host", pool="host"),
        "OOM in pinned host allocator",
    ),
    Wording(
        "tpu-usage",
        _COMPILE,
        "Total ",
        f"{_KNOWN_SPACE}<memory_space> usage >= {SIZE}",
        "continuation",
    ),
    Wording(
        "tpu-requirement",
        _COMPILE,
        "Program ",
        f"{_KNOWN_SPACE}<memory_space> requirement (?:{SIZE}|unknown)",
        "continuation",
    ),
    Wording(
        "tpu-largest",
        _COMPILE,
        "Largest program allocations in ",
        f"{_KNOWN_SPACE}<memory_space>:",
        "continuation",
    ),
    Wording(
        "tpu-entry",  # of the list of allocations, where a log starts in the middle of it
        _COMPILE,
        "Allocation type: ",
        r"(?:HLO temp|scoped|global)\b",
        "allocation_entry",
    ),
    Wording(
        "tpu-allocate",
        _RUN,
        "Attempting to allocate ",
        f"<requested_bytes>{_REQUEST_END}"
        + optional(
            f"{_IMPOSSIBLE}{BETWEEN}There are <free_bytes> free",
            rf"(?:{BETWEEN}Due to fragmentation)?{BETWEEN}[Tt]he largest contiguous region of free"
            " memory is <largest_free_bytes>",
        ),
    ),
    Wording(
        "tpu-reserve",
        _RUN,
        "Attempting to reserve ",
        "<requested_bytes> at the bottom of memory"
        + optional(f"{_IMPOSSIBLE}{BETWEEN}There are <free_bytes> free", *_RESERVED),
    ),
    Wording(
        "tpu-free",
        _RUN,
        "There are ",
        f"<free_bytes> free{''.join(_RESERVED)}",
        "extra_figures",
        needle=" reservable",
    ),
    Wording(
        "tpu-log-stats",
        _RUN,
        "OOM Summary: Reason: ",
        r"[\w ]{1,100}\. Allocator stats: Limit: <#limit_bytes>(?= )" + optional(*STATISTICS),
        "extra_figures",
    ),
    Wording(
        "tpu-not-allocated",
        _RUN,
        "ould not allocate ",
        r"<#requested_bytes> bytes in memory \w{1,80};?"
        + optional(" <#total_allocatable> bytes allocatable", ",? <#free_bytes> bytes available"),
        needle=" bytes in memory ",
    ),
    Wording(
        "tpu-buffer",
        _RUN,
        "Error allocating device buffer",
        rf"(?!{_THEN}{_ATTEMPT})",
        "code",
    ),
    Wording(
        "tpu-loading",
        _RUN,
        "RESOURCE_EXHAUSTED: Error loading ",
        rf"(?:SparseCore )?program(?!{_PROGRAM}{_THEN}{_ATTEMPT}){_PROGRAM}"
        # People shorten the rest: "Error loading program 'jit_f' ... 5.68G free".
        rf"(?:{_THEN}Attempting to (?:reserve|allocate) <requested_bytes>)?"
        rf"(?:{_IMPOSSIBLE}{_THEN}(?:There are )?<free_bytes> free)?",
        "code",
    ),
    Wording(
        "tpu-permanent",
        _COMPILE,
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error",
        r"(?!\.? ?Ran out of memory (?:in memory space|on HBM))",
        "code",
    ),
    Wording(
        "tpu-sparse-core",
        OomMessage("", platform="tpu", phase="compile", code="E3000"),
        "op current allocation offset upper bound (",
        rf"{COUNT} words\) exceeds"
        + optional(rf"[\w \-]{{1,200}}\({COUNT} words\) in memory space <space>"),
    ),
    *(
        Wording(
            f"tpu-{code}",
            OomMessage("", platform="tpu", phase=phase, code=code, memory_space=space),
            f"{code}: {name}",
            # XLA's own sentence is another row.
            f"(?:(?!:? Used ){_figures_of(phase)})?",
            "code",
        )
        for code, name, phase, space in _CODES
    ),
    *(
        Wording(
            f"tpu-{name}",
            OomMessage("", platform="tpu", phase=phase, memory_space=space),
            name,
            rf"(?:(?<=RESOURCE_EXHAUSTED: {name})|(?=:(?! ?\d))|(?= {SIZE} ?/ ?{SIZE}))"
            + _figures_of(phase),
            "code",
        )
        for code, name, phase, space in _CODES
    ),
)
