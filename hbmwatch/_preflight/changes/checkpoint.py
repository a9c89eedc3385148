"""Put jax.checkpoint around the calls of a function, or around the steps of a scan."""

from __future__ import annotations

from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._jax.checkpointing import NotRepeatable
from hbmwatch._jax.placed_checkpoints import Placement, candidates, placed
from hbmwatch._preflight.changes.call import Call, NothingToChange
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits

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
        # Arguments and outputs are the same, but an earlier change may have moved or donated some.
        if call.lowered:
            return new
        return call.changed(jaxpr=new.jaxpr, constants=new.constants, given=new.given)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    """The places that save most, by an estimate from shapes, the ungrouped first."""
    if call.given is None:
        raise NothingToChange(_NOT_THE_STEP)
    found = candidates(call.given.step, *call.given.args, **call.given.kwargs)
    if not found:
        raise NothingToChange(
            "no function is called several times in what the step differentiates, or what is "
            "called is in a jax.checkpoint already; if a Python loop repeats a layer, move its "
            "body into a function, so that plan can try it"
        )
    for placement in found:
        yield Checkpoint(
            what=placement.what,
            code=placement.code,
            where=(placement.where,),
            placement=placement,
        )


CHECKPOINT = Change(
    "checkpoint",
    "B",
    "the same values: the backward pass computes parts of the forward pass once more",
    _edits,
)
