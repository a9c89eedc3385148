"""Every sample gives the message that it states, as one failure."""

from __future__ import annotations

import pytest

from hbmwatch import parse_oom, parse_ooms
from tests.messages.samples import SAMPLES, expected, sample


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_gives_the_message_that_it_states(name: str) -> None:
    """Each sample is read whole: every figure, every listed allocation, and nothing else."""
    assert parse_oom(sample(name)) == expected(name)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_one_oom(name: str) -> None:
    """What belongs to one failure is not reported as several."""
    assert parse_ooms(sample(name)) == (expected(name),)
