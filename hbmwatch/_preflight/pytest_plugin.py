"""The pytest marker `limit_hbm`: a test that fails if a step takes too much memory.

pytest loads this module in every run, so it imports nothing until a test has the marker.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hbmwatch._preflight.verdicts import Fit

_CALLED = pytest.StashKey[bool]()
_MARKER = (
    "limit_hbm(limit, on=None, proof='assigned'): the test returns a step and its arguments; it "
    "fails if XLA allocates more than the limit ('14 GiB') for them on a device ('v5e')"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has the marker but is called in another way, so that nothing is measured."""
    result = yield
    if item.get_closest_marker("limit_hbm") and _CALLED not in item.stash:
        why = "the value that it returns is lost: write a function, not a method of a TestCase"
        pytest.fail(f"limit_hbm cannot check {item.name}, because {why}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Call a test that has the marker, and measure the step that it returns."""
    markers = list(pyfuncitem.iter_markers("limit_hbm"))
    if not markers:
        return (yield)
    pyfuncitem.stash[_CALLED] = True
    test, returned = pyfuncitem.obj, list[Any]()
    if inspect.iscoroutinefunction(inner := inspect.unwrap(test)) or inspect.isasyncgenfunction(
        inner
    ):
        pytest.fail(f"limit_hbm: {pyfuncitem.name} must not be async", pytrace=False)
    pyfuncitem.obj = lambda **fixtures: returned.append(test(**fixtures))
    try:
        result = yield
    finally:
        pyfuncitem.obj = test
    step_and_args = returned[0] if returned else None
    if not isinstance(step_and_args, tuple) or not callable(next(iter(step_and_args), None)):
        pytest.fail(f"{pyfuncitem.name} must return a step and its arguments", pytrace=False)
    for marker in markers:
        limit_hbm(step_and_args[0], step_and_args[1:], *marker.args, **marker.kwargs)
    return result


def limit_hbm(
    step: Any, args: tuple[Any, ...], limit: str | int, on: Any = None, proof: Any = "assigned"
) -> None:
    """Fail if the step takes more than the limit; Python's errors name it as the marker."""
    from hbmwatch._preflight.cache import cached_fit, default_folder
    from hbmwatch._records.sizes import given_size

    try:
        limit_bytes = given_size(str(limit), "14GiB")
    except ValueError as error:
        raise ValueError(f"limit_hbm: {error}") from None
    fit = cached_fit(
        step, args, {}, on=on, folder=default_folder(), proof=proof, limit_bytes=limit_bytes
    )
    if not fit.fits:
        pytest.fail(_failure(fit), pytrace=False)


def _failure(fit: Fit) -> str:
    """The verdict and the report."""
    return f"{str(fit)[0].upper()}{str(fit)[1:]}\n\n{fit.report}"
