"""What is said to be changed first: real programs by real compilers, with repaired twins."""

from __future__ import annotations

import dataclasses
import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.live_buffers import PeakBuffers
from hbmwatch._explain.breakdown import breakdown, rollup, with_roles
from hbmwatch._explain.conclude import add_findings
from hbmwatch._explain.problems import Problems
from hbmwatch._findings import rank, vmem
from hbmwatch._findings.rank import ADVICE, FINDERS, find_findings
from hbmwatch._jax.lowered import CallInfo, call_info
from hbmwatch._messages.parse import parse_oom
from hbmwatch._records.message import OomMessage
from hbmwatch._records.peak import PeakSummary
from hbmwatch._records.profile_error import ProfileError
from hbmwatch._records.report import DeviceMemory, Finding, LiveArrays
from hbmwatch._records.sizes import format_size
from hbmwatch._report.report import OomReport
from hbmwatch._xla.peak import peak_summary
from hbmwatch._xla.program import Program, parse_program
from hbmwatch._xla.protos import HloProto, parse
from tests import oom_programs, programs
from tests.oom_programs import CASES, Case, array, on_one, size

pytestmark = pytest.mark.tpu

BF16 = 2
MIB = 1 << 20
# Repaired programs get so little that the compiler gives up at once.
TINY_MIB = 1

# What the remedy frees, from the shapes alone; up to, as the scheduler may keep more.
SAVES = {
    "momentum_step": 2 * 16 * size(8192, 8192),
    "adam_step": 3 * 16 * size(12288, 4096),
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
    "random_init": size(131072, 32768),
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
    "attention_training": 2 * size(8, 8, 8192, 8192, itemsize=BF16),
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
    "narrow_table": size(1 << 24, 128),
    "debug_print": size(524288, 8192),
    # Three columns of 128 as one of three, and three rows of four as three.
    "particle_positions": size(1 << 25, 125) + size(1 << 25, 1),
    "cast_weights": 48 * size(16384, 16384),
    "upcast_activations": size(524288, 4096, itemsize=BF16),
    "long_skip": size(32768, 65536),
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


class Explained(NamedTuple):
    """A program that was compiled, and what was concluded from it."""

    program: Program
    summary: PeakSummary
    message: OomMessage
    call: CallInfo
    findings: tuple[Finding, ...]


@functools.cache
def explained(name: str, fault: bool = True) -> Explained:
    """A case, compiled once per test run."""
    case = next(case for case in CASES if case.name == name)
    limit = case.limit_mib if fault else TINY_MIB
    return explain(case.build(fault), limit if case.platform == "tpu" else None)


def explain(lowered: Any, limit_mib: int | None = None) -> Explained:
    """Compile, and conclude from what the compiler left."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        options |= {"xla_dump_hlo_pass_re": "^$"}
        options |= {"xla_tpu_max_hbm_size_mib": str(limit_mib)} if limit_mib else {}
        message = OomMessage("")
        try:
            lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            message = parse_oom(str(error)) or message
        dumps = sorted(Path(folder).glob("*after_optimizations.hlo.pb"))
        proto = max(dumps, key=lambda file: file.stat().st_size).read_bytes()
    program = parse_program(proto, "jit_step(0)")
    summary = peak_summary(program)
    call = call_info(lowered)
    findings = find_findings(ProgramFacts(program, summary, message, call))
    return Explained(program, summary, message, call, findings)


def slugs(findings: tuple[Finding, ...]) -> list[str]:
    """The kinds, in order."""
    return [finding.slug for finding in findings]


def named(case: Case) -> str:
    """A case as a test's id."""
    return case.name


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_thread_s_program_is_told_by_its_kind(case: Case) -> None:
    """The first finding on a public thread's program is what closed the thread."""
    first = explained(case.name).findings[0]
    assert first.slug == case.kind
    assert first.certainty == "derived"
    assert first.link.startswith("https://")


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(case.name, marks=getattr(pytest.mark, case.platform))
        for case in CASES
        if case.name in SAVES
    ],
)
def test_what_a_remedy_frees_is_what_the_shapes_say(name: str) -> None:
    """saves_bytes is within 2 % of the bytes that follow from the shapes of the program."""
    allowed = [SAVES[name], SAVES_NEWER.get(name, SAVES[name])]
    freed = explained(name).findings[0].saves_bytes
    assert freed in [pytest.approx(expected, rel=0.02) for expected in allowed]


