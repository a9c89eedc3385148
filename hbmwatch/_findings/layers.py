"""The function that makes the residuals of a layer, as the user writes it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import MOVES
from hbmwatch._analysis.live_buffers import LiveBuffer, is_forward, is_recomputed
from hbmwatch._analysis.places import stack_of
from hbmwatch._findings.advice import all_bytes
from hbmwatch._findings.phrases import at_line
from hbmwatch._records.libraries import is_library
from hbmwatch._records.text import unnumbered
from hbmwatch._xla.frames import user_frame
from hbmwatch._xla.program import Frame
from hbmwatch._xla.protos import HloInstructionProto

# The scope of a layer in the op_name of its forward pass: "jit(loss)/jvp(dense_0)/tanh".
_SCOPE = re.compile(r"jvp\((\w*\d)\)/")
# A function is the layer if it makes three quarters of the residuals; where that is all of the
# forward pass, one that makes half of them.
SHARES_OF_RESIDUALS = (0.75, 0.5)
# Whether a function is all of the forward pass shows in any part of it, so a sample is enough.
SAMPLED_INSTRUCTIONS = 300
# XLA neither leaves these out in one of several calls, nor computes one for all of them.
_ONE_A_CALL = frozenset(("reduce", "convolution"))


class Call(NamedTuple):
    """A function of the user, and the line that calls it; "" for the outermost one."""

    function: str
    called_at: str


Calls = tuple[Call, ...]


class Layer(NamedTuple):
    """What is known of the code of a layer.

    Attributes:
        call: The function that makes its residuals, with the line that calls it; None where no
            function is known to be called for each layer.
        is_inline: Whether one call of a function makes the residuals of all layers.
    """

    call: Call | None
    is_inline: bool = False


def around(layer: Layer, buffers: Sequence[LiveBuffer], part: str) -> str:
    """What to checkpoint: "`block()`, called at train.py:40", or "each layer at train.py:27".

    Args:
        layer: What `find_layer` gives for the residuals.
        buffers: The residuals.
        part: What to call the part of the program that makes them, where no function does.
    """
    if layer.call is None:
        return f"{part}{_scopes(buffers)}{at_line(buffers)}"
    return f"`{layer.call.function}()`, called at {layer.call.called_at}"


def _scopes(buffers: Sequence[LiveBuffer]) -> str:
    """ " (dense_*)": the layers as a library numbers them in op_names; "" where none does.

    The user's only line may be the one that runs all of the model.
    """
    numbered: dict[str, set[str]] = {}
    for live in buffers:
        scope = _SCOPE.search(live.name)
        if scope is not None:
            numbered.setdefault(unnumbered(scope[1]), set()).add(scope[1])
    name = max(numbered, key=lambda name: len(numbered[name]), default="")
    return f" ({name})" if len(numbered.get(name, ())) > 1 else ""


def find_layer(facts: ProgramFacts, buffers: Sequence[LiveBuffer]) -> Layer:
    """The innermost function of the user that makes most bytes of residuals.

    None where XLA names no functions, or it has no name, or it is all of the forward pass: the
    layers are then lines of the function that is differentiated. Nor one that has the loop over the
    layers in it: a checkpoint around that recomputes all of them at once.
    """
    made: dict[Calls, list[LiveBuffer]] = {}
    for live in buffers:
        made.setdefault(_calls(_made_at(facts, live)), []).append(live)
    made.pop((), None)
    for share in SHARES_OF_RESIDUALS:
        outer = _innermost(made, share * all_bytes(buffers))
        if outer and outer[0].called_at and not outer[0].function.startswith("<"):
            # A checkpoint around one convolution keeps what it returns.
            if all(_is_returned(facts, outer, live) for live in _inside(made, outer)):
                return Layer(None)
            if _is_part(facts, outer):
                is_inline = _has_all_layers(facts, outer, _inside(made, outer))
                return Layer(None if is_inline else outer[0], is_inline)
    return Layer(None)


def _has_all_layers(facts: ProgramFacts, outer: Calls, made: Sequence[LiveBuffer]) -> bool:
    """Whether a function runs the loop over the layers whose residuals it makes.

    It has the scan in it, or it computes something once, but what it keeps several times.
    """
    graph = facts.buffers.graph
    scans = {b.loop_buffer.loop.id: b.loop_buffer.loop for b in made if b.loop_buffer is not None}
    for scan in scans.values():
        if _calls(stack_of(graph, scan))[-len(outer) :] == outer:
            return True
    if scans or all(facts.buffers.families[live.family] == 1 for live in made):
        return False
    return 1 in _computed(facts, outer).values()


def _computed(facts: ProgramFacts, outer: Calls) -> Counter[tuple[int, str]]:
    """How often each product and each sum of a function, as called so, is in the forward pass."""
    graph, program = facts.buffers.graph, facts.program
    found: Counter[tuple[int, str]] = Counter()
    is_inside: dict[int, bool] = {}
    running = (i for computation in graph.running for i in program.inside(computation))
    for instruction in (inner for i in running for inner in (i, *graph.everything_in(i))):
        number, op_name = instruction.metadata.stack_frame_id, instruction.metadata.op_name
        if not is_forward(op_name) or is_recomputed(op_name):
            continue
        if instruction.opcode in _ONE_A_CALL or graph.is_product(instruction):
            if number not in is_inside:
                calls = _calls(program.stack(instruction))
                is_inside[number] = calls[-len(outer) :] == outer
            if is_inside[number]:
                found[number, op_name.rpartition("/")[2]] += 1
    return found


def _innermost(made: Mapping[Calls, Sequence[LiveBuffer]], least: float) -> Calls:
    """The innermost function, with those around it, in which at least so many bytes are made."""
    largest = max(made, key=lambda calls: all_bytes(made[calls]), default=())
    for depth in range(len(largest), 0, -1):
        outer = largest[-depth:]
        if all_bytes(_inside(made, outer)) >= least:
            return outer
    return ()


def _inside(made: Mapping[Calls, Sequence[LiveBuffer]], outer: Calls) -> list[LiveBuffer]:
    """The residuals that are made in the call of a function, itself or in what it calls."""
    return [live for calls, some in made.items() if calls[-len(outer) :] == outer for live in some]


def _is_returned(facts: ProgramFacts, outer: Calls, live: LiveBuffer) -> bool:
    """Whether the forward pass reads a residual only outside of that call of the function."""
    if live.loop_buffer is not None:  # the values of a scan are read before they are stacked
        return False
    forward = (r for r in _readers(facts, live) if is_forward(r.metadata.op_name))
    calls = [_calls(facts.program.stack(r)) for r in forward if r.opcode not in MOVES]
    return any(calls) and all(found[-len(outer) :] != outer for found in calls)


def _readers(facts: ProgramFacts, live: LiveBuffer) -> Iterator[HloInstructionProto]:
    """The instructions that read a buffer; of a fusion, those inside of it."""
    graph = facts.buffers.graph
    followed = {live.instruction.id}
    todo = [(live.instruction, user) for user in graph.users(live.instruction)]
    for value, user in todo:  # grows meanwhile; in a damaged program, moves may form a ring
        inner = graph.fused(user)
        if inner is None:
            yield user
            if user.opcode in MOVES and user.id not in followed:
                followed.add(user.id)
                todo += [(user, next_) for next_ in graph.users(user)]
            continue
        positions = [i for i, operand in enumerate(user.operand_ids) if operand == value.id]
        inside = facts.program.inside(inner)
        copies = {
            i.id for i in inside if i.opcode == "parameter" and i.parameter_number in positions
        }
        yield from (i for i in inside if not copies.isdisjoint(i.operand_ids))


def _is_part(facts: ProgramFacts, outer: Calls) -> bool:
    """Whether a function that is called so makes a part of the forward pass, and not all of it."""
    running = (facts.program.inside(computation) for computation in facts.buffers.graph.running)
    forward = (
        i for instructions in running for i in instructions if is_forward(i.metadata.op_name)
    )
    sample = list(itertools.islice(forward, SAMPLED_INSTRUCTIONS))
    inside = (inner for i in sample for inner in facts.buffers.graph.everything_in(i))
    inside_forward = (i for i in inside if is_forward(i.metadata.op_name))
    for instruction in itertools.chain(sample, inside_forward):
        calls = _calls(facts.program.stack(instruction))
        if calls and calls[-len(outer) :] != outer:
            return True
    return False


def _made_at(facts: ProgramFacts, live: LiveBuffer) -> Sequence[Frame]:
    """The stack of the value in a buffer."""
    made = live.instruction
    if live.loop_buffer is not None:
        made = facts.buffers.loop_buffers.written(live.loop_buffer)
    return stack_of(facts.buffers.graph, made)


def _calls(stack: Sequence[Frame]) -> Calls:
    """The user's functions on a stack, innermost first, each with the line that calls it."""
    users = [frame for frame in stack if frame.function and not is_library(frame.line)]
    frames = [frame for frame, _ in itertools.groupby(users)]  # JAX repeats a frame per transform
    lines = [user_frame([frame.line]) for frame in frames[1:]]
    names = (frame.function.rpartition("<locals>.")[2] for frame in frames)
    return tuple(Call(name, line) for name, line in zip(names, [*lines, ""]))
