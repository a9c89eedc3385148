"""Primitives that make each element from the elements at the same place."""

from __future__ import annotations

from hbmwatch._preflight.pieces.program import Node
from hbmwatch._preflight.pieces.rules.axis import Axes, Axis, Rule

NAMES = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos
    cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a
    igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min
    mul name ne neg nextafter not one_minus_square or polygamma population_count pow real
    reduce_precision regularized_incomplete_beta rem reshard round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan
    tanh xor zeta
    """.split()
)


def _axes(node: Node) -> Axes:
    """Each dimension of the output; an input of size 1 there, or without dimensions, lacks it."""
    (out,) = node.outputs
    if any(len(shape) not in (0, len(out.shape)) for shape in node.shapes):
        return []
    axes = []
    for d, size in enumerate(out.shape):
        ins = tuple(d if shape and shape[d] == size else None for shape in node.shapes)
        stretched = all(
            position is not None or not shape or shape[d] == 1
            for position, shape in zip(ins, node.shapes, strict=True)
        )
        if stretched and any(position is not None for position in ins):
            axes.append(Axis(ins, (d,)))
    return axes


RULES = {name: Rule(_axes) for name in NAMES}
