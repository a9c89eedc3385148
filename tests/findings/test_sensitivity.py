"""Each threshold and weight, halved and doubled over all programs: what it decides."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

import hbmwatch._analysis
import hbmwatch._findings
from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings import classify, rank
from hbmwatch._findings.rank import ADVICE, find_findings
from hbmwatch._records.report import Finding
from tests.findings.cases import UNUSABLE, explained
from tests.oom_programs import CASES
from tests.test_layers import ours

pytestmark = pytest.mark.slow

# Thresholds that decide nothing in these programs: why they stay, and the test of the boundary.
ANSWERED = {
    "_analysis.graph.MOST_STEPS": "it ends walks in damaged programs: analysis/test_graph.py",
    "_analysis.loops.MOST_STEPS": "it ends walks in damaged programs: analysis/test_graph.py",
    "_analysis.sources.MOST_STEPS": "it ends walks in damaged programs: analysis/test_sources.py",
    "_analysis.updates.MOST_STEPS": "it bounds a recursion: analysis/test_updates.py",
    "_analysis.live_buffers.SAMPLED_INSTRUCTIONS": "it bounds the time of a report on a large "
    "program: analysis/test_live_buffers.py",
    "_analysis.live_buffers.MOST_VISITS": "it bounds the time of a report on a large program: "
    "analysis/test_live_buffers.py",
    "_findings.aggregate.LEAST_ROWS": "arguments here have more rows, or other ones: "
    "test_aggregate.py",
    "_findings.attention_scores.KEPT_WEIGHT": "scores are a third of the residuals here: "
    "test_attention_scores.py",
    "_findings.checkpoint.LEAST_INPUTS": "programs here have one checkpoint around all layers, or "
    "one for each of many: test_checkpoint.py",
    "_findings.checkpoint.LEAST_NESTED_LAYERS": "one program has 64 checkpointed layers, the "
    "others 24 or fewer: test_checkpoint.py",
    "_findings.donation.LEAST_SHARE": "half and double name the same arguments here: "
    "test_donation.py",
    "_findings.fitting_batch.LEAST_COMPUTED_SHARE": "what scales here is computed from the batch: "
    "test_aggregate.py",
    "_findings.gather.PRIOR_WEIGHT": "what is gathered whole is the only finding of its programs: "
    "test_gather.py",
    "_findings.gather.PART_WEIGHT": "no program gathers a part beside another cause: "
    "test_gather.py",
    "_findings.gather.LEAST_SHARE_OF_MINIMUM": "copies here are all large: test_gather.py",
    "_findings.gather.MOST_MOVES": "an all-reduce is one step from the rows: test_gather.py",
    "_findings.gathered_rows.LEAST_GROWTH": "half and double find the same rows here: "
    "test_gathered_rows.py",
    "_findings.gathered_rows.LEAST_EDGES": "half and double find the same edges here: "
    "test_gathered_rows.py",
    "_findings.host_fetch.NEEDED_AT_ONCE": "one program fetches one array: test_host_fetch.py",
    "_findings.layers.SAMPLED_INSTRUCTIONS": "the first instructions of a forward pass tell: "
    "test_layers.py",
    "_findings.long_lived.LEAST_POINTS": "all of these programs are longer: test_long_lived.py",
    "_findings.padding.LEAST_SHARE_OF_LARGEST": "half and double name the same shapes here: "
    "test_padding.py",
    "_findings.padding.LEAST_TO_MOVE": "half and double give the same remedies here: "
    "test_padding.py",
    "_findings.padding.SHARE_IN_RESIDUALS": "the padding of these programs is nearly all in "
    "residuals, or not at all: test_padding.py",
    "_findings.padding.MOSTLY_PADDING": "padded buffers here are 2 times their elements, or hardly "
    "padded: test_padding.py",
    "_findings.pairwise.PRIOR_WEIGHT": "pairs are the only finding of their programs: "
    "test_pairwise.py",
    "_findings.pairwise.GATHERED_WEIGHT": "no program gathers pairs: test_pairwise.py",
    "_findings.pairwise.LEAST_COPIES": "pairs here have at least 512 others; 16 are compiled in "
    "test_pairwise.py",
    "_findings.products.LEAST_GROWTH": "logits here are 64 times their factors, and layers at most "
    "4 times: test_logits.py",
    "_findings.residuals.MORE_IN_GROUPS": "layers here make more than they keep: test_residuals.py",
    "_findings.saved.LEAST_SHARE_OF_CHAIN": "no program is a chain of layers: test_residuals.py",
    "_findings.rank.LEAST_SHARE_OF_PEAK": "half and double give the same order here: test_rank.py",
    "_findings.rank.LEAST_SHARE_OF_OVER_LIMIT": "half and double give the same order here: "
    "test_rank.py",
    "_findings.replication.LEAST_SHARE_OF_MINIMUM": "these programs have no biases or step "
    "counters: test_replication.py",
    "_findings.random_bits.MOST_VISITS": "it bounds a walk; draws here are few steps from their "
    "loop: test_random_bits.py",
    "_findings.rows.MOST_MOVES": "outputs here are one step from what computes them: "
    "test_verdict.py",
    "_findings.training_state.MOST_TREES": "states here have at most three trees: "
    "test_training_state.py",
    "_findings.training_state.LEAST_SHARE": "states here have trees of one size: "
    "test_training_state.py",
    "_findings.unrolled_loop.MOST_PER_ARGUMENT": "its results are like no argument: "
    "test_unrolled_loop.py",
    "_findings.zero_gradients.MOST_MOVES": "half and double find the same results here: "
    "test_zero_gradients.py",
}


def thresholds() -> dict[str, tuple[Any, str]]:
    """The module and the attribute of each number that the rules compare with."""
    found = {}
    for package in (hbmwatch._analysis, hbmwatch._findings):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                if name.isupper() and type(value) in (int, float):
                    found[f"{info.name.removeprefix('hbmwatch.')}.{name}"] = module, name
    return found


def conclusions(programs: Mapping[str, ProgramFacts]) -> dict[str, tuple[Finding, ...]]:
    """The findings of each program."""
    return {name: find_findings(facts) for name, facts in programs.items()}


class Kept:
    """What each finder says of each program, for changes that do not reach its module."""

    def __init__(self, programs: Mapping[str, ProgramFacts]) -> None:
        finders = (*rank.FINDERS, classify.find)
        self._said = {
            find: {id(facts): find(facts) for facts in programs.values()} for find in finders
        }

    def use(self, patch: pytest.MonkeyPatch, changed: str) -> None:
        """Has the finders run again that read the changed module; none for ""."""
        patch.setattr(rank, "FINDERS", tuple(self._of(find, changed) for find in rank.FINDERS))
        patch.setattr(classify, "find", self._of(classify.find, changed))

    def _of(self, find: Callable[[ProgramFacts], Any], changed: str) -> Any:
        if changed in reached(find.__module__.removeprefix("hbmwatch.")):
            return find
        said = self._said[find]
        return lambda facts: said[id(facts)]


@functools.cache
def reached(module: str) -> frozenset[str]:
    """A module and all that it imports, directly or not."""
    return frozenset({module}).union(*(reached(name) for name in ours(module)))


def fresh(programs: Mapping[str, ProgramFacts]) -> dict[str, ProgramFacts]:
    """The programs, with nothing derived yet."""
    return {name: dataclasses.replace(facts) for name, facts in programs.items()}


def slugs(findings: Iterable[Finding]) -> list[str]:
    """The slugs, in order."""
    return [finding.slug for finding in findings]


def changes(
    before: Mapping[str, tuple[Finding, ...]], after: Mapping[str, tuple[Finding, ...]]
) -> tuple[list[str], list[str]]:
    """The programs whose findings or their order change, and those where only figures do."""
    changed = [name for name in before if before[name] != after[name]]
    flipped = [name for name in changed if slugs(before[name]) != slugs(after[name])]
    return flipped, [name for name in changed if name not in flipped]


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.gpu
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings(UNUSABLE)
def test_every_threshold_decides_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Halved or doubled, it changes a finding of a program; or a boundary test pins it."""
    programs = {
        f"{case.name}{'' if fault else ' (repaired)'}": explained(case.name, fault).facts
        for case in CASES
        for fault in (True, False)
    }
    rows = sensitivity(programs, monkeypatch)
    with capsys.disabled():
        print("\n" + "\n".join(rows.values()))

    decides_nothing = {name for name, row in rows.items() if row.endswith("nothing")}
    assert decides_nothing & set(thresholds()) == set(ANSWERED)


