"""Sizes and durations as people write them."""

import pytest

from ingle.quantities import BYTES, SECONDS, parse, text_of

SIZES = {
    "0": 0,
    "1": 1,
    "512M": 512 * 1024**2,
    "512 MB": 512 * 1024**2,
    "4G": 4 * 1024**3,
    "4gb": 4 * 1024**3,
    "1GiB": 1024**3,
    "1.5k": 1536,
    ".5M": 512 * 1024,
    "2T": 2 * 1024**4,
    "100B": 100,
    "9007199254740993": 9007199254740993,
}
TIMES = {
    "0": 0.0,
    "1.5": 1.5,
    "90s": 90.0,
    "5m": 300.0,
    "1h30m": 5400.0,
    "1h 30m 5s": 5405.0,
    "250ms": 0.25,
    "30d": 2592000.0,
    "1.5H": 5400.0,
}


def test_texts_are_read_as_bytes_and_seconds() -> None:
    assert {text: parse(BYTES, text) for text in SIZES} == SIZES
    assert {text: parse(SECONDS, text) for text in TIMES} == TIMES


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        *((BYTES, text) for text in ("", "G", "4X", "-1", "1 2", "4G5", "1e3", "nan", "5m30")),
        *((SECONDS, text) for text in ("", "m", "5x", "-1", "nan", "inf", "5m3", "1:30", "4G")),
    ],
)
def test_other_texts_are_refused(unit: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (size|time) such as"):
        parse(unit, text)


@pytest.mark.parametrize("number", [0, 1, 1000, 1024, 1536, 4 * 1024**3, 10 * 1024**4])
def test_a_size_is_written_as_it_is_read(number: int) -> None:
    assert parse(BYTES, text_of(BYTES, number)) == number


@pytest.mark.parametrize("seconds", [0.0, 0.05, 1.0, 45.0, 60.0, 90.0, 300.0, 5400.0, 86400.0, 2592000.0])
def test_a_time_is_written_as_it_is_read(seconds: float) -> None:
    assert parse(SECONDS, text_of(SECONDS, seconds)) == seconds
