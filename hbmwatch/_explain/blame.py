"""Which of the loaded programs ran out of memory, and how certain that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hbmwatch._records.message import OomMessage
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.types import MemoryColor

_UNNAMED = "The error does not name the program."
_SAME_RESULT = ("has", "have", "a result like the array that failed")


@dataclass(frozen=True, slots=True)
class Clues:
    """What tells the program that failed from others that request as many bytes.

    Attributes:
        own: The names that the HLO module of the failing call may have, the most certain first.
        called: The names that the modules of the functions have that the failing line calls.
        result: The dimensions, on one device, of the first array that failed; None if not known.
        given_failed: Whether the failing call was given the result of a program that had failed.
        ran_before: Whether the function of the failing call has succeeded before. Else none of its
            results can have been given to it.
    """

    own: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    result: tuple[int, ...] | None = None
    given_failed: bool = False
    ran_before: bool = False


def choose_program(
    modules: Mapping[str, bytes], clues: Clues, message: OomMessage, exact_name: Callable[[], str]
) -> tuple[Program, str]:
    """The failing program among a profile's modules, and a note where it is a guess.

    Args:
        modules: The serialized HloProtos, by the names of their modules ("jit_step(12)").
        clues: What else is known.
        message: What the error says.
        exact_name: Returns the name of the failing call's own module; "" where it is not known.

    Raises:
        ProfileError: No module can be the one.
    """
    own = next((found for name in clues.own if (found := _by_name(modules, name))), [])
    if len(own) != 1:
        exact = exact_name()
        own = [exact] if exact in modules else own
    programs = [parse_program(modules[name], name) for name in own]
    claims = [allocates(program, message) for program in programs]
    if len(programs) == 1 and claims[0] is not False and not clues.given_failed:
        return programs[0], ""
    candidates = [p for p, claim in zip(programs, claims, strict=True) if claim]
    if clues.given_failed or (not candidates and (not own or message.phase != "compile")):
        candidates = _candidates(modules, message, clues)
    if candidates:
        return _most_likely(candidates, clues, bool(own), _names_a_size(message))
    if programs and message.phase == "compile" and None not in claims:
        return programs[-1], _guess(programs[-1], "may", "its total differs from the compiler's")
    if programs and None in claims:
        reason = _number(len(own), "has", "have", "this name")
        return programs[-1], _guess(programs[-1], "may", reason)
    if any(allocates_other_bytes(program, message) for program in programs):
        raise ProfileError(
            f"no loaded program allocates {format_size(message.requested_bytes or 0)}"
        )
    wanted = " or ".join(clues.own) or "the failing program"
    raise ProfileError(f"{wanted} is not in the profile", modules=tuple(modules))


def _most_likely(
    candidates: list[Program], clues: Clues, has_own: bool, by_size: bool
) -> tuple[Program, str]:
    """One of the programs that fit the error, and how certain it is; "" where it is certain."""
    verb, verbs, what = ("allocates", "allocate", "this many bytes") if by_size else _SAME_RESULT
    left, reasons = candidates, [_number(len(candidates), verb, verbs, what)]
    called = [p for p in left if p.module in clues.called and not clues.given_failed]
    if called:
        left = called
        if len(left) == 1 and not has_own:
            return left[0], ""
        reasons.append(_number(len(left), "is", "are", "called on the line that failed"))
    made = [p for p in left if clues.result in _results(p)]
    if made and len(left) > 1 and by_size:
        left = made
        reasons.append(_number(len(left), *_SAME_RESULT))
    others = [p for p in left if p.module not in clues.own]
    if clues.given_failed and not clues.ran_before and others and len(left) > len(others):
        left = others
        reasons.append(_number(len(left), "has", "have", "another name than the failing call"))
    own = [p for p in left if p.module in clues.own]  # a step is often given its own results
    chosen = (own or left)[-1]
    if len(left) == 1 and own:
        return chosen, ""
    if has_own and not own:
        note = (
            f"Memory probably ran out in {chosen.name} ({_all(reasons)}); the failing call was "
            "only given its result."
        )
        return chosen, note
    if len(candidates) == 1:
        note = f"{_UNNAMED} {chosen.name} is the only known program that {verb} {what}."
        return chosen, note
    return chosen, _guess(chosen, "probably" if len(left) == 1 else "may", _all(reasons))


def _all(reasons: list[str]) -> str:
    return ", and of these ".join(reasons)


def _number(count: int, verb: str, verbs: str, what: str) -> str:
    return f"1 program {verb} {what}" if count == 1 else f"{count} programs {verbs} {what}"


def _guess(program: Program, how: str, reason: str) -> str:
    """The note on a program that others could be, with "may" or "probably"."""
    it = "It may be" if how == "may" else "It is probably"
    return f"{_UNNAMED} {it} {program.name}: {reason}."


def _by_name(modules: Mapping[str, bytes], name: str) -> list[str]:
    """The modules of a name ("jit_step(8)", "jit_step(10)"), oldest first."""
    return [label for label in modules if label.partition("(")[0] == name]


def _candidates(modules: Mapping[str, bytes], message: OomMessage, clues: Clues) -> list[Program]:
    """The programs that allocate the size in the message, oldest first.

    Where the message has no size, those with a result like the array that failed.
    """
    sized = _names_a_size(message)
    if not sized and clues.result is None:
        return []
    programs = [parse_program(proto, name) for name, proto in modules.items()]
    candidates = [
        program
        for program in programs
        if (allocates(program, message) if sized else clues.result in _results(program))
    ]
    return sorted(candidates, key=lambda program: program.program_id)


def _results(program: Program) -> set[tuple[int, ...]]:
    """The dimensions of the arrays that a program returns."""
    if program.entry is None:
        return set()
    root = program.instruction(program.entry.root_id)
    shapes = [] if root is None else list(root.shape.tuple_shapes) or [root.shape]
    return {tuple(shape.dimensions) for shape in shapes}


def allocates_other_bytes(program: Program, message: OomMessage) -> bool:
    """Whether the failed request cannot be this program's: its input may be a failed result."""
    return message.platform == "cpu" and allocates(program, message) is False


def _names_a_size(message: OomMessage) -> bool:
    """Whether the message has a figure that must be one of the failing program's."""
    asked = message.platform in ("cpu", "gpu") and message.requested_bytes is not None
    return asked or (message.phase == "compile" and message.used_bytes is not None)


def allocates(program: Program, message: OomMessage) -> bool | None:
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