@pytest.mark.parametrize("case", [case for case in CASES if case.kind != "aggregate"], ids=named)
def test_the_repaired_program_does_not_have_the_finding(case: Case) -> None:
    """After the fix that closed the thread the finding is not made."""
    assert case.kind not in slugs(explained(case.name, fault=False).findings)


def test_each_kind_has_a_program() -> None:
    """Every kind of finding but one is shown by a real program here."""
    assert {case.kind for case in CASES} | {"arguments", "vmem"} == set(ADVICE)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    "case",
    # That a leaf was donated in vain is in the call only; the replicated batch needs the mesh.
    [case for case in CASES if case.name != "donated_other_sharding"],
    ids=named,
)
def test_the_program_alone_tells_the_kind(case: Case) -> None:
    """Without the call's shapes the kinds are the same: a profile is enough."""
    program, summary, message, _, _ = explained(case.name)
    assert find_findings(ProgramFacts(program, summary, message))[0].slug == case.kind


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("moments_in_float32", "result['mu'][0] is f32, but state['params'][0] is bf16"),
        (
            "donated_other_sharding",
            "result['w0'] has another sharding ([8192, 16384] per device, but state['w0'] has "
            "[8192, 8192])",
        ),
    ],
)
def test_a_donation_in_vain_names_the_leaf_and_the_reason(name: str, said: str) -> None:
    """Why a donated leaf found no output: another dtype, another sharding."""
    finding = explained(name).findings[0]
    assert (finding.slug, said in finding.evidence) == ("donation-unusable", True)


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


def test_ordinary_buffers_get_the_aggregate_alone() -> None:
    """Where every buffer is ordinary: how the bytes scale, by how much over, and what would fit."""
    (finding,) = explained("ordinary_inference").findings
    # All but the weights scale, 24 GiB with 524288 images; 15.75 GiB less the weights remain, of
    # which 2 % are left free.
    fits = (0.98 * 15.75 * 1024 - 6 * 64) / (24 * 1024) * 524288
    said = int(finding.evidence.partition("a batch of ")[2].partition(" ")[0])
    assert finding.slug == "aggregate"
    assert said == pytest.approx(fits, rel=0.01)
    assert "over the limit" in finding.title


def test_no_batch_is_named_where_none_would_fit() -> None:
    """Where what does not scale is too much already, the aggregate does not speak of a batch."""
    (finding,) = explained("named_blocks", fault=False).findings
    assert (finding.slug, "should fit" in finding.evidence) == ("aggregate", False)


