"""Compiles a lowered step for a target, to the end or to XLA's buffer assignment.

XLA writes the program with its buffer assignment before it generates code. A compile that is
stopped there has the same peak and total as a whole compile, in a fraction of the time. On a TPU
the verdict can still change afterwards, because the generated code has to fit as well.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hbmwatch._jax.request import CompileRequest, compile_request
from hbmwatch._messages.parse import parse_oom
from hbmwatch._preflight.child import Answer, Child
from hbmwatch._preflight.targets import Target
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program

Proof = Literal["compiled", "assigned"]

_ASSIGNED = "after_optimizations.hlo.pb"
# libtpu writes it once the assignment has passed the first of its two checks.
_PASSED = "after_optimizations_after_buffer_assignment.hlo.pb"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiler's answer about one program.

    Attributes:
        accepted: Whether the compiler accepted it; False if it rejected it for lack of memory, None
            where it gave no answer (see error). A GPU compiler also accepts what fits
            no card.
        proof: "compiled" if the compiler finished, by accepting or by rejecting the program;
            "assigned" if it was stopped at the buffer assignment.
        program: The optimized program with its buffer assignment; None if it was not reached.
        summary: Its peak in HBM.
        message: What the text of the rejection says.
        error: The compiler's error, or why there is no answer or no program; "" otherwise.
        code_bytes: The size of the generated code; None if unknown.
        cpu_seconds: Processor seconds of the compiler's process, its start included.
        seconds: Wall time from sending the program to the answer.
    """

    accepted: bool | None
    proof: Proof
    program: Program | None = None
    summary: PeakSummary | None = None
    message: OomMessage | None = None
    error: str = ""
    code_bytes: int | None = None
    cpu_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def total_bytes(self) -> int | None:
        """What the compiler allocates, without the code; None if unknown."""
        return None if self.summary is None else self.summary.total_allocation_bytes


def compile_for(
    lowered: Any,
    target: Target,
    *,
    proof: Proof = "assigned",
    timeout_s: float = 600.0,
    compiler_options: Mapping[str, Any] | None = None,
    child: Child | None = None,
    meanwhile: Callable[[], bool] | None = None,
) -> Compiled:
    """Compile a lowered step for a target, in a child process that never outlives the call.

    Args:
        lowered: A jax.stages.Lowered, lowered for the target's platform.
        target: The target.
        proof: "assigned" stops at the buffer assignment, "compiled" goes to the end.
        timeout_s: Seconds until the child is killed.
        compiler_options: XLA options, in addition to those of the step's own jit.
        child: A child that was started while the step was lowered; it compiles once only.
        meanwhile: Called again and again until the compiler has ended; True ends it at once.

    Raises:
        ValueError: The step runs on more devices than the target has.
    """
    return compile_request_for(
        compile_request(lowered, compiler_options),
        target,
        proof=proof,
        timeout_s=timeout_s,
        child=child,
        meanwhile=meanwhile,
    )


def begin(request: CompileRequest, target: Target) -> Child:
    """A child that compiles a request; whoever gets it has to end it.

    Raises:
        ValueError: The step runs on more devices than the target has.
    """
    job = _job(request, target)
    child = Child(target.platform)
    try:
        child.ask(request, job)
    except BaseException:
        child.__exit__(None, None, None)
        raise
    return child


def has_passed(child: Child, request: CompileRequest, target: Target) -> bool:
    """Whether a request that `begin` sent has reached a buffer assignment that fits."""
    return target.platform == "tpu" and bool(_files(child.dump, request.name, _PASSED))


def compile_request_for(
    request: CompileRequest,
    target: Target,
    *,
    proof: Proof = "assigned",
    timeout_s: float = 600.0,
    child: Child | None = None,
    meanwhile: Callable[[], bool] | None = None,
) -> Compiled:
    """Compile a request for a target; see compile_for.

    Raises:
        ValueError: The step runs on more devices than the target has.
    """
    job = _job(request, target)
    if child is None:
        with Child(target.platform) as started:
            return _asked(started, request, job, target, proof, timeout_s, meanwhile)
    return _asked(child, request, job, target, proof, timeout_s, meanwhile)


