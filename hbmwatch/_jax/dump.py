"""XLA's dump: the other way to the HloProto of a program that failed."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hbmwatch._jax.unavailable import Unavailable

_log = logging.getLogger("hbmwatch")


def dump(lowered: Any, compiler_options: Mapping[str, Any] | None = None) -> bytes:
    """The HloProto that XLA dumps while it compiles `lowered` once more; the failure is expected.

    Raises:
        Unavailable: Nothing was dumped.
    """
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
        try:
            lowered.compile(compiler_options=options)
        except Exception as error:
            _log.debug("compiling once more for the dump failed, as it may", exc_info=error)
        dumped = sorted(Path(folder).glob("*after_optimizations.hlo.pb"), key=_size)
        if not dumped:
            raise Unavailable("compiling the program once more left no HLO dump")
        return dumped[-1].read_bytes()


def _size(path: Path) -> int:
    return path.stat().st_size