def test_a_few_features_to_each_are_no_pairs() -> None:
    """Rows that meet only 16 states are an expansion, not all pairs of two long dimensions."""

    def expand(x: Any, states: Any) -> Any:
        return jnp.sort(jnp.exp(x[:, :, None] * states), 0)

    for states, pairs in ((16, False), (512, True)):
        lowered = on_one(expand, array((1 << 22) // states, 512), array(512, states))
        assert ("pairwise" in slugs(explain(lowered, TINY_MIB).findings)) == pairs


def test_a_gather_in_pieces_is_no_loop() -> None:
    """The compiler cuts an argument up for one gather; no loop of the program is unrolled."""

    def project(x: Any, w: Any, index: Any) -> Any:
        return jnp.einsum("id,ic->dc", x.T[index], w)

    given = [array(131072, 16384), array(4096, 16), array(4096, dtype=jnp.int32)]
    assert slugs(explain(on_one(project, *given)).findings) == ["layout-copy"]


def test_arguments_that_are_too_much_alone_are_told() -> None:
    """Arguments above the limit are a finding, after what would make them smaller."""
    weights = [array(8192, 8192)] * 70
    lowered = on_one(oom_programs.mlp, weights, array(8, 8192))
    (finding,) = explain(lowered).findings
    assert finding.slug == "arguments"
    limit = int(15.75 * 1024) * MIB
    given = 70 * size(8192, 8192) + size(8, 8192)
    assert finding.saves_bytes == pytest.approx(given - limit, rel=0.001)


def test_gradients_alone_are_no_reason_to_donate() -> None:
    """A function that returns gradients needs its parameters afterwards: no donation."""

    def gradients(params: Any, x: Any) -> Any:
        return jax.grad(lambda p: (oom_programs.mlp(p, x) ** 2).mean())(params)

    weights = {f"w{i}": array(8192, 8192) for i in range(36)}

    def as_list(params: Any, x: Any) -> Any:
        return gradients(list(params.values()), x)

    assert "donation" not in slugs(explain(on_one(as_list, weights, array(256, 8192))).findings)


def test_a_loop_of_the_compilers_is_no_unrolled_one() -> None:
    """Equal buffers in the body of a while, as the CPU's random bits are, are no steps."""
    program = programs.compiled("seed", "cpu").program
    findings = find_findings(ProgramFacts(program, peak_summary(program)))
    assert slugs(findings)[0] == "random-bits"


def test_a_coarse_checkpoint_in_a_loop_over_micro_batches_is_told() -> None:
    """The loop around the step is none of its backward pass: all layers are computed again."""

    def layers(weights: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return jnp.tanh(jnp.tanh(x @ w) * jnp.sin(x)), None

        return jax.lax.scan(body, x, weights)[0]

    def grads(weights: Any, x: Any) -> Any:
        return jax.grad(lambda w: (jax.checkpoint(layers)(w, x) ** 2).sum())(weights)

    def accumulated(weights: Any, batches: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            return total + grads(weights, x), None

        return jax.lax.scan(step, jnp.zeros_like(weights), batches)[0]

    lowered = on_one(accumulated, array(12, 512, 512), array(3, 65536, 512))
    assert slugs(explain(lowered, 512).findings)[0] == "checkpoint"


def test_what_comes_out_like_the_batch_is_no_gradient_of_it() -> None:
    """An autoencoder's batch is the batch, though what it makes of it has the same shape."""

    def train_step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made = jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1])
            return ((made - x) ** 2).sum(), made

        (_, made), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, grads), made

    weights = [array(512, 1024), array(1024, 512)]
    program, summary, message, call, _ = explain(
        on_one(train_step, weights, array(65536, 512)), TINY_MIB
    )
    arguments, length, _ = ProgramFacts(program, summary, message, call).batch
    assert ([argument.path for argument in arguments], length) == (["x"], 65536)


def test_roles_change_nothing_else() -> None:
    """Each row is the same but for its role, and every row has one."""
    program, summary, _, _, _ = explained("adam_step")
    told = with_roles(ProgramFacts(program, summary))
    assert told == summary
    assert all(op.role for op in told.ops) and not any(op.role for op in summary.ops)


def test_memory_on_the_chip_is_a_matter_of_blocks() -> None:
    """What ran out in VMEM is told from the text: its figures, the kernel, block sizes."""
    for file in ("real-tpu_jax-0.10.2_libtpu-0.0.42.1_vmem.txt", "tpu-allocation--vmem.txt"):
        text = (Path(__file__).parents[1] / "messages" / "samples" / file).read_text(
            encoding="utf-8"
        )
        message = parse_oom(text)
        assert message is not None
        (finding,) = vmem.find(message)
        assert finding.slug == "vmem"
        assert "MiB" in finding.evidence
        assert "smaller blocks" in finding.remedy
    assert vmem.find(explained("full_logits").message) == ()


def test_what_others_hold_leaves_less_room() -> None:
    """At run time the limit is the device's, less the live arrays that the call does not own."""
    lowered = jax.jit(lambda x: jnp.sort(x) + 1).lower(
        jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    )
    program, summary, _, call, _ = explain(lowered)
    message = OomMessage("", phase="run", requested_bytes=4 * MIB)
    others = LiveArrays((1,), "float32", 1, 12 * MIB)
    device = DeviceMemory("GPU", 1, limit_bytes=16 * MIB, live=(others,))
    (finding,) = find_findings(ProgramFacts(program, summary, message, call, device))
    over = summary.total_allocation_bytes - 4 * MIB
    assert finding.slug == "aggregate"
    assert f"{format_size(over)} over the limit" in finding.title


# --- the arithmetic -------------------------------------------------------------------------------


def test_the_breakdown_is_the_compiler_s_own_account() -> None:
    """Arguments, outputs and the limit of the undonated step, to the byte from its shapes."""
    program, summary, message, _, _ = explained("momentum_step")
    state, batch = 2 * 16 * size(8192, 8192), size(256, 8192)
    expected = {
        "arguments": state + batch,
        "outputs": summary.output_bytes,
        "aliased": 0,
        "temporaries": summary.temporary_bytes,
        "constants": 0,
        "fragmentation": summary.total_allocation_bytes - summary.peak_bytes,
        "total": summary.total_allocation_bytes,
        "limit": int(15.75 * 1024) * MIB,
    }
    assert breakdown(program, summary, message) == expected
    # An output that is a tuple has a table of pointers.
    assert state <= expected["outputs"] < state + 1024
    assert expected["temporaries"] < expected["total"] - 2 * state


def test_the_breakdown_comes_from_the_message_where_there_is_no_program() -> None:
    """A message's own totals, under our names."""
    message = OomMessage(
        "",
        totals={"reserved": 5, "arguments": 7, "HLO temp": 11, "Output size": 3},
        used_bytes=30,
        limit_bytes=20,
        fragmentation_bytes=2,
    )
    assert breakdown(None, None, message) == {
        "arguments": 7,
        "outputs": 3,
        "temporaries": 11,
        "reserved": 5,
        "fragmentation": 2,
        "total": 30,
        "limit": 20,
    }


def test_the_rollup_says_whose_the_bytes_are() -> None:
    """Parameters, optimizer state, batch and outputs of an Adam step, to the byte."""
    program, summary, _, _, _ = explained("adam_step")
    rows = rollup(with_roles(ProgramFacts(program, summary)))
    weights = 16 * size(12288, 4096)
    roles = rows["role"]
    assert [roles["outputs"], roles["optimizer state"], roles["parameters"], roles["batch"]] == [
        3 * weights,
        2 * weights,
        weights,
        2 * size(512, 4096),
    ]
    assert [rows["path"][f"state['{key}']"] for key in ("opt", "params")] == [2 * weights, weights]


@pytest.mark.parametrize("name", ["scanned_decoder", "moments_in_float32", "replicated_output"])
def test_the_rollup_is_all_of_the_peak_in_a_dozen_rows(name: str) -> None:
    """Both groupings sum to the peak and have at most twelve rows, most bytes first."""
    program, summary, _, _, _ = explained(name)
    for rows in rollup(with_roles(ProgramFacts(program, summary))).values():
        named_rows = [size for row, size in rows.items() if row != "other"]
        assert sum(rows.values()) == summary.peak_bytes
        assert len(rows) <= 12
        assert named_rows == sorted(named_rows, reverse=True)


def test_nameless_loop_stacks_are_named_after_what_fills_them() -> None:
    """The stacks of a scanned decoder have no name in the viewer; their op and line are found."""
    summary = explained("scanned_decoder").summary
    nameless = {op.instruction for op in summary.ops if not op.op_name and op.size_bytes > MIB}
    flow = PeakBuffers(explained("scanned_decoder").program, summary)
    found = {
        live.name.rpartition("/")[2]: live.source.partition(":")[0]
        for live in flow.live
        if live.op.instruction in nameless and live.loop_buffer is not None
    }
    assert {"exp", "dot_general"} <= set(found)
    assert set(found.values()) == {"oom_programs.py"}


# --- odd programs ---------------------------------------------------------------------------------


def blank(instruction: Any, chance: random.Random) -> None:
    """No op_name."""
    instruction.metadata.op_name = ""


def babble(instruction: Any, chance: random.Random) -> None:
    """An op_name of any text."""
    words = ["jvp(", "transpose(", "vmap(", "/while/", "{}", "\n", "ä", "checkpoint", "[0]", ")("]
    instruction.metadata.op_name = "".join(chance.choices(words, k=5))


def lose_operands(instruction: Any, chance: random.Random) -> None:
    """Operands that are not there, or others."""
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


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
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


def test_a_kind_of_finding_that_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it raises is one sentence of the report; a stub, as none is known to raise."""

    def fail(_: ProgramFacts) -> None:
        raise RuntimeError("no luck")

    program, summary, message, call, findings = explained("momentum_step")
    monkeypatch.setattr(rank, "FINDERS", (fail, fail, *FINDERS))
    missing = Problems()
    report = add_findings(OomReport(message), summary, program, call, missing)
    assert (report.findings, missing) == (findings, ["findings: RuntimeError: no luck"])


def test_small_buffers_are_no_padding() -> None:
    """The row of buffers below 16 KiB, which XProf counts as padding, is none."""
    lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((4,), jnp.float32))
    assert slugs(explain(lowered).findings) == ["donation"]
