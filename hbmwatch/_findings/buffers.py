"""Findings on one large buffer, or a family of equal ones: what it is decides the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.graph import elements, joined_names
from hbmwatch._analysis.live_buffers import CALLBACKS, LiveBuffer, is_backward, is_recomputed
from hbmwatch._analysis.origin import Leaf, Origin
from hbmwatch._findings.phrases import ERROR_1000, LAX_MAP, counted, lines, some
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._xla.protos import HloInstructionProto
from hbmwatch._xla.shapes import shape_text

_FAMILIES = 60
_F32, _U32 = 11, 8
# So many equal buffers of a forward pass are one of each layer; others, of each step of a loop.
_LAYERS, _STEPS = 3, 4
_EXPANDS, _ALL_PAIRS = 2, 16
# Pairs have as many others to each; fewer are a dimension of features or states.
_OTHERS = 32
_PADDED = 2.0
_RANDOM = (
    "random_bits",
    "threefry",
    "rng_bit_generator",
    "_uniform",
    "_normal",
    "_gumbel",
    "_bernoulli",
    "_truncated_normal",
    "random_gamma",
    "_shuffle",
)
_ONLY_MOVES = frozenset(
    "parameter copy transpose bitcast reshape fusion copy-start copy-done".split()
)
_ONLY_CUTS = _ONLY_MOVES | {"slice", "tuple", "get-tuple-element"}
_SOFTMAX = ("softmax", "logsumexp", "argmax", "take_along_axis", "cross_entropy")
# A vmap over a gradient, one for each sample or chain; of a batch in a loss it is inside of jvp.
_MAPPED_GRADIENTS = ("vmap(jvp(", "vmap(transpose(")
_RANDOM_OPS = frozenset(("xor", "shift-left", "shift-right-logical"))


@dataclass(frozen=True, slots=True)
class _Advice:
    """How a kind of buffer is told."""

    title: str
    remedy: str
    link: str
    will_not_help: str = ""


_ADVICE = {
    "callback": _Advice(
        "a jax.debug.print or callback keeps a whole buffer{at}",
        "Remove the jax.debug.print (or callback), or give it a reduced value such as its mean.",
        "https://docs.jax.dev/en/latest/debugging/print_breakpoint.html",
        "a smaller batch only makes the printed buffer smaller: without the callback the compiler "
        "need not make it",
    ),
    "constant": _Advice(
        "the function closes over a large array, a captured constant of the program{at}",
        "Pass the array as an argument of the jitted function instead of closing over it.",
        "https://docs.jax.dev/en/latest/jit-compilation.html",
        "donation: a constant is part of the program and cannot be donated",
    ),
    "one-hot": _Advice(
        "a one-hot matrix{at}: index instead of multiplying",
        "Index instead of one_hot: table[tokens] for an embedding, take_along_axis (or "
        "softmax_cross_entropy_with_integer_labels) for a loss, in chunks if need be.",
        "https://docs.jax.dev/en/latest/_autosummary/jax.nn.one_hot.html",
        "a narrower dtype only halves it",
    ),
    "random-bits": _Advice(
        "the random bits of one large draw (an initialiser, noise){at}",
        "Draw it in pieces (jax.lax.map over split keys, one layer at a time), sharded over the "
        "mesh by out_shardings with jax_threefry_partitionable, or with the rbg generator.",
        "https://docs.jax.dev/en/latest/jax.random.html",
        "a narrower dtype: the bits of the generator are uint32, whatever the result's dtype",
    ),
    "logits": _Advice(
        "the logits over the whole vocabulary{at}: chunk the loss",
        "Chunk the loss over tokens: jax.lax.map (or scan) over chunks with jax.checkpoint around "
        "the chunk, so that only one chunk of logits exists at a time.",
        LAX_MAP,
        "jax.checkpoint alone: the logits are at the peak when they are used, so they are there "
        "again",
    ),
    "attention-scores": _Advice(
        "the attention scores of all pairs of tokens{at}",
        "Use attention that never makes the matrix of scores: jax.nn.dot_product_attention with a "
        "flash (cudnn) or Pallas splash kernel, or blocks of queries by jax.lax.map.",
        "https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html",
        "jax.checkpoint around the layer: the scores of one layer are still made whole",
    ),
    "pairwise": _Advice(
        "pairwise differences: a buffer of all pairs{at}",
        "Do not make all pairs at once: expand the square (x**2 - 2 x @ y.T + y**2), or go over "
        "blocks of rows with jax.lax.map(..., batch_size=...).",
        LAX_MAP,
        "jit and vmap: the compiler keeps the buffer of all pairs either way",
    ),
    "jacobian": _Advice(
        "a Jacobian (or Hessian) by vmap over a whole basis{at}",
        "Use the mode that fits (jacfwd for few inputs, jacrev for few outputs), products (jvp, "
        "vjp, Hessian-vector) in place of the matrix, or jax.lax.map over the basis in chunks.",
        "https://docs.jax.dev/en/latest/jacobian-vector-products.html",
        "jax.checkpoint: the basis is carried forward, nothing waits for a backward pass",
    ),
    "stacked-outputs": _Advice(
        "the stacked outputs of a scan, one entry for each step{at}",
        "Return from the scan only what is needed (the last state, a running mean, every n-th "
        "step): the second output of the body is stacked over all steps.",
        "https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html",
        "donation and jax.checkpoint: this is the result itself",
    ),
    "samples": _Advice(
        "a vmap over many samples makes all of them at once{at}",
        "Go over the samples in chunks: jax.lax.map(f, xs, batch_size=...) instead of jax.vmap, "
        "and reduce inside.",
        LAX_MAP,
        "jit alone: vmap is the same as writing the batch dimension out",
    ),
    "unrolled-loop": _Advice(
        "a Python loop is unrolled and its partial results are all alive{at}",
        "Write the loop as jax.lax.scan or fori_loop that carries the partial result, so that one "
        "step is alive at a time.",
        "https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html",
        "del in Python: under jit the compiler orders the steps",
    ),
    "layout-copy": _Advice(
        "the compiler keeps a second copy of an argument in another layout{at}",
        "Store the argument in the layout that is used (transpose it once outside, before the "
        "call), or let jit choose it with jax.experimental.layout (Format, Layout.AUTO).",
        "https://docs.jax.dev/en/latest/jax.experimental.layout.html",
        "donation: both copies are needed while the program runs",
    ),
    "dtype": _Advice(
        "arguments are cast to a wider dtype, float32, as a whole{at}",
        "Keep the narrow dtype (bfloat16), or cast inside the loop or layer where one slice at a "
        "time is used.",
        ERROR_1000,
        "jax.checkpoint: the cast copy is alive where it is used",
    ),
}


def large_buffers(evidence: ProgramFacts) -> list[Finding]:
    """The kinds of large buffers at the peak, one finding each."""
    kinds: dict[str, list[LiveBuffer]] = {}
    for slug, family in _classified(evidence):
        kinds.setdefault(slug, []).extend(family)
    findings = [_finding(evidence, slug, lives) for slug, lives in kinds.items()]
    return findings


def _classified(evidence: ProgramFacts) -> list[tuple[str, list[LiveBuffer]]]:
    """The largest families of buffers that are of a kind."""
    waiting = {id(live) for live in evidence.flow.saved}
    families: dict[object, list[LiveBuffer]] = {}
    for live in evidence.live:
        if live.op.kind in ("temporary", "output", "constant"):
            families.setdefault((live.family, live.op.kind, live.stack is None), []).append(live)
    largest = sorted(families.values(), key=lambda f: -sum(live.size_bytes for live in f))
    found = []
    for family in largest[:_FAMILIES]:
        total = sum(live.size_bytes for live in family)
        if total < evidence.worth_bytes // 4:
            break
        waits = id(family[0]) in waiting
        layers = waits and (family[0].stack is not None or len(family) >= _LAYERS)
        if layers or is_recomputed(family[0].context):
            continue
        slug = _kind(evidence, family[0], len(family), waits)
        if slug and (slug == "layout-copy" or family[0].op.expansion < _PADDED):
            found.append((slug, family))
    return found


def _kind(evidence: ProgramFacts, live: LiveBuffer, count: int, waits: bool) -> str:
    """What a buffer is; "" where it is ordinary."""
    flow = evidence.flow
    if live.op.kind == "constant":
        return "constant"
    uses = flow.uses(live)
    if flow.calls_back and any(map(_is_callback, (*uses, *flow.readers(live)))):
        return "callback"
    if live.stack is not None:
        state = live.stack.from_argument or is_backward(live.context)
        return "" if state else "stacked-outputs"
    origin = flow.origin(live)
    names = " ".join(dict.fromkeys((live.name, *origin.names)))
    leaves = [leaf for leaf in origin.leaves if not _is_scalar(evidence, leaf)]
    if _is_jacobian(evidence, live, names):
        return "jacobian"
    if _is_one_hot(origin, leaves, names) and (
        "one_hot" in names or not _is_pairwise(evidence, leaves, origin)
    ):
        return "one-hot"
    partial = count >= _STEPS and not (waits or live.forward or _is_piece(origin))
    if partial and _is_partial(evidence, live, count):
        return "unrolled-loop"
    product = _product(evidence, live, origin, leaves, uses)
    if product:
        once = _is_mapped(names) and "vmap(vmap(" not in names
        return "samples" if once and product != "attention-scores" else product
    if _is_argument(evidence, leaves):
        return _argument_kind(live, origin)
    return _other_kind(evidence, live, origin, leaves, names)


def _other_kind(
    evidence: ProgramFacts,
    live: LiveBuffer,
    origin: Origin,
    leaves: Sequence[Leaf],
    names: str,
) -> str:
    """What a buffer is that no product made and that is no argument."""
    random = _RANDOM_OPS <= origin.chain or "rng-bit-generator" in origin.chain
    bits = random or any(word in names for word in _RANDOM)
    if any(word in live.name for word in _MAPPED_GRADIENTS):
        return "samples"
    if _is_pairwise(evidence, leaves, origin):
        return "pairwise"
    if _is_mapped(names):
        return "samples"
    drawn = bits and (random or live.element_type == _U32)
    # A result on a mesh is sharded there, or replication says that it is not.
    if drawn and (live.op.kind != "output" or evidence.device_count < 2):
        return "random-bits"
    return ""


def _finding(evidence: ProgramFacts, slug: str, lives: Sequence[LiveBuffer]) -> Finding:
    """The finding on all buffers of one kind."""
    advice = _ADVICE[slug]
    total = sum(live.size_bytes for live in lives)
    biggest = max(lives, key=lambda live: live.size_bytes)
    share = 100 * total // max(evidence.peak_bytes, 1)
    where = lines(lives, 1).split(" and ")[0]
    shape = biggest.op.shape.partition("{")[0]
    detail = _detail(evidence, slug, biggest)
    made = f" from {biggest.name}" if biggest.name else ""
    made += " (inferred)" if biggest.inferred else ""
    return Finding(
        slug=slug,
        title=advice.title.format(at=f" at {where}" if where else ""),
        evidence=f"{counted(len(lives), 'buffer')}, {format_size(total)} ({share} % of the peak)"
        f"{': ' if len(lives) == 1 else '; the largest is '}{shape}{made}{detail}",
        remedy=advice.remedy,
        saves_bytes=_saves(slug, lives),
        certainty="derived",
        link=advice.link,
        will_not_help=advice.will_not_help,
    )


def _saves(slug: str, lives: Sequence[LiveBuffer]) -> int:
    """What the remedy frees, at most: a cast half, of a loop's results all but one, else all."""
    total = sum(live.size_bytes for live in lives)
    if slug == "unrolled-loop":
        return total - max(live.size_bytes for live in lives)
    return total


