"""Sizes as XLA prints them, and as we print them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbmwatch._records.sizes import (
    COUNT,
    SIZE,
    Size,
    format_change,
    format_size,
    given_size,
    read_size,
)

K, M, G, T, E = 2**10, 2**20, 2**30, 2**40, 2**60

READ = {
    "0B": Size(0, 0),
    "512B": Size(512, 0),
    "268435456B": Size(268435456, 0),
    "214748364800 bytes": Size(214748364800, 0),
    "1 byte": Size(1, 0),
    "4096": Size(4096, 0),
    "4,237,689,856 bytes": Size(4237689856, 0),
    "-2,735,391,744": Size(-2735391744, 0),
    "1 073 741 824 bytes": Size(G, 0),
    "1 024.0 MiB": Size(G, 104858),
    "1.50 GIB": Size(3 * G // 2, 10737419),
    "12 BYTES": Size(12, 0),
    "4.0K": Size(4 * K, 103),
    "384.0KiB": Size(384 * K, 103),
    "15.5K": Size(15872, 103),
    "530.00M": Size(530 * M, 10486),
    "6.00MiB": Size(6 * M, 10486),
    "15.75G": Size(15 * G + 768 * M, 10737419),
    "6.94 GiB": Size(7451768259, 10737419),
    "-2.55G": Size(-2738041651, 10737419),
    "1.50T": Size(T + T // 2, 10995116278),
    "2.00E": Size(2 * E, 11529215046068470),
    "2G": Size(2 * G, G),
    "0x10000000": Size(268435456, 0),
}


@pytest.mark.parametrize("text", READ)
def test_a_size_is_read_with_its_rounding(text: str) -> None:
    """Every unit is a power of 1024, and the rounding is the last printed digit's."""
    assert read_size(text) == READ[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unknown size",
        "G",
        "15.75X",
        "1.2.3G",
        "0xffffffffffffffff",
        "18446744073709551615",
        "9" * 5000,
        "0x",
        "12 34",
        "0 123",
        "1 0234",
        "--1",
    ],
)
def test_what_states_no_size_is_none(text: str) -> None:
    """Neither words nor XLA's sentinel for a size that it does not know are a size."""
    assert read_size(text) is None


def printed(size_bytes: int, suffix: str) -> str:
    """A size as XLA prints it: whole bytes, K with one decimal, the others with two."""
    power, unit = max(
        ((p, u) for p, u in enumerate("BKMGTPE") if abs(size_bytes) >= 1024**p or p == 0)
    )
    if power == 0:
        return f"{size_bytes}B"
    return f"{size_bytes / 1024**power:.{1 if power == 1 else 2}f}{unit}{suffix}"


@given(st.integers(-(2**62), 2**62), st.sampled_from(["", "iB"]))
def test_a_printed_size_is_read_back_within_its_rounding(size_bytes: int, suffix: str) -> None:
    """The true size is not farther from the one that is read than its resolution says."""
    text = printed(size_bytes, suffix)
    size = read_size(text)
    assert size is not None
    assert abs(size.size_bytes - size_bytes) <= size.resolution_bytes
    assert re.fullmatch(SIZE, text)


@given(st.integers(0, 2**64 - 2))
def test_whole_bytes_are_read_exactly(size_bytes: int) -> None:
    """Plain, grouped, with a unit and in hex: a size that is printed whole is read whole."""
    texts = (f"{size_bytes}", f"{size_bytes:,}", f"{size_bytes} bytes", f"{size_bytes:#x}")
    assert {read_size(text) for text in texts} == {Size(size_bytes, 0)}
    assert all(re.fullmatch(COUNT, text) for text in texts if " " not in text)


