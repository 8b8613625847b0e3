"""Sizes and durations as people write them: `4G`, `512M`, `90s`, `1h30m`.

A plain number is a number of bytes or seconds. Letters of sizes are powers of 1024 in every spelling, as `docker` and
`systemd` read them: `G`, `GB` and `GiB` are the same.
"""

import math
import re

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_DURATION = re.compile(r"(?:(?:\d+(?:\.\d*)?|\.\d+)\s*(?:ms|[dhms])\s*)+", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|[dhms])", re.IGNORECASE)
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

BYTES, SECONDS = "bytes", "seconds"

KINDS = {
    BYTES: "a size such as 512M, 4G or 1GiB, or a number of bytes",
    SECONDS: "a time such as 90s, 5m or 1h30m, or a number of seconds",
}
"""What a text of each unit must be, for messages."""


def parse(unit: str, text: str) -> int | float:
    """Return the number of bytes or seconds in a text. Raise ValueError if it holds none."""
    return parse_size(text) if unit == BYTES else parse_duration(text)


def parse_size(text: str) -> int:
    """Return a number of bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not {KINDS[BYTES]}")
    number, power = found[1], _POWERS[found[2].lower()]
    # Whole numbers stay exact, however large.
    return int(number) * 1024**power if number.isdecimal() else int(float(number) * 1024**power)


def parse_duration(text: str) -> float:
    """Return a number of seconds."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return math.fsum(float(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(text))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is not {KINDS[SECONDS]}")
    return seconds


def text_of(unit: str, number: float) -> str:
    """Return the shortest text that `parse` reads as this number."""
    if not number:
        return "0"
    if unit == BYTES:
        for letter in "TGMK":
            size = 1024 ** _POWERS[letter.lower()]
            if number % size == 0:
                return f"{int(number) // size}{letter}"
        return str(number)
    for letter in ("d", "h", "m"):
        if number % _SECONDS[letter] == 0:
            return f"{int(number // _SECONDS[letter])}{letter}"
    return f"{number:g}s"


def rounded_size(count: float) -> str:
    """Return a number of bytes for people to read: `1.5 MB`. These units are powers of 1000."""
    if count < 1000:
        return f"{count:.0f} bytes"
    if count < 1e6:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
