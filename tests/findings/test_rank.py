"""All findings together: which are reported, and in which order."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._explain.conclude import add_findings
from hbmwatch._explain.problems import Problems
from hbmwatch._findings import dtype, rank
from hbmwatch._findings.rank import ADVICE, FINDERS, find_findings
from hbmwatch._records.message import OomMessage
from hbmwatch._report.report import OomReport
from tests.findings.cases import explained
from tests.findings.small import found, limited
from tests.hlo import BF16, F32, S32, Hlo


def test_the_changes_that_verify_can_try() -> None:
    """Three findings have one, and carry it; so has a copy of arguments in a narrower dtype.

    Narrower arguments do not change what the program itself makes wide.
    """
    changes = {slug: advice.change for slug, advice in ADVICE.items() if advice.change}

    assert changes == {
        "donation": "donation",
        "replication": "sharding",
        "aggregate": "half-batch",
    }
    assert (dtype.COPY_ADVICE.change, dtype.CAST_ADVICE.change) == ("bfloat16", "")
    assert ADVICE["donation"].finding("t", "e", "r", None).change == "donation"


def test_of_two_findings_of_one_slug_the_one_that_frees_more_counts() -> None:
    """A cast argument, and wide temporaries beside it."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, dtype=BF16, path="w")
    cast = hlo.add("convert", w, dims=(512, 512), dtype=F32, name="jit(f)/convert")
    wide = [hlo.add("sort", dims=(512, 256), dtype=F32, name="jit(f)/sort") for _ in range(3)]
    titles = {
        count: [f.title for f in find_findings(hlo.facts((cast, *wide[:count])))]
        for count in (0, 3)
    }

    assert titles == {
        0: ["Whole arguments are cast to float32"],
        3: ["Compute in bfloat16: float32 temporaries in a bfloat16 program"],
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(2, 1.25), (4, 2.5), (8, 2.5)],
    ids=["a fifth", "two fifths", "four fifths"],
)
def test_a_finding_counts_in_full_from_two_fifths_of_the_peak_on(
    rows: int, expected: float
) -> None:
    """The weight of a constant is 2.5; it counts by the share that it frees, at most 1."""
    hlo = Hlo()
    table = hlo.add("constant", dims=(rows, 512, 512))
    made = hlo.add("sort", dims=(10 - rows, 512, 512), name="jit(f)/sort")
    facts = hlo.facts((made,), constants=(table,))
    (finding,) = find_findings(facts)

    assert rank.LEAST_SHARE_OF_PEAK == 0.4
    assert rank.rank(facts, finding) == pytest.approx(expected)


def test_the_bytes_over_the_limit_are_what_is_needed() -> None:
    """Where they are more than two fifths of the peak."""
    hlo = Hlo()
    table = hlo.add("constant", dims=(10, 512, 512))
    facts = hlo.facts(constants=(table,), message=limited(5, 25))
    (finding,) = find_findings(facts)

    assert rank.rank(facts, finding) == pytest.approx(2.5 * 10 / 20)


def test_nothing_is_found_where_nothing_failed() -> None:
    """A program that fits, without a limit and a message."""
    hlo = Hlo()
    x = hlo.parameter(512)
    made = hlo.add("sort", x, dims=(512, 512))

    assert found(hlo.facts((made,), message=OomMessage(""))) == []


@pytest.mark.tpu
def test_a_finder_that_fails_costs_no_other_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises is one sentence of the report; a stub, as none is known to raise."""

    def fail(_: ProgramFacts) -> None:
        raise RuntimeError("no luck")

    program, summary, message, call, findings = explained("momentum_step")
    monkeypatch.setattr(rank, "FINDERS", (fail, fail, *FINDERS))
    problems = Problems()
    report = add_findings(OomReport(message), summary, program, call, problems)

    assert report.findings == findings
    assert [problem.endswith("RuntimeError: no luck") for problem in problems] == [True]


@pytest.mark.parametrize("trains", [True, False])
def test_a_smaller_batch_is_named_only_where_a_program_has_one(trains: bool) -> None:
    """What does not help either: nobody can try it in a program without a batch."""
    hlo = Hlo()
    w = hlo.parameter(512, 512, path="state")
    x = [hlo.parameter(4096, 512, path="x")] if trains else []
    made = hlo.add("sort", *x, dims=(4096, 512), name="jit(f)/transpose(jvp())/sort")
    updated = hlo.add("multiply", w, w, dims=(512, 512))
    facts = hlo.facts((made,), outputs=(updated,))
    first = next(f for f in find_findings(facts) if f.slug == "donation")

    assert ("smaller batch" in first.will_not_help) == trains
    assert "jax.checkpoint" in first.will_not_help


@pytest.mark.parametrize(("rows", "is_found"), [(998, True), (999, False)])
def test_donation_is_reported_from_a_thousandth_of_the_peak_on(rows: int, is_found: bool) -> None:
    """It costs nothing; anything else that frees so little is not reported."""
    hlo = Hlo()
    w = hlo.parameter(1024, path="state")
    updated = hlo.add("multiply", w, w, dims=(1024,))
    made = hlo.add("sort", dims=(rows, 1024), name="jit(f)/sort")
    facts = hlo.facts((made,), outputs=(updated,))

    assert rank.LEAST_FREE_SHARE == 0.001
    assert ("donation" in found(facts)) == is_found


@pytest.mark.parametrize(
    ("limit_mib", "first"), [(12, "dtype"), (11.9, "aggregate")], ids=["a quarter", "less"]
)
def test_what_has_a_cause_comes_before_what_has_none(limit_mib: float, first: str) -> None:
    """A finding that frees a quarter of what is missing, before the rows of an argument."""
    hlo = Hlo()
    x = hlo.parameter(1024, 512, dtype=BF16, path="x")
    wide = hlo.add("sort", x, dims=(1024, 2048), dtype=F32, name="jit(f)/sort")
    made = hlo.add("sort", x, dims=(1024, 5120), dtype=S32, name="jit(f)/sort")
    facts = hlo.facts((made, wide), message=limited(limit_mib, 28))

    assert rank.LEAST_SHARE_OF_OVER_LIMIT == 1 / 4
    assert found(facts)[0] == first


def test_arguments_above_the_limit_come_before_temporaries() -> None:
    """No change to the computation makes them fit."""
    hlo = Hlo()
    hlo.parameter(12, 512, 512, path="cache")
    made = hlo.add("constant", dims=(40, 512, 512))
    findings = found(hlo.facts(constants=(made,), message=limited(10, 52)))

    assert findings[:2] == ["arguments", "constant"]