def _detail(evidence: ProgramFacts, slug: str, live: LiveBuffer) -> str:
    """What else tells the kind: the argument, the length of the loop."""
    if live.stack is not None:
        return f", {live.stack.length} steps of {format_size(live.size_bytes // live.stack.length)}"
    if slug in ("layout-copy", "dtype"):
        path = evidence.flow.argument_of(live.instruction)
        return f", a copy of the argument {some([path])}" if path else ""
    return ""


# --- signs ----------------------------------------------------------------------------------------


def _is_callback(user: HloInstructionProto) -> bool:
    """Whether an instruction hands a buffer to the host."""
    if user.opcode not in ("send", "outfeed", "custom-call"):
        return False
    named = (user.metadata.op_name.rpartition("/")[2], user.custom_call_target)
    return any(word in name for name in named for word in CALLBACKS)


def _is_mapped(names: str) -> bool:
    """Whether a buffer was made under the user's vmap, and not for a gradient.

    The generators of jax.random are mapped inside.
    """
    drawn = min((at for word in _RANDOM if (at := names.find(word)) >= 0), default=len(names))
    return "vmap(" in names[:drawn] and "jvp(" not in names


def _is_jacobian(evidence: ProgramFacts, live: LiveBuffer, names: str) -> bool:
    """Whether a buffer belongs to a Jacobian: vmap around jvp or vjp, and not a batch of gradients.

    jacfwd is a vmap of jvp alone; jacrev a vmap of the transposed function whose forward pass is
    not mapped; a Hessian is both. A vmap of grad maps the forward and the backward pass.
    """
    forward = any("vmap(jvp(" in name for name in evidence.flow.op_names)
    reverse = any("vmap(transpose(" in name for name in evidence.flow.op_names)
    nested = any(
        "vmap(jvp(jvp(" in name or "vmap(jvp(transpose(" in name for name in evidence.flow.op_names
    )
    if not (nested or forward != reverse):
        return False
    if "vmap(jvp(" in names or "vmap(transpose(" in names:
        return True
    square = len(live.dims) == 2 and live.dims[0] == live.dims[1]
    return square and ("/eq" in names or names.endswith("iota"))


