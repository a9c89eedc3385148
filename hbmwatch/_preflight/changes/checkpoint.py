"""Put jax.checkpoint around the calls of a function, or around the steps of a scan."""

from __future__ import annotations

from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax.checkpointing import NotRepeatable
from hbmwatch._jax.placed_checkpoints import Placement, candidates, placed
from hbmwatch._preflight.changes.call import Call, Given, NothingToChange
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits
from hbmwatch._preflight.changes.estimate import estimated_peak_bytes

# A place is not compiled if, by its estimate, the peak remains this many times the limit.
_FAR = 2
# By how much the estimated peak of a program has to fall.
_LEAST_GAIN = 0.03
_NOT_THE_STEP = "an earlier change rewrote the program, so it cannot be differentiated again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Edit):
    """The step with jax.checkpoint at a place."""

    numbers_values = True
    traces_again = True

    placement: Placement

    def on(self, call: Call) -> Call:
        """The call of the step with the checkpoint, differentiated again."""
        given = call.given
        if given is None:
            raise NothingToChange(_NOT_THE_STEP)
        step = placed(given.step, self.placement)
        try:
            new = given.varied(step)
        except NotRepeatable as refused:
            raise NothingToChange(str(refused)) from refused
        if not step.is_made:
            place = f"{self.placement.name}, {self.placement.where}"
            raise NothingToChange(
                f"{place}, is not called in what the step differentiates, or only in a "
                "jax.checkpoint"
            )
        # Arguments and outputs are the same, but an earlier change may have moved or donated some.
        if call.lowered:
            return new
        return call.changed(jaxpr=new.jaxpr, constants=new.constants, given=new.given)

    def is_worth_a_compile(self, before: Call, after: Call) -> bool:
        """Whether one of two estimates of the peak falls."""
        return any(
            estimated_peak_bytes(after.jaxpr, fused=fused)
            <= (1 - _LEAST_GAIN) * estimated_peak_bytes(before.jaxpr, fused=fused)
            for fused in (False, True)
        )


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    """The places that save most, by an estimate from shapes, the ungrouped first."""
    if call.given is None:
        raise NothingToChange(_NOT_THE_STEP)
    found = _places(call.given)
    if not found:
        raise NothingToChange(
            "no function is called several times in what the step differentiates, or what is "
            "called is in a jax.checkpoint already; if a Python loop repeats a layer, move its "
            "body into a function, so that plan can try it"
        )
    lowest: tuple[int, int] | None = None  # a measured peak, and what its place was to save
    for placement in found:
        if lowest is not None and asked.limit_bytes is not None:
            peak_bytes, saved_bytes = lowest
            if peak_bytes + saved_bytes - placement.saves_bytes > _FAR * asked.limit_bytes:
                continue
        fit = yield Checkpoint(
            what=placement.what,
            code=placement.code,
            where=(placement.where,),
            placement=placement,
        )
        if fit is not None and fit.peak_bytes is not None:
            measured = fit.peak_bytes, placement.saves_bytes
            lowest = measured if lowest is None else min(lowest, measured)


def _places(given: Given) -> list[Placement]:
    """The places in a step, for which it is traced once."""
    if "checkpoints" not in given.memo:
        given.memo["checkpoints"] = candidates(given.step, *given.args, **given.kwargs)
    places: list[Placement] = given.memo["checkpoints"]
    return places


CHECKPOINT = Change(
    "checkpoint",
    "B",
    "the same values: the backward pass computes parts of the forward pass once more",
    _edits,
)
