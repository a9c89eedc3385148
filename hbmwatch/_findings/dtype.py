"""Values in a wider dtype than the arguments: temporaries, or whole arguments cast up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument
from hbmwatch._analysis.live_buffers import LiveBuffer
from hbmwatch._findings.advice import Advice, BufferAdvice, all_bytes
from hbmwatch._findings.candidate import Candidate
from hbmwatch._findings.phrases import ERROR_1000, at_lines
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.types import PrimitiveType, float_bits, type_name

ADVICE = Advice(
    slug="dtype",
    prior_weight=0.9,
    link=ERROR_1000,
    will_not_help="narrower arguments: the program makes the wide values",
)
CAST_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="Whole arguments are cast to float32{at}",
    remedy="Keep the dtype of the argument, or cast inside the loop or layer, where only one slice "
    "is used at a time.",
    link=ERROR_1000,
    will_not_help="jax.checkpoint: the float32 copy exists in full again when it is used",
    names_argument=True,
)


def _freed_with_arguments(found: Sequence[Candidate]) -> int:
    """The copies, and of the arguments that the program only reads what a narrower dtype frees."""
    facts = found[0].facts
    numbers = facts.buffers.graph.argument_ids
    copied = {
        numbers[end.instruction.id]: candidate.first.size_bytes
        for candidate in found
        for end in candidate.ends
        if end.instruction.id in numbers
    }
    only_read = sum(
        argument.size_bytes - copied[argument.number]
        for argument in facts.arguments
        if argument.number in copied and argument.number not in facts.state
    )
    return all_bytes([live for candidate in found for live in candidate.buffers]) + only_read


COPY_ADVICE = BufferAdvice(
    slug=ADVICE.slug,
    prior_weight=ADVICE.prior_weight,
    title="Whole arguments are cast to a narrower dtype, and both exist{at}",
    remedy="Pass the arguments in the narrower dtype where the program only reads them, and keep "
    "the wide ones where they are updated; or shard them, so that each device casts its part. "
    "Where a loop over the layers reads the copy, cast one layer inside of it, and compile again: "
    "XLA for TPU may still cast all layers in front of the loop.",
    freed_for=_freed_with_arguments,
    link=ERROR_1000,
    will_not_help="jax.checkpoint or a smaller batch: the copy has the size of the arguments",
    without_batch="jax.checkpoint: the copy has the size of the arguments",
    change="bfloat16",
    names_argument=True,
)
# A program "is" bfloat16 if more than half of the bytes of its float arguments are that narrow.
LEAST_SHARE_OF_ARGUMENTS = 0.5


def find(facts: ProgramFacts) -> Finding | None:
    """Temporaries and outputs that are wider than most of the arguments."""
    floats = [a for a in facts.arguments if _bits(a)]
    bits = _common_bits(floats)
    if bits is None:
        return None
    wide = [b for b in facts.live if b.op.kind in ("temporary", "output") and _bits(b) > bits]
    if not wide:
        return None
    least = 0 if bits == 16 else 16
    narrow = _most_bytes(a for a in floats if least < _bits(a) <= bits)
    # Nothing computes in float8 throughout: such arguments are stored values.
    target = dtype_name(narrow) if (float_bits(narrow) or 0) >= 16 else "bfloat16"
    wider, stored = dtype_name(_most_bytes(wide)), dtype_name(narrow)
    take = "takes" if len(wide) == 1 else "take"
    return ADVICE.finding(
        title=f"Compute in {target}: {wider} {_kinds(facts, wide)} in a {stored} program",
        evidence=f"{plural(len(wide), f'{wider} buffer')} computed{at_lines(wide)} {take} "
        f"{format_size(all_bytes(wide))} at the peak, but most argument bytes are {stored}.",
        remedy=f"Compute in {target}: look for a {wider} constant, a dtype argument or an astype "
        "that promotes, and cast back right after the operations that need the precision.",
        buffers=wide,
        saves_bytes=sum(b.size_bytes - b.size_bytes * bits // _bits(b) for b in wide),
    )


def _kinds(facts: ProgramFacts, wide: Sequence[LiveBuffer]) -> str:
    """What buffers are called: temporaries, outputs, or values where there are both."""
    results = {facts.buffers.is_result(live) for live in wide}
    if len(results) > 1:
        return "values"
    return "outputs" if results == {True} else "temporaries"


def _bits(array: Argument | LiveBuffer) -> int:
    """The bits of an element of a float array; 0 for an array that is not float."""
    return float_bits(array.element_type) or 0


def _common_bits(floats: Sequence[Argument]) -> int | None:
    """16 or 32: the width that most bytes of the float arguments do not exceed; None if neither."""
    total = sum(a.size_bytes for a in floats)
    for bits in (16, 32):
        narrow = sum(a.size_bytes for a in floats if _bits(a) <= bits)
        if narrow > LEAST_SHARE_OF_ARGUMENTS * total:
            return bits
    return None


def _most_bytes(arrays: Iterable[Argument | LiveBuffer]) -> int:
    """The element type that has the most bytes."""
    total: dict[int, int] = {}
    for array in arrays:
        total[array.element_type] = total.get(array.element_type, 0) + array.size_bytes
    return max(total, key=total.__getitem__)


def dtype_name(element_type: int) -> str:
    """JAX's name of a float type: "bfloat16", "float32", "float8_e4m3fn"."""
    name = type_name(element_type)
    if name == "bf16":
        return "bfloat16"
    bits, _, rest = name[1:].partition("e")
    return f"float{bits}_e{rest}" if rest else f"float{bits}"


def is_narrowed_argument(candidate: Candidate) -> bool:
    """Whether the user casts a whole float argument to a narrower float type."""
    bits = float_bits(candidate.first.element_type) or 0
    ends = [float_bits(end.instruction.shape.element_type) or 0 for end in candidate.ends]
    is_cast = candidate.first.name.endswith("convert_element_type")
    return is_cast and candidate.is_argument and 0 < bits < min(ends)


def is_cast_argument(candidate: Candidate) -> bool:
    """Whether a float32 buffer is an argument of a narrower float type, cast as a whole."""
    is_wide = candidate.first.element_type == PrimitiveType.F32
    return candidate.is_argument and candidate.origin.narrow is not None and is_wide