def _is_one_hot(origin: Origin, leaves: Sequence[Leaf], names: str) -> bool:
    """Whether a buffer compares an index with a running number: one_hot, or the same by hand."""
    if "one_hot" in names:
        return True
    opcodes = [leaf.instruction.opcode for leaf in leaves]
    counted = opcodes.count("iota") == 1
    plain = set(opcodes) <= {"iota", "broadcast"}
    compared = "compare" in origin.chain and not _RANDOM_OPS & origin.chain
    return counted and plain and compared and len(leaves) > 1 and "select" not in origin.chain


def _product(
    evidence: ProgramFacts,
    live: LiveBuffer,
    origin: Origin,
    leaves: Sequence[Leaf],
    uses: Sequence[HloInstructionProto],
) -> str:
    """The kind of a matrix product that is much larger than its factors; "" where it is not."""
    graph = evidence.flow.graph
    products = [leaf for leaf in leaves if graph.is_product(leaf.instruction)]
    if not products:
        return ""
    product, outer = products[0].instruction, products[0].outer
    factors = [f for f in graph.operands(product) if elements(f.shape) > 1]
    size = elements(product.shape)
    growth = size / max((elements(f.shape) for f in factors), default=size)
    if growth < _EXPANDS:
        return ""
    rows = [graph.given(factor, outer) for factor in factors]
    pairs = growth >= _ALL_PAIRS and _are_rows(rows, size)
    if pairs and any("vmap(vmap(" in name for name in origin.names):
        return "pairwise"  # a softmax over them, as in optimal transport, makes no tokens of rows
    if _is_softmax(live, origin, uses):
        ranks = [len([d for d in f.shape.dimensions if d > 1]) for f in factors]
        square = len(live.dims) == 2 and live.dims[0] == live.dims[1]
        return "attention-scores" if min(ranks, default=0) >= 3 or square else "logits"
    return "pairwise" if pairs else ""


