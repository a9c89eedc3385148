"""The peak as arithmetic: what the memory was, and whose it was by role and by pytree path."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterable, Iterator, Mapping

from hbmwatch._analysis.facts import Argument, ProgramFacts
from hbmwatch._analysis.live_buffers import LiveBuffer, is_backward, is_forward, is_recomputed
from hbmwatch._records.message import OomMessage
from hbmwatch._records.paths import path_keys
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._xla.program import Program
from hbmwatch._xla.types import MemoryColor

# dataclasses.replace takes twice as long, and rows may be thousands.
_BUT_ROLE = operator.attrgetter(*(f.name for f in dataclasses.fields(PeakOp) if f.name != "role"))
_ROWS = 12
_DEEPEST = 4
_OPTIMIZER = re.compile(
    r"(?i)(^|[^a-z])(opt|opt(imi[sz]er)?_?state|optimi[sz]er|mu|nu|momentum|velocity|moments?|trace"
    r"|adam\w*|ema)([^a-z]|$)"
)
_WEIGHTS = re.compile(
    r"(?i)(^|[^a-z])(params?|parameters|weights?|kernel|embed(ding)?s?|layers?|model|bias|scale)"
    r"([^a-z]|$)"
)
_COLLECTIVE = re.compile(r"^(all-|reduce-scatter|collective-|send|recv)")
# How a message names what a program's allocations are called here; the first that is there counts.
_NAMED = {
    "arguments": ("arguments", "parameter allocation"),
    "outputs": ("Output size", "maybe_live_out allocation", "output"),
    "aliased": ("shared with arguments",),
    "temporaries": ("HLO temp", "preallocated temp allocation"),
    "constants": ("constant allocation", "global"),
    "code": ("overlays",),
    "reserved": ("reserved",),
}


def breakdown(
    program: Program | None, summary: PeakSummary | None, message: OomMessage
) -> dict[str, int]:
    """What the memory was, in bytes on one device; see OomReport.breakdown for the names.

    Args:
        program: The failing program; None where only its message is there.
        summary: Its peak in HBM.
        message: The error's text: the limit, and what the program's allocations do not say.
    """
    found = {
        name: message.totals[said[0]]
        for name, names in _NAMED.items()
        if (said := [n for n in names if n in message.totals])
    }
    if message.fragmentation_bytes is not None:
        found["fragmentation"] = message.fragmentation_bytes
    if message.used_bytes is not None:
        found["total"] = message.used_bytes
    if program is not None and summary is not None:
        found |= _of_program(program, summary)
    if message.limit_bytes is not None:
        found["limit"] = message.limit_bytes
    order = (*_NAMED, "fragmentation", "total", "limit")
    return {name: found[name] for name in order if name in found}


def _of_program(program: Program, summary: PeakSummary) -> dict[str, int]:
    """The breakdown from the compiler's own allocations."""
    constants = sum(
        a.size for a in program.allocations if a.is_constant and a.color == MemoryColor.HBM
    )
    return {
        "arguments": summary.parameter_bytes,
        "outputs": summary.output_bytes,
        "aliased": summary.aliased_bytes,
        "temporaries": summary.temporary_bytes,
        "constants": constants,
        "fragmentation": summary.fragmentation_bytes,
        "total": summary.total_allocation_bytes,
    }


def rollup(summary: PeakSummary) -> dict[str, dict[str, int]]:
    """Bytes at the peak by "role" and by "path", each at most a dozen rows, most bytes first.

    Args:
        summary: A peak in HBM, with_roles; without them nothing is grouped by role.
    """
    rows: dict[str, int] = {}
    for op in summary.ops:
        if op.role:
            rows[op.role] = rows.get(op.role, 0) + op.size_bytes
    return {"role": _fold(rows), "path": _by_path(summary)}


