"""The options that a function was jitted with; only this module reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class JitOptions:
    """What jax.jit was told about a function, as far as another jit has to be told it too.

    Attributes:
        static_argnums: The positions of the static arguments.
        static_argnames: The names of the static keyword arguments.
        compiler_options: The options for XLA.
    """

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    compiler_options: Mapping[str, Any] = field(default_factory=dict)

    def _numbers(self, args: tuple[Any, ...]) -> set[int]:
        """The positions of those arguments that are static."""
        return {n % len(args) for n in self.static_argnums if args and n < len(args)}

    def dynamic(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without the static ones."""
        numbers = self._numbers(args)
        return (
            tuple(arg for number, arg in enumerate(args) if number not in numbers),
            {name: arg for name, arg in kwargs.items() if name not in self.static_argnames},
        )

    def static(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The static arguments, each with its position or its name."""
        numbers = self._numbers(args)
        return (
            tuple((number, args[number]) for number in sorted(numbers)),
            tuple((name, kwargs[name]) for name in sorted(kwargs) if name in self.static_argnames),
        )

    def filled(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with other dynamic ones."""
        numbers = self._numbers(args)
        positional, named = dynamic
        rest = iter(positional)
        new = tuple(arg if number in numbers else next(rest) for number, arg in enumerate(args))
        return new, {**kwargs, **named}


def jit_options(step: Any) -> JitOptions | None:
    """The options of what jax.jit returned, also if it is watched; None for anything else.

    Raises:
        RuntimeError: This version of JAX keeps them elsewhere.
    """
    info = getattr(step, "_jit_info", None)
    if info is None:
        if isinstance(step, type(jax.jit(lambda: None))):
            raise RuntimeError("this version of JAX does not say which arguments are static")
        return None
    return JitOptions(
        tuple(info.static_argnums), tuple(info.static_argnames), dict(info.compiler_options_kvs)
    )
