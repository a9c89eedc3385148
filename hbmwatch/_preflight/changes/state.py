"""Which arguments are optimizer state, by what the program does with them."""

from __future__ import annotations

from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.pieces import Refused
from hbmwatch._preflight.pieces.program import Program, Value, flatten

_LARGE_BYTES = 1 << 16
_ELEMENTWISE = frozenset(
    """
    abs add add_any convert_element_type div integer_pow max min mul neg pow rsqrt select_n
    sharding_constraint sign sqrt square sub copy copy_p
    """.split()
)
_DEEPEST = 24


def state_of(call: Call) -> frozenset[int]:
    """The arguments that only meet values of their own shape, and that are returned updated.

    These are the moments of an optimizer, averages, and what is accumulated; a parameter is also
    read by products. No names are looked at.
    """
    try:
        program = flatten(call.jaxpr)
    except Refused:
        return frozenset()
    users: dict[Value, list[tuple[str, tuple[Value, ...]]]] = {}
    for node in program.nodes:
        for value in node.inputs:
            users.setdefault(value, []).append((node.name, node.outputs))
    first, pairs = len(call.constants), call.updated()
    return frozenset(
        i
        for i in pairs
        if call.arguments[i].nbytes >= _LARGE_BYTES
        and _is_elementwise(program, users, program.inputs[first + i])
    )


def _is_elementwise(
    program: Program, users: dict[Value, list[tuple[str, tuple[Value, ...]]]], start: Value
) -> bool:
    """Whether all that a value meets, up to the outputs, keeps its shape."""
    todo, seen, outputs = [(start, 0)], {start}, set(program.outputs)
    reaches = False
    while todo:
        value, depth = todo.pop()
        reaches |= value in outputs
        if depth == _DEEPEST:
            return False
        for name, made in users.get(value, ()):
            if name not in _ELEMENTWISE:
                return False
            fresh = [each for each in made if each not in seen]
            seen.update(fresh)
            todo += [(each, depth + 1) for each in fresh]
    return reaches
