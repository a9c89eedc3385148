"""A buffer at the memory peak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["parameter", "output", "temporary", "constant", "thread-local", ""]


@dataclass(frozen=True, slots=True)
class PeakOp:
    """A buffer that is live at the memory peak, and the HLO instruction that defines it.

    Attributes:
        instruction: The HLO instruction, with its tuple index where it has one ("copy-start{0}");
            "" for the row that stands for all buffers below 16 KiB.
        opcode: The HLO opcode ("fusion", "parameter").
        op_name: JAX's name of the operation ("jit(step)/jvp()/dot_general"); the pytree path of
            the argument if the buffer is a parameter.
        shape: The shape as XLA prints it ("f32[8192,8192]{1,0}").
        size_bytes: Bytes on the device, padding included.
        unpadded_bytes: Bytes that the elements alone take.
        kind: "parameter", "output", "temporary", "constant" or "thread-local".
        memory_space: One of those that load_peak_summary accepts, or one that a message names.
        source: The innermost frame in the user's code, as "train.py:88".
        stack: All frames but hbmwatch's, innermost first, as "/path/to/file.py:line".
        start: The program point at which the buffer is allocated; None for the whole program.
        end: The program point at which it is freed; None for the whole program.
        role: What it is for, in the words of OomReport.rollup ("optimizer state", "residuals saved
            for backward"); "" if not determined. It does not count for equality.
        functions: The function of each frame of `stack`; "" where XLA does not name it. They do not
            count for equality.
        written_name: The op_name of the value that a loop writes into the buffer slice by slice,
            where a loop fills it; XLA names such a buffer after what it starts from. Of an argument
            that XLA names after the loop that reads it, its pytree path. "" for every other
            buffer. It does not count for equality.
        written_source: The source line of that value; also of a buffer whose `source` is a line of
            another call, as JAX traces a helper of its own once for all of them.
    """

    __module__ = "hbmwatch"

    instruction: str
    opcode: str = ""
    op_name: str = ""
    shape: str = ""
    size_bytes: int = 0
    unpadded_bytes: int = 0
    kind: Kind = ""
    memory_space: str = "hbm"
    source: str = ""
    stack: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    role: str = field(default="", compare=False)
    functions: tuple[str, ...] = field(default=(), compare=False)
    written_name: str = field(default="", compare=False)
    written_source: str = field(default="", compare=False)

    @property
    def shown_name(self) -> str:
        """The op_name to show: of the value that a loop writes, where a loop fills the buffer."""
        return self.written_name or self.op_name

    @property
    def shown_source(self) -> str:
        """The source line to show: of the value that a loop writes, where a loop fills it."""
        if self.kind == "parameter" and self.written_name:  # the line is that of a later value
            return self.written_source
        return self.written_source or self.source

    @property
    def padding_bytes(self) -> int:
        """Bytes that the layout adds to the elements."""
        return self.size_bytes - self.unpadded_bytes

    @property
    def expansion(self) -> float:
        """Size over unpadded size; 1.0 for an empty buffer."""
        return self.size_bytes / self.unpadded_bytes if self.unpadded_bytes else 1.0

    @property
    def path(self) -> str | None:
        """The pytree path of the argument ("state.params['w']"); None unless it is a parameter."""
        return self.shown_name or None if self.kind == "parameter" else None