@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    """A text that is no size is None, never an error."""
    size = read_size(text)
    assert size is None or size.resolution_bytes >= 0


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1023, "1023 B"),
        (K, "1 KiB"),
        (M - 1, "1 MiB"),
        (1023 * K + 511, "1023 KiB"),
        (1023 * K + 512, "1 MiB"),
        (G - 1, "1.00 GiB"),
        (-(G - 1), "-1.00 GiB"),
        (T - 1, "1.00 TiB"),
        (E - 1, "1.00 EiB"),
        (1024 * E - 1, "1024.00 EiB"),
    ],
)
def test_a_size_that_rounds_up_to_a_unit_is_printed_in_it(size_bytes: int, text: str) -> None:
    """1024 of a unit is 1 of the next, also where only the rounding makes it 1024."""
    assert format_size(size_bytes) == text


UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
# Near each power of two, where a unit or the number of digits changes, and anywhere.
SIZES = st.builds(lambda power, off: max(0, 2**power + off), st.integers(0, 70), st.integers(-9, 9))
SIZES |= st.integers(0, 2**70)


def value(size_bytes: int) -> float:
    """The bytes that a printed size stands for; checks its form."""
    match = re.fullmatch(r"(\d+)(\.\d+)? ([KMGTPE]i)?B", format_size(size_bytes))
    assert match
    unit = UNITS.index(f"{match[3] or ''}B")
    assert int(match[1]) < 1024 or unit == len(UNITS) - 1
    scale: int = 1024**unit
    return float(match[1] + (match[2] or "")) * scale


@given(SIZES, SIZES)
def test_printed_sizes_keep_their_order(one: int, other: int) -> None:
    """A larger size never prints as a smaller one, nor as 1024 of a unit that has a next one."""
    smaller, larger = sorted((one, other))
    assert value(smaller) <= value(larger)


def test_a_size_is_printed_for_a_person() -> None:
    """Two decimals from GiB on, whole numbers where they are enough."""
    sizes = (0, 1, 1536, 256 * M, 15 * G + 768 * M, -3 * M)
    assert [format_size(size) for size in sizes] == [
        "0 B",
        "1 B",
        "1.5 KiB",
        "256 MiB",
        "15.75 GiB",
        "-3 MiB",
    ]


def test_a_change_is_printed_with_its_sign() -> None:
    """No change is "+0 B"."""
    changes = (0, 3 * M // 2, -256 * M, G)
    assert [format_change(change) for change in changes] == [
        "+0 B",
        "+1.5 MiB",
        "-256 MiB",
        "+1.00 GiB",
    ]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80gib", 80 * G),
        ("80 GB", 80 * G),
        ("80 gb", 80 * G),
        ("16GB", 16 * G),
        ("16g", 16 * G),
        ("1.5g", 3 * G // 2),
        ("1kIb", K),
        ("512 bytes", 512),
        ("512 BYTES", 512),
        ("512b", 512),
        ("1048576", M),
        ("16000000000", 16000000000),
        ("16,000,000,000", 16000000000),
        ("0", 0),
    ],
)
def test_a_size_that_a_person_gives_has_its_unit_in_any_case(text: str, size_bytes: int) -> None:
    """All units have base 1024, and a number without a unit is bytes."""
    assert given_size(text, "80GiB") == size_bytes


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("80", "'80' has no unit: write 80GiB"),
        ("80.5 ", "'80.5 ' has no unit: write 80.5GiB"),
        ("1,024", "'1,024' has no unit: write 1,024GiB"),
        ("80G8", "'80G8' is not a size such as 80GiB"),
        ("16Gbit", "'16Gbit' is not a size such as 80GiB"),
        ("16e9", "'16e9' is not a size such as 80GiB"),
        ("-1GiB", "'-1GiB' is not a size such as 80GiB"),
        ("", "'' is not a size such as 80GiB"),
    ],
)
def test_a_size_without_a_meaning_is_refused(text: str, error: str) -> None:
    """The error proposes a unit for a number that is too small to be a number of bytes."""
    with pytest.raises(ValueError) as refused:
        given_size(text, "80GiB")
    assert str(refused.value) == error
