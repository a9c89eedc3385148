"""Donate the arguments that are returned updated, so that old and new values share their memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hbmwatch._analysis.facts import ProgramFacts
from hbmwatch._findings.donation import donate_keyword, undonated
from hbmwatch._preflight.changes.call import Call, NothingToChange, names
from hbmwatch._preflight.changes.change import Asked, Change, Edit, Edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Donate(Edit):
    """Donation of some arguments, whose outputs get their shardings."""

    arguments: tuple[int, ...]

    def on(self, call: Call) -> Call:
        """The call with these arguments donated.

        A donated buffer is reused only by an output with the same sharding, so an output that XLA
        may place freely gets the sharding of its argument.
        """
        pairs = call.updated()
        donated = {i: dataclasses.replace(call.arguments[i], donated=True) for i in self.arguments}
        placed = {
            pairs[i]: call.outputs[pairs[i]].at(call.arguments[i].sharding)
            for i in self.arguments
            if i in pairs and call.mesh is not None and call.arguments[i].sharding is not None
        }
        return call.with_arguments(donated).with_outputs(placed)


def _edits(call: Call, facts: ProgramFacts | None, asked: Asked) -> Edits:
    if asked.paths:
        chosen = asked.chosen(call)
    else:
        pairs = undonated(facts) if facts is not None else []
        advised = {argument.leaf.path for argument, _ in pairs if argument.leaf is not None}
        chosen = {i for i, leaf in enumerate(call.arguments) if leaf.path in advised}
    if not chosen:
        raise NothingToChange(
            "nothing to donate: the step updates and returns no undonated argument"
        )
    leaves = [call.arguments[i] for i in sorted(chosen)]
    keyword = donate_keyword([leaf.path for leaf in leaves])
    yield Donate(
        what=f"donating {names(leaves)}",
        code=f"jax.jit(step, {keyword}), and use only the returned values afterwards",
        arguments=tuple(sorted(chosen)),
    )


DONATION = Change("donation", "A", "the same program: the values are the same", _edits)
