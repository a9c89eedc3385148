"""Arguments that are returned updated and not donated."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from hbmwatch._findings import donation
from hbmwatch._jax.lowered import CallInfo, Leaf
from hbmwatch._xla.types import MemoryColor
from tests.findings.cases import explain, slugs
from tests.hlo import MIB, Hlo, shape_of
from tests.oom_programs.base import array, mlp, on_one

DIMS = (512, 512)


def update(opcode: str = "multiply") -> tuple[Hlo, int]:
    """A step that computes an output from its argument, and the output's id."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path="state['w']")
    return hlo, hlo.add(opcode, w, w, dims=DIMS, name="jit(f)/mul")


def test_an_argument_that_is_updated_element_by_element_can_be_donated() -> None:
    """Its bytes are held twice, and the keyword is spelled out."""
    hlo, output = update()
    finding = donation.find(hlo.facts(outputs=(output,)))

    assert finding is not None
    assert (finding.title, finding.saves_bytes) == ("Donate state['w']: 1 MiB is held twice", MIB)
    assert "donate_argnames='state'" in finding.remedy


@pytest.mark.parametrize("positional", [False, True])
def test_no_keyword_names_what_is_collected_by_position(positional: bool) -> None:
    """jax.jit does not take the name of `*state` in donate_argnames."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path="state[0]")
    output = hlo.add("multiply", w, w, dims=DIMS, name="jit(f)/mul")
    call = CallInfo((Leaf("state[0]", DIMS, "float32", positional=positional),))
    finding = donation.find(hlo.facts(outputs=(output,), call=call))

    assert finding is not None
    assert ("donate_argnums=..." in finding.remedy) == positional
    assert ("donate_argnames='state'" in finding.remedy) == (not positional)


def test_an_argument_that_is_returned_unchanged_need_not_be_returned() -> None:
    """The output is a copy; what is updated beside it is smaller, and named in the evidence."""
    hlo, output = update()
    large = hlo.parameter(1024, 512, path="state['big']")
    finding = donation.find(hlo.facts(outputs=(output, hlo.add("copy", large, dims=(1024, 512)))))

    assert finding is not None
    assert finding.title == "Do not return state['big'] unchanged: 2 MiB is held twice"
    assert finding.saves_bytes == 3 * MIB
    assert "(1 MiB: state['w']) is updated and returned" in finding.evidence
    assert "(2 MiB: state['big']) is returned unchanged" in finding.evidence
    assert finding.remedy.startswith("Return only what changes")


@pytest.mark.parametrize(("path", "expected"), [("jit(f)/while", "state['w']"), ("v[0]", "v[0]")])
def test_an_argument_that_xla_names_for_its_user_has_the_path_of_its_leaf(
    path: str, expected: str
) -> None:
    """The op_name of a loop that reads a parameter is no path."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path=path)
    output = hlo.add("multiply", w, w, dims=DIMS)
    call = CallInfo((Leaf("state['w']", DIMS, "float32", donated=False),))
    (argument,) = hlo.facts(outputs=(output,), call=call).arguments

    assert argument.path == expected


@pytest.mark.parametrize("opcode", ["dot", "gather", "sort"])
def test_another_value_of_its_shape_is_no_update(opcode: str) -> None:
    """A product or a gather needs the whole argument until it is done."""
    hlo, output = update("multiply" if opcode == "sort" else opcode)
    alias = {"entries": [{"parameter_number": 0, "output_shape_index": [0]}]}
    module: dict[str, Any] = {"input_output_alias": alias} if opcode == "sort" else {}

    assert donation.find(hlo.facts(outputs=(output,), **module)) is None


def test_a_donated_argument_is_not_found() -> None:
    """Whether the program or the call says that it is donated."""
    hlo, output = update()
    donor = {"entries": [{"parameter_number": 0}]}
    leaf = Leaf("state['w']", DIMS, "float32", donated=True)

    assert donation.find(hlo.facts(outputs=(output,), buffer_donor=donor)) is None
    assert donation.find(update()[0].facts(outputs=(output,), call=CallInfo((leaf,)))) is None


@pytest.mark.tpu
def test_gradients_alone_are_no_reason_to_donate() -> None:
    """A function that returns gradients needs its parameters afterwards: no donation."""

    def gradients(params: Any, x: Any) -> Any:
        return jax.grad(lambda p: (mlp(list(p.values()), x) ** 2).mean())(params)

    weights = {f"w{i}": array(8192, 8192) for i in range(36)}
    lowered = on_one(gradients, weights, array(256, 8192))
    assert "donation" not in slugs(explain(lowered).findings)


@pytest.mark.parametrize(("length", "names"), [(100, "cache['k'], x"), (99, "cache['k']")])
def test_an_argument_that_is_small_beside_the_others_is_not_named(length: int, names: str) -> None:
    """A hidden state with less than a hundredth of the bytes of the cache."""
    hlo = Hlo()
    cache = hlo.parameter(99, 100, path="cache['k']")
    x = hlo.parameter(length, path="x")
    made = [
        hlo.add("multiply", value, value, dims=dims)
        for value, dims in ((cache, (99, 100)), (x, (length,)))
    ]
    finding = donation.find(hlo.facts(outputs=made))

    assert donation.LEAST_SHARE == 1 / 100
    assert finding is not None
    assert finding.title.startswith(f"Donate {names}: ")


def test_equinox_donates_by_its_own_keyword() -> None:
    """filter_jit takes no donate_argnames; its lists have the user's paths."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path="dynamic_nodonate['first'][0]")
    output = hlo.add("multiply", w, w, dims=DIMS)
    leaf = Leaf("dynamic_nodonate['first'][0]", DIMS, "float32", user_path="model.weight")
    finding = donation.find(hlo.facts(outputs=(output,), call=CallInfo((leaf,))))

    assert finding is not None
    assert finding.title == "Donate model.weight: 1 MiB is held twice"
    assert 'equinox.filter_jit(..., donate="all")' in finding.remedy


@pytest.mark.parametrize(("space", "found"), [(MemoryColor.HBM, True), (MemoryColor.HOST, False)])
def test_an_output_in_host_memory_reuses_no_argument(space: int, found: bool) -> None:
    """An optimizer state that is written back to the host frees nothing on the device."""
    hlo = Hlo()
    w = hlo.parameter(*DIMS, path="g")
    shape = shape_of(*DIMS)
    shape["layout"]["memory_space"] = space
    output = hlo.add("multiply", w, w, shape=shape, name="jit(f)/mul")

    assert (donation.find(hlo.facts(outputs=(output,))) is not None) == found


def test_the_largest_argument_is_named_first() -> None:
    """A covariance after three small arrays is not "and 1 more"."""
    hlo = Hlo()
    names = ["state.mean", "state.path", "state.sigma", "state.covariance"]
    state = [hlo.parameter(64 if n < 3 else 4096, 64, path=p) for n, p in enumerate(names)]
    outputs = [hlo.add("negate", w, shape=hlo.known[w]["shape"]) for w in state]
    finding = donation.find(hlo.facts(outputs=outputs))

    assert finding is not None
    assert finding.title.startswith("Donate state.covariance, state.mean, state.path and 1 more:")


def test_arguments_without_names_are_donated_by_number() -> None:
    """JAX calls them args[0], which donate_argnames does not take."""
    assert donation.donate_keyword(["args[0]['w']"]) == "donate_argnums=..."
