"""What the parallel processes of a test run share, and the marks of the running test.

A compile takes up to some seconds, and many tests look at the same program. The first process that
needs it compiles it, and the others read the result.
"""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pytest

T = TypeVar("T")
COMPILERS = frozenset({"tpu", "gpu"})


@dataclass
class Run:
    """The state of this process's test run, which conftest.py sets.

    Attributes:
        folder: Where results are shared. It lives as long as the run's temporary files.
        marks: The marks of the test that runs; outside of tests every compiler may be used.
    """

    folder: Path | None = None
    marks: frozenset[str] = field(default=COMPILERS)


RUN = Run()


def once(key: str, make: Callable[[], T]) -> T:
    """What `make` returns; it is called once per test run, in one process, and must pickle."""
    if RUN.folder is None:
        return make()
    file = RUN.folder / quote(key, safe="")
    with open(f"{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            made = make()
            partial = Path(f"{file}.partial")
            partial.write_bytes(pickle.dumps(made))
            partial.rename(file)
            return made
        loaded: T = pickle.loads(file.read_bytes())
        return loaded


def uses_compiler(platform: str) -> None:
    """Fails a test that compiles for a platform without the mark for it."""
    if platform in COMPILERS - RUN.marks:
        pytest.fail(f"this test uses the {platform} compiler: mark it @pytest.mark.{platform}")
