"""XLA's dump: the HloProto of a program that is compiled once more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hbmwatch._jax.unavailable import Unavailable
from hbmwatch._records.failures import log_failure


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """The result of one compile with a dump folder.

    Attributes:
        hlo_proto: The optimized program as a serialized HloProto; None where XLA dumped none.
        error: What the compile raised; None where it succeeded.
    """

    hlo_proto: bytes | None
    error: Exception | None


def compile_with_dump(lowered: Any, compiler_options: Mapping[str, Any] | None = None) -> Dump:
    """Compile `lowered` once more, so that XLA dumps the program, even if the compile fails."""
    with tempfile.TemporaryDirectory(prefix="hbmwatch-dump-") as folder:
        options = {
            **(compiler_options or {}),
            "xla_dump_to": folder,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_pass_re": "^$",
            # JAX's persistent cache leaves the options above out of its key, and a program that it
            # has is not compiled. This one is in the key, and the folder has a new name each time.
            "xla_gpu_dump_autotune_results_to": os.path.join(folder, "autotune"),
        }
        failed = None
        try:
            lowered.compile(compiler_options=options)
        except Exception as error:
            failed = error
        dumped = sorted(Path(folder).glob("*after_optimizations.hlo.pb"), key=_size)
        return Dump(dumped[-1].read_bytes() if dumped else None, failed)


def dump(lowered: Any, compiler_options: Mapping[str, Any] | None = None) -> bytes:
    """The serialized HloProto that XLA dumps while it compiles `lowered` once more.

    Raises:
        Unavailable: Nothing was dumped.
    """
    made = compile_with_dump(lowered, compiler_options)
    if made.error is not None:
        log_failure("compiling once more for the dump failed, as expected", made.error)
    if made.hlo_proto is None:
        raise Unavailable("recompiling the program left no HLO dump")
    return made.hlo_proto


def _size(path: Path) -> int:
    return path.stat().st_size
