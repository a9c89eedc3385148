"""Paths as the user writes them, of the arguments of equinox and flax nnx."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hbmwatch import HbmOomError, fits, watch_hbm
from hbmwatch._jax import wrappers
from hbmwatch._jax.lowered import CallInfo, Leaf, array_leaves, call_info
from hbmwatch._jax.lowering import plain_lowered
from hbmwatch._jax.user_paths import with_user_paths
from hbmwatch._jax.wrappers import with_bound_arguments

optax = pytest.importorskip("optax")
ROWS = 2**46  # times 256 features: no computer has that much memory


def named(function: Any, lowered: Any, *args: Any, **kwargs: Any) -> Mapping[tuple[int, ...], str]:
    """The user's paths of the arguments, by their shapes, which all differ."""
    call = call_info(plain_lowered(lowered))
    call = with_user_paths(call, array_leaves(function, args, kwargs))
    return {leaf.shape: leaf.user_path for leaf in call.arguments}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donate", ["none", "all", "all-except-first"])
def test_the_lists_of_filter_jit_have_the_paths_of_the_arguments(donate: str) -> None:
    """Whatever is donated, and so whichever of the two lists comes first."""
    eqx = pytest.importorskip("equinox")

    def step(model: Any, state: Any, x: Any, *, scale: Any) -> Any:
        return x.sum() * scale.sum() + sum(
            leaf.sum() for leaf in jax.tree.leaves(eqx.filter((model, state), eqx.is_array))
        )

    model = eqx.nn.MLP(2, 3, 5, 1, key=jax.random.key(0))
    state = [jnp.ones(7), {"mu": jnp.ones(11), "nu": jnp.ones(13)}]
    args, scale = (model, state, jnp.ones(17)), jnp.ones(19)
    lowered = eqx.filter_jit(step, donate=donate).lower(*args, scale=scale)

    assert named(step, lowered, *args, scale=scale) == {
        (5, 2): "model.layers[0].weight",
        (5,): "model.layers[0].bias",
        (3, 5): "model.layers[1].weight",
        (3,): "model.layers[1].bias",
        (7,): "state[0]",
        (11,): "state[1]['mu']",
        (13,): "state[1]['nu']",
        (17,): "x",
        (19,): "scale",
    }


def test_the_states_of_nnx_jit_have_the_paths_of_the_modules() -> None:
    """The moments are named by the attributes of the module; other arguments are as named."""
    nnx = pytest.importorskip("flax.nnx")
    if not hasattr(nnx, "List"):
        pytest.skip("this flax has no nnx.List")

    class Model(nnx.Module):  # type: ignore[misc,name-defined]
        """Attributes that are not in the order of their names."""

        def __init__(self) -> None:
            self.up = nnx.Param(jnp.ones(3))
            self.layers = nnx.List([nnx.Param(jnp.ones(size)) for size in (5, 7)])
            self.down = nnx.Variable(jnp.ones(11))

    class Moments(nnx.Module):  # type: ignore[misc,name-defined]
        """As an optimizer has them."""

        def __init__(self) -> None:
            self.nu = nnx.data({"up": nnx.Variable(jnp.ones(13))})
            self.mu = nnx.data({"up": nnx.Variable(jnp.ones(17))})

    def step(model: Any, moments: Any, batch: Any) -> Any:
        leaves = jax.tree.leaves((nnx.state(model), nnx.state(moments)))
        return batch["x"].sum() + sum(leaf.sum() for leaf in leaves)

    args = (Model(), Moments(), {"x": jnp.ones(19)})
    found = named(step, nnx.jit(step).lower(*args), *args)

    assert found == {
        (3,): "model.up",
        (5,): "model.layers[0]",
        (7,): "model.layers[1]",
        (11,): "model.down",
        (13,): "moments.nu['up']",
        (17,): "moments.mu['up']",
        (19,): "",
    }