def _are_rows(factors: Sequence[HloInstructionProto | None], size: int) -> bool:
    """Whether arguments are multiplied row by row: one with itself, or two of as many features.

    A layer's weights have the features first, and those of the result last.
    """
    dims = [tuple(factor.shape.dimensions) for factor in factors if factor is not None]
    if len(dims) != len(factors) or not dims or any(len(shape) != 2 for shape in dims):
        return False
    (first, features), (second, others) = dims[0], dims[-1]
    return features == others and first * second == size


def _is_softmax(live: LiveBuffer, origin: Origin, uses: Sequence[HloInstructionProto]) -> bool:
    """Whether a softmax (or logsumexp) is taken of a buffer, or made it."""
    opcodes = origin.chain | {user.opcode for user in uses}
    names = " ".join(origin.names) + joined_names(uses)
    if any(word in names for word in _SOFTMAX):
        return True
    # Alone, exponential and divide are a logistic, and a reduction is any sum or maximum; in a
    # backward pass, where gradients are summed, both are there for any activation.
    plain = "logistic" not in names and not is_backward(live.context)
    return plain and "exponential" in opcodes and bool(opcodes & {"reduce", "reduce-window"})


def _is_pairwise(evidence: ProgramFacts, leaves: Sequence[Leaf], origin: Origin) -> bool:
    """Whether a buffer combines two smaller ones along different dimensions."""
    plain = {leaf.instruction.opcode for leaf in leaves} <= {"broadcast", "iota"}
    spread = [leaf.instruction for leaf in leaves if leaf.instruction.opcode == "broadcast"]
    if not spread or not plain:
        return False
    parts = []
    for leaf in spread:
        part = evidence.flow.graph.first(leaf)
        if part is not None and elements(part.shape) * _OTHERS <= elements(leaf.shape):
            parts.append(elements(part.shape))
    whole = elements(spread[0].shape)
    return (
        len(parts) > 1
        and math.prod(sorted(parts)[-2:]) >= whole
        and not (_RANDOM_OPS <= origin.chain)
    )


