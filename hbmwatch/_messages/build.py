"""The OomMessage that the statements about one OOM make."""

from __future__ import annotations

import re
from typing import Any

from hbmwatch._messages.figures import LARGEST_ON_CHIP, merge, read_figures
from hbmwatch._messages.gpu_details import add_gpu_details
from hbmwatch._messages.own_reports import read_report
from hbmwatch._messages.statements import Oom, Statement
from hbmwatch._messages.tpu_details import add_tpu_details
from hbmwatch._records.memory_spaces import ON_CHIP
from hbmwatch._records.message import OomMessage

_IMPLIED = ("platform", "phase", "code", "memory_space", "pool")
# Which statement counts where those of one OOM differ: the error first, then logs, then causes.
_ORDER = {
    "error": 0,
    "continuation": 0,
    "allocation_entry": 0,
    "log": 1,
    "quoted": 2,
    "extra_figures": 3,
    "code": 4,
    "retry_log": 5,
    "report": 6,
}
_DETAILS = {"tpu": add_tpu_details, "gpu": add_gpu_details}

# How many characters before an OOM its code, its replica and its program may be.
_BEFORE = 2000
_CODE_BEFORE, _PROGRAM_BEFORE, _AUTOTUNER_BEFORE = 100, 600, 300
# How far a person's name for the memory is from the figures.
_SPACE_BEFORE, _SPACE_AFTER = 120, 400
_ON_CHIP_NAME = rf"(?<![A-Za-z])(?:{'|'.join(ON_CHIP)})(?![A-Za-z])"
_LARGE_NAME = r"(?<![A-Za-z])(?:hbm|host)(?![A-Za-z])"
_CODE = r"(E\d{4}): [A-Z]\w{1,80}: ?$"
_LINK = r"openxla\.org/xla/errors/error_(\d{4})(?!\d)"
_LOADING = r"Error loading (?:SparseCore )?program '([^']{1,500})'"
_MODULE = r"HLO module: ([\w.<>-]{0,500}\w)|\[executable_name='([^']{1,500})'\]"
_EXECUTION = (
    r"Execution of replica (\d{1,9}) failed: (?:RESOURCE_EXHAUSTED|Resource exhausted|INTERNAL)"
)
# The autotuner runs candidates while it compiles; what their allocations log is no failed run.
_AUTOTUNER = (
    r"(?:algorithm_picker|autotuner)\.cc:\d{1,6}\] (?:Failed to [a-z ]{1,80}: )?"
    r"(?:(?:INTERNAL|Internal|RESOURCE_EXHAUSTED|Resource exhausted): ){0,3}\S?$"
)
# Contexts, streams and handles are made before a program runs, and for the autotuner too.
_STARTING = (
    r"(?:\b(?:cu|hip)(?:Init|CtxCreate|DevicePrimaryCtxRetain|StreamCreate)\w{0,30}(?:\(\))?"
    r"|(?:create|allocate) (?:[A-Za-z]{1,10} )?stream(?: for context \w{1,40})?"
    r"|error before creating \w{1,20} handle \(\d{1,4}\)): ?(?:[A-Z_]{0,30}: ?){0,2}$"
)
# A status and the driver's error, with no word on what has failed.
_ONLY_STATUS = r"(?:RESOURCE_EXHAUSTED|Resource exhausted|INTERNAL|Internal): ?(?:: ?)?$"
_RUNNING = "Execution of replica"
# The sources of XLA:GPU, and a person's words; near, as others can be about another failure.
_GPU = (
    r"(?<![A-Za-z])(?:gpu|cuda|cudnn|rocm)_\w{1,60}\.cc:|GPU_\d{1,3}_bfc"
    r"|(?<![A-Za-z])GPU (?:device )?(?:memory|RAM|显存)|(?<![A-Za-z])VRAM(?![A-Za-z])"
)
_GPU_BEFORE, _GPU_AFTER = 600, 300
_REPLICA = r"while running replica (\d{1,9}) and partition (\d{1,9})"


