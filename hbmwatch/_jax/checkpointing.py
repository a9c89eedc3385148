"""A forward pass with jax.checkpoint around the calls of one function.

The jaxpr is rewritten, not traced again: the equations of a call become the body of one equation
of jax.checkpoint. All other equations, and so the values, stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun

from hbmwatch._jax.calls import Function
from hbmwatch._jax.forward import Body, Run, calls_in, is_repeatable, with_bodies
from hbmwatch._jax.scans import scan_inputs


class NotRepeatable(ValueError):
    """A checkpoint cannot be placed there; the text says why."""


def checkpointed(body: Body, function: Function, group: int = 1, each: bool = True) -> Any:
    """The jaxpr of a forward pass, with a checkpoint around each call of a function.

    Args:
        body: The forward pass.
        function: The function.
        group: How many calls in a row are in one more checkpoint; 1 places none.
        each: Whether each call gets one. False where the user has placed it already.
    """
    return _Rewriting(function, group, each).run(body, in_loop=False)


class _Rewriting:
    def __init__(self, function: Function, group: int, each: bool) -> None:
        self.function = function
        self.group = group
        self.each = each
        self.done: dict[tuple[int, bool], Any] = {}

    def run(self, body: Body, in_loop: bool) -> Any:
        """The jaxpr of a body. Each is rewritten once, so that equations share it as before."""
        key = (id(body), in_loop)
        if key not in self.done:
            self.done[key] = self._rewritten(body, in_loop)
        return self.done[key]

    def _rewritten(self, body: Body, in_loop: bool) -> Any:
        runs = body.runs.get(self.function, [])
        equations = [
            equation
            if any(run.start <= index < run.stop for run in runs)
            else self._inside(equation, body.inner.get(index, ()), in_loop)
            for index, equation in enumerate(body.equations)
        ]
        groups = self.group > 1 and len(runs) > self.group
        unchanged = all(new is old for new, old in zip(equations, body.equations))
        if unchanged and not (groups or (runs and self.each)):
            return body.closed
        jaxpr = body.closed.jaxpr
        example = _example(in_loop) if runs else None
        wrap = functools.partial(_wrapped, outputs=jaxpr.outvars, example=example)
        if self.each:
            equations, runs = wrap(equations, runs)
        if groups:
            equations, _ = wrap(equations, _groups(runs, self.group))
        return body.closed.replace(jaxpr=jaxpr.replace(eqns=equations))

    def _inside(self, equation: Any, bodies: Sequence[Body], in_loop: bool) -> Any:
        """An equation, with the checkpoints that belong in its bodies."""
        scans = equation.primitive.name == "scan"
        new = [self.run(body, in_loop or scans) for body in bodies]
        if any(one is not body.closed for one, body in zip(new, bodies)):
            equation = with_bodies(equation, new)
        if scans and self.group > 1 and calls_in(bodies[0], self.function) == 1:
            return _in_groups(equation, self.group)
        return equation


def _groups(runs: Sequence[Run], group: int) -> list[Run]:
    """Each `group` runs as one, with the equations between them."""
    parts = [runs[i : i + group] for i in range(0, len(runs), group)]
    return [Run(part[0].start, part[-1].stop, part[0].call) for part in parts]


def _wrapped(
    equations: Sequence[Any], runs: Sequence[Run], *, outputs: Sequence[Any], example: Any
) -> tuple[list[Any], list[Run]]:
    """The equations with each run in a checkpoint, and where these are now."""
    last = {value: len(equations) for value in outputs if not isinstance(value, Literal)}
    for index in reversed(range(len(equations))):
        for value in equations[index].invars:
            if not isinstance(value, Literal):
                last.setdefault(value, index)
    wrapped: list[Any] = []
    places: list[Run] = []
    done = 0
    for run in runs:
        wrapped += equations[done : run.start]
        part = equations[run.start : run.stop]
        made = dict.fromkeys(v for each in part for v in each.outvars)
        out = [value for value in made if last.get(value, -1) >= run.stop]
        places.append(Run(len(wrapped), len(wrapped) + 1, run.call))
        wrapped.append(_checkpoint(part, made, out, example))
        done = run.stop
    return wrapped + list(equations[done:]), places


def _checkpoint(part: Sequence[Any], made: Any, outputs: Sequence[Any], example: Any) -> Any:
    """One equation of jax.checkpoint in place of several equations."""
    inputs = list(
        dict.fromkeys(
            value
            for equation in part
            for value in equation.invars
            if not isinstance(value, Literal) and value not in made
        )
    )
    effects = frozenset().union(*(equation.effects for equation in part))
    if not is_repeatable(effects):
        raise NotRepeatable("effects that must happen once are between the calls of a group")
    old = example.params["jaxpr"]
    debug = old.debug_info._replace(
        arg_names=("",) * len(inputs), result_paths=("",) * len(outputs)
    )
    body = Jaxpr((), inputs, outputs, part, effects, debug)
    return example.replace(
        invars=inputs,
        outvars=list(outputs),
        params={**example.params, "jaxpr": body},
        effects=effects,
        source_info=part[0].source_info,
        ctx=part[0].ctx,
    )


def _example(in_loop: bool) -> Any:
    """An equation of jax.checkpoint. In the body of a loop XLA needs no barrier."""
    function = jax.checkpoint(lambda x: x, prevent_cse=not in_loop)
    return jax.make_jaxpr(function)(0.0).jaxpr.eqns[0]


def _in_groups(equation: Any, group: int) -> Any:
    """A scan as a scan over groups of its steps, each group in a checkpoint."""
    params = equation.params
    layout = scan_inputs(params)
    length = params["length"]
    if length % group:
        raise NotRepeatable(f"{length} steps of a scan make no groups of {group}")
    constants, carried = layout.constants, layout.carried
    step = jaxpr_as_fun(params["jaxpr"])

    def grouped(*values: Any) -> list[Any]:
        shared, carry, xs = (
            values[:constants],
            list(values[constants : constants + carried]),
            values[constants + carried :],
        )

        def one(carry: Any, x: Any) -> tuple[Any, Any]:
            outputs = step(*shared, *carry, *x)
            return outputs[:carried], outputs[carried:]

        def steps(carry: Any, x: Any) -> tuple[Any, Any]:
            return lax.scan(one, carry, x, length=group, reverse=params["reverse"])

        body = jax.checkpoint(steps, prevent_cse=False)
        cut = [x.reshape(length // group, group, *x.shape[1:]) for x in xs]
        carry, ys = lax.scan(body, carry, cut, length=length // group, reverse=params["reverse"])
        return [*carry, *(y.reshape(length, *y.shape[2:]) for y in ys)]

    shapes = [_shape(value.aval) for value in equation.invars]
    traced = jax.make_jaxpr(jax.jit(grouped))(*shapes)
    if traced.consts or [v.aval for v in traced.jaxpr.outvars] != [
        v.aval for v in equation.outvars
    ]:
        raise NotRepeatable("the scan makes values of other types in groups")
    return traced.jaxpr.eqns[-1].replace(
        invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info
    )


def _shape(aval: Any) -> Any:
    weak = getattr(aval, "weak_type", False)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)
