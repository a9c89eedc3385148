"""Which program failed, and its HloProto: from a profiler session, else from XLA's dump."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hbmwatch._explain.failure import FailedCall
from hbmwatch._jax import dump, profiler
from hbmwatch._jax.executable import hlo_module
from hbmwatch._jax.unavailable import Unavailable
from hbmwatch._profiles.runs import host_name
from hbmwatch._records.message import OomMessage
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.protos import HloModuleProto, parse
from hbmwatch._xla.types import MemoryColor
from hbmwatch._xla.xspace import pack_modules, read_modules

_LONGEST_RECOMPILE_SECONDS = 60.0
_NOT_IN_MODULE_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The failing program.

    Attributes:
        program: The program.
        xspace: A profile that holds it and no other, so that XProf opens at it.
        note: How certain it is that this program failed; "" where it is certain.
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
    names = _module_names(message, failed, lowered)
    found, reasons = None, []
    try:
        modules = read_modules(profiler.collect())
        program, note = _choose_program(modules, names, message, failed, lowered)
        found = _captured(program, modules[program.name], note)
    except (Unavailable, ProfileError) as error:
        reasons.append(str(error))
    if found is not None and not found.note:
        return found
    try:
        dumped = _dumped(message, failed, lowered)
        if not _allocates_other_bytes(dumped.program, message):
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


def _module_names(message: OomMessage, failed: FailedCall, lowered: Any | None) -> tuple[str, ...]:
    """The names that the failing HLO module may have, the most certain first."""
    names = [message.module or "", _lowered_name(lowered)]
    if failed.function_name and failed.jitted:
        plain = _NOT_IN_MODULE_NAMES.sub("_", failed.function_name).rstrip("_")
        names += [f"jit_{plain}", f"pmap_{plain}"]
    return tuple(dict.fromkeys(name for name in names if name))


def _lowered_name(lowered: Any | None) -> str:
    try:
        name = lowered.compiler_ir().operation.attributes["sym_name"]  # type: ignore[union-attr]
        return str(name.value)
    except Exception:  # no Lowered, or one of another library: the other names remain
        return ""


def _choose_program(
    modules: Mapping[str, bytes],
    names: tuple[str, ...],
    message: OomMessage,
    failed: FailedCall,
    lowered: Any | None,
) -> tuple[Program, str]:
    """The failing program among a profile's modules, and a note where it is a guess."""
    named = next((found for name in names if (found := _by_name(modules, name))), [])
    if len(named) != 1:
        exact = _compiled_name(message, failed, lowered)
        named = [exact] if exact in modules else named
    programs = [parse_program(modules[name], name) for name in named]
    claims = [_allocates(program, message) for program in programs]
    if len(programs) == 1 and claims[0] is not False:
        return programs[0], ""
    candidates = [p for p, claim in zip(programs, claims, strict=True) if claim]
    if not candidates and (not named or message.phase != "compile"):
        candidates = _candidates(modules, message)
    if candidates:
        return candidates[-1], _certainty_note(candidates, names, bool(named))
    if programs and message.phase == "compile" and None not in claims:
        return programs[-1], _guess(programs[-1], "its total differs from the compiler's")
    if programs and None in claims:
        return programs[-1], _guess(programs[-1], f"{len(named)} programs have this name")
    if any(_allocates_other_bytes(program, message) for program in programs):
        raise ProfileError(
            f"no loaded program allocates {format_size(message.requested_bytes or 0)}"
        )
    wanted = " or ".join(names) or "the failing program"
    raise ProfileError(f"{wanted} is not in the profile", modules=tuple(modules))


def _certainty_note(candidates: list[Program], names: tuple[str, ...], has_named: bool) -> str:
    """How certain it is that the last of these programs failed; "" where it is certain."""
    chosen = candidates[-1]
    if len(candidates) > 1:
        return _guess(chosen, f"{len(candidates)} programs allocate this many bytes")
    if has_named and chosen.module not in names:
        return (
            f"Memory ran out in {chosen.name}, which requested this allocation; the failing call "
            "only used its result."
        )
    if has_named:
        return ""
    return _guess(chosen, "the only loaded program that allocates this many bytes")


def _guess(program: Program, reason: str) -> str:
    return f"Best guess: {program.name} ({reason})."


def _by_name(modules: Mapping[str, bytes], name: str) -> list[str]:
    """The modules of a name ("jit_step(8)", "jit_step(10)"), oldest first."""
    return [label for label in modules if label.partition("(")[0] == name]


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


def _candidates(modules: Mapping[str, bytes], message: OomMessage) -> list[Program]:
    """The programs that allocate the size in the message, oldest first."""
    if not _names_a_size(message):
        return []
    programs = [parse_program(proto, name) for name, proto in modules.items()]
    candidates = [program for program in programs if _allocates(program, message)]
    return sorted(candidates, key=lambda program: program.program_id)


def _allocates_other_bytes(program: Program, message: OomMessage) -> bool:
    """Whether the failed request cannot be this program's: its input may be a failed result."""
    return message.platform == "cpu" and _allocates(program, message) is False


def _names_a_size(message: OomMessage) -> bool:
    """Whether the message has a figure that must be one of the failing program's."""
    asked = message.platform in ("cpu", "gpu") and message.requested_bytes is not None
    return asked or (message.phase == "compile" and message.used_bytes is not None)


def _allocates(program: Program, message: OomMessage) -> bool | None:
    """Whether the program has an allocation, or a total, of the size in the message.

    None where the message has no size that must be one of the program's.
    """
    if not _names_a_size(message):
        return None
    allocations = [a for a in program.allocations if a.color == MemoryColor.HBM]
    if message.phase == "compile" and message.used_bytes is not None:
        total = sum(a.size for a in allocations)
        arguments = sum(a.size for a in allocations if a.is_entry_computation_parameter)
        # Compilers before 2026 leave the arguments out.
        sizes, asked, name = [total, total - arguments], message.used_bytes, "used_bytes"
    else:
        sizes = [a.size for a in allocations if not a.is_entry_computation_parameter]
        name = "requested_bytes"
        asked = message.requested_bytes or 0
    rounding = message.resolution_bytes.get(name, 0)
    return any(abs(size - asked) <= rounding for size in sizes)