def _asked(
    child: Child,
    request: CompileRequest,
    job: Mapping[str, Any],
    target: Target,
    proof: Proof,
    timeout_s: float,
    meanwhile: Callable[[], bool] | None,
) -> Compiled:
    """The child's answer."""
    start = time.monotonic()
    if not child.is_asked:
        child.ask(request, job)
    seen_enough = _seen_enough(request.name, target.platform) if proof == "assigned" else _never
    answer = child.wait(timeout_s, seen_enough, meanwhile)
    found = _read(child.dump, request.name)
    if found is None and not answer.error:
        error = f"{_why_unread(child.dump, request.name)}{child.full_disk()}"
        answer = dataclasses.replace(answer, error=error)
    return _compiled(answer, found, time.monotonic() - start)


def _job(request: CompileRequest, target: Target) -> dict[str, Any]:
    """What the child has to know in addition to the module."""
    count = len(request.devices)
    if count > target.device_count:
        raise ValueError(
            f"the step runs on {count} devices, but {target} has {target.device_count}: name a "
            "larger target (v5e:2x2, h100:8)"
        )
    own = all(device.device_kind == target.device_kind for device in request.devices)
    return {
        "platform": target.platform,
        "topology": target.topology,
        "topology_options": dict(target.topology_options),
        "device_count": target.device_count,
        "count": count,
        "ids": [int(device.id) for device in request.devices] if own else [],
        "replica_count": request.replica_count,
    }


# --- the dump -------------------------------------------------------------------------------------


def _never(dump: Path) -> bool:
    return False


def _seen_enough(name: str, platform: str) -> Callable[[Path], bool]:
    """Whether the dump holds the assignment, and it passed the check that comes with it."""
    if platform == "tpu":
        return lambda dump: bool(_files(dump, name, _PASSED))
    return lambda dump: _read(dump, name) is not None


def _files(dump: Path, name: str, end: str) -> list[Path]:
    """The module's files with this suffix, largest first; other modules are XLA's helpers."""
    named = f".{name}."
    files = [path for path in dump.iterdir() if path.name.endswith(end) and named in path.name]
    return sorted(files, key=lambda path: -path.stat().st_size)


def _read(dump: Path, name: str) -> tuple[Program, PeakSummary] | None:
    """The program and its peak; None while XLA has not written all of it."""
    for file in _files(dump, name, _ASSIGNED):
        try:
            program = parse_program(file.read_bytes(), name)
            if program.allocations:
                return program, peak_summary(program)
        except (ProfileError, OSError):  # it is being written
            continue
    return None


def _why_unread(dump: Path, name: str) -> str:
    """Why there is no program, although the compiler has ended."""
    for file in _files(dump, name, _ASSIGNED):
        try:
            peak_summary(parse_program(file.read_bytes(), name))
        except (ProfileError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return f"XLA's dump of the program cannot be read: {reason or error}"
        return f"XLA's dump has no buffer allocation for {name}"
    return "XLA left no dump of the program"


# --- the answer -----------------------------------------------------------------------------------


def _compiled(
    answer: Answer, found: tuple[Program, PeakSummary] | None, seconds: float
) -> Compiled:
    message = parse_oom(answer.error) if answer.ended == "refused" else None
    accepted = {"done": True, "stopped": True, "refused": False if message else None}
    return Compiled(
        accepted=accepted.get(answer.ended),
        proof="compiled" if answer.ended in ("done", "refused") else "assigned",
        program=found[0] if found is not None else None,
        summary=found[1] if found is not None else None,
        message=message,
        error=answer.error,
        code_bytes=answer.code_bytes,
        cpu_seconds=answer.cpu_seconds,
        seconds=seconds,
    )
