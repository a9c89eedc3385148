"""How the inputs of a scan equation are laid out, which differs by version of jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ScanInputs(NamedTuple):
    """How many constants and carried values a scan takes, in this order, before what it scans."""

    constants: int
    carried: int


def scan_inputs(params: Mapping[str, Any]) -> ScanInputs:
    """The layout of the inputs, from the parameters of a scan equation."""
    if "ft_in" in params:  # since jax 0.12, in place of the two numbers
        constants, carried, _ = params["ft_in"].unpack()
        return ScanInputs(len(constants), len(carried))
    return ScanInputs(params["num_consts"], params["num_carry"])
