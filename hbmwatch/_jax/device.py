"""What else is on the device: memory statistics, and live arrays of other parts of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from hbmwatch._jax.lowered import named_leaves
from hbmwatch._jax.lowering import lowering_details
from hbmwatch._records.report import DeviceMemory, LiveArrays

_SHOWN_GROUPS = 20
_WITH_ADDRESSES = ("cpu", "gpu", "cuda", "rocm")


def devices_of(lowered: Any | None, args: Any) -> list[Any]:
    """The devices that a program runs on, from its outputs' and arguments' shardings."""
    lists: list[Any] = [lowering_details(lowered).devices]
    try:
        leaves = jax.tree_util.tree_leaves((getattr(lowered, "out_info", None), args))
        lists += [getattr(getattr(x, "sharding", None), "device_set", None) for x in leaves]
    except Exception:  # a user's pytree may refuse to be flattened
        pass
    found = next((devices for devices in lists if devices), ())
    return sorted(found, key=lambda device: device.id)


def device_memory(
    devices: Sequence[Any], args: Any, deleted: tuple[str, ...], at_run_time: bool
) -> DeviceMemory | None:
    """The memory of the fullest of the program's devices; None if no device is known.

    Args:
        devices: The program's devices, of a live backend or of a topology.
        args: The call's arguments and outputs; their arrays do not count.
        deleted: Paths of the donated arguments that are deleted.
        at_run_time: Whether the device was in use when the program failed.
    """
    if not devices:
        return None
    stats = [_stats(device) for device in devices] if at_run_time else [{}]
    full = max(range(len(stats)), key=lambda n: stats[n].get("bytes_in_use", 0))
    return DeviceMemory(
        device_kind=devices[full].device_kind,
        device_count=len(devices),
        limit_bytes=stats[full].get("bytes_limit"),
        in_use_bytes=stats[full].get("bytes_in_use"),
        peak_in_use_bytes=stats[full].get("peak_bytes_in_use"),
        largest_free_bytes=stats[full].get("largest_free_block_bytes"),
        live=_live(devices[full], args) if at_run_time else (),
        deleted=deleted,
    )


def _stats(device: Any) -> Mapping[str, int]:
    try:
        return device.memory_stats() or {}
    except Exception:  # the device of another process, for example
        return {}


def _live(device: Any, args: Any) -> tuple[LiveArrays, ...]:
    """Live arrays on a device that are not arguments of the call, grouped by shape and dtype."""
    leaves = jax.tree_util.tree_leaves(args)
    passed = {id(leaf) for leaf in leaves}
    groups: dict[tuple[tuple[int, ...], str], tuple[int, int]] = {}
    arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array))
    buffers = {buffer_address(array, device) for array in arrays} - {None}
    for array in jax.live_arrays(device.platform):
        if id(array) in passed or device not in array.sharding.device_set:
            continue
        if not _has_memory(array) or (buffer := buffer_address(array, device)) in buffers:
            continue
        buffers |= {buffer} - {None}
        size = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        key = (array.shape, str(array.dtype))
        count, total = groups.get(key, (0, 0))
        groups[key] = (count + 1, total + size)
    live = [LiveArrays(*key, *figures) for key, figures in groups.items()]
    return tuple(sorted(live, key=lambda group: -group.size_bytes)[:_SHOWN_GROUPS])


def _has_memory(array: Any) -> bool:
    """Whether an array has memory: not if it is deleted, or the result of a call that failed."""
    if array.is_deleted():
        return False
    try:
        if array.is_ready():  # waiting for another one could take long
            array.block_until_ready()
    except Exception:
        return False
    return True


def buffer_address(array: Any, device: Any | None = None) -> int | None:
    """The address of an array's memory on a device, by default its first one here; None if unknown.

    Arrays may share memory. XLA aborts the process if it is asked for the address of an array that
    a failed call should have made. For an array that is not ready it waits with Python's lock held,
    forever if the program that makes the array has a callback.
    """
    try:
        device = array.addressable_shards[0].device if device is None else device
        # In this order: an array may become ready, and have failed, between the two.
        if device.platform not in _WITH_ADDRESSES or not (array.is_ready() and _has_memory(array)):
            return None
        if len(array.sharding.device_set) > 1:
            shards = array.addressable_shards
            array = next(shard.data for shard in shards if shard.device == device)
        return int(array.unsafe_buffer_pointer())
    except Exception:  # a tracer, PRNG keys, not on this device, or the device gives no address
        return None


def deleted_arguments(
    fun: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The arguments of a call that are deleted, with their pytree paths."""
    return [
        (path, leaf)
        for path, leaf in named_leaves(fun, args, kwargs)
        if isinstance(leaf, jax.Array)
        and not isinstance(leaf, jax.core.Tracer)
        and leaf.is_deleted()
    ]
