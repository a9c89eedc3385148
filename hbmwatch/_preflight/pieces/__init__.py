"""A program run in pieces along one dimension, one piece after another, with the same values.

`rewrite` works as a sharding propagator does, with pieces in time in place of devices. It goes
through the jaxpr of a step, after differentiation, and finds for each value whether it is whole,
split along a dimension, or partial: a sum, maximum or minimum over the pieces. Where no rule is
sure, or a partial value is needed as a number, the value is made whole and a new stage begins:
another loop over the pieces. So a loss that is no mean, batch norm, or a softmax along the
dimension cost memory, and never change the result.

Gradient accumulation, a `vmap` in chunks, a large vocabulary in chunks, attention in blocks, all
pairs in blocks, and a Jacobian by rows are all this one change.
"""

from hbmwatch._preflight.pieces.analysis import Reason
from hbmwatch._preflight.pieces.rewriting import Rewritten, rewrite
from hbmwatch._preflight.pieces.seeds import Seed, seeds
from hbmwatch._preflight.pieces.split import Refused

__all__ = ["Reason", "Refused", "Rewritten", "Seed", "rewrite", "seeds"]
