"""Paths that are too long for a row."""

from __future__ import annotations

import pytest

from hbmwatch._records.paths import shortened


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("state['params']['w']", "state['params']['w']"),
        (
            "state['opt']['mu']['block_*']['down']['kernel']",
            "state…['mu']…['down']['kernel']",
        ),
        (
            "state['opt']['nu']['block_*']['down']['kernel']",
            "state…['nu']…['down']['kernel']",
        ),
        (
            "model.encoder.layers[*].attention.query.kernel",
            "model….attention.query.kernel",
        ),
        (
            "opt_state[0].nu.layers[0].attention.weight",
            "opt_state….nu….attention.weight",
        ),
        ("x" * 40, "x" * 40),
    ],
    ids=["short", "mu", "nu", "layers", "an index of what is left out", "one key"],
)
def test_a_long_path_keeps_what_tells_it_from_others(path: str, expected: str) -> None:
    """The front keys of the middle go first; a single key is shortened elsewhere."""
    assert shortened(path, 34) == expected


def test_a_path_of_thousands_of_keys_is_shortened_at_once() -> None:
    """Each key is looked at once: 200,000 of them take no minutes."""
    path = "state" + "".join(f"['k{n}']" for n in range(200_000))

    assert shortened(path, 34) == "state\N{HORIZONTAL ELLIPSIS}['k199998']['k199999']"
