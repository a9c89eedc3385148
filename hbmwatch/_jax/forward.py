"""A forward pass as JAX traced it, with the calls of the user's functions in it.

A call of a function is a run of equations of one jaxpr. It may be in the jaxpr of an equation: of
a jit, a scan, a cond, or of the user's own jax.checkpoint. What has a rule of its own for its
derivative (custom_vjp, custom_jvp) is not looked into.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr

from hbmwatch._jax.calls import Call, Function, Recording

# The parameters with the bodies that are looked into.
_BODIES = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "scan": "jaxpr",
    "cond": "branches",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
}
_CHECKPOINTS = ("checkpoint", "remat", "remat2")
# Effects that may happen twice where a call is computed again, as under jax.checkpoint.
_REPEATABLE = {"DebugEffect"}
# The name of a function that stands for the body of a scan.
SCAN_BODY = "the body of the scan"


class Run(NamedTuple):
    """Equations of one call: from `start` to before `stop`.

    The call has more runs where other equations are between: its derivative, in that of the loss.
    """

    start: int
    stop: int
    call: int


@dataclass(eq=False, slots=True)
class Body:
    """One jaxpr of the forward pass.

    Attributes:
        closed: The jaxpr, with its constants.
        runs: The outermost calls of each function in it. Those with effects are left out.
        inner: The bodies of each equation that has some, by the index of the equation.
        scan: The scan equation that it is the body of.
    """

    closed: Any
    runs: dict[Function, list[Run]]
    inner: dict[int, list[Body]] = field(default_factory=dict)
    scan: Any = None

    @property
    def equations(self) -> Sequence[Any]:
        """The equations of the jaxpr."""
        equations: Sequence[Any] = self.closed.jaxpr.eqns
        return equations


def forward(closed: Any, recording: Recording, depth: int) -> Body:
    """The forward pass of a traced function.

    Args:
        closed: Its jaxpr, with constants.
        recording: What was recorded while it was traced.
        depth: How many calls are around the function itself.
    """
    return _Building(recording).body(closed, depth, None)


class _Building:
    """The bodies of one forward pass. A jaxpr in several equations is one body."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.bodies: dict[int, Body] = {}
        self.numbers = itertools.count(-1, -1)

    def body(self, closed: Any, depth: int, scan: Any) -> Body:
        if id(closed.jaxpr) in self.bodies:
            return self.bodies[id(closed.jaxpr)]
        equations = closed.jaxpr.eqns
        calls = [self.calls(equation) for equation in equations]
        around = self.scan_body(scan) if scan is not None else ()
        made = Body(closed, _runs(equations, [(*around, *each[depth:]) for each in calls]))
        made.scan = scan
        self.bodies[id(closed.jaxpr)] = made
        for index, equation in enumerate(equations):
            of = equation if equation.primitive.name == "scan" else None
            below = len(calls[index])
            inner = [self.body(each, below, of) for each in bodies_of(equation)]
            if inner:
                made.inner[index] = inner
        return made

    def calls(self, equation: Any) -> tuple[Call, ...]:
        """The calls around an equation. The user's jax.checkpoint is a call of what is in it."""
        calls = self.recording.traced(equation).calls
        if not is_checkpoint(equation):
            return calls
        inner = [self.recording.traced(each).calls for each in bodies_of(equation)[0].jaxpr.eqns]
        functions = [each[len(calls)].function for each in inner if len(each) > len(calls)]
        return (*calls, *(Call(each, next(self.numbers)) for each in functions[:1]))

    def scan_body(self, scan: Any) -> tuple[Call, ...]:
        """The body of a scan as a call, by the line that scans, which may be in a library."""
        traced = self.recording.traced(scan)
        if not traced.calls:
            return ()
        function = traced.calls[-1].function._replace(line=traced.line, name=SCAN_BODY)
        return (Call(function, next(self.numbers)),)


def _runs(equations: Sequence[Any], calls: Sequence[tuple[Call, ...]]) -> dict[Function, list[Run]]:
    """The runs of each function. Its calls from within itself are part of the outer call."""
    runs: dict[Function, list[Run]] = {}
    last: dict[Function, tuple[int, int]] = {}
    for index, chain in enumerate(calls):
        outermost: dict[Function, int] = {}
        for call in chain:
            outermost.setdefault(call.function, call.number)
        for function, number in outermost.items():
            found = runs.setdefault(function, [])
            if found and last[function] == (index, number):
                found[-1] = found[-1]._replace(stop=index + 1)
            else:
                found.append(Run(index, index + 1, number))
            last[function] = (index + 1, number)
    once = [not is_repeatable(each.effects) for each in equations]
    return {
        function: kept
        for function, found in runs.items()
        if (kept := [run for run in found if not any(once[run.start : run.stop])])
    }


def is_repeatable(effects: Iterable[Any]) -> bool:
    """Whether effects may happen once more in the backward pass."""
    return {type(effect).__name__ for effect in effects} <= _REPEATABLE


def calls_in(body: Body, function: Function) -> int:
    """How many calls of a function a body has, those in the steps of scans counted."""
    runs = body.runs.get(function, [])
    inner = [
        calls_in(each, function) * length_of(body, index)
        for index, bodies in body.inner.items()
        if not any(run.start <= index < run.stop for run in runs)
        for each in bodies
    ]
    return len({run.call for run in runs}) + sum(inner)


def length_of(body: Body, index: int) -> int:
    """How often the bodies of an equation run."""
    return int(body.equations[index].params.get("length", 1))


def is_checkpoint(equation: Any) -> bool:
    """Whether an equation is the user's jax.checkpoint."""
    return equation.primitive.name in _CHECKPOINTS


def bodies_of(equation: Any) -> list[Any]:
    """The jaxprs in an equation that are looked into, with their constants."""
    found = equation.params.get(_BODIES.get(equation.primitive.name, ""))
    bodies = list(found) if isinstance(found, (list, tuple)) else [found]
    return [
        body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
        for body in bodies
        if isinstance(body, (Jaxpr, ClosedJaxpr))
    ]


def with_bodies(equation: Any, bodies: Sequence[Any]) -> Any:
    """The equation with other jaxprs in it."""
    parameter = _BODIES[equation.primitive.name]
    old = equation.params[parameter]
    if isinstance(old, (list, tuple)):
        new: Any = type(old)(bodies)
    else:
        new = bodies[0] if isinstance(old, ClosedJaxpr) else bodies[0].jaxpr
    return equation.replace(params={**equation.params, parameter: new})
