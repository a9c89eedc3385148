"""Pytree paths, as JAX writes them."""

from __future__ import annotations


def path_keys(path: str) -> list[str]:
    """The keys of a path: "state", ".opt", "['mu']" and "[0]" of "state.opt['mu'][0]"."""
    parts = path.replace("].", "]\0.").replace("[", "\0[").replace(".", "\0.").split("\0")
    return [part for part in parts if part]


def path_prefix(path: str, most: int) -> str:
    """The first keys of a path: of "state.opt['mu'][0]" with 2 "state.opt"."""
    return "".join(path_keys(path)[:most])
