"""Findings on large buffers: an ordered list of rules; the first rule that matches wins.

RULES is that list. A rule says what a buffer is, as far as the rules above it did not; so a row's
position matters, and each rule is a function that can be tested alone. Surer signs come first: the
compiler's own word (a constant), then the readers, the loop that fills the buffer, names, and last
the operations that made it. A row without advice ends the search: the buffer is ordinary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hbmwatch._analysis import origin
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import (
    LiveBuffer,
    is_backward,
    is_one_per_layer,
    is_recomputed,
)
from hbmwatch._analysis.sources import source_of
from hbmwatch._findings import (
    attention_scores,
    callback,
    constant,
    dtype,
    gathered_rows,
    gradients,
    host_fetch,
    jacobian,
    layout_copy,
    logits,
    one_hot,
    pairwise,
    random_bits,
    samples,
    stacked_outputs,
    unrolled_loop,
)
from hbmwatch._findings.advice import BufferAdvice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.libraries import offered
from hbmwatch._findings.phrases import at_line
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

_CANDIDATE_KINDS = frozenset("temporary output constant".split())
# From this expansion on, more than half of a buffer is padding, which has its own finding.
LEAST_PADDED_EXPANSION = 2.0
# The backward pass of a loop keeps what each iteration makes.
_IN_BACKWARD = (
    " Where gradients are taken through the blocks, put jax.checkpoint around the function of one "
    "block: otherwise the values of all blocks are kept for the backward pass."
)


# Findings on one large value, whose versions and whose gradient its remedy frees, too.
_OF_PRODUCTS = (attention_scores.ADVICE.slug, pairwise.ADVICE.slug, logits.ADVICE.slug)


class Rule(NamedTuple):
    """One row of the decision list.

    Attributes:
        advice: The advice for a buffer that the rule matches; None: the buffer is ordinary.
        matches: The rule.
    """

    advice: BufferAdvice | None
    matches: Callable[[Candidate], bool]


def _whole(matches: Callable[[Candidate], bool]) -> Callable[[Candidate], bool]:
    """A rule whose remedy goes over blocks: not for what is one block already."""
    return lambda candidate: not candidate.is_block and matches(candidate)


def _all_rows(matches: Callable[[Candidate], bool]) -> Callable[[Candidate], bool]:
    """A rule on pairs of rows: not for one block of them, but for all pairs even in a loop."""
    return lambda c: (c.has_all_pairs or not c.is_block) and matches(c)


RULES = (
    Rule(constant.ADVICE, constant.is_constant),
    Rule(callback.CHECK_ADVICE, callback.is_checked),
    Rule(callback.ADVICE, callback.is_sent_to_host),
    Rule(host_fetch.ADVICE, host_fetch.is_fetched),
    Rule(layout_copy.ADVICE, layout_copy.is_copied_state),
    Rule(gradients.ADVICE, gradients.is_stacked),
    Rule(gradients.SUM_ADVICE, gradients.is_sum),
    Rule(None, stacked_outputs.is_loop_state),
    Rule(stacked_outputs.STATE_ADVICE, stacked_outputs.is_carried),
    Rule(stacked_outputs.CARRY_ADVICE, stacked_outputs.is_updated_input),
    Rule(stacked_outputs.ADVICE, stacked_outputs.is_stacked),
    Rule(jacobian.ADVICE, _all_rows(jacobian.is_jacobian)),
    Rule(one_hot.ADVICE, one_hot.is_one_hot),
    Rule(samples.GRADIENTS_ADVICE, _whole(samples.is_weight_gradient)),
    Rule(random_bits.STEPS_ADVICE, random_bits.is_drawn_for_loop),
    Rule(unrolled_loop.ADVICE, unrolled_loop.is_partial_result),
    Rule(gathered_rows.EDGES_ADVICE, _whole(gathered_rows.is_one_per_edge)),
    Rule(pairwise.GATHER_ADVICE, _all_rows(pairwise.gathers_pairs)),
    Rule(samples.PAIRS_ADVICE, _whole(pairwise.makes_pairs_for_each)),
    Rule(pairwise.WHOLE_ADVICE, _all_rows(pairwise.is_factorized)),
    Rule(pairwise.ADVICE, _all_rows(pairwise.is_mapped_twice)),
    Rule(attention_scores.TRAINING_ADVICE, _all_rows(attention_scores.is_attention_in_training)),
    Rule(attention_scores.TRAINING_ADVICE, _all_rows(attention_scores.is_gradient)),
    Rule(attention_scores.ADVICE, _all_rows(attention_scores.is_attention)),
    Rule(samples.ADVICE, _whole(samples.is_product_of_samples)),
    Rule(pairwise.ADVICE, _all_rows(pairwise.is_contrastive)),
    Rule(logits.ADVICE, _whole(logits.is_over_vocabulary)),
    Rule(logits.SCORES_ADVICE, _whole(logits.is_logits)),
    Rule(pairwise.GRAM_ADVICE, _all_rows(pairwise.is_gram)),
    Rule(pairwise.ADVICE, _all_rows(pairwise.multiplies_rows)),
    Rule(logits.SCORES_ADVICE, _whole(logits.is_softmax_of_product)),
    Rule(pairwise.ADVICE, _all_rows(pairwise.multiplies_values)),
    Rule(dtype.CAST_ADVICE, dtype.is_cast_argument),
    Rule(dtype.COPY_ADVICE, dtype.is_narrowed_argument),
    Rule(layout_copy.ADVICE, layout_copy.is_moved_argument),
    Rule(None, lambda candidate: candidate.is_argument),
    Rule(samples.ADVICE, _whole(pairwise.is_gradient_per_example)),
    Rule(pairwise.ADVICE, _all_rows(pairwise.combines_two_arrays)),
    Rule(samples.DRAWN_ADVICE, samples.is_drawn_result),
    Rule(samples.ADVICE, _whole(samples.is_mapped)),
    Rule(gathered_rows.ADVICE, _whole(gathered_rows.gathers_matrices)),
    Rule(gathered_rows.REDUCED_ADVICE, _whole(gathered_rows.gathers_to_reduce)),
    Rule(random_bits.ADVICE, random_bits.is_random_bits),
)


def classify(candidate: Candidate) -> BufferAdvice | None:
    """The advice of the first rule that matches; None for an ordinary buffer."""
    return next((rule.advice for rule in RULES if rule.matches(candidate)), None)


def find(facts: ProgramFacts) -> list[Finding]:
    """The findings on large buffers, one per advice."""
    classified: dict[str, tuple[BufferAdvice, list[Candidate]]] = {}
    ordinary = []
    for candidate in candidates(facts):
        advice = classify(candidate)
        padded = candidate.first.op.expansion >= LEAST_PADDED_EXPANSION
        if advice is None:
            ordinary.append(candidate)
        elif advice.even_if_padded or not padded:
            classified.setdefault(advice.slug, (advice, []))[1].append(candidate)
    for candidate in ordinary:
        slug = _sorted_with(candidate, classified) or _of_same_value(candidate, classified)
        if slug is not None:
            classified[slug][1].append(candidate)
    scores = [c for c in facts.once(_families) if _is_per_layer(c) and attention_scores.is_kept(c)]
    if scores:
        # The scores of all layers are more than those of the one that is computed at the peak.
        advice = attention_scores.KEPT_ADVICE
        _, others = classified.get(advice.slug, (advice, []))
        classified[advice.slug] = (advice, [*scores, *others])
    return [_finding(advice, found) for advice, found in classified.values()]


def _sorted_with(
    candidate: Candidate, classified: Mapping[str, tuple[BufferAdvice, Sequence[Candidate]]]
) -> str | None:
    """The slug of the buffers that one sort orders together with a buffer; None for no such sort.

    A sort with an index (an argsort, a stable sort) orders the index in a buffer of the same size.
    """
    sorts = _sorts(candidate)
    return next(
        (
            slug
            for slug, (_, found) in classified.items()
            if slug != unrolled_loop.ADVICE.slug  # its buffers are steps
            and any(c.first.dims == candidate.first.dims and sorts & _sorts(c) for c in found)
        ),
        None,
    )


def _of_same_value(
    candidate: Candidate, classified: Mapping[str, tuple[BufferAdvice, Sequence[Candidate]]]
) -> str | None:
    """The slug of a product whose cast, transposed, cut or elementwise version, or gradient, it is.

    What makes the number of elements of the one makes that of the other; a gradient has the
    dimensions of the value.
    """
    dims = candidate.long_dims
    if len(dims) < 2:  # many vectors have the same length
        return None
    ends = {end.instruction.id for end in candidate.ends}
    cut_from = _cut_from(candidate)
    backward = is_backward(candidate.first.name)
    for slug in _OF_PRODUCTS:
        for other in classified.get(slug, (None, ()))[1]:
            made = {end.instruction.id for end in other.ends}
            gradient = backward and not is_backward(other.first.name)
            alike = other.long_dims == dims and (gradient or not ends.isdisjoint(made))
            if alike or not cut_from.isdisjoint(made):
                return slug
    return None


def _cut_from(candidate: Candidate) -> set[int]:
    """The ids of the instructions from whose results a buffer is cut, as logits[:, 1:] is."""
    graph = candidate.facts.buffers.graph
    cuts = (end for end in candidate.ends if end.instruction.opcode == "slice")
    return {source_of(graph, cut.instruction, cut.outer).id for cut in cuts}


def _sorts(candidate: Candidate) -> set[int]:
    """The ids of the sorts that read a buffer, or that make it."""
    around = [candidate.first.instruction, *candidate.uses]
    return {instruction.id for instruction in around if instruction.opcode == "sort"}


def candidates(facts: ProgramFacts) -> list[Candidate]:
    """The large families of equal buffers that the rules look at, largest first.

    Residuals and what a jax.checkpoint recomputes are left to the findings on them.
    """
    return [
        c for c in facts.once(_families) if not (_is_per_layer(c) or is_recomputed(c.first.context))
    ]


def _is_per_layer(candidate: Candidate) -> bool:
    """Whether buffers are residuals, one for each layer."""
    stacked = candidate.first.loop_buffer is not None
    return candidate.is_residual and (stacked or is_one_per_layer(len(candidate.buffers)))


def _families(facts: ProgramFacts) -> list[Candidate]:
    """The large families of equal buffers, largest first."""
    residuals = {id(live) for live in facts.buffers.saved}
    families: dict[object, list[LiveBuffer]] = {}
    for live in facts.live:
        if live.op.kind in _CANDIDATE_KINDS:
            key = (live.family, live.op.kind, live.loop_buffer is None)
            families.setdefault(key, []).append(live)
    found = []
    for family in sorted(families.values(), key=lambda family: -all_bytes(family)):
        if all_bytes(family) < facts.least_part_bytes:
            break
        found.append(Candidate(facts, family, is_residual=id(family[0]) in residuals))
    return found


def _finding(advice: BufferAdvice, found: Sequence[Candidate]) -> Finding:
    """The finding on all buffers of one slug."""
    buffers = [live for candidate in found for live in candidate.buffers]
    at = advice.line_for(found) if advice.line_for else at_line(buffers)
    facts = found[0].facts
    freed = [live for live in buffers if not _is_kept(advice, facts, live)]
    kept = all_bytes(buffers) - all_bytes(freed)
    of_results = 2 * kept > all_bytes(buffers)
    freed = buffers if of_results else freed
    return advice.finding(
        title=advice.title.format(at=at),
        evidence=_evidence(advice, found, buffers),
        remedy=(advice.of_results if of_results else _remedy(advice, found, kept))
        + offered(facts, advice.slug, buffers),
        saves_bytes=advice.freed_for(found) if advice.freed_for else advice.freed_bytes(freed),
        buffers=freed,
    )


def _is_kept(advice: BufferAdvice, facts: ProgramFacts, live: LiveBuffer) -> bool:
    """Whether a remedy leaves a buffer as large as it is: a result of the program."""
    return bool(advice.of_results) and facts.buffers.is_result(live)


def _remedy(advice: BufferAdvice, found: Sequence[Candidate], kept: int) -> str:
    """What to change, and what stays as large.

    Args:
        advice: The advice.
        found: The buffers that it is about.
        kept: The bytes of those that the remedy leaves as large.
    """
    text = advice.remedy_for(found) if advice.remedy_for is not None else advice.remedy
    if kept:
        text += f" The results of the program among them ({format_size(kept)}) stay as large."
    differentiated = found[0].facts.buffers.differentiated
    return text + (_IN_BACKWARD if advice.by_blocks and differentiated else "")


def _evidence(
    advice: BufferAdvice, found: Sequence[Candidate], buffers: Sequence[LiveBuffer]
) -> str:
    """How much the buffers take, and what the largest one is."""
    # Of two equal ones, that of the forward pass.
    largest = max(found, key=lambda c: (c.first.size_bytes, not is_backward(c.first.name)))
    live, facts = largest.first, largest.facts
    total = all_bytes(buffers)
    takes = f"{format_size(total)} ({100 * total // max(facts.peak_bytes, 1)}% of the peak)"
    what = live.op.shape.partition("{")[0]
    what += f" from {live.name}" if live.name else ""
    what += " (inferred)" if live.inferred else ""
    if live.loop_buffer is not None and advice.counts_steps and not advice.names_argument:
        length = live.loop_buffer.length
        what += f", {length} steps of {format_size(live.size_bytes // length)}"
    path = facts.buffers.argument_of(live.instruction) if advice.names_argument else ""
    what += f", a copy of the argument {path}" if path else ""
    what += advice.detail(live, facts) if advice.detail is not None else ""
    if len(buffers) == 1:
        text = f"1 buffer takes {takes}: {what}."
    else:
        text = f"{plural(len(buffers), 'buffer')} take {takes}. The largest is {what}."
    if advice.reads_origin and any(candidate.origin.is_cut for candidate in found):
        text += f" Its origin was searched through {origin.MOST_VISITS} instructions only."
    return text
