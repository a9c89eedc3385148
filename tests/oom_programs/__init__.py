"""Programs that run out of memory as public out-of-memory threads did, each with a repaired twin.

Every builder takes `fault`: True gives the program of the thread, False the program after the fix
that closed it. They are lowered for TPU v5e (or the H100) and compiled by the real compiler.
"""

from __future__ import annotations

from tests.oom_programs import donation, indexed, mesh, pairs, products, samples, saved, single
from tests.oom_programs.base import CASES, Case

# Importing a module enters its programs in CASES.
MODULES = (donation, mesh, saved, products, pairs, samples, single, indexed)
__all__ = ["CASES", "MODULES", "Case"]