def _is_scalar(evidence: ProgramFacts, leaf: Leaf) -> bool:
    """Whether a leaf is a broadcast number."""
    if leaf.instruction.opcode == "constant":
        return True
    part = evidence.flow.graph.first(leaf.instruction)
    broadcast = leaf.instruction.opcode == "broadcast"
    return broadcast and part is not None and elements(part.shape) <= 1


def _is_argument(evidence: ProgramFacts, leaves: Sequence[Leaf]) -> bool:
    """Whether a buffer is a form of an argument of the program."""
    return bool(leaves) and all(
        evidence.flow.graph.is_argument(leaf.instruction) for leaf in leaves
    )


def _argument_kind(live: LiveBuffer, origin: Origin) -> str:
    """Whether a form of an argument is a copy in another layout, or a wider cast."""
    if origin.narrow is not None and live.element_type == _F32:
        return "dtype"
    given = {shape_text(leaf.instruction.shape) for leaf in origin.leaves}
    moved = origin.chain <= _ONLY_MOVES and live.op.shape not in given
    if live.op.kind == "temporary" and moved:
        return "layout-copy"
    return ""


def _is_piece(origin: Origin) -> bool:
    """Whether a buffer is a part of another, and nothing was computed for it."""
    cut = {leaf.instruction.opcode for leaf in origin.leaves} == {"slice"}
    return cut and origin.chain <= _ONLY_CUTS


def _is_partial(evidence: ProgramFacts, live: LiveBuffer, count: int) -> bool:
    """Whether equal buffers could be results of the steps of a loop.

    They are not the gradients of as many arguments, nor what devices exchange, nor in a loop that
    is not unrolled.
    """
    exchanged = live.op.opcode.startswith(("all-", "reduce-scatter", "collective-"))
    alike = sum(1 for argument in evidence.arguments if argument.dims == live.dims)
    gradients = alike > 0 and count <= 2 * alike
    looped = evidence.flow.graph.loop_of(live.instruction)[0] is not None
    return live.op.kind == "temporary" and not (exchanged or gradients or looped)
