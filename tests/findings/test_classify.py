"""The ordered list of rules on large buffers."""

from __future__ import annotations

import pytest

from hbmwatch._analysis import facts as facts_module
from hbmwatch._analysis import origin
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify
from hbmwatch._findings.classify import RULES, candidates
from tests.findings.saved import BACKWARD, FORWARD, RECOMPUTED, kept
from tests.findings.small import classified, largest
from tests.hlo import MIB, Hlo

MIXED = "jit(f)/vmap()/jit(_one_hot)/threefry"


def test_the_first_rule_that_matches_wins() -> None:
    """A constant with the names of others is a constant; without these it has one rule."""
    hlo = Hlo()
    table = hlo.add("constant", dims=(512, 512), name=MIXED)
    matching = [
        rule.advice.slug
        for rule in RULES
        if rule.matches(largest(hlo.facts(constants=(table,)))) and rule.advice is not None
    ]

    assert matching == ["constant", "one-hot", "samples"]


def test_the_order_of_the_rules() -> None:
    """A change of it is a change of what is concluded."""
    slugs = [rule.advice.slug if rule.advice is not None else "(ordinary)" for rule in RULES]

    assert slugs == [
        "constant",
        "callback",
        "callback",
        "host-fetch",
        "layout-copy",
        "gradients",
        "gradients",
        "(ordinary)",
        "stacked-outputs",
        "stacked-outputs",
        "stacked-outputs",
        "jacobian",
        "one-hot",
        "samples",
        "random-bits",
        "unrolled-loop",
        "gathered-rows",
        "pairwise",
        "samples",
        "pairwise",
        "pairwise",
        "attention-scores",
        "attention-scores",
        "attention-scores",
        "samples",
        "pairwise",
        "logits",
        "logits",
        "pairwise",
        "pairwise",
        "logits",
        "pairwise",
        "dtype",
        "dtype",
        "layout-copy",
        "(ordinary)",
        "samples",
        "pairwise",
        "samples",
        "samples",
        "gathered-rows",
        "gathered-rows",
        "random-bits",
    ]


def two_sizes(kib: int) -> ProgramFacts:
    """A temporary of 51200 KiB less a small one's, so that the minimum is 1024 KiB."""
    hlo = Hlo()
    small = hlo.add("sort", dims=(kib, 256), name="jit(f)/vmap()/small")
    large = hlo.add("sort", dims=(51200 - kib, 256), name="jit(f)/large")
    return hlo.facts((small, large))


@pytest.mark.parametrize(("kib", "count"), [(255, 1), (256, 2)])
def test_a_family_of_a_quarter_of_the_minimum_is_looked_at(kib: int, count: int) -> None:
    """Several of them may reach the minimum together."""
    facts = two_sizes(kib)

    assert facts_module.LEAST_SHARE_OF_MINIMUM == 1 / 4
    assert facts.minimum_saving_bytes == MIB
    assert len(candidates(facts)) == count


