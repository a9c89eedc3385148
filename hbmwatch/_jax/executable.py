"""The private parts of JAX's compiled programs; only this module reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def direct_call(compiled: Any) -> Callable[..., Any] | None:
    """The C++ call of a jax.stages.Compiled that has been called before; None for anything else.

    Compiled.__call__, a method in Python, makes it on the first call and only calls it afterwards.
    Without that method in between, a watched program takes no longer than a bare one.
    """
    # isinstance would be true of a watched program, too.
    return getattr(compiled, "_call", None) if type(compiled) is jax.stages.Compiled else None


def hlo_module(compiled: Any) -> tuple[str, bytes]:
    """The name of a compiled program's HLO module, and the module as a serialized HloModuleProto.

    Raises:
        Exception: Of any class, where the backend refuses, or where JAX lacks the names.
    """
    plain = getattr(compiled, "compiled", compiled)  # equinox and flax wrap it
    module = plain.runtime_executable().hlo_modules()[0]
    return module.name, module.as_serialized_hlo_module_proto()
