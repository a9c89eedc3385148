"""The changes that make a step need less memory, one file each, in the order they are tried."""

from hbmwatch._preflight.changes.batch import HALF_BATCH
from hbmwatch._preflight.changes.callbacks import CALLBACKS
from hbmwatch._preflight.changes.change import Change
from hbmwatch._preflight.changes.checkpoint import CHECKPOINT
from hbmwatch._preflight.changes.constants import CONSTANTS
from hbmwatch._preflight.changes.constraints import CONSTRAINTS
from hbmwatch._preflight.changes.donation import DONATION
from hbmwatch._preflight.changes.dtype import BFLOAT16, KEPT_DTYPE
from hbmwatch._preflight.changes.host import HOST_OUTPUTS, HOST_STATE
from hbmwatch._preflight.changes.in_bodies import BODIES
from hbmwatch._preflight.changes.in_loop import IN_LOOP
from hbmwatch._preflight.changes.in_pieces import PIECES
from hbmwatch._preflight.changes.shard_arguments import SHARDING, STATE_SHARDING
from hbmwatch._preflight.changes.shard_outputs import OUTPUT_SHARDING

CHANGES: tuple[Change, ...] = (
    CONSTANTS,
    DONATION,
    OUTPUT_SHARDING,
    STATE_SHARDING,
    SHARDING,
    IN_LOOP,
    CHECKPOINT,
    PIECES,
    BODIES,
    CONSTRAINTS,
    HOST_OUTPUTS,
    HOST_STATE,
    CALLBACKS,
    KEPT_DTYPE,
    BFLOAT16,
    HALF_BATCH,
)
BY_NAME = {change.name: change for change in CHANGES}
