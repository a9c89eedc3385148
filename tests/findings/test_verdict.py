"""What the findings free together, and whether it is enough."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.rank import ADVICE, find_findings
from hbmwatch._findings.verdict import freed_together, verdict
from hbmwatch._records.report import Finding
from tests.findings.small import limited
from tests.hlo import MIB, Hlo

ENOUGH = "4 MiB must be freed, so this is probably enough."


def program(used_mib: float = 12, limit_mib: float = 8) -> tuple[ProgramFacts, list[str]]:
    """Three temporaries of 4 MiB, and their names."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(4, 262144), name=f"jit(f)/{n}") for n in "abc"]
    facts = hlo.facts(made, message=limited(limit_mib, used_mib))
    return facts, [live.op.instruction for live in facts.live]


def finding(saves_mib: float, *buffers: str, slug: str = "dtype") -> Finding:
    """A finding on some buffers."""
    return ADVICE[slug].finding("t", "e", "r", int(saves_mib * MIB), buffers=buffers)


@pytest.mark.parametrize(
    ("saves", "text"),
    [
        ([(4, "a")], f"This frees up to 4 MiB; {ENOUGH}"),
        ([(2, "a"), (2, "b")], f"These free up to 4 MiB together; {ENOUGH}"),
        (
            [(4, "a"), (4, "a")],
            f"These free up to 4 MiB together; {ENOUGH}",
        ),
        (
            [(2, "a"), (2, "a")],
            "These findings free up to 3 MiB of the 4 MiB that must be freed. Another 1 MiB must "
            "come from other buffers. The largest of these: f32[4,262144], 4 MiB.",
        ),
        (
            [(2, "a")],
            "This finding frees up to 2 MiB of the 4 MiB that must be freed. Another 2 MiB must "
            "come from other buffers. The largest of these: f32[4,262144], 4 MiB.",
        ),
        ([], "4 MiB must be freed, and no finding says how."),
    ],
    ids=["one", "two", "the same buffer", "half, and half of the rest", "too little", "none"],
)
def test_what_several_findings_free_is_counted_once(
    saves: list[tuple[float, str]], text: str
) -> None:
    """Enough, or what remains."""
    facts, names = program()
    by_letter = dict(zip("abc", names))

    assert verdict(facts, [finding(mib, by_letter[letter]) for mib, letter in saves]) == text


def test_there_is_no_verdict_where_nothing_is_missing_or_no_limit_is_known() -> None:
    """A program that fits; a profile of one that ran."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(4, 262144))

    assert verdict(program(used_mib=8)[0], []) == ""
    assert verdict(hlo.facts((made,)), []) == ""


@pytest.mark.parametrize(
    ("limit_mib", "said"),
    [
        (15.75, "return less or shard over 3 or more such devices."),
        (20, "return less, use a narrower dtype, or shard over 2 or more such devices."),
        (40 / 4096, "return less or shard over 4096 or more such devices."),
        (39 / 4096, "return less."),
    ],
    ids=["20 MiB are too much", "20 MiB fit", "a large mesh", "no such mesh"],
)
def test_an_output_that_no_device_can_hold_is_told_first(limit_mib: float, said: str) -> None:
    """As many devices as would hold it; bfloat16 only where it is narrow enough."""
    hlo = Hlo()
    x = hlo.parameter(256, path="x")
    made = hlo.add("sort", x, dims=(40, 262144))
    facts = hlo.facts(outputs=(made,), message=limited(limit_mib, 40))

    told = verdict(facts, find_findings(facts))
    assert told.startswith("The output alone takes 40 MiB; the device has ")
    assert told.endswith(f". To fit, {said}")


def test_a_finding_without_bytes_says_how_too() -> None:
    """A remedy whose bytes are not known stands above the verdict."""
    facts, _ = program()
    unknown = ADVICE["aggregate"].finding("t", "e", "r", None)

    assert verdict(facts, [unknown]) == "4 MiB must be freed."


def test_padding_frees_of_each_buffer_what_its_layout_adds() -> None:
    """A buffer that is hardly padded keeps its elements."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(4, 262144), name=f"jit(f)/{n}") for n in "ab"]
    sizes = {made[0]: 20 * MIB, made[1]: 5 * MIB}
    facts = hlo.facts(made, sizes=sizes)
    padded = finding(17, *(live.op.instruction for live in facts.live), slug="padding")
    largest = finding(20, facts.live[0].op.instruction, slug="pairwise")

    assert freed_together(facts, [padded]) == 17 * MIB
    assert freed_together(facts, [padded, largest]) == 21 * MIB


def test_a_smaller_batch_is_an_alternative_and_not_added() -> None:
    """Half a batch halves what the others free."""
    facts, names = program()
    both = [finding(1, names[0]), finding(6, *names, slug="aggregate")]

    assert freed_together(facts, both) == MIB


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 16), st.sets(st.integers(0, 2), min_size=1)), max_size=6))
def test_together_findings_free_at_least_the_best_and_at_most_the_sum(
    drawn: list[tuple[int, set[int]]],
) -> None:
    """And never more than their buffers have, or than without one of them."""
    facts, names = program()
    findings = [finding(mib, *(names[n] for n in which)) for mib, which in drawn]
    each = [freed_together(facts, [one]) for one in findings]
    together = freed_together(facts, findings)

    assert max(each, default=0) <= together <= sum(each) + len(findings)
    assert together <= 4 * MIB * len({n for _, which in drawn for n in which})
    assert freed_together(facts, findings[1:]) <= together


def test_the_arguments_have_one_size_in_the_finding_and_in_the_verdict() -> None:
    """The batch among them counts in both, though it alone would not have to fit."""
    hlo = Hlo()
    hlo.parameter(16, 262144, path="state['w']")
    x = hlo.parameter(2048, 512, path="x")
    made = hlo.add("sort", x, dims=(2048, 256), name="jit(f)/transpose(jvp())/sort")
    facts = hlo.facts((made,), message=limited(12, 22))
    found = find_findings(facts)

    assert facts.batch.length == 2048
    assert found[0].title == "The arguments alone take 20 MiB; the device has 12 MiB"
    assert verdict(facts, found).startswith(found[0].title)