@pytest.mark.parametrize(("size", "is_found"), [(2 * MIB - 1, True), (2 * MIB, False)])
def test_a_buffer_that_is_half_padding_is_left_to_that_finding(size: int, is_found: bool) -> None:
    """From twice the bytes of its elements on."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(512, 512), name="jit(f)/vmap()/sort")
    findings = classify.find(hlo.facts((made,), sizes={made: size}))

    assert classify.LEAST_PADDED_EXPANSION == 2.0
    assert [finding.slug for finding in findings] == (["samples"] if is_found else [])


@pytest.mark.parametrize(
    ("count", "name", "users", "is_candidate"),
    [
        (2, FORWARD, [BACKWARD], True),
        (3, FORWARD, [BACKWARD], False),
        (1, RECOMPUTED, [BACKWARD], False),
    ],
    ids=["two residuals", "one per layer", "recomputed"],
)
def test_residuals_and_recomputed_values_are_left_to_their_findings(
    count: int, name: str, users: list[str], is_candidate: bool
) -> None:
    """Three equal residuals are one per layer; two may be logits."""
    assert bool(candidates(kept(count, name, users))) == is_candidate


@pytest.mark.parametrize(("length", "is_cut"), [(299, False), (300, True)])
def test_the_evidence_says_where_the_search_for_an_origin_was_cut(
    length: int, is_cut: bool
) -> None:
    """After 300 instructions; the first one makes the buffer."""
    hlo = Hlo()
    made = hlo.add("sort", dims=(512, 512), name="jit(f)/vmap()/sort")
    for _ in range(length):
        made = hlo.add("negate", made, dims=(512, 512), name="jit(f)/vmap()/neg")
    (finding,) = classify.find(hlo.facts((made,)))

    assert origin.MOST_VISITS == 300
    assert ("searched through 300 instructions only" in finding.evidence) == is_cut


def test_the_evidence_of_equal_buffers() -> None:
    """How many, how much, which share, and what the largest one is."""
    hlo = Hlo()
    names = ["jit(f)/vmap()/a", "jit(f)/vmap()/b"]
    made = [hlo.add("sort", dims=(512, 512), name=name) for name in names]
    (finding,) = classify.find(hlo.facts(made))

    assert finding.evidence == (
        "2 buffers take 2 MiB (100% of the peak). The largest is f32[512,512] from jit(f)/vmap()/a."
    )


def block(carries: bool, dims: tuple[int, int], name: str = "vmap()/add") -> ProgramFacts:
    """A loop with a buffer for one block of rows, which it reduces and stacks.

    Args:
        carries: Whether each iteration reads what the one before it computed.
        dims: The dimensions of the buffer.
        name: The end of its op_name.
    """
    hlo, rows = Hlo(), dims[0]
    stacked = hlo.add("broadcast", dims=(64, rows))
    begin = hlo.add("tuple", stacked, hlo.parameter(dims[1], path="y"), hlo.parameter(rows))
    body = hlo.inner()
    given = body.add("parameter", shape=hlo.known[begin]["shape"])
    shapes = ((64, rows), (dims[1],), (rows,))
    whole, y, state = (
        body.add("get-tuple-element", given, dims=shape, tuple_index=i)
        for i, shape in enumerate(shapes)
    )
    spread = [body.add("broadcast", one, dims=dims) for one in (state, y)]
    made = body.add("add", *spread, dims=dims, name=f"jit(f)/while/body/closed_call/{name}")
    total = body.add("reduce", made, dims=(1, rows))
    update = body.add("dynamic-update-slice", whole, total, dims=(64, rows))
    started = body.add("copy-start", y, dims=(dims[1],))
    kept = body.add("copy-done", started, dims=(dims[1],))
    body.add("tuple", update, kept, body.add("negate", state, dims=(rows,)) if carries else state)
    hlo.add("while", begin, shape=hlo.known[begin]["shape"], calls=body)
    return hlo.facts((made,))


@pytest.mark.parametrize(
    ("carries", "dims", "name", "slug"),
    [
        (False, (256, 1024), "vmap()/add", None),
        (True, (256, 1024), "vmap()/add", "pairwise"),
        (False, (256, 1024), "add", None),
        (False, (512, 512), "add", "pairwise"),
    ],
    ids=["a block of a vmap", "a step that needs the last one", "a block of pairs", "all pairs"],
)
def test_a_block_of_a_loop_is_not_the_whole(
    carries: bool, dims: tuple[int, int], name: str, slug: str | None
) -> None:
    """What lax.map(batch_size=...) or a scan over chunks computes at a time is repaired already."""
    assert classified(block(carries, dims, name)) == slug


@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
def test_blocks_in_a_backward_pass_need_a_checkpoint(trains: bool) -> None:
    """Without one, the loop over the blocks stacks what each of them makes."""
    hlo = Hlo()
    ends = [hlo.parameter(1024, path=path) for path in "xy"]
    rows = [hlo.add("broadcast", end, dims=(1024, 1024)) for end in ends]
    made = hlo.add("subtract", *rows, dims=(1024, 1024), name="jit(f)/sub")
    if trains:
        hlo.add("negate", dims=(1,), name="jit(f)/transpose(jvp())/neg")
    (finding,) = classify.find(hlo.facts((made,)))

    assert finding.slug == "pairwise"
    assert ("jax.checkpoint around the function of one block" in finding.remedy) == trains


@pytest.mark.parametrize(
    ("dims", "name", "joins"),
    [
        ((1024, 2, 1024), "jit(f)/transpose(jvp())/mul", True),
        ((1024, 2, 1024), "jit(f)/jvp()/mul", False),
        ((1024, 1024), "jit(f)/transpose(jvp())/mul", False),
    ],
    ids=["its gradient", "another value", "another size"],
)
def test_a_gradient_is_a_buffer_of_the_finding_on_its_value(
    dims: tuple[int, ...], name: str, joins: bool
) -> None:
    """In any order of the dimensions: one remedy frees both."""
    hlo = Hlo()
    x, y = (hlo.add("sort", hlo.parameter(2, 1024, 8), dims=(2, 1024, 8)) for _ in range(2))
    made = hlo.add("dot", x, y, dims=(2, 1024, 1024), name="jit(f)/jvp()/dot_general")
    other = hlo.add("custom-call", x, dims=dims, name=name)
    (finding,) = classify.find(hlo.facts((made, other)))

    assert finding.slug == "pairwise"
    assert len(finding.buffers) == (2 if joins else 1)


@pytest.mark.parametrize(("opcode", "joins"), [("slice", True), ("sort", False)])
def test_what_is_cut_from_a_product_is_a_buffer_of_its_finding(opcode: str, joins: bool) -> None:
    """logits[:, 1:], cast to float32, takes as much again."""
    hlo = Hlo()
    x, y = (hlo.add("sort", hlo.parameter(1024, 8), dims=(1024, 8)) for _ in range(2))
    made = hlo.add("dot", x, y, dims=(1024, 1024), name="jit(f)/jvp()/dot_general")
    part = hlo.add(opcode, made, dims=(1000, 1024), name="jit(f)/slice")
    cast = hlo.add("convert", part, dims=(1000, 1024), name="jit(f)/convert_element_type")
    (finding,) = classify.find(hlo.facts((made, cast)))

    assert finding.slug == "pairwise"
    assert len(finding.buffers) == (2 if joins else 1)
