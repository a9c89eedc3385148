"""The Python stack of an instruction, where XLA's own is of another call.

JAX traces a helper of its own once for all programs. What a scan does in each step (it reads a
slice of its xs, it writes one of its ys) has the frames of the first scan that did so, in any
program; and what XLA adds to a function of a library may have the frames outside of the step alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hbmwatch._analysis.graph import Graph
from hbmwatch._xla.program import Frame
from hbmwatch._xla.protos import HloInstructionProto

# The op_name of what a scan does in each step; the group is that of its loop.
_OF_SCAN = re.compile(r"(.*/while)/body/(?:.*/)?jit\(dynamic_(?:update_)?index_in_dim\)(?:/|$)")


def stack_of(graph: Graph, instruction: HloInstructionProto) -> Sequence[Frame]:
    """The frames of the code that an instruction is from, innermost first; none where unknown.

    Args:
        graph: The program's instructions.
        instruction: The instruction.
    """
    stack = graph.program.stack(instruction)
    scan = _OF_SCAN.match(instruction.metadata.op_name)
    if scan is not None:
        loops = (loop for loop in graph.loops if loop.metadata.op_name == scan[1])
        stacks = [graph.program.stack(loop) for loop in loops]
        # The stack of an instruction in the body ends with the stack of the loop.
        return next((s for s in stacks if s and stack[-len(s) :] == s), stack)
    if stack and not set(graph.program.step_names).isdisjoint(frame.function for frame in stack):
        return stack
    return () if graph.program.step_names else stack
