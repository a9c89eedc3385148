"""Groups of HLO opcodes that several rooms tell apart."""

from __future__ import annotations

_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-all-to-all", "send", "recv")


def is_collective(opcode: str) -> bool:
    """Whether an HLO opcode is communication between devices ("all-gather-start")."""
    return opcode.startswith(_COLLECTIVES)
