"""Real programs by real compilers: what is found first, what it frees, and the repaired twins."""

from __future__ import annotations

import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.rank import ADVICE, find_findings
from tests.findings.cases import UNUSABLE, explained, params, slugs
from tests.hlo import MIB
from tests.oom_programs import CASES, Case
from tests.oom_programs.base import size

# Some of these compiles take minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BF16 = 2

# What the remedy frees, from the shapes alone; up to, as the scheduler may keep more.
SAVES = {
    "momentum_step": 2 * 16 * size(8192, 8192),
    "adam_step": 3 * 16 * size(12288, 4096),
    # All but the 64 new rows are the old ones.
    "inner_jit": 8 * size(557056, 1024, itemsize=BF16),
    # Half of two moments.
    "adam_moments": 2 * 38 * size(2048, 8192),
    "decode_step": 2 * size(24, 64, 2048, 1024, itemsize=BF16),
    "moments_in_float32": 32 * size(8192, 8192),
    "donated_other_sharding": 32 * size(16384, 16384) // 2,
    "replicated_optimizer_state": 3 * 24 * size(8192, 8192) * 3 // 4,
    # x, what goes into each of 12 blocks, and one inside of a block, in both dtypes.
    "replicated_batch": (
        13 * size(262144, 1024) + size(262144, 4096) + size(262144, 4096, itemsize=BF16)
    )
    * 3
    // 4,
    "replicated_output": 8 * size(16384, 32768) * 3 // 4 + 8 * size(16384, 32768),
    "unsharded_init": 12 * size(16384, 32768) * 3 // 4,
    "gathered_permutation": (size(524288, 8192) + size(524288, 8192, itemsize=BF16)) * 3 // 4,
    "gathered_layer_stack": size(96, 8192, 8192, itemsize=BF16) * 3 // 4,
    # Bits of two keys, each as two halves.
    "random_init": 2 * size(65536, 32768),
    "shocks_of_all_periods": size(2099, 2097152),
    # Scores in both dtypes, five and a half of the wide half's, five of the narrow ones.
    "scanned_decoder": (
        size(24, 16, 8, 1024, 1024)
        + size(24, 16, 8, 1024, 1024, itemsize=BF16)
        + 5 * size(24, 16, 1024, 4096)
        + size(24, 16, 1024, 4096, itemsize=BF16)
        + 5 * size(24, 16, 1024, 1024, itemsize=BF16)
    )
    * 23
    // 24,
    "unrolled_layers": 11 * size(131072, 2048),
    "gradient_of_scan": 2 * 119 * size(6000, 6000),
    "ode_adjoint": (8 * size(500, 4096, 1024) + 3 * size(500, 4096, 256, itemsize=BF16))
    * 499
    // 500,
    "coarse_checkpoint": 11 * size(131072, 2048),
    "saving_policy": (
        size(24, 16, 8, 1024, 1024)
        + size(24, 16, 1024, 4096)
        + size(24, 16, 1024, 1024)
        + 4 * size(24, 16, 1024, 1024, itemsize=BF16)
    )
    * 23
    // 24,
    "checkpoint_around_scan": (
        5 * size(24, 32768, 4096)
        + size(24, 32768, 4096, itemsize=BF16)
        + size(24, 32768, 1024, itemsize=BF16)
    )
    * 23
    // 24,
    "full_logits": size(65536, 153600, itemsize=BF16),
    "attention_scores": 2 * size(8, 16, 8192, 8192),
    # The scores, their softmax, and the gradient of the scores.
    "attention_training": 3 * size(8, 8, 8192, 8192, itemsize=BF16),
    "one_hot_targets": 2 * size(65536, 131072),
    "one_hot_embedding": size(65536, 131072) + size(65536, 131072, itemsize=BF16),
    "pairwise_distances": 2 * size(4096, 4096, 512),
    "vmapped_kernel": 2 * size(2048, 4096, 1024),
    "grid_against_points": 2 * size(16384, 64, 64, 128),
    "reverse_jacobian": size(81920, 81920),
    "forward_jacobian": 2 * size(32768, 65536),
    "hessian": size(3 * 1536, 1536, 1536),
    "scan_history": size(1200, 2, 1024, 2048),
    "mcmc_chain": 3 * size(2000, 64, 16384),
    "posterior_predictive": size(1000, 365, 16384),
    "vmapped_log_likelihood": 2 * size(8000, 524288),
    # The compiler narrows what it only multiplies.
    "captured_constant": size(4, 1024, 1024, itemsize=BF16),
    # One of 22 equal ones is needed at a time.
    "unrolled_chunks": 21 * size(24576, 8192),
    # The table then takes what its copy takes, and its 64 columns without padding are free.
    "narrow_table": size(1 << 24, 64),
    "fetched_stack": size(72, 12288, 12288, itemsize=BF16),
    "debug_print": size(524288, 8192),
    # Three columns of 128 as one of three, and three rows of four as three.
    "particle_positions": size(1 << 25, 125) + size(1 << 25, 1),
    "cast_weights": 48 * size(16384, 16384),
    "upcast_activations": size(524288, 4096, itemsize=BF16),
    "long_skip": size(32768, 65536),
    "frozen_weights": 72 * size(8192, 8192, itemsize=BF16),
    # The copies, and a block of an eighth of them.
    "expert_weights": 9 * size(8192, 2, 1024, 256, itemsize=BF16),
    # The rows of both ends, narrowed, and the messages.
    "edge_messages": 2 * size(40 << 20, 128),
    "neighbor_means": size(589824, 16, 512),
    "outer_product": size(65536, 81920),
    # All layers but one; the sum in half of the bytes.
    "stacked_gradients": 2 * 35 * size(4096, 8192),
    "accumulated_gradients": 32 * size(8192, 8192) // 2,
    "full_covariance": size(81920, 81920),
    "clipped_gradients": 8 * size(256, 4096, 1024),
    # Half of the images, of what comes out, and of one float32 or two bfloat16 in between.
    "ordinary_inference": 3 * size(524288, 4096) // 2,
}
# jaxlib 0.12's compiler keeps one stack less, or a narrower one.
SAVES_NEWER = {
    "scanned_decoder": SAVES["scanned_decoder"] - size(23, 16, 1024, 4096),
    "ode_adjoint": (
        4 * size(500, 4096, 1024)
        + 4 * size(500, 4096, 1024, itemsize=BF16)
        + 3 * size(500, 4096, 256, itemsize=BF16)
    )
    * 499
    // 500,
    "checkpoint_around_scan": SAVES["checkpoint_around_scan"] - size(23, 32768, 4096),
}


