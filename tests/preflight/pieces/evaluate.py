"""A jaxpr evaluated in NumPy: thousands of small programs without a compile for each.

Control flow and the common primitives are NumPy; every other primitive runs in JAX, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hbmwatch._jax.scans import scan_inputs

_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "cos": np.cos,
    "exp": np.exp,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "log": np.log,
    "log1p": np.log1p,
    "neg": np.negative,
    "not": lambda x: np.logical_not(x) if x.dtype == bool else np.invert(x),
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
    "stop_gradient": lambda x: x,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "name": lambda x: x,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "div": lambda x, y: np.divide(x, y) if x.dtype.kind == "f" else (x / y).astype(int),
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "or": np.bitwise_or,
    "pow": np.power,
    "rem": np.fmod,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}
_REDUCED: dict[str, Callable[..., Any]] = {
    "reduce_and": np.all,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_or": np.any,
    "reduce_prod": np.prod,
    "reduce_sum": np.sum,
}
_CALLS = ("pjit", "jit", "closed_call", "remat2", "checkpoint", "custom_jvp_call")
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def evaluate(body: Any, args: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr."""
    closed = isinstance(body, ClosedJaxpr)
    jaxpr, consts = (body.jaxpr, body.consts) if closed else (body, ())
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom: Any) -> Any:
        if not isinstance(atom, Literal):
            return known[atom]
        return np.asarray(atom.val, atom.aval.dtype)  # type: ignore[attr-defined]

    with np.errstate(all="ignore"):
        for equation in jaxpr.eqns:
            outputs = _equation(equation, [read(atom) for atom in equation.invars])
            for variable, output in zip(equation.outvars, outputs, strict=True):
                known[variable] = _typed(output, variable.aval)
    return [read(atom) for atom in jaxpr.outvars]


def _typed(array: Any, aval: Any) -> Any:
    """The array in the type that the equation promises, and never of another shape."""
    assert tuple(np.shape(array)) == tuple(aval.shape), (np.shape(array), aval)
    if isinstance(array, jax.Array) or jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
        return array
    return np.asarray(array, aval.dtype)


def _equation(equation: Any, args: Sequence[Any]) -> list[Any]:
    name, p = equation.primitive.name, equation.params
    if name in _UNARY and _plain(args):
        return [_UNARY[name](*args)]
    if name in _BINARY and _plain(args):
        return [_BINARY[name](*args)]
    if name in _REDUCED and _plain(args):
        return [_REDUCED[name](args[0], axis=tuple(p["axes"]))]
    if name in _CONTROL:
        return _CONTROL[name](p, args)
    if name in _CALLS or name.startswith("custom_vjp_call"):
        return evaluate(next(p[key] for key in _BODIES if key in p), args)
    if name in _SHAPED and _plain(args):
        return [_SHAPED[name](p, *args)]
    if name == "threefry2x32" and _plain(args):
        return _threefry(*args)
    return _in_jax(equation, args)


def _plain(args: Sequence[Any]) -> bool:
    return all(isinstance(arg, np.ndarray) for arg in args)


def _in_jax(equation: Any, args: Sequence[Any]) -> list[Any]:
    """One equation in JAX, and its outputs as NumPy arrays where they are numbers."""
    params = equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)
    made = equation.primitive.bind(*functions, *args, **params)
    outputs = made if equation.primitive.multiple_results else [made]
    extended = jax.dtypes.extended
    return [x if jax.numpy.issubdtype(x.dtype, extended) else np.asarray(x) for x in outputs]


def _scan(p: Any, args: Sequence[Any]) -> list[Any]:
    consts, carried = scan_inputs(p)
    first = consts + carried
    carry, rows = list(args[consts:first]), args[first:]
    steps = range(p["length"])[:: -1 if p["reverse"] else 1]
    made: list[Any] = [None] * p["length"]
    for k in steps:
        outputs = evaluate(p["jaxpr"], [*args[:consts], *carry, *(row[k] for row in rows)])
        carry, made[k] = outputs[:carried], outputs[carried:]
    return [*carry, *(_stack(row) for row in zip(*made, strict=True))]


