"""The type of a watched function, as a type checker sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import jax

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
Logdir = str | os.PathLike[str]


class Watched(Protocol[P, R]):
    """A watched function: called like the bare one, and a jax.stages.Wrapped unless jit=False."""

    __name__: str
    __wrapped__: Callable[..., Any]
    lower: Callable[..., jax.stages.Lowered]
    trace: Callable[..., jax.stages.Traced]
    eval_shape: Callable[..., Any]
    clear_cache: Callable[[], None]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the step."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Watched[P, R]: ...

    @overload
    def __get__(
        self: Watched[Concatenate[Any, Q], S], instance: object, owner: type | None = None
    ) -> Callable[Q, S]: ...
