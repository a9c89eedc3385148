"""Primitives that work along some dimensions, and on each row of the others alone."""

from __future__ import annotations

from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Axes, Rule, same


def _but(parameter: str) -> Rule:
    """All dimensions but the one that a parameter names."""

    def axes(node: Node) -> Axes:
        rank = len(node.shapes[0])
        along = int(node.params[parameter]) % rank
        return same(node, [d for d in range(rank) if d != along])

    return Rule(axes)


def _top_k_axes(node: Node) -> Axes:
    """All dimensions but the searched one: the last, where a version of JAX does not say."""
    rank = len(node.shapes[0])
    along = int(node.params.get("axis", -1)) % rank
    return same(node, [d for d in range(rank) if d != along])


def _fft_axes(node: Node) -> Axes:
    rank = len(node.shapes[0])
    return same(node, range(rank - len(node.params["fft_lengths"])))


def _matrix_axes(node: Node) -> Axes:
    """The batch dimensions, which lead in all inputs and outputs."""
    return same(node, range(len(node.shapes[0]) - 2))


def _window_axes(node: Node) -> Axes:
    """The dimensions over which the window does not slide."""
    p, shape = node.params, node.shapes[0]
    ones = (1,) * len(shape)
    dims = []
    for d in range(len(shape)):
        still = p["window_dimensions"][d] == 1 and p["window_strides"][d] == 1
        still = still and tuple(p["padding"][d]) == (0, 0)
        still = still and (p.get("base_dilation") or ones)[d] == 1
        if still and (p.get("window_dilation") or ones)[d] == 1:
            dims.append(d)
    return same(node, dims)


RULES = {
    **{name: _but("axis") for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "sort": _but("dimension"),
    "top_k": Rule(_top_k_axes),
    "fft": Rule(_fft_axes),
    **{
        name: Rule(_matrix_axes)
        for name in ("cholesky", "eigh", "lu", "qr", "svd", "triangular_solve")
    },
    "reduce_window_sum": Rule(_window_axes),
    "reduce_window_max": Rule(_window_axes),
    "reduce_window_min": Rule(_window_axes),
    "select_and_scatter_add": Rule(_window_axes),
    "select_and_gather_add": Rule(_window_axes),
}