def results(function: Any, lowered: Any, *args: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The user's paths of the outputs, with their shapes; "" for an output of the library's own."""
    call = call_info(plain_lowered(lowered))
    call = with_user_paths(call, array_leaves(function, args, {}))
    return [(leaf.user_path, leaf.shape) for leaf in call.outputs]


def test_the_result_of_filter_jit_has_the_paths_of_the_user() -> None:
    """Behind the marker that equinox returns first; a plain jit of the same tree has its own."""
    eqx = pytest.importorskip("equinox")

    def step(model: Any, x: Any) -> Any:
        return jax.tree.map(lambda leaf: 2 * leaf, eqx.filter(model, eqx.is_array)), {"x": x}

    args = eqx.nn.MLP(2, 3, 5, 1, key=jax.random.key(0)), jnp.ones(17)
    found = results(step, eqx.filter_jit(step).lower(*args), *args)
    plain = jax.jit(lambda x: (jnp.zeros(()), {"x": x}))

    assert found[1:] == [
        ("result[0].layers[0].weight", (5, 2)),
        ("result[0].layers[0].bias", (5,)),
        ("result[0].layers[1].weight", (3, 5)),
        ("result[0].layers[1].bias", (3,)),
        ("result[1]['x']", (17,)),
    ]
    assert results(plain, plain.lower(args[1]), args[1]) == [("", ()), ("", (17,))]


def test_the_states_that_nnx_jit_updates_are_those_of_the_modules() -> None:
    """Beside what the function returns itself."""
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):  # type: ignore[misc,name-defined]
        """Attributes that are not in the order of their names."""

        def __init__(self) -> None:
            self.up = nnx.Param(jnp.ones(3))
            self.down = nnx.Variable(jnp.ones(11))

    def step(model: Any, x: Any) -> Any:
        model.up[...] = 2 * model.up[...]
        return x.sum(), {"x": x}

    args = Model(), jnp.ones(17)
    found = results(step, nnx.jit(step).lower(*args), *args)

    assert sorted(found) == [
        ("model.down", (11,)),
        ("model.up", (3,)),
        ("result[0]", ()),
        ("result[1]['x']", (17,)),
    ]


def test_an_argument_without_a_keyword_is_known() -> None:
    """Those that are collected by position, and those before a slash; jit takes no name of them."""

    def step(first: Any, /, state: Any, *more: Any, scale: Any) -> Any:
        return first, state, more, scale

    args = [jnp.ones(size) for size in (2, 3, 5, 7)]
    call = call_info(jax.jit(step).lower(*args, scale=jnp.ones(11)))
    call = with_user_paths(call, array_leaves(step, args, {"scale": jnp.ones(11)}))

    assert {leaf.path: leaf.positional for leaf in call.arguments} == {
        "first": True,
        "state": False,
        "more[0]": True,
        "more[1]": True,
        "scale": False,
    }


@pytest.mark.parametrize(
    "given",
    [[Leaf("x", (3,), "float32")], [Leaf("x", (2,), "int32")], []],
    ids=["another shape", "another dtype", "another number"],
)
def test_leaves_that_do_not_match_keep_the_name_of_the_program(given: Sequence[Leaf]) -> None:
    """A wrong name is worse than the library's."""
    call = CallInfo((Leaf("x.states[0][0]", (2,), "float32"),))

    assert with_user_paths(call, given) == call


def test_the_arguments_that_partials_keep_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial of a partial; and what is found to be a partial of itself ends, too."""
    step = functools.partial(functools.partial(max, 1), 2, key=abs)
    assert with_bound_arguments(step, (3,), {"default": 4}) == (
        max,
        (1, 2, 3),
        {"key": abs, "default": 4},
    )
    monkeypatch.setattr(wrappers, "cached_by_flax", lambda fun: (fun, (0,)))
    assert set(with_bound_arguments(max, (), {})[1]) == {0}


def test_a_report_has_the_user_s_paths() -> None:
    """In its table, its findings and its bytes by path; equinox donates by its own keyword."""
    eqx = pytest.importorskip("equinox")

    @watch_hbm
    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(model: Any, x: Any) -> Any:
        big = jnp.broadcast_to(x, (ROWS, 256))
        total = jnp.sort(jax.vmap(model)(big), axis=0).sum()
        return jax.tree.map(lambda leaf: leaf * total, eqx.filter(model, eqx.is_array))

    model = eqx.nn.Linear(256, 256, key=jax.random.key(0))
    with pytest.raises(HbmOomError) as caught:
        step(model, jnp.ones(256))
    report = caught.value.report
    assert report is not None and report.summary is not None
    paths = [op.path for op in report.summary.ops if op.kind == "parameter"]

    assert "model.weight" in paths
    assert "model.weight f32[256,256]" in str(report)
    assert report.rollup["path"]["model"] == 256 * 1024


def test_a_cached_partial_has_the_paths_of_the_arguments_that_it_keeps() -> None:
    """Those of the model that flax.nnx.cached_partial was given; fits lowers it as well."""
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):  # type: ignore[misc,name-defined]
        """Two parameters in a module of a module."""

        def __init__(self) -> None:
            self.inner = nnx.Linear(256, 256, rngs=nnx.Rngs(0))

    @nnx.jit  # type: ignore[untyped-decorator]
    def step(model: Any, rows: Any, x: Any) -> Any:
        big = model.inner(jnp.broadcast_to(x, (ROWS, 256)))
        model.inner.bias[...] += jnp.sort(big, axis=0)[0]
        return rows

    def small(model: Any, rows: Any, x: Any) -> Any:
        return model.inner(rows).sum() + x.sum()

    rows, x = jnp.ones((128, 256)), jnp.ones(256)
    with pytest.raises(HbmOomError) as caught:
        watch_hbm(nnx.cached_partial(step, Model(), rows))(x)
    report = caught.value.report
    assert report is not None and report.summary is not None
    paths = {op.path for op in report.summary.ops if op.kind == "parameter"}
    assert paths == {"model.inner.kernel", "rows"}

    plain, cached = nnx.jit(small), nnx.cached_partial(nnx.jit(small), Model(), rows)
    assert fits(cached, x).peak_bytes == fits(plain, Model(), rows, x).peak_bytes
