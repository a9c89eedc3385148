"""Arguments that exceed the device's memory before the program computes anything."""

from __future__ import annotations

from collections.abc import Sequence

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._analysis.leaves import Argument
from hbmwatch._findings import replication
from hbmwatch._findings.advice import Advice
from hbmwatch._findings.libraries import uses
from hbmwatch._findings.phrases import ERROR_1000, largest_paths, list_some, mesh_exists
from hbmwatch._findings.rows import rows_of
from hbmwatch._findings.training_state import in_trees, optimizers, state_of
from hbmwatch._records.report import Finding
from hbmwatch._records.roles import OPTIMIZER, argument_role
from hbmwatch._records.sizes import format_size
from hbmwatch._records.text import plural
from hbmwatch._xla.types import float_bits

ADVICE = Advice(
    slug="arguments",
    prior_weight=2.0,
    link=ERROR_1000,
    will_not_help="jax.checkpoint or a smaller batch: neither makes these arguments smaller",
    without_batch="jax.checkpoint: it does not make these arguments smaller",
)


def _less(facts: ProgramFacts, largest: Sequence[Argument]) -> str:
    """What makes arguments smaller: a cache has the length for which it was allocated."""
    sizes: dict[str, int] = {}
    for argument in largest:
        role = argument_role(argument.path)
        sizes[role] = sizes.get(role, 0) + argument.size_bytes
    if max(sizes, key=sizes.__getitem__, default="") == "cache":
        return "allocate the cache for a shorter length or fewer sequences"
    what = "optimizer state" if OPTIMIZER in sizes else "some of them"
    smaller = ""
    if named := optimizers(facts, "optax." if uses(facts, "optax") else ""):
        smaller = f", or use an optimizer that holds less than the two moments of Adam ({named})"
    return f"keep {what} in host memory{smaller}"


def _state(facts: ProgramFacts) -> str:
    """What the state of a training step consists of, as a sentence; "" for another program."""
    state = facts.once(state_of)
    if state.copies < 2:
        return ""
    return f" What is returned updated: {in_trees(state)}."


def find(facts: ProgramFacts) -> Finding | None:
    """Arguments that take more than the limit, whatever the program does."""
    limit, total = facts.limit_bytes, facts.summary.parameter_bytes
    if limit is None or total <= limit:
        return None
    # Sharding what is replicated over the devices at hand has its own finding.
    replicated = replication.replicated_leaves(facts) if facts.device_count > 1 else []
    if total - sum(leaf.freed_bytes for leaf in replicated if not leaf.is_output) <= limit:
        return None
    largest = sorted((a for a in facts.arguments if a.in_hbm), key=lambda a: -a.size_bytes)
    devices = -(-total // max(limit, 1))
    wide = sum(a.size_bytes for a in largest if float_bits(a.element_type) == 32)
    smaller = []
    if wide // 2 >= facts.minimum_saving_bytes:
        smaller.append(f"{format_size(total - wide // 2)} in bfloat16")
    if mesh_exists(devices * facts.device_count):
        each = format_size(-(-total // devices))
        smaller.append(f"{each} if sharded over {devices} times as many devices")
    they = "It" if len(largest) == 1 else "They"
    would = f" {they} would take {', or '.join(smaller)}." if smaller else ""
    paths = list_some(largest_paths(largest))
    take = "takes" if len(largest) == 1 else "take"
    return ADVICE.finding(
        title=f"The arguments alone take {format_size(total)}; the device has {format_size(limit)}",
        evidence=f"{plural(len(largest), 'argument leaf')} ({paths}) {take} "
        f"{format_size(total)} per device before the program computes anything.{_state(facts)}"
        f"{would}",
        remedy="Shard the arguments over more devices (NamedSharding, FSDP), keep them in a "
        f"narrower dtype, or {_less(facts, largest)}.",
        saves_bytes=total - total // devices,
        buffers=rows_of(facts, largest),
    )