def build_message(text: str, flat_text: str, oom: Oom) -> OomMessage:
    """The message that an OOM's statements make, with the text that it keeps."""
    fields: dict[str, Any] = {"totals": {}, "resolution_bytes": {}}
    for statement in sorted(oom.statements, key=lambda one: _ORDER[one.wording.source]):
        if statement.wording.source != "retry_log" or "platform" not in fields:
            merge(fields, read_figures(statement.match))
            merge(fields, _implied(flat_text, statement))
    read_report(fields)
    _add_platform(fields, flat_text, oom)
    own_text = flat_text[oom.start : oom.end]
    add_details = _DETAILS.get(fields.get("platform", ""))
    if add_details:
        add_details(fields, own_text)
    before = flat_text[max(oom.previous_end, oom.start - _BEFORE) : oom.start]
    _add_space(fields, before, own_text)
    _add_code(fields, before, own_text)
    _add_module(fields, before, own_text)
    _add_replica(fields, before, own_text, oom.stated_end - oom.start)
    return OomMessage(text, **fields)


def _implied(flat_text: str, statement: Statement) -> dict[str, Any]:
    """What a text says whatever its figures are."""
    implies = statement.wording.implies
    fields = {name: value for name in _IMPLIED if (value := getattr(implies, name))}
    before = flat_text[max(0, statement.start - _AUTOTUNER_BEFORE) : statement.start]
    if re.search(_AUTOTUNER, before, re.IGNORECASE):
        fields["phase"] = "compile"
    elif statement.wording.source == "quoted" and _says_no_phase(before):
        fields.pop("phase", None)
    return fields


def _says_no_phase(before: str) -> bool:
    """Whether the words before a quoted cause do not prove that a program ran."""
    is_start = re.search(_STARTING, before, re.IGNORECASE)
    return bool(is_start) or (
        re.search(_ONLY_STATUS, before) is not None and _RUNNING not in before
    )


def _add_platform(fields: dict[str, Any], flat_text: str, oom: Oom) -> None:
    """Add "gpu" where the allocator of several platforms refused, and the words around say GPU."""
    if fields.get("platform") or fields.get("pool") != "allocator":
        return
    around = flat_text[max(0, oom.start - _GPU_BEFORE) : oom.stated_end + _GPU_AFTER]
    if re.search(_GPU, around, re.IGNORECASE):
        fields["platform"] = "gpu"


def _add_space(fields: dict[str, Any], before: str, text: str) -> None:
    """Add the memory whose size is the limit, where only the words around name it."""
    limit = fields.get("limit_bytes")
    if fields.get("memory_space") or fields.get("phase") != "compile" or limit is None:
        return
    around = before[-_SPACE_BEFORE:] + text[:_SPACE_AFTER]
    pattern = _ON_CHIP_NAME if limit < LARGEST_ON_CHIP else _LARGE_NAME
    names = {name.lower() for name in re.findall(pattern, around, re.IGNORECASE)}
    if len(names) == 1 and "host" not in names:
        fields["memory_space"] = names.pop()


def _add_code(fields: dict[str, Any], before: str, text: str) -> None:
    """Add the error code that stands before the text, or in a link to its page."""
    code = re.search(_CODE, before[-_CODE_BEFORE:])
    link = re.search(_LINK, text)
    if code or link:
        fields.setdefault("code", code[1] if code else f"E{link[1]}" if link else None)


def _add_module(fields: dict[str, Any], before: str, text: str) -> None:
    """Add the module that was loaded, compiled or run."""
    loading = re.search(_LOADING, before[-_PROGRAM_BEFORE:]) or re.search(_LOADING, text)
    module = loading or re.search(_MODULE, text)
    if module:
        fields.setdefault("module", module[1] or module[2])


def _add_replica(fields: dict[str, Any], before: str, text: str, stated_end: int) -> None:
    """Add the replica that failed, and its partition where the text names it."""
    replica = re.search(_REPLICA, text)
    execution = re.search(_EXECUTION, before[-_CODE_BEFORE:] + text[:stated_end])
    if replica:
        fields.setdefault("replica", int(replica[1]))
        fields.setdefault("partition", int(replica[2]))
    elif execution:
        fields.setdefault("replica", int(execution[1]))
