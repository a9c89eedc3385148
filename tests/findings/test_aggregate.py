"""No single cause: what scales with the batch, and which batch fits."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from hbmwatch._analysis import facts as facts_module
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import aggregate, classify, fitting_batch
from hbmwatch._findings.fitting_batch import fitting_length
from hbmwatch._findings.rank import find_findings
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import parse_program
from hbmwatch._xla.types import PrimitiveType
from tests.findings.cases import explain, explained
from tests.findings.small import limited
from tests.hlo import F32, MIB, S32, Hlo
from tests.oom_programs.base import array, on_one


def inference(
    limit_mib: float | None = 15,
    batch: int = 1024,
    fixed_mib: int = 8,
    used: float = 0,
    name: str = "jit(f)/",
) -> ProgramFacts:
    """A batch of 1 KiB examples with two values of it, and weights."""
    hlo = Hlo()
    x = hlo.parameter(batch, 256, path="x")
    hlo.parameter(fixed_mib, 512, 512, path="w")
    made = [hlo.add("sort", x, dims=(batch, 2048), name=f"{name}{n}") for n in "ab"]
    total = fixed_mib + batch * 17 / 1024
    if limit_mib is None:
        return hlo.facts(made)
    return hlo.facts(made, message=limited(limit_mib, used or total))


def test_the_batch_that_fits_leaves_a_fiftieth_of_the_limit() -> None:
    """17 MiB scale with 1024 examples beside 8 MiB that do not; 98% of 15 MiB may be used."""
    facts = inference()
    finding = aggregate.find(facts)

    assert fitting_batch.USABLE_SHARE_OF_LIMIT == 0.98
    assert fitting_length(facts) == int((0.98 * 15 - 8) / 17 * 1024)
    assert finding is not None
    assert finding.title == "2 equal temporaries account for 64% of the peak: f32[1024,2048]"
    assert "17 MiB of the 25 MiB peak scales with the rows of x (1024 per device)" in (
        finding.evidence
    )
    assert (finding.saves_bytes, finding.certainty) == (17 * MIB // 2, "derived")


@pytest.mark.parametrize(("used_mib", "names_batch"), [(49, True), (49.1, False)])
def test_a_batch_below_half_of_what_is_over_is_not_named(
    used_mib: float, names_batch: bool
) -> None:
    """17 MiB are half of the 34 MiB over a limit of 15."""
    finding = aggregate.find(inference(used=used_mib))

    assert aggregate.LEAST_SHARE_OF_OVER_LIMIT == 0.5
    assert finding is not None
    assert ("scales with the rows of x" in finding.evidence) == names_batch
    assert (finding.certainty == "derived") == names_batch


@pytest.mark.parametrize(("fixed_mib", "names_batch"), [(833, True), (834, False)])
def test_a_batch_that_is_hardly_any_of_the_peak_is_not_named(
    fixed_mib: int, names_batch: bool
) -> None:
    """A run-time failure does not say how much is over; 17 MiB are a fiftieth of 850."""
    finding = aggregate.find(inference(limit_mib=None, fixed_mib=fixed_mib))

    assert facts_module.SHARE_OF_PEAK == 0.02
    assert finding is not None
    assert ("scales with the rows of x" in finding.evidence) == names_batch
    assert (finding.certainty == "derived") == names_batch


@pytest.mark.parametrize(
    ("others_mib", "title"),
    [
        (4, "No single cause"),
        (3, "A single temporary accounts for 57% of the peak: f32[4,262144]"),
    ],
)
def test_a_buffer_that_is_more_than_half_of_the_peak_is_named(others_mib: int, title: str) -> None:
    """Half of it is not enough."""
    hlo = Hlo()
    made = [
        hlo.add("sort", dims=dims, name="jit(f)/sort")
        for dims in ((4, 262144), (262144 * others_mib,))
    ]
    finding = aggregate.find(hlo.facts(made))

    assert aggregate.LEAST_SHARE_OF_REST == 0.5
    assert finding is not None
    assert finding.title.startswith(title)


def test_equal_buffers_count_as_a_group() -> None:
    """Two halves of a peak are what fills it."""
    hlo = Hlo()
    made = [hlo.add("sort", dims=(4, 262144), name="jit(f)/sort") for _ in range(2)]
    finding = aggregate.find(hlo.facts(made))

    assert finding is not None
    assert finding.title == "2 equal temporaries account for 100% of the peak: f32[4,262144]"


def constant_and(others_mib: int, used_mib: float) -> ProgramFacts:
    """A captured constant of 4 MiB, and another buffer, with a limit of 1 MiB."""
    hlo = Hlo()
    table = hlo.add("constant", dims=(4, 262144))
    made = hlo.add("sort", dims=(others_mib, 262144), name="jit(f)/sort")
    return hlo.facts((made,), constants=(table,), message=limited(1, used_mib))


@pytest.mark.parametrize(("used_mib", "count"), [(5, 1), (5.1, 2)])
def test_what_other_findings_leave_is_named_where_they_do_not_suffice(
    used_mib: float, count: int
) -> None:
    """A finding does not stand alone where it frees less than what is missing."""
    findings = find_findings(constant_and(4, used_mib))

    assert [f.slug for f in findings] == ["constant", "aggregate"][:count]
    if count == 2:
        assert findings[1].title == "A single temporary accounts for 50% of the peak: f32[4,262144]"


@pytest.mark.parametrize(("constant_mib", "is_named"), [(9, True), (10, False)])
def test_what_is_left_is_named_from_a_tenth_of_the_peak_on(
    constant_mib: int, is_named: bool
) -> None:
    """Where findings cover the rest, a small buffer is not what is missing."""
    hlo = Hlo()
    table = hlo.add("constant", dims=(constant_mib, 262144))
    small = hlo.add("sort", dims=(262144,), name="jit(f)/sort")
    facts = hlo.facts((small,), constants=(table,), message=limited(0.1, 12))
    finding = aggregate.find(facts, classify.find(facts))

    assert aggregate.LEAST_SHARE_OF_PEAK == 0.1
    assert finding is not None
    assert finding.title.startswith("A single temporary") == is_named


def test_gradients_and_a_batch_are_named_only_where_they_exist() -> None:
    """The remedy follows the program."""
    batch, plain = aggregate.find(inference()), aggregate.find(constant_and(4, 9))
    trained = aggregate.find(inference(name="jit(f)/transpose(jvp())/"))

    assert batch is not None
    assert trained is not None
    assert plain is not None
    assert batch.remedy.startswith("Pass fewer rows of x at a time, shard")
    assert trained.remedy.startswith("Use a smaller batch (accumulate gradients")
    assert "a batch of 403 instead of 1024 should fit" in trained.evidence
    assert "optax" not in trained.remedy
    assert plain.remedy.startswith("Compute the largest buffers in pieces")
    assert (batch.change, plain.change) == ("half-batch", "")


@pytest.mark.tpu
def test_ordinary_buffers_get_the_aggregate_alone() -> None:
    """Where every buffer is ordinary: how the bytes scale, and which batch should fit."""
    (finding,) = explained("ordinary_inference").findings
    # All but the weights scale, 24 GiB with 524288 images; 15.75 GiB less the weights remain, of
    # which 2% is left free.
    fits = (0.98 * 15.75 * 1024 - 6 * 64) / (24 * 1024) * 524288
    length = int(finding.evidence.partition("; ")[2].partition(" rows of x")[0])

    assert finding.slug == "aggregate"
    assert length == pytest.approx(fits, rel=0.01)
    assert "over the limit" in finding.title


@pytest.mark.slow
@pytest.mark.tpu
def test_no_batch_is_named_where_none_would_fit() -> None:
    """Where the bytes that do not scale exceed the limit, the aggregate names no batch."""
    findings = {finding.slug: finding for finding in explained("named_blocks", False).findings}

    assert set(findings) == {"aggregate", "arguments"}
    assert "should fit" not in findings["aggregate"].evidence


def test_residuals_of_checkpointed_layers_are_kept_and_not_unknown() -> None:
    """What goes into a layer is kept on purpose, and is no finding."""
    hlo = Hlo()
    saved = [hlo.add("sort", dims=(512, 512), name="jit(f)/jvp()/tanh") for _ in range(4)]
    for made in saved:
        name = "jit(f)/transpose(jvp())/checkpoint/rematted_computation/mul"
        hlo.add("negate", made, dims=(512, 512), name=name)
    finding = aggregate.find(hlo.facts(saved))

    assert finding is not None
    assert finding.evidence == (
        "They take 4 MiB of 4 MiB and are kept for the backward pass. The first is made by "
        "jit(f)/jvp()/tanh."
    )


def test_a_buffer_without_a_name_is_made_for_what_reads_it() -> None:
    """An iota that a sort reads has the name of the sort only."""
    hlo = Hlo()
    iota = hlo.add("iota", dims=(4, 262144), dtype=S32)
    hlo.add("sort", iota, dims=(4, 262144), dtype=S32, name="jit(f)/sort")
    finding = aggregate.find(hlo.facts((iota,)))

    assert finding is not None
    assert finding.evidence.endswith("It is made for jit(f)/sort.")


@pytest.mark.tpu
def test_the_new_value_of_what_is_not_donated_is_no_other_buffer() -> None:
    """Donation frees the old value or the new one: neither is left over."""
    lowered = on_one(lambda x: jnp.tanh(x) * x, array(1 << 20, 5120))

    assert [f.slug for f in explain(lowered).findings] == ["donation", "arguments"]


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "remedy"),
    [
        (
            "temporary",
            "jit(f)/sort",
            F32,
            "Compute the largest buffers in pieces (jax.lax.map over blocks), shard over more "
            "devices, or use a narrower dtype.",
        ),
        ("output", "jit(f)/sort", F32, "Return less, shard over more devices, or use a narrower "),
        ("parameter", "x", F32, "Shard over more devices or use a narrower dtype."),
        ("temporary", "jit(f)/jit(_unique)/sort", S32, "Shard over more devices."),
    ],
)
def test_the_remedy_is_one_for_the_largest_buffers(
    kind: str, name: str, dtype: int, remedy: str
) -> None:
    """Pieces are of no use for arguments, results and what a library makes of integers."""
    hlo = Hlo()
    if kind == "parameter":
        hlo.parameter(1, 1048576, dtype=dtype, path=name)
        facts = hlo.facts((hlo.add("sort", dims=(256,), name="jit(f)/sort"),))
    else:
        made = hlo.add("sort", dims=(4, 262144), dtype=dtype, name=name)
        facts = hlo.facts((made,)) if kind == "temporary" else hlo.facts(outputs=(made,))
    finding = aggregate.find(facts)

    assert finding is not None
    assert finding.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("trains", "dtype", "name", "remedy"),
    [
        (
            True,
            F32,
            "sort",
            "(jax.lax.map over blocks, with jax.checkpoint around the function of one ",
        ),
        (False, PrimitiveType.C64, "sort", "(jax.lax.map over blocks) or shard over more devices."),
        (False, F32, "imag", "(jax.lax.map over blocks) or shard over more devices."),
    ],
    ids=["a backward pass", "complex numbers", "their parts"],
)
def test_pieces_are_kept_by_a_backward_pass_and_complex_numbers_are_as_narrow_as_can_be(
    trains: bool, dtype: int, name: str, remedy: str
) -> None:
    """On a TPU the two parts of complex numbers are in buffers of their own."""
    hlo = Hlo()
    hlo.parameter(256, dtype=dtype, path="x")
    hlo.add("sort", dims=(256,), name=f"jit(f)/{name}")
    made = hlo.add("sort", dims=(4, 262144), name="jit(f)/sort")
    if trains:
        hlo.add("negate", dims=(1,), name="jit(f)/transpose(jvp())/neg")
    finding = aggregate.find(hlo.facts((made,)))

    assert finding is not None
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("features", "scaling_kib"), [(1024, 64), (512, 64 + 2048)], ids=["batch x sequence", "another"]
)
def test_a_length_that_the_weights_have_does_not_scale(features: int, scaling_kib: int) -> None:
    """A batch of 4 with 256 tokens is as long as 1024 features; then it says nothing."""
    hlo = Hlo()
    x = hlo.parameter(4, 256, 16, path="x")
    hlo.parameter(features, 8, features, path="layers")
    made = hlo.add("sort", x, dims=(1024, 512), name="jit(f)/sort")
    facts = hlo.facts((made,))

    assert (facts.batch.length, facts.batch.scaling_bytes) == (4, scaling_kib * 1024)


def test_a_length_that_parameters_start_with_is_no_batch() -> None:
    """Four layers and four examples: which of them a buffer has is not known."""
    hlo = Hlo()
    x = hlo.parameter(4, 256, path="x")
    hlo.parameter(4, 8, 8, path="params['w']")
    made = hlo.add("sort", x, dims=(4, 512, 512), name="jit(f)/sort")

    assert hlo.facts((made,)).batch.length == 0


@pytest.mark.parametrize(("rows", "named"), [(64, " of the rows of rays"), (63, "")])
def test_pieces_are_those_of_the_rows_that_a_buffer_begins_with(rows: int, named: str) -> None:
    """Fewer than 4096 rows may be as many by chance."""
    hlo = Hlo()
    rays = hlo.parameter(rows, 64, 3, path="rays")
    made = hlo.add("sort", rays, dims=(rows, 64, 256), name="jit(f)/sort")
    weights = hlo.parameter(64, rows, path="weights")
    finding = aggregate.find(hlo.facts((made, hlo.add("sort", weights, dims=(64, rows)))))

    assert aggregate.LEAST_ROWS == 4096
    assert finding is not None
    assert f"in pieces (jax.lax.map over blocks{named})" in finding.remedy


@pytest.mark.parametrize("returned", [True, False])
def test_a_temporary_in_the_memory_of_an_output_is_none(returned: bool) -> None:
    """XLA puts it where an output of the same size is written later: returning less is no help."""
    hlo = Hlo()
    x = hlo.parameter(7, path="x")
    made = hlo.add("sort", x, dims=(2048, 512), name="jit(f)/sort")
    output = hlo.add("reshape", made, dims=(1024, 1024))
    proto = hlo.program(outputs=(made,)).proto
    if not returned:
        proto.hlo_module.computations[0].root_id = output
    program = parse_program(proto.SerializeToString(), "jit_f(1)")
    facts = ProgramFacts(program, peak_summary(program), limited(2, 4))
    (finding,) = find_findings(facts)

    kind, change = ("output", "Return less") if returned else ("temporary", "Compute")
    assert finding.title == f"A single {kind} accounts for 100% of the peak: f32[2048,512]"
    assert finding.remedy.startswith(change)


@pytest.mark.parametrize("computed", [True, False])
def test_rows_of_an_argument_are_named_only_where_they_are_computed_from(computed: bool) -> None:
    """An array of the program may have as many rows by chance."""
    hlo = Hlo()
    x = hlo.parameter(4096, 8, path="x")
    small = hlo.add("negate", x, dims=(4096, 8))
    made = hlo.add("sort", *([small] if computed else []), dims=(4096, 512), name="jit(f)/sort")
    (finding,) = find_findings(hlo.facts((made,), message=limited(4, 9)))

    assert ("Pass fewer rows of x" in finding.remedy) == computed
    assert ("scales with the rows of x" in finding.evidence) == computed
    assert (finding.change == "half-batch") == computed


@pytest.mark.parametrize(("rows", "named"), [(512, True), (513, False)])
def test_half_of_what_has_the_length_is_computed_from_the_batch(rows: int, named: bool) -> None:
    """Less says that the rest has it by chance."""
    hlo = Hlo()
    x = hlo.parameter(4096, 8, path="x")
    made = hlo.add("sort", x, dims=(4096, 504), name="jit(f)/sort")
    other = hlo.add("sort", dims=(4096, rows), name="jit(f)/other")
    facts = hlo.facts((made, other), message=limited(4, 9))

    assert fitting_batch.LEAST_COMPUTED_SHARE == 0.5
    assert fitting_batch.has_batch(facts) == named
