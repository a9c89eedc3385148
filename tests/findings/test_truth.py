"""What each finding states is so in the HLO, on every program: read here without the rules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import CALLBACKS, LiveBuffer
from hbmwatch._findings.rank import ADVICE
from hbmwatch._records.peak_op import PeakOp
from hbmwatch._records.report import Finding
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.types import MemoryColor, float_bits
from tests.findings.cases import UNUSABLE, explained, params
from tests.oom_programs import CASES, Case

# Some of these compiles take minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PASSES = frozenset(
    "copy copy-start copy-done bitcast reshape transpose convert tuple get-tuple-element while "
    "parameter slice dynamic-slice optimization-barrier async-start async-done".split()
)
Check = Callable[[ProgramFacts, Finding], None]


def buffers(facts: ProgramFacts, finding: Finding) -> list[LiveBuffer]:
    """The buffers of a finding, at least one."""
    found = [live for live in facts.live if live.op.instruction in finding.buffers]
    assert found
    return found


def rows(facts: ProgramFacts, finding: Finding) -> list[PeakOp]:
    """The rows of the buffers of a finding."""
    return [op for op in facts.summary.ops if op.instruction in finding.buffers]


def inside(facts: ProgramFacts, instruction: HloInstructionProto) -> list[HloInstructionProto]:
    """An instruction, and what it runs."""
    computations = map(facts.program.computations.get, instruction.called_computation_ids)
    called = [i for c in computations if c is not None for i in facts.program.inside(c)]
    return [instruction, *called]


def above(facts: ProgramFacts, start: HloInstructionProto) -> Iterator[HloInstructionProto]:
    """Everything that a value is computed from, the value included, fusions and loops too."""
    todo, seen = [start], set[int]()
    while todo:
        current = todo.pop()
        if current.id not in seen:
            seen.add(current.id)
            yield current
            todo += facts.buffers.graph.operands(current)
            todo += inside(facts, current)[1:]
            loop, _ = facts.buffers.graph.loop_of(current)
            todo += [loop] if loop is not None and current.opcode == "parameter" else []


def reads(facts: ProgramFacts, start: HloInstructionProto) -> Iterator[HloInstructionProto]:
    """What reads the bytes of a value, behind copies and slices, in loops and behind them."""
    todo, seen = [start], set[int]()
    while todo:
        for user in facts.buffers.graph.users(todo.pop()):
            if user.id not in seen:
                seen.add(user.id)
                within = inside(facts, user)
                yield from within
                if user.opcode in PASSES or user.custom_call_target == "ConcatBitcast":
                    todo += [user, *(i for i in within[1:] if i.opcode == "parameter")]


def gather(facts: ProgramFacts, finding: Finding) -> None:
    """A collective with a smaller operand, or an all-reduce of gathered rows, made each buffer."""
    paths = {p.path: p.instruction for p in facts.buffers.graph.parameters}
    said = re.search(r"^Keep (.+) sharded(?: at|:)|rows of (\S+) for all", finding.title)
    for live in buffers(facts, finding):
        made = list(above(facts, live.instruction))
        made += [user for user in reads(facts, live.instruction) if "all-reduce" in user.opcode]
        collectives = [i for i in made if i.opcode.startswith(("all-gather", "all-reduce"))]
        assert collectives
        if said is not None and len(finding.buffers) == 1:
            sources = [i.id for c in collectives for i in above(facts, c)]
            assert paths[said[1] or said[2]].id in sources


def padding(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer takes more than its elements, together what is said; tiles explain the worst."""
    padded = rows(facts, finding)
    assert all(op.padding_bytes > 0 for op in padded)
    assert sum(op.padding_bytes for op in padded) == finding.saves_bytes
    worst = max(padded, key=lambda op: op.padding_bytes)
    said = re.search(
        r"dimension (\d+) \((\d+)\) is padded to a multiple of (\d+)", finding.evidence
    )
    if said is not None:
        dimension, size, multiple = map(int, said.groups())
        dims = [int(n) for n in worst.shape.partition("[")[2].partition("]")[0].split(",")]
        assert dims[dimension] == size
        assert size % multiple
        assert worst.size_bytes >= worst.unpadded_bytes * -(-size // multiple) * multiple // size


def residuals(facts: ProgramFacts, finding: Finding) -> None:
    """The forward pass makes them, and the backward pass reads them."""
    for live in buffers(facts, finding):
        assert live.loop_buffer is not None or "transpose(" not in live.op.op_name
        start = live.instruction if live.loop_buffer is None else live.loop_buffer.loop
        assert any("transpose(" in i.metadata.op_name for i in reads(facts, start))


def checkpoint(facts: ProgramFacts, finding: Finding) -> None:
    """What is recomputed together, or what the backward pass reads of checkpointed layers."""
    recomputed = "recomputed" in finding.title
    for live in buffers(facts, finding):
        if recomputed:
            assert "rematted_computation" in live.context
        else:
            assert "checkpoint" in " ".join(facts.buffers.op_names)


def donation(facts: ProgramFacts, finding: Finding) -> None:
    """No output reuses the argument, and a result of its form reuses no argument."""
    aliased = {entry.parameter_number for entry in facts.program.aliases}
    free = [(o.dims, o.element_type) for o in facts.outputs if not o.aliased]
    for live in buffers(facts, finding):
        assert live.instruction.parameter_number not in aliased
        assert (live.dims, live.element_type) in free


def donation_unusable(facts: ProgramFacts, finding: Finding) -> None:
    """The outputs reuse no argument, or the argument is reused by no output."""
    aliased = {entry.parameter_number for entry in facts.program.aliases}
    for live in buffers(facts, finding):
        if live.op.kind == "output":
            forms = [(o.dims, o.element_type) for o in facts.outputs if not o.aliased]
            assert (live.dims, live.element_type) in forms
        else:
            assert live.instruction.parameter_number not in aliased


def replication(facts: ProgramFacts, finding: Finding) -> None:
    """The arguments among the buffers have no sharded dimension."""
    shardings = list(facts.program.parameter_shardings)
    for live in buffers(facts, finding):
        if live.op.kind == "parameter" and finding.title.startswith("Shard "):
            tiles = shardings[live.instruction.parameter_number].tile_assignment_dimensions
            assert math.prod(tiles[: len(live.dims)]) <= 1


def callback(facts: ProgramFacts, finding: Finding) -> None:
    """Something sends each buffer to the host."""
    for live in buffers(facts, finding):
        names = [
            i.metadata.op_name + i.custom_call_target + i.opcode
            for i in reads(facts, live.instruction)
        ]
        assert any(word in name for name in names for word in (*CALLBACKS, "send", "outfeed"))


def host_fetch(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer is a copy of a value in host memory."""
    for live in buffers(facts, finding):
        spaces = {i.shape.layout.memory_space for i in above(facts, live.instruction)}
        assert MemoryColor.HOST in spaces


def layout_copy(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer has the elements of an argument, in another layout."""
    for live in buffers(facts, finding):
        arguments = [i for i in above(facts, live.instruction) if i.opcode == "parameter"]
        alike = [i for i in arguments if math.prod(i.shape.dimensions) == math.prod(live.dims)]
        layout = live.op.shape.partition("{")[2]
        assert any(layout != ",".join(map(str, i.shape.layout.minor_to_major)) for i in alike)


def stacked_outputs(facts: ProgramFacts, finding: Finding) -> None:
    """The body of a loop writes a slice into each buffer; the line said is one of a loop's."""
    loops = [b.loop_buffer.loop for b in buffers(facts, finding) if b.loop_buffer is not None]
    lines = [frame.line for loop in loops for frame in facts.program.stack(loop)]
    said = re.search(r" at (\S+:\d+)$", finding.title)
    assert not lines or (said is not None and any(line.endswith(said[1]) for line in lines))
    assert all(loop.metadata.op_name.rpartition("/")[2] in ("", "while") for loop in loops)
    for live in buffers(facts, finding):
        assert live.loop_buffer is not None
        assert "dynamic-update-slice" in {i.opcode for i in above(facts, live.loop_buffer.update)}


def gradients(facts: ProgramFacts, finding: Finding) -> None:
    """An argument has the form of each buffer, and a loop writes what a backward pass computes."""
    forms = {a.dims for a in facts.arguments}
    for live in buffers(facts, finding):
        assert live.dims in forms
        entered = [i for i in reads(facts, live.instruction) if i.opcode != "parameter"]
        made = [*above(facts, live.instruction), *entered]
        assert any("transpose(" in i.metadata.op_name for i in made)


def training_state(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer is an argument that has the form of another one, and that an output has."""
    forms = [a.dims for a in facts.arguments]
    results = {(o.dims, o.element_type) for o in facts.outputs}
    for live in buffers(facts, finding):
        assert live.op.kind == "parameter"
        assert forms.count(live.dims) > 1
        assert (live.dims, live.element_type) in results


def product(facts: ProgramFacts, finding: Finding) -> None:
    """A matrix product that is larger than its factors is above each buffer."""
    for live in buffers(facts, finding):
        made = above(facts, live.instruction)
        assert any(i.opcode in ("dot", "convolution", "custom-call") for i in made)


def logits(facts: ProgramFacts, finding: Finding) -> None:
    """A product is above each buffer; if it is a vocabulary's, a table has as many rows."""
    product(facts, finding)
    if "vocabulary" in finding.title:
        tables = {a.dims[0] for a in facts.arguments if len(a.dims) == 2}
        assert all(tables.intersection(live.dims) for live in buffers(facts, finding))


def attention_scores(facts: ProgramFacts, finding: Finding) -> None:
    """A product is above each buffer; values are multiplied by a softmax of its size."""
    product(facts, finding)
    opcodes = {
        i.opcode for c in facts.program.computations.values() for i in facts.program.inside(c)
    }
    assert {"exponential", "divide"} <= opcodes
    multiplied = {
        tuple(factor.shape.dimensions)
        for computation in facts.program.computations.values()
        for made in facts.program.inside(computation)
        if made.opcode in ("dot", "convolution") and "transpose(" not in made.metadata.op_name
        for factor in facts.buffers.graph.operands(made)
    }
    sizes = set(map(math.prod, multiplied))
    scores = [live for live in buffers(facts, finding) if live.loop_buffer is None]
    assert all(math.prod(b.dims) in sizes for b in scores if "transpose(" not in b.name)


def dtype(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer is a float type that is wider than an argument's."""
    narrowest = min(float_bits(a.element_type) or 128 for a in facts.arguments)
    assert all((float_bits(b.element_type) or 0) > narrowest for b in buffers(facts, finding))


def random_bits(facts: ProgramFacts, finding: Finding) -> None:
    """A generator made each buffer: of unsigned integers, or of what a loop reads row by row."""
    for live in buffers(facts, finding):
        opcodes = {i.opcode for i in above(facts, live.instruction)}
        read = {i.opcode for i in reads(facts, live.instruction)}
        assert live.op.shape.startswith("u") or {"while", "dynamic-slice"} <= read
        assert opcodes & {"xor", "rng-bit-generator"}


def one_hot(facts: ProgramFacts, finding: Finding) -> None:
    """A comparison is above each buffer."""
    for live in buffers(facts, finding):
        assert "compare" in {i.opcode for i in above(facts, live.instruction)}


def mapped(facts: ProgramFacts, finding: Finding) -> None:
    """A vmap is in the op_names of what makes each buffer, or reads it."""
    for live in buffers(facts, finding):
        start = live.instruction if live.loop_buffer is None else live.loop_buffer.update
        around = (*above(facts, start), *reads(facts, live.instruction))
        assert any("vmap(" in i.metadata.op_name for i in around)


def pairwise(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer is larger than every argument; what is advised in blocks is not factorized."""
    largest = max(math.prod(a.dims) for a in facts.arguments)
    for live in buffers(facts, finding):
        assert math.prod(live.dims) > largest
        readers = {i.custom_call_target for i in reads(facts, live.instruction)}
        if readers & {"Cholesky", "EighTpu", "LuDecomposition"}:
            assert "go over blocks of rows" not in finding.remedy


def gathered_rows(facts: ProgramFacts, finding: Finding) -> None:
    """A gather is above each buffer, which has more elements than any array that is selected from.

    The messages of edges have as many rows as a gather.
    """
    whole = "whole matrix" in finding.title
    for live in buffers(facts, finding):
        gathers = [i for i in above(facts, live.instruction) if i.opcode == "gather"]
        tables = [facts.buffers.graph.operands(i)[0].shape.dimensions for i in gathers]
        assert gathers
        assert all(math.prod(live.dims) > math.prod(dims) for dims in tables)
        rows = [math.prod(i.shape.dimensions[:n]) for i in gathers for n in (1, -1)]
        assert whole or live.dims[0] in rows


def zero_gradients(facts: ProgramFacts, finding: Finding) -> None:
    """Nothing but a constant is above each buffer."""
    for live in buffers(facts, finding):
        made = list(above(facts, live.instruction))
        assert {i.opcode for i in made} <= {"broadcast", "constant", "copy", "fusion"}
        assert live.op.kind == "output"


def unrolled_loop(facts: ProgramFacts, finding: Finding) -> None:
    """Four equal buffers or more of one line."""
    equal = {(live.dims, live.source) for live in buffers(facts, finding)}
    assert len(finding.buffers) >= 4 * len(equal)


def constant(facts: ProgramFacts, finding: Finding) -> None:
    """The compiler allocated each buffer for a constant."""
    assert {op.kind for op in rows(facts, finding)} == {"constant"}


def long_lived(facts: ProgramFacts, finding: Finding) -> None:
    """Each buffer lives through more than half of the program."""
    points = len(facts.summary.heap_bytes)
    assert all((op.end or points) - (op.start or 0) > points / 2 for op in rows(facts, finding))


def arguments(facts: ProgramFacts, finding: Finding) -> None:
    """The arguments are above the limit."""
    total = sum(op.size_bytes for op in rows(facts, finding))
    assert {op.kind for op in rows(facts, finding)} == {"parameter"}
    assert total > 0.9 * (facts.limit_bytes or math.inf)


def aggregate(facts: ProgramFacts, finding: Finding) -> None:
    """What scales with the batch has its length, or a multiple of it."""
    if finding.buffers:
        length = facts.batch.length
        assert all(any(size % length == 0 for size in b.dims) for b in buffers(facts, finding))


CHECKS: dict[str, Check] = {
    "aggregate": aggregate,
    "arguments": arguments,
    "attention-scores": attention_scores,
    "callback": callback,
    "checkpoint": checkpoint,
    "constant": constant,
    "donation": donation,
    "donation-unusable": donation_unusable,
    "dtype": dtype,
    "gather": gather,
    "gathered-rows": gathered_rows,
    "gradients": gradients,
    "host-fetch": host_fetch,
    "jacobian": mapped,
    "layout-copy": layout_copy,
    "logits": logits,
    "long-lived": long_lived,
    "one-hot": one_hot,
    "padding": padding,
    "pairwise": pairwise,
    "random-bits": random_bits,
    "replication": replication,
    "residuals": residuals,
    "samples": mapped,
    "stacked-outputs": stacked_outputs,
    "training-state": training_state,
    "unrolled-loop": unrolled_loop,
    "zero-gradients": zero_gradients,
}


def test_every_finding_on_a_program_has_a_check() -> None:
    """All but the two that do not rest on the HLO."""
    assert set(CHECKS) == set(ADVICE) - {"live-arrays", "vmem"}


@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize("fault", [True, False], ids=["failing", "repaired"])
@pytest.mark.parametrize("case", params(CASES))
def test_what_is_stated_is_so_in_the_hlo(case: Case, fault: bool) -> None:
    """What is freed is live at the peak, and is what the finding says it is."""
    program = explained(case.name, fault)
    position = program.summary.peak_position
    ops = {op.instruction: op for op in program.summary.ops}
    for finding in program.findings:
        CHECKS[finding.slug](program.facts, finding)
        named = [ops[name] for name in finding.buffers]
        assert all(position is None or (op.start or 0) <= position for op in named)
        assert all(position is None or op.end is None or op.end >= position for op in named)
        assert (finding.saves_bytes or 0) <= sum(op.size_bytes for op in named)
