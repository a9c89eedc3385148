"""Stored verdicts, by everything that decides them: an unchanged step is not compiled again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hbmwatch._explain.build import versions
from hbmwatch._jax.request import (
    CompileRequest,
    compile_request,
    lower_for,
    without_locations,
)
from hbmwatch._jax.user_paths import user_call_info
from hbmwatch._preflight.assigned import Proof, compile_request_for
from hbmwatch._preflight.fits import check_options, fit_of
from hbmwatch._preflight.targets import Target, resolve, target_of
from hbmwatch._preflight.verdicts import Fit

_KEPT = 256
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def default_folder() -> Path:
    """Where verdicts are stored: a folder in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hbmwatch"


def cached_fit(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    on: Any,
    folder: Path | None,
    proof: Proof = "assigned",
    limit_bytes: int | None = None,
    timeout_s: float = 600.0,
    memory_fraction: float | None = None,
) -> Fit:
    """What `fits` returns; from the cache if the same program was compiled before.

    Args:
        step: As for `fits`.
        args: The step's positional arguments.
        kwargs: The step's keyword arguments.
        on: The target.
        folder: Where verdicts are stored; None compiles each time.
        proof: How the verdict is reached.
        limit_bytes: A limit to use instead of the device's.
        timeout_s: Seconds until the compiler is killed; the time to trace the step is not limited.
        memory_fraction: The share of a GPU's memory that the program gets.
    """
    check_options(proof, limit_bytes, timeout_s, memory_fraction)
    start = time.monotonic()
    target = None if on is None else resolve(on, memory_fraction)
    lowered = lower_for(step, args, kwargs, None if target is None else target.platform)
    target = target or target_of(lowered, memory_fraction)
    request = compile_request(lowered)
    file = None if folder is None else folder / f"{_key(request, target, proof, limit_bytes)}.json"
    known = None if file is None else _load(file)
    if known is not None:
        return dataclasses.replace(known, seconds=time.monotonic() - start, cpu_seconds=0.0)
    compiled = compile_request_for(request, target, proof=proof, timeout_s=timeout_s)
    call = functools.partial(user_call_info, lowered, step, args, kwargs)
    fit = fit_of(lowered, target, compiled, limit_bytes, time.monotonic() - start, call)
    if file is not None and fit.fits is not None:
        _store(file, fit)
    return fit


def _key(request: CompileRequest, target: Target, proof: Proof, limit_bytes: int | None) -> str:
    """A hash of everything that decides the verdict.

    Code that only moved to other lines is the same program, so a report from the cache may name its
    old lines.
    """
    devices = [int(device.id) for device in request.devices]
    flags = [os.environ.get(name, "") for name in _FLAGS]
    rest = [repr(target), proof, limit_bytes, sorted(versions().items()), devices, flags]
    digest = hashlib.sha256(json.dumps(rest).encode())
    for part in (without_locations(request.module), request.options):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def _load(file: Path) -> Fit | None:
    """The verdict in a file; None if there is no file, or none that can be read."""
    try:
        return Fit.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _store(file: Path, fit: Fit) -> None:
    """Store a verdict, and drop the oldest ones; a cache that cannot be written is ignored."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(fit.to_dict()), encoding="utf-8")
        partial.replace(file)
        kept = sorted(file.parent.glob("*.json"), key=lambda one: -one.stat().st_mtime)
        for old in kept[_KEPT:]:
            old.unlink()
