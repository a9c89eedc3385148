"""A kernel whose blocks do not fit in on-chip memory: the error message alone says so."""

from __future__ import annotations

from hbmwatch._findings.advice import Advice
from hbmwatch._records.memory_spaces import KERNEL_MEMORY
from hbmwatch._records.message import OomMessage
from hbmwatch._records.report import Finding
from hbmwatch._records.sizes import format_size

ADVICE = Advice(
    slug="vmem",
    prior_weight=1.0,  # it is the only finding of such a failure
    link="https://openxla.org/xla/errors/error_1001",
    will_not_help="a smaller batch, donation or jax.checkpoint: none of them makes a block smaller",
)


def find(message: OomMessage) -> tuple[Finding, ...]:
    """The finding if the message is about a kernel's memory, such as VMEM; else none.

    Args:
        message: The error message.
    """
    if message.memory_space not in KERNEL_MEMORY:
        return ()
    name = message.memory_space.upper()
    figures = [
        (message.used_bytes, "in use"),
        (message.requested_bytes, "requested at once"),
        (message.limit_bytes, "available"),
        (message.exceeded_by_bytes, "over the limit"),
    ]
    known = [f"{format_size(size)} {label}" for size, label in figures if size is not None]
    if not known:
        return ()
    largest = max(message.ops, key=lambda op: op.size_bytes, default=None)
    where = ""
    if largest is not None and largest.op_name:
        where = f" The largest block belongs to {largest.op_name}."
    return (
        ADVICE.finding(
            title=f"{name}: a kernel's blocks do not fit in on-chip memory",
            evidence=f"{name}: {', '.join(known)}.{where}",
            remedy="Use smaller blocks (block_shape, scratch shapes) in the Pallas kernel"
            + (", or raise vmem_limit_bytes in pltpu.CompilerParams." if name == "VMEM" else "."),
            saves_bytes=message.exceeded_by_bytes,
            certainty="hint",
        ),
    )
