"""A jaxpr as one flat list of nodes: calls dissolved, each value with the node that makes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hbmwatch._preflight.pieces.split import Refused, Shape

# The parameter that holds the body of each call. After differentiation they are plain calls.
_CALLS = {
    "pjit": "jaxpr",
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
# JAX lowers the bodies of Pallas kernels for it, which are not looked into, and no program of XLA.
_NOT_OF_XLA = {"mosaic"}
# Effects that may run in any order, so that the order of the stages does not matter.
_UNORDERED = {"DebugEffect", "IOEffect"}


@dataclass(eq=False, slots=True, repr=False)
class Value:
    """One value of the program."""

    shape: Shape
    dtype: Any
    index: int
    node: Node | None = None
    known: Any = None

    @property
    def nbytes(self) -> int:
        """The size in bytes. Of a PRNG key 8."""
        return math.prod(self.shape) * int(getattr(self.dtype, "itemsize", 8))


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """One equation of the program, with the calls that it is in."""

    equation: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    index: int
    callers: tuple[Any, ...] = ()
    bodies: dict[str, Program] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return str(self.equation.primitive.name)

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of the equation."""
        return self.equation.params  # type: ignore[no-any-return]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the inputs."""
        return tuple(v.shape for v in self.inputs)

    def body(self, parameter: str, position: int | None = None) -> Program:
        """A body of the equation, flat too. Each is made once."""
        key = f"{parameter}{'' if position is None else position}"
        if key not in self.bodies:
            body = self.params[parameter]
            self.bodies[key] = flatten(body if position is None else body[position])
        return self.bodies[key]

    @property
    def has_effects(self) -> bool:
        """Whether it does something besides its outputs."""
        return bool(self.equation.effects)


@dataclass(eq=False, slots=True, repr=False)
class Program:
    """The flat program."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    values: tuple[Value, ...]


def flatten(closed: Any) -> Program:
    """The program of a jaxpr, open or closed.

    Raises:
        Refused: It has ordered effects, or types that name devices.
    """
    effects = {type(effect).__name__ for effect in closed.effects} - _UNORDERED
    if effects:
        raise Refused(f"effects must keep their order: {', '.join(sorted(effects))}")
    return _Flattening().run(closed)


class _Flattening:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: list[Value] = []

    def run(self, closed: Any) -> Program:
        jaxpr, consts = _opened(closed)
        inputs = tuple(self.value(v.aval) for v in jaxpr.invars)
        outputs = self.inline(jaxpr, consts, inputs, ())
        nodes = _live(self.nodes, outputs)
        used = {*inputs, *outputs, *(v for n in nodes for v in (*n.inputs, *n.outputs))}
        values = tuple(value for value in self.values if value in used)
        return Program(inputs, tuple(outputs), tuple(nodes), values)

    def value(self, aval: Any, known: Any = None) -> Value:
        if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
            raise Refused(f"a value has no shape: {aval}")
        if any(getattr(getattr(aval, "sharding", None), "spec", ())):
            raise Refused("the types of the program name devices (explicit sharding)")
        made = Value(tuple(aval.shape), aval.dtype, len(self.values), known=known)
        self.values.append(made)
        return made

    def inline(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Value], callers: tuple[Any, ...]
    ) -> list[Value]:
        known = {v: self.value(v.aval, c) for v, c in zip(jaxpr.constvars, consts, strict=True)}
        known.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Value:
            return self.value(atom.aval, atom.val) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            inputs = tuple(read(atom) for atom in equation.invars)
            body = _body_of_call(equation)
            branch = _branch_of_xla(equation)
            if body is not None:
                outputs = self.inline(*_opened(body), inputs, (*callers, equation))
            elif branch is not None:
                outputs = self.inline(*_opened(branch), inputs[1:], (*callers, equation))
            else:
                outputs = self.add(equation, inputs, callers)
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def add(
        self, equation: Any, inputs: tuple[Value, ...], callers: tuple[Any, ...]
    ) -> list[Value]:
        outputs = [self.value(v.aval) for v in equation.outvars]
        node = Node(equation, inputs, tuple(outputs), len(self.nodes), callers)
        for value in outputs:
            value.node = node
        self.nodes.append(node)
        return outputs


def _live(nodes: Sequence[Node], outputs: Iterable[Value]) -> list[Node]:
    """The nodes that the outputs need, and those with effects."""
    needed, live = set(outputs), []
    for node in reversed(nodes):
        if node.has_effects or any(value in needed for value in node.outputs):
            needed.update(node.inputs)
            live.append(node)
    return live[::-1]


def _opened(body: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr and its constants, of an open or a closed one."""
    return (body.jaxpr, body.consts) if isinstance(body, ClosedJaxpr) else (body, ())


def _body_of_call(equation: Any) -> Any | None:
    """The body of a call that means nothing but its body."""
    body = equation.params.get(_CALLS.get(equation.primitive.name, ""))
    if body is None or _says_more(equation.params):
        return None
    return body


def _branch_of_xla(equation: Any) -> Any | None:
    """The branch of a choice by platform that every program of XLA takes, if there is one."""
    platforms = equation.params.get("branches_platforms")
    if equation.primitive.name != "cond" or platforms is None:
        return None
    branches = [
        branch
        for branch, names in zip(equation.params["branches"], platforms, strict=True)
        if names is None or not _NOT_OF_XLA.issuperset(names)
    ]
    return branches[0] if len(branches) == 1 else None


def _says_more(params: Mapping[str, Any]) -> bool:
    """Whether a call also places its values or compiles with its own options."""
    shardings: Iterable[Any] = (
        *(params.get("in_shardings") or ()),
        *(params.get("out_shardings") or ()),
    )
    placed = any(isinstance(s, jax.sharding.Sharding) for s in shardings)
    return placed or bool(params.get("compiler_options_kvs"))


def constant(value: Value) -> Any:
    """The array of a value that is known before the program runs."""
    known = value.known
    return np.asarray(known, value.dtype) if isinstance(known, (bool, int, float)) else known