def with_roles(evidence: ProgramFacts) -> PeakSummary:
    """The peak, with what each buffer is for.

    Roles come from the pytree paths, the op_names and the dataflow; what cannot be told apart is
    one role that says so ("parameters or optimizer state").
    """
    named = zip(evidence.summary.ops, _roles(evidence), strict=True)
    ops = tuple(PeakOp(*(*_BUT_ROLE(op), role)) for op, role in named)
    return dataclasses.replace(evidence.summary, ops=ops)


def _roles(evidence: ProgramFacts) -> Iterator[str]:
    """What each buffer of the peak is for."""
    arguments = {argument.path: argument for argument in evidence.arguments}
    saved = {live.op.instruction for live in evidence.buffers.saved}
    lives = {live.op.instruction: live for live in evidence.live}
    weights = {a.dims for a in evidence.arguments if a.number in evidence.state}
    for op in evidence.summary.ops:
        if op.kind == "parameter":
            yield _argument_role(evidence, arguments.get(op.op_name))
        else:
            live = lives.get(op.instruction)
            yield _role(op, live, op.instruction in saved, weights)


def _argument_role(evidence: ProgramFacts, argument: Argument | None) -> str:
    """What an argument is for: by its path, else by whether it comes back."""
    if argument is None:
        return "arguments"
    if argument.number not in evidence.state:
        batch = argument.number in {a.number for a in evidence.batch.arguments}
        weights = _WEIGHTS.search(argument.path) and not batch
        return "parameters" if weights else ("batch" if batch else "other arguments")
    if _OPTIMIZER.search(argument.path):
        return "optimizer state"
    return "parameters" if _WEIGHTS.search(argument.path) else "parameters or optimizer state"


def _role(
    op: PeakOp, live: LiveBuffer | None, saved: bool, weights: Iterable[tuple[int, ...]]
) -> str:
    """What a buffer that is no argument is for."""
    if not op.instruction:
        return "small buffers"
    if op.kind in ("output", "constant"):
        return f"{op.kind}s"
    if _COLLECTIVE.match(op.opcode):
        return "collectives"
    name = live.context if live is not None else op.op_name
    if saved:
        return "residuals saved for backward"
    if is_recomputed(name):
        return "recomputed by jax.checkpoint"
    if is_backward(name):
        return "gradients" if live is not None and live.dims in weights else "backward temporaries"
    return "forward temporaries" if is_forward(name) else "other temporaries"


def _by_path(summary: PeakSummary) -> dict[str, int]:
    """Bytes by pytree path, cut where a dozen rows hold them; what is no argument in brackets."""
    whole: dict[str, int] = {}
    brackets: dict[str, int] = {}
    for op in summary.ops:
        path = op.path
        grouped, name = (whole, path) if path else (brackets, _bracket(op))
        grouped[name] = grouped.get(name, 0) + op.size_bytes
    split = [(path_keys(path), size) for path, size in whole.items()]
    fitting: dict[str, int] = {}
    for depth in range(1, _DEEPEST + 1):
        rows = dict(brackets)
        for parts, size in split:
            name = "".join(parts[:depth])
            rows[name] = rows.get(name, 0) + size
        if fitting and (len(rows) > _ROWS or len(rows) == len(fitting)):
            break
        fitting = rows
    return _fold(fitting)


def _bracket(op: PeakOp) -> str:
    """The row of a buffer without a path."""
    if not op.instruction:
        return "(small buffers)"
    return "(unnamed arguments)" if op.kind == "parameter" else f"({op.kind or 'temporary'})"


def _fold(rows: Mapping[str, int]) -> dict[str, int]:
    """Most bytes first, what does not fit into a dozen rows as "other"."""
    ordered = sorted(((name, size) for name, size in rows.items() if size), key=lambda r: -r[1])
    if len(ordered) <= _ROWS:
        return dict(ordered)
    shown = dict(ordered[: _ROWS - 1])
    shown["other"] = shown.get("other", 0) + sum(size for _, size in ordered[_ROWS - 1 :])
    return shown
