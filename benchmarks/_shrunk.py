"""Programs of tests/oom_programs in small sizes, which run on the CPU, to compare their values."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from hbmwatch._preflight.applied import apply
from hbmwatch._preflight.changes import constants, in_loop
from hbmwatch._preflight.changes.call import Call
from hbmwatch._preflight.changes.change import Edit
from hbmwatch._preflight.changes.in_pieces import InPieces
from hbmwatch._preflight.changes.tracing import call_of
from hbmwatch._preflight.pieces.program import flatten
from tests.oom_programs import Case, base

# Sizes above 64 are divided by 64, so that what divides another still does.
_SHIFT = 6
_LEAST = 4


class _Smaller(ast.NodeTransformer):
    """Divides the sizes in a builder; in float32, if asked, also where it says bfloat16."""

    def __init__(self, wide: bool) -> None:
        self.wide = wide

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.LShift) and isinstance(node.right, ast.Constant):
            bits = int(str(node.right.value)) - _SHIFT
            return ast.copy_location(ast.Constant(max(1 << max(bits, 0), _LEAST)), node)
        if isinstance(node.op, ast.Sub) and ast.unparse(node.left) == "p":
            _magnify(node.right)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and node.value > 1 << _SHIFT:
            return ast.copy_location(ast.Constant(max(node.value >> _SHIFT, _LEAST)), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if self.wide and node.attr == "bfloat16":
            return ast.copy_location(ast.Attribute(node.value, "float32", node.ctx), node)
        return self.generic_visit(node)


def _magnify(update: ast.AST) -> None:
    """Make an update of parameters as large as they are, so that an error in it is seen."""
    rates = [each for each in ast.walk(update) if isinstance(each, ast.Constant)]
    for rate in rates[:1]:
        if isinstance(rate.value, float):
            rate.value *= 1e4


def builder(case: Case, *, wide: bool = False) -> Callable[[bool], Any]:
    """The builder of a program with small sizes, under the same lines of the same file."""
    lines, first = inspect.getsourcelines(case.build)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list.clear()
    smaller = ast.fix_missing_locations(_Smaller(wide).visit(tree))
    code = compile(ast.increment_lineno(smaller, first - 1), inspect.getfile(case.build), "exec")
    names = dict(case.build.__globals__)
    exec(code, names)
    made: Callable[[bool], Any] = names[function.name]
    names["devices"] = _cpu_devices
    return made


def _cpu_devices(platform: str) -> tuple[Any, ...]:
    return tuple(jax.devices("cpu")[:4])


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """In the body, programs are built for CPU devices, and small arrays count as large ones."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(base, "devices", _cpu_devices))
        for module in (constants, in_loop):
            stack.enter_context(mock.patch.object(module, "_LARGE_BYTES", 1))
        yield


def error_of(edits: tuple[Edit, ...], step: Any, args: Any, wide_step: Any) -> float:
    """How far the outputs of the changed step are from those of the step, of their maximum.

    In bfloat16 the order of a sum alone changes the values. There it is by how much the changed
    step is farther than the step is from the same step in float32.

    Args:
        edits: The changes, as the plan of the program in its real size has them.
        step: The small step.
        args: Its arguments, by shapes.
        wide_step: The same in float32.
    """
    arrays = jax.tree.map(_filled, args, tuple(_numbered(args)))
    expected = jax.tree.leaves(step(*_copied(arrays)))
    call = call_of(step, args, {}, None)
    small = tuple(_smaller(edit, call) for edit in edits)
    found = jax.tree.leaves(apply(step, small)(*_copied(arrays)))
    error = _distance(found, expected)
    if error <= 1e-5 or not any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(args)):
        return error
    exact = jax.tree.leaves(wide_step(*jax.tree.map(_widened, _copied(arrays))))
    return max(0.0, _distance(found, exact) - _distance(expected, exact))


def _smaller(edit: Edit, call: Call) -> Edit:
    """The same edit of the small program."""
    if not isinstance(edit, InPieces):
        return edit
    program = flatten(call.jaxpr)
    value = next(value for value in program.values if value.index == edit.seed.value)
    size = value.shape[edit.seed.dimension]
    seed = dataclasses.replace(edit.seed, size=size, nbytes=value.nbytes)
    fitting = [n for n in range(2, min(edit.pieces, size) + 1) if size % n == 0]
    pieces = max(fitting) if edit.strided else min(edit.pieces, size)
    return dataclasses.replace(edit, seed=seed, pieces=pieces)


def _numbered(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, range(len(leaves)))


def _filled(leaf: Any, number: int) -> Any:
    """An array of a shape: normal numbers, or small integers."""
    random = np.random.default_rng(number)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        scale = 1 / max(leaf.shape[0], 1) ** 0.5 if len(leaf.shape) > 1 else 1.0
        array = jnp.asarray(random.normal(size=leaf.shape) * scale, leaf.dtype)
    else:
        array = jnp.asarray(random.integers(0, 64, leaf.shape), leaf.dtype)
    return array if leaf.sharding is None else jax.device_put(array, leaf.sharding)


def _copied(arrays: Any) -> Any:
    """Copies, because a step may donate them."""
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), x.sharding), arrays)


def _widened(array: Any) -> Any:
    return array.astype(jnp.float32) if array.dtype == jnp.bfloat16 else array


def _distance(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of an output, as a part of its maximum."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        left, right = (np.asarray(x, np.float64) for x in (one, other))
        assert left.shape == right.shape
        assert np.array_equal(np.isnan(left), np.isnan(right))
        scale = float(np.nanmax(np.abs(right), initial=0.0)) or 1.0
        worst = max(worst, float(np.nanmax(np.abs(left - right), initial=0.0)) / scale)
    return worst