@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize("case", params(c for c in CASES if c.platform == "tpu"))
def test_the_compiler_of_a_tpu_rejects_the_program(case: Case) -> None:
    """For lack of device memory; the GPU's compiler rejects nothing."""
    assert explained(case.name).message.limit_bytes


@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize("case", params(CASES))
def test_the_first_finding_is_what_closed_the_thread(case: Case) -> None:
    """A program of a public thread shows its cause first."""
    first = explained(case.name).findings[0]
    assert first.slug == case.kind
    assert first.certainty == "derived"
    assert first.link.startswith("https://")


@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize("case", params(case for case in CASES if case.name in SAVES))
def test_what_a_remedy_frees_is_what_the_shapes_say(case: Case) -> None:
    """saves_bytes is within 2% of the bytes that follow from the shapes of the program."""
    allowed = [SAVES[case.name], SAVES_NEWER.get(case.name, SAVES[case.name])]
    freed = explained(case.name).findings[0].saves_bytes
    assert freed in [pytest.approx(expected, rel=0.02) for expected in allowed]


@pytest.mark.parametrize("case", params(case for case in CASES if case.kind != "aggregate"))
def test_the_repaired_program_does_not_have_the_finding(case: Case) -> None:
    """After the fix that closed the thread the finding is not made."""
    assert case.kind not in slugs(explained(case.name, fault=False).findings)


def test_every_finding_has_a_program() -> None:
    """All but three have a thread; these have tests of their own."""
    assert {case.kind for case in CASES} | {"arguments", "live-arrays", "vmem"} == set(ADVICE)


@pytest.mark.filterwarnings(UNUSABLE)
@pytest.mark.parametrize(
    "case",
    # That a leaf was donated in vain is known from the call only.
    params(case for case in CASES if case.name != "donated_other_sharding"),
)
def test_the_program_alone_is_enough(case: Case) -> None:
    """Without the call's shapes the first finding is the same: a profile is enough."""
    program, summary, message, _, _ = explained(case.name)
    assert find_findings(ProgramFacts(program, summary, message))[0].slug == case.kind


@pytest.mark.tpu
@pytest.mark.filterwarnings(UNUSABLE)
def test_most_threads_are_told_by_more_than_their_largest_buffer() -> None:
    """The page's rule of one buffer above half of the limit holds in few of these programs."""
    large = [
        case.kind
        for case in CASES
        if case.platform == "tpu"
        and case.limit_mib is None
        and max(op.size_bytes for op in explained(case.name).summary.ops) > 15.75 * 512 * MIB
    ]
    assert {"callback", "gather", "logits", "jacobian", "pairwise"} <= set(large)
    assert {"replication", "donation"}.isdisjoint(large)
