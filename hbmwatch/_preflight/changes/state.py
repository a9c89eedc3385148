"""Which arguments are optimizer state, by what the program does with them."""

from __future__ import annotations

from collections.abc import Iterable

from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.pieces import Refused
from hbmwatch._preflight.pieces.program import Node, Program, Value, flatten

_LARGE_BYTES = 1 << 16
_ELEMENTWISE = frozenset(
    """
    abs add add_any convert_element_type div integer_pow max min mul neg pow rsqrt select_n
    sharding_constraint sign sqrt square sub copy copy_p
    """.split()
)
_DEEPEST = 24
_Uses = dict[Value, list[tuple[Node, int]]]


def state_of(call: Call) -> frozenset[int]:
    """The arguments that only meet values of their own shape, and that are returned updated.

    These are the moments of an optimizer, averages, and what is accumulated; a parameter is also
    read by products. No names are looked at.
    """
    try:
        program = flatten(call.jaxpr)
    except Refused:
        return frozenset()
    uses, first, pairs = _uses_of(program), len(call.constants), call.updated()
    return frozenset(
        i
        for i in pairs
        if call.arguments[i].nbytes >= _LARGE_BYTES
        and _reached(program, uses, program.inputs[first + i])
    )


def _uses_of(program: Program) -> _Uses:
    """The nodes that read each value, with the position among their inputs."""
    uses: _Uses = {}
    for node in program.nodes:
        for position, value in enumerate(node.inputs):
            uses.setdefault(value, []).append((node, position))
    return uses


def _reached(program: Program, uses: _Uses, start: Value) -> set[Value]:
    """The outputs that a value meets; none where it meets anything that has another shape."""
    todo, seen = [(start, 0)], {start}
    while todo:
        value, depth = todo.pop()
        if depth == _DEEPEST:
            return set()
        for node, position in uses.get(value, ()):
            made = _made(node, position)
            if made is None:
                return set()
            fresh = [each for each in made if each not in seen]
            seen.update(fresh)
            todo += [(each, depth + 1) for each in fresh]
    return seen & set(program.outputs)


def _made(node: Node, position: int) -> Iterable[Value] | None:
    """What a node makes of one of its inputs, in its shape; None for another shape.

    An optimizer that updates every few steps, or where the gradients are finite, does so in a cond.
    """
    if node.name in _ELEMENTWISE:
        return node.outputs
    if node.name != "cond" or position == 0:
        return None
    made: list[Value] = []
    for branch in range(len(node.params["branches"])):
        body = node.body("branches", branch)
        uses, value = _uses_of(body), body.inputs[position - 1]
        reached = _reached(body, uses, value)
        if uses.get(value) and not reached:
            return None
        made += [
            outer
            for outer, inner in zip(node.outputs, body.outputs, strict=True)
            if inner in reached
        ]
    return made
