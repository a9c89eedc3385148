"""Moves shardings on a topology's devices to the devices of this machine."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from hbmwatch._records.text import plural


def on_live_devices(tree: Any) -> Any:
    """The tree with each sharding on a topology's devices moved to this machine's devices.

    JAX can trace a step only if all of its arrays and shardings are on one set of devices.

    Raises:
        ValueError: There are not enough devices.
    """
    return jax.tree.map(_moved, tree)


def _moved(leaf: Any) -> Any:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or isinstance(leaf, jax.Array):  # an array is on this machine's devices
        return leaf
    live = jax.devices()
    if sharding.device_set <= set(live):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_on(sharding, live))


def _on(sharding: Any, live: list[Any]) -> Any:
    """The same sharding on the first of these devices."""
    count = len(sharding.device_set)
    if count > len(live):
        raise ValueError(
            f"some shardings of the step are on {count} devices of a topology and others are not, "
            f"and this machine has {plural(len(live), 'device')}: put all of them on the topology, "
            f"or set jax_num_cpu_devices to {count}"
        )
    if not isinstance(sharding, NamedSharding):
        return SingleDeviceSharding(live[0])
    old = sharding.mesh
    devices = np.array(live[:count]).reshape(old.devices.shape)
    mesh = Mesh(devices, old.axis_names, axis_types=old.axis_types)
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