def _stack(rows: Sequence[Any]) -> Any:
    plain = all(isinstance(row, (np.ndarray, np.generic)) for row in rows)
    return np.stack(rows) if plain else jax.numpy.stack(rows)


def _while(p: Any, args: Sequence[Any]) -> list[Any]:
    tests, first = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    carry = list(args[first:])
    while evaluate(p["cond_jaxpr"], [*args[:tests], *carry])[0]:
        carry = evaluate(p["body_jaxpr"], [*args[tests:first], *carry])
    return carry


def _cond(p: Any, args: Sequence[Any]) -> list[Any]:
    branch = int(np.clip(int(args[0]), 0, len(p["branches"]) - 1))
    return evaluate(p["branches"][branch], args[1:])


_CONTROL: dict[str, Callable[[Any, Sequence[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "optimization_barrier": lambda p, args: list(args),
}


def _threefry(one: Any, two: Any, x: Any, y: Any) -> list[Any]:
    """Threefry with 20 rounds, as in Salmon et al., SC 2011: JAX compiles it for each shape."""
    keys = one, two, one ^ two ^ np.uint32(0x1BD11BDA)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = x ^ (y << np.uint32(rotation) | y >> np.uint32(32 - rotation))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return [x, y]


def _dot(p: Any, x: Any, y: Any) -> Any:
    (left, right), (left_batch, right_batch) = p["dimension_numbers"]
    names = iter("abcdefghijklmnopqrstuvwxyz")
    lhs, rhs = [""] * x.ndim, [""] * y.ndim
    for a, b in (*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)):
        lhs[a] = rhs[b] = next(names)
    lhs, rhs = [n or next(names) for n in lhs], [n or next(names) for n in rhs]
    free = [n for d, n in enumerate(lhs) if d not in (*left, *left_batch)]
    free += [n for d, n in enumerate(rhs) if d not in (*right, *right_batch)]
    out = "".join([*(lhs[d] for d in left_batch), *free])
    return np.einsum(f"{''.join(lhs)},{''.join(rhs)}->{out}", x, y)


def _broadcast(p: Any, x: Any) -> Any:
    shape = [1] * len(p["shape"])
    for d, size in zip(p["broadcast_dimensions"], x.shape, strict=True):
        shape[d] = size
    return np.broadcast_to(x.reshape(shape), p["shape"])


def _iota(p: Any) -> Any:
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = -1
    return np.broadcast_to(np.arange(p["shape"][p["dimension"]]).reshape(shape), p["shape"])


def _slice(p: Any, x: Any) -> Any:
    strides = p["strides"] or (1,) * x.ndim
    limits = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in limits)]


def _block(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The block from `starts` on, moved so that it lies inside, as XLA does."""
    first = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(s, s + k) for s, k in zip(first, sizes, strict=True))


def _updated(p: Any, x: Any, update: Any, *starts: Any) -> Any:
    made = x.copy()
    made[_block(x, starts, update.shape)] = update
    return made


def _select(p: Any, which: Any, *cases: Any) -> Any:
    return np.choose(np.broadcast_to(which, cases[0].shape).astype(int), cases)


_SHAPED: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "clamp": lambda p, low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "convert_element_type": lambda p, x: x.astype(p["new_dtype"]),
    "cumsum": lambda p, x: (
        np.flip(np.cumsum(np.flip(x, p["axis"]), p["axis"]), p["axis"])
        if p["reverse"]
        else np.cumsum(x, p["axis"])
    ),
    "dot_general": _dot,
    "dynamic_slice": lambda p, x, *starts: x[_block(x, starts, p["slice_sizes"])],
    "dynamic_update_slice": _updated,
    "integer_pow": lambda p, x: x ** float(p["y"]) if p["y"] < 0 else x ** p["y"],
    "iota": _iota,
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "rev": lambda p, x: np.flip(x, tuple(p["dimensions"])),
    "select_n": _select,
    "slice": _slice,
    "squeeze": lambda p, x: x.squeeze(tuple(p["dimensions"])),
    "transpose": lambda p, x: x.transpose(p["permutation"]),
}