def sensitivity(
    programs: Mapping[str, ProgramFacts], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """A line for each threshold and weight: which programs change."""
    before, kept = conclusions(programs), Kept(programs)
    rows = {}
    for label, (module, name) in thresholds().items():
        flipped, others = set(), set()
        for factor in (0.5, 2):
            value = getattr(module, name)
            with monkeypatch.context() as patch:
                patch.setattr(module, name, type(value)(value * factor))
                analyzed = programs
                if label.startswith("_analysis."):  # The facts depend on these thresholds alone.
                    analyzed = fresh(programs)
                else:
                    kept.use(patch, label.rpartition(".")[0])
                more = changes(before, conclusions(analyzed))
            flipped.update(more[0])
            others.update(more[1])
        rows[label] = _row(label, flipped, others)
    for slug, advice in ADVICE.items():
        for field in ("prior_weight", "least_share_of_peak"):
            if (value := getattr(advice, field)) is not None:
                flipped = set()
                for factor in (0.5, 2):
                    other = dataclasses.replace(advice, **{field: value * factor})
                    with monkeypatch.context() as patch:
                        patch.setattr(rank, "ADVICE", {**ADVICE, slug: other})
                        kept.use(patch, "")
                        flipped.update(changes(before, conclusions(programs))[0])
                label = f"{slug}: {field}"
                rows[label] = _row(label, flipped, set())
    return rows


def _row(label: str, flipped: set[str], others: set[str]) -> str:
    """What one threshold decides, as a line."""
    parts = [f"flips {', '.join(sorted(flipped))}"] if flipped else []
    parts += [f"figures of {', '.join(sorted(others))}"] if others else []
    return f"{label}: {'; '.join(parts) or 'nothing'}"
