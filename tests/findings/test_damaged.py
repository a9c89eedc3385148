"""Programs with parts that are missing or wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.breakdown import rollup, with_roles
from hbmwatch._findings.rank import find_findings
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.protos import HloProto, parse
from tests.findings.cases import UNUSABLE, explained

pytestmark = pytest.mark.tpu


def blank(instruction: Any, chance: random.Random) -> None:
    """No op_name."""
    instruction.metadata.op_name = ""


def babble(instruction: Any, chance: random.Random) -> None:
    """An op_name of any text."""
    words = ["jvp(", "transpose(", "vmap(", "/while/", "{}", "\n", "ä", "checkpoint", "[0]", ")("]
    instruction.metadata.op_name = "".join(chance.choices(words, k=5))


def lose_operands(instruction: Any, chance: random.Random) -> None:
    """Operands that do not exist, or wrong ones."""
    del instruction.operand_ids[:]
    instruction.operand_ids.extend([chance.randrange(1 << 40), instruction.id])


def lose_calls(instruction: Any, chance: random.Random) -> None:
    """A computation that is not there."""
    del instruction.called_computation_ids[:]
    instruction.called_computation_ids.append(chance.randrange(1 << 40))


def other_opcode(instruction: Any, chance: random.Random) -> None:
    """Another opcode."""
    opcodes = ["while", "fusion", "tuple", "parameter", "dynamic-update-slice", "reduce", "dot"]
    instruction.opcode = chance.choice([*opcodes, "get-tuple-element", "broadcast", "constant"])


def no_dimensions(instruction: Any, chance: random.Random) -> None:
    """A scalar where an array was."""
    del instruction.shape.dimensions[:]


@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize(
    "damage", [blank, babble, lose_operands, lose_calls, other_opcode, no_dimensions]
)
@pytest.mark.parametrize(
    "name", ["scanned_decoder", "adam_step", "replicated_batch", "attention_training", "mcmc_chain"]
)
def test_odd_programs_raise_nothing(
    name: str, damage: Callable[[Any, random.Random], None]
) -> None:
    """A program with parts that are missing or wrong gets fewer findings, and no exception."""
    program, _, message, call, _ = explained(name)
    serialized = program.proto.SerializeToString()
    chance = random.Random(f"{name} {damage.__name__}")
    for share in (0.02, 0.3, 1.0):
        proto: Any = parse(HloProto, serialized, "a program")
        for computation in proto.hlo_module.computations:
            for instruction in computation.instructions:
                if chance.random() < share:
                    damage(instruction, chance)
        odd = dataclasses.replace(program, proto=proto)
        try:
            summary = peak_summary(odd)
        except ProfileError:
            continue
        evidence = ProgramFacts(odd, summary, message, call)
        assert rollup(with_roles(evidence))
        assert find_findings(evidence)
