"""A watch with `prove=` ends its report with a change that fits; without it, it says how to ask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from hbmwatch import HbmOomError, watch_hbm
from hbmwatch._preflight.tries import Tried, Tries
from tests.programs import devices


def decay(state: Any) -> Any:
    """The old and the new state are too large together."""
    return 0.9 * state


def lowered(step: Any) -> Any:
    """The step for a v5e, with a state of 10 GiB."""
    one = SingleDeviceSharding(devices("tpu")[0])
    return step.lower(jax.ShapeDtypeStruct((10, 16384, 16384), jnp.float32, sharding=one))


def last_line(step: Any, start: str = "plan: ") -> str:
    """The end of the report of the failing compile."""
    with pytest.raises(HbmOomError) as caught:
        lowered(step).compile()
    return str(caught.value.report).rpartition(f"  {start}")[2].replace("\n", " ")


@pytest.mark.slow
@pytest.mark.tpu
def test_the_report_ends_with_the_best_change(tmp_path: Any) -> None:
    """The verdict on it, what to write, and what it does to the values."""
    one = SingleDeviceSharding(devices("tpu")[0])
    step = watch_hbm(decay, logdir=tmp_path, prove=60, out_shardings=one)
    told = " ".join(last_line(step).split())

    assert told.startswith("donation fits v5e:1x1: needs 10.00 GiB")
    assert told.endswith(
        "Write: jax.jit(step, donate_argnames='state'), and use only the returned values "
        "afterwards. Values: the same program: the values are the same"
    )


@pytest.mark.slow
@pytest.mark.tpu
def test_without_it_the_report_says_how_to_ask(tmp_path: Any) -> None:
    """Its last line names the function and the step."""
    one = SingleDeviceSharding(devices("tpu")[0])
    step = watch_hbm(decay, logdir=tmp_path, out_shardings=one)

    how = "To search for a change that makes the step fit: "
    assert last_line(step, how) == "hbmwatch.plan(decay, ...)"


@pytest.mark.slow
@pytest.mark.tpu
def test_ctrl_c_ends_the_program_and_not_only_the_plan(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever catches the OOM, to go on with a smaller batch, does not catch the interrupt."""
    real = Tries.keep

    def interrupted(self: Tries, tried: Tried) -> Tried:
        real(self, tried)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tries, "keep", interrupted)  # a stub in place of the user's key
    one = SingleDeviceSharding(devices("tpu")[0])
    step = watch_hbm(decay, logdir=tmp_path, prove=60, out_shardings=one)

    with pytest.raises(KeyboardInterrupt) as stopped:
        lowered(step).compile()

    (note,) = stopped.value.__notes__
    assert note.startswith("hbmwatch: plan: donation fits v5e:1x1: needs 10.00 GiB")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "60"])
def test_only_seconds_can_be_given(seconds: Any) -> None:
    """Anything else is refused at decoration."""
    with pytest.raises(ValueError, match="prove must be a number of seconds above 0"):
        watch_hbm(decay, prove=seconds)
