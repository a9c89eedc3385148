"""Which program failed, and its HloProto: from a profiler session, else from XLA's dump."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import jax

from hbmwatch._explain.blame import Clues, allocates_other_bytes, choose_program
from hbmwatch._explain.called import called_functions
from hbmwatch._explain.failure import FailedCall
from hbmwatch._jax import dump, profiler
from hbmwatch._jax.executable import hlo_module
from hbmwatch._jax.failed_arrays import first_failed, passed
from hbmwatch._jax.unavailable import Unavailable
from hbmwatch._profiles.runs import host_name
from hbmwatch._records.failures import log_failure
from hbmwatch._records.message import OomMessage
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.protos import HloModuleProto, parse
from hbmwatch._xla.xspace import pack_modules, read_modules

_LONGEST_RECOMPILE_SECONDS = 60.0
_PREFIXES = ("jit", "pmap")  # of the names of HLO modules
_NOT_IN_MODULE_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The failing program.

    Attributes:
        program: The program.
        xspace: A profile that holds it and no other, so that XProf opens at it.
        note: Why it is a guess that this program failed; "" where it is certain.
    """

    program: Program
    xspace: bytes
    note: str = ""


def capture(message: OomMessage, failed: FailedCall, lowered: Any | None) -> Captured:
    """The failing program, from a profiler session that is opened now, else from a dump.

    Args:
        message: What the error says.
        failed: The call.
        lowered: The failing program's jax.stages.Lowered; None where it is not known.

    Raises:
        ProfileError: It is unavailable; the text says why, for each way that was tried.
    """
    clues = _clues(message, failed, _module_names(message, failed, lowered))
    found, reasons = None, []
    try:
        modules = read_modules(profiler.collect())
        exact_name = functools.partial(_compiled_name, message, failed, lowered)
        program, note = choose_program(modules, clues, message, exact_name)
        found = _captured(program, modules[program.name], note)
    except (Unavailable, ProfileError) as error:
        reasons.append(str(error))
    if found is not None and not found.note:
        return found
    try:
        if clues.given_failed:
            raise Unavailable("the failing call was given the result of a program that had failed")
        dumped = _dumped(message, failed, lowered)
        if not allocates_other_bytes(dumped.program, message):
            return dumped
    except (Unavailable, ProfileError) as error:
        reasons.append(str(error))
    if found is None:
        raise ProfileError("; ".join(reasons))
    return found


def _dumped(message: OomMessage, failed: FailedCall, lowered: Any | None) -> Captured:
    """The program from one more compile, if that does not take too long."""
    if lowered is None:
        raise Unavailable("cannot recompile: the failing program is unknown")
    seconds = failed.compile_seconds
    if not seconds and message.phase == "compile":
        seconds = failed.since_lowering_seconds
    if seconds > _LONGEST_RECOMPILE_SECONDS:
        limit = f"limit {_LONGEST_RECOMPILE_SECONDS:.0f} s"
        raise Unavailable(
            f"did not recompile to recover the program: it takes about {seconds:.0f} s ({limit})"
        )
    proto = dump.dump(lowered, failed.compiler_options)
    program = parse_program(proto, failed.function_name)
    if not program.allocations:
        raise Unavailable("the HLO dump of the program has no buffer assignment")
    return _captured(program, proto, "")


def _captured(program: Program, proto: bytes, note: str) -> Captured:
    host = host_name()
    xspace = pack_modules([(program.module, program.program_id, proto)], host)
    return Captured(program, xspace, note)


def _clues(message: OomMessage, failed: FailedCall, own: tuple[str, ...]) -> Clues:
    """What tells the failing program from others that request as many bytes."""
    called: list[str] = []
    first, given_failed = None, False
    try:
        if failed.error is not None and not own:
            functions = called_functions(failed.error.__traceback__)
            called = [name for function in functions for name in _modules_called(function)]
        if message.phase != "compile":
            args, outputs = map(
                jax.tree_util.tree_leaves, ((failed.args, failed.kwargs), failed.outputs)
            )
            given_failed = passed(message.text) > 0 or first_failed(message.text, args) is not None
            others = reversed(jax.live_arrays()) if given_failed else ()
            first = first_failed(message.text, (*args, *outputs, *others))
    except Exception as error:  # any backend may refuse; the other clues remain
        log_failure("could not find the arrays that failed", error)
    result = None if first is None else first.dimensions
    return Clues(own, tuple(called), result, given_failed, bool(failed.previous))


def _modules_called(function: object) -> list[str]:
    """The names that the HLO module of a function may have, which is given as such or by name."""
    if isinstance(function, jax.stages.Compiled):
        return [hlo_module(function)[0]]
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    return [f"{prefix}_{_in_module_names(name)}" for prefix in _PREFIXES] if name else []


def _in_module_names(function: str) -> str:
    """A function's name as the names of HLO modules have it."""
    return _NOT_IN_MODULE_NAMES.sub("_", function).rstrip("_")


def _module_names(message: OomMessage, failed: FailedCall, lowered: Any | None) -> tuple[str, ...]:
    """The names that the failing HLO module may have, the most certain first."""
    names = [message.module or "", _lowered_name(lowered)]
    if failed.function_name and failed.jitted:
        plain = _in_module_names(failed.function_name)
        names += [f"{prefix}_{plain}" for prefix in _PREFIXES]
    return tuple(dict.fromkeys(name for name in names if name))


def _lowered_name(lowered: Any | None) -> str:
    try:
        name = lowered.compiler_ir().operation.attributes["sym_name"]  # type: ignore[union-attr]
        return str(name.value)
    except Exception:  # no Lowered, or one of another library: the other names remain
        return ""


def _compiled_name(message: OomMessage, failed: FailedCall, lowered: Any | None) -> str:
    """The program as its profile names it, "jit_step(12)", with the id of its HloModule.

    Only of a program that compiled, from JAX's caches: compiling one again that failed takes long.
    """
    if message.phase == "compile" or failed.compile is None:
        return ""
    try:
        name, serialized = hlo_module(failed.compile(lowered))
        return f"{name}({parse(HloModuleProto, serialized, 'the HLO module').id})"
    except Exception:  # any backend may refuse; the figures then tell the programs apart
        return ""
