"""Results that one number fills: gradients of weights that the loss does not depend on."""

from __future__ import annotations

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Output
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.phrases import largest_paths, list_some
from hbmwatch._findings.rows import rows_of_outputs
from hbmwatch._records.paths import path_keys
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural

ADVICE = Advice(
    slug="zero-gradients",
    prior_weight=2.5,
    link="https://docs.jax.dev/en/latest/_autosummary/jax.grad.html",
    will_not_help="jax.lax.stop_gradient: the gradients are then zero, but still returned; "
    "donation frees the weights, not the zeros",
)
# Between a result and the number that fills it are copies and a broadcast.
MOST_MOVES = 4


def find(facts: ProgramFacts) -> Finding | None:
    """Results of a differentiated program that one number fills, of the form of its arguments."""
    if not facts.buffers.differentiated:
        return None
    weights = {(a.dims, a.element_type) for a in facts.arguments}
    zeros = [
        output
        for output in facts.outputs
        if not output.aliased
        and (output.dims, output.element_type) in weights
        and _is_filled(facts, output)
    ]
    if not zeros:
        return None
    size = format_size(sum(output.size_bytes for output in zeros))
    paths = list_some(largest_paths(zeros, _to_name))
    is_single = len(zeros) == 1
    filled = "has the shape and dtype of an argument, and is"
    if not is_single:
        filled = "have the shape and dtype of an argument, and each is"
    return ADVICE.finding(
        title=f"Do not return {paths}: {size} filled with one number",
        evidence=f"{plural(len(zeros), 'result')} ({size}) {filled} filled with one number. "
        "jax.grad returns zeros for weights that the loss does not depend on, such as frozen "
        f"ones. The step need not return {'it' if is_single else 'them'}.",
        remedy="Differentiate only what is trained: split the parameters, pass the frozen ones as "
        "an argument that jax.grad does not differentiate (argnums; in equinox, "
        "equinox.partition; in flax nnx, nnx.DiffState), and make optimizer state for the trained "
        "ones only.",
        saves_bytes=sum(output.size_bytes for output in zeros),
        buffers=rows_of_outputs(facts, zeros),
    )


def _to_name(path: str) -> str:
    """A path up to its first key that is no index: "result[1]['frozen']"."""
    keys = path_keys(path)
    named = (n for n, key in enumerate(keys) if n and not key.strip("[]").isdigit())
    return "".join(keys[: next(named, 0) + 1])


def _is_filled(facts: ProgramFacts, output: Output) -> bool:
    """Whether one number fills an output."""
    graph = facts.buffers.graph
    current = output.instruction
    for _ in range(MOST_MOVES):
        if current is None:
            return False
        if graph.fused(current) is not None:
            if current.operand_ids:
                return False
            current = graph.root(current)
        if current.opcode == "broadcast":
            number = graph.first(current)
            return number is not None and number.opcode == "constant"
        if current.opcode not in ("copy", "bitcast", "copy-done", "copy-start", "convert"):
            return False
        current = graph.first(current)
    return False
