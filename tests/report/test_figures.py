"""The binding figures: what was needed, what was there, and by how much it did not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hbmwatch import DeviceMemory, OomMessage, OomReport, PeakSummary
from hbmwatch._report.text import binding_text, headline

MIB, GIB = 2**20, 2**30
ROUNDED = {"used_bytes": GIB // 100, "limit_bytes": GIB // 100}


def peak(peak_bytes: int, total_bytes: int) -> PeakSummary:
    """A peak with no buffers: only its totals count here."""
    heap = np.zeros(0, dtype=np.int64)
    sizes = (peak_bytes, peak_bytes, None, heap, 0, 0, 0, 0, total_bytes, 0)
    return PeakSummary("jit_step", 1, "hbm", *sizes, ops=())


def compile_error(**figures: Any) -> OomMessage:
    """An error of the compiler, which found that a program does not fit."""
    return OomMessage("x", "tpu", "compile", memory_space="hbm", **figures)


FITTING = peak(20 * GIB, 20 * GIB)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(OomReport(OomMessage("x")), "", id="no figures"),
        pytest.param(
            OomReport(compile_error(used_bytes=20 * GIB, limit_bytes=16 * GIB)),
            "needs 20.00 GiB; 16.00 GiB available; 4.00 GiB over the limit",
            id="while compiling",
        ),
        pytest.param(
            OomReport(
                OomMessage(
                    "x", "gpu", "run", requested_bytes=4 * GIB, limit_bytes=16 * GIB,
                    free_bytes=5 * GIB, largest_free_bytes=2 * GIB,
                )
            ),
            "requested 4.00 GiB; limit 16.00 GiB; 5.00 GiB free; largest free block 2.00 GiB",
            id="at run time",
        ),
        pytest.param(
            OomReport(
                compile_error(used_bytes=20 * GIB, limit_bytes=16 * GIB),
                device=DeviceMemory("TPU v5 lite", 4),
            ),
            "needs 20.00 GiB per device; 16.00 GiB available; 4.00 GiB over the limit",
            id="on several devices",
        ),
        pytest.param(
            OomReport(
                compile_error(
                    used_bytes=20 * GIB - 8 * MIB, limit_bytes=16 * GIB, resolution_bytes=ROUNDED
                ),
                FITTING,
            ),
            "needs 20.00 GiB; 16.00 GiB available; 4.00 GiB over the limit",
            id="the peak is exact where the error is rounded",
        ),
        pytest.param(
            OomReport(
                compile_error(
                    used_bytes=20 * GIB - 8 * MIB, limit_bytes=16 * GIB, resolution_bytes=ROUNDED
                ),
                peak(20 * GIB - 9 * MIB, 20 * GIB),
            ),
            "needs 20.00 GiB; 16.00 GiB available; 4.00 GiB over the limit",
            id="the total allocation counts before the peak",
        ),
        pytest.param(
            OomReport(
                compile_error(
                    used_bytes=21 * GIB, limit_bytes=16 * GIB, resolution_bytes=ROUNDED
                ),
                FITTING,
            ),
            "needs 21.00 GiB; 16.00 GiB available; 5.00 GiB over the limit",
            id="another quantity is not the error's",
        ),
        pytest.param(
            OomReport(compile_error(used_bytes=20 * GIB - 8 * MIB, limit_bytes=16 * GIB), FITTING),
            "needs 19.99 GiB; 16.00 GiB available; 3.99 GiB over the limit",
            id="a figure that is not rounded stays",
        ),
        pytest.param(
            OomReport(
                compile_error(
                    used_bytes=20 * GIB, limit_bytes=16 * GIB, exceeded_by_bytes=5 * GIB
                )
            ),
            "needs 20.00 GiB; 16.00 GiB available; 5.00 GiB over the limit",
            id="the error counts more than the difference",
        ),
        pytest.param(
            OomReport(compile_error(used_bytes=8 * GIB, limit_bytes=16 * GIB)),
            "needs 8.00 GiB; 16.00 GiB available",
            id="nothing is over the limit",
        ),
    ],
)  # fmt: skip
def test_the_figures_read_as_a_sentence(report: OomReport, expected: str) -> None:
    """What was requested, needed, available and free, as far as known and as exact as possible."""
    assert binding_text(report) == expected
    assert headline(report).endswith(f": {expected}" if expected else "ran out of device memory")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (OomMessage("x"), "the program ran out of device memory"),
        (OomMessage("x", "tpu"), "the program ran out of HBM on TPU"),
        (OomMessage("x", memory_space="hbm"), "the program ran out of device memory"),
        (OomMessage("x", memory_space="vmem"), "the program ran out of VMEM"),
        (OomMessage("x", memory_space="host"), "the program ran out of host memory"),
        (OomMessage("x", "gpu", "run"), "the program ran out of device memory at run time on GPU"),
        (OomMessage("x", "cpu"), "the program ran out of memory on CPU"),
    ],
)
def test_the_memory_has_the_name_that_is_known(message: OomMessage, expected: str) -> None:
    """Only a TPU, as far as is known, has a memory that XLA calls HBM."""
    assert headline(OomReport(message)) == f"hbmwatch: {expected}"
