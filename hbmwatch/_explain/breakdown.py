"""The bytes of a failure by allocation type, by role and by pytree path."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._records.message import OomMessage
from hbmwatch._records.paths import path_keys
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.roles import (
    OPTIMIZER,
    argument_role,
    is_ambiguous,
    role_of,
    temporary_role,
)
from hbmwatch._xla.program import Program
from hbmwatch._xla.types import MemoryColor

_FOUND = ("role", "functions", "written_name", "written_source")
# dataclasses.replace takes twice as long, and rows may be thousands.
_OTHERS = operator.attrgetter(*(f.name for f in dataclasses.fields(PeakOp) if f.name not in _FOUND))
_MOST_ROWS = 12
_MOST_KEYS = 4  # of a path in a row
# The totals of a message for each row of the breakdown; the first that the message has counts.
_TOTALS = {
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
    """Bytes per device by allocation type; see OomReport.breakdown for the names.

    Args:
        program: The failing program; None if only its message is known.
        summary: Its peak in HBM.
        message: The error's text: the limit, and what the program's allocations do not say.
    """
    found = {
        name: message.totals[stated[0]]
        for name, totals in _TOTALS.items()
        if (stated := [total for total in totals if total in message.totals])
    }
    if message.fragmentation_bytes is not None:
        found["fragmentation"] = message.fragmentation_bytes
    if message.used_bytes is not None:
        found["total"] = message.used_bytes
    if program is not None and summary is not None:
        found |= _of_program(program, summary)
    if message.limit_bytes is not None:
        found["limit"] = message.limit_bytes
    order = (*_TOTALS, "fragmentation", "total", "limit")
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
        summary: A peak in HBM, as with_roles returns it; else "role" is empty.
    """
    rows: dict[str, int] = {}
    for op in summary.ops:
        if op.role:
            rows[op.role] = rows.get(op.role, 0) + op.size_bytes
    return {"role": _fold(rows), "path": _by_path(summary)}


def with_roles(facts: ProgramFacts) -> PeakSummary:
    """The peak, with the role of each buffer, and the names of what loops write.

    Roles are inferred from the pytree paths, the op_names and the dataflow. Arguments that these do
    not tell apart have a role that says so ("parameters or optimizer state").
    """
    named = zip(facts.summary.ops, _roles(facts), strict=True)
    written = {
        live.op.instruction: (live.name, live.source)
        for live in facts.live
        if live.loop_buffer is not None and live.inferred
    }
    # Lines of another call, and arguments that XLA names after the loop that reads them.
    written |= {
        live.op.instruction: ("", live.source)
        for live in facts.live
        if not live.inferred and live.source != live.op.source
    }
    arguments = facts.argument_rows
    written |= {
        op.instruction: (arguments[op.instruction].path, "")
        for op in facts.summary.ops
        if op.kind == "parameter" and op.instruction in arguments
        if arguments[op.instruction].path != op.op_name
    }
    make: Callable[..., PeakOp] = PeakOp
    ops = []
    for op, role in named:
        name, source = written.get(op.instruction, ("", ""))
        ops.append(make(*_OTHERS(op), role, op.functions, name, source))
    return dataclasses.replace(facts.summary, ops=tuple(ops))


def _roles(facts: ProgramFacts) -> Iterator[str]:
    """The role of each buffer of the peak."""
    arguments = facts.argument_rows
    saved = {live.op.instruction for live in facts.buffers.saved}
    lives = {live.op.instruction: live for live in facts.live}
    weights = {a.dims for a in facts.arguments if a.number in facts.state}
    batch = {argument.number for argument in facts.batch.arguments}
    trains = facts.buffers.differentiated
    for op in facts.summary.ops:
        if op.kind == "parameter":
            yield _argument_role(arguments.get(op.instruction), facts.state, batch, trains)
        else:
            live = lives.get(op.instruction)
            yield _role(op, live, op.instruction in saved, weights)


def _argument_role(
    argument: Argument | None, state: Container[int], batch: Container[int], trains: bool
) -> str:
    """The role of an argument: by its batch dimension, by its path, by whether it is returned.

    Args:
        argument: The argument; None where it is not known.
        state: The numbers of the arguments that are returned updated.
        batch: The numbers of those with a batch dimension.
        trains: Whether the program has a backward pass: else what it returns updated is some state,
            and "velocity" is no optimizer's.
    """
    if argument is None:
        return "arguments"
    is_returned = argument.number in state
    if not is_returned and argument.number in batch:
        return "batch"
    named = argument_role(argument.path)
    if named == OPTIMIZER and not trains and is_ambiguous(argument.path):
        named = ""
    if named or not is_returned:
        return named or "other arguments"
    return "parameters or optimizer state" if trains else "updated arguments"


def _role(
    op: PeakOp, live: LiveBuffer | None, saved: bool, weights: Iterable[tuple[int, ...]]
) -> str:
    """The role of a buffer that is not an argument."""
    if not op.instruction or op.kind == "constant" or (op.kind == "output" and not saved):
        return role_of(op)
    role = temporary_role(op.opcode, live.context if live is not None else op.op_name)
    if saved and role != "collectives":
        return "residuals saved for backward"
    is_gradient = role == "backward temporaries" and live is not None and live.dims in weights
    return "gradients" if is_gradient else role


def _by_path(summary: PeakSummary) -> dict[str, int]:
    """Bytes by pytree path, with as many keys as a dozen rows allow; other buffers in brackets."""
    whole: dict[str, int] = {}
    brackets: dict[str, int] = {}
    for op in summary.ops:
        path = op.path
        grouped, name = (whole, path) if path else (brackets, _bracket(op))
        grouped[name] = grouped.get(name, 0) + op.size_bytes
    split = [(path_keys(path), size) for path, size in whole.items()]
    fitting: dict[str, int] = {}
    for depth in range(1, _MOST_KEYS + 1):
        rows = dict(brackets)
        for parts, size in split:
            name = "".join(parts[:depth])
            rows[name] = rows.get(name, 0) + size
        if fitting and (len(rows) > _MOST_ROWS or len(rows) == len(fitting)):
            break
        fitting = rows
    return _fold(fitting)


def _bracket(op: PeakOp) -> str:
    """The row of a buffer without a path."""
    if not op.instruction:
        return "(small buffers)"
    return "(unnamed arguments)" if op.kind == "parameter" else f"({op.kind or 'temporary'})"


def _fold(rows: Mapping[str, int]) -> dict[str, int]:
    """A dozen rows, most bytes first; the last is "other" if there are more."""
    ordered = sorted(((name, size) for name, size in rows.items() if size), key=lambda r: -r[1])
    if len(ordered) <= _MOST_ROWS:
        return dict(ordered)
    shown = dict(ordered[: _MOST_ROWS - 1])
    shown["other"] = shown.get("other", 0) + sum(size for _, size in ordered[_MOST_ROWS - 1 :])
    return shown
