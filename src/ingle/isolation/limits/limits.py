"""Limits of a session: their names, their units, and the words about them."""

from ingle.errors import InvalidRequest
from ingle.quantities import BYTES, text_of
from ingle.requests import SessionLimits
from ingle.settings import Settings

UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))

NAMES = {
    "memory": "memory limit",
    "processes": "process limit",
    "files": "open file limit",
    "file_size": "file size limit",
    "tmp": "temporary file limit",
    "disk": "disk limit",
}

COUNTS = ("processes", "files")
"""Limits that are numbers and no sizes."""

MINIMUM = {"memory": 16 * 1024**2, "processes": 4, "files": 128}
"""What the interpreter of a session itself needs."""

NO_SPACE = "[Errno 28]"

ERRORS = {
    "[Errno 11]": ("processes",),
    "[Errno 24]": ("files",),
    "[Errno 27]": ("file_size",),
    NO_SPACE: ("tmp", "disk"),
}
"""Limits by the error that Python raises for them (EAGAIN, EMFILE, EFBIG, ENOSPC)."""


def of_settings(settings: Settings) -> SessionLimits:
    """Return the operator's limits."""
    return SessionLimits(**{name: getattr(settings, f"limit_{name}") or None for name in NAMES})


def lower(first: SessionLimits, second: SessionLimits) -> SessionLimits:
    """Return the smaller value of each limit."""
    return SessionLimits(**{name: _smaller(getattr(first, name), getattr(second, name)) for name in NAMES})


def at_least_minimum(allowed: SessionLimits) -> SessionLimits:
    """Raise limits of a token below which no session could start. Answers show the raised ones."""
    return SessionLimits(
        **{
            name: value if value is None else max(value, MINIMUM.get(name, 0))
            for name in NAMES
            for value in (getattr(allowed, name),)
        }
    )


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((each for each in (first, second) if each is not None), default=None)


def given(limits: SessionLimits) -> list[tuple[str, int]]:
    """Return the limits that have a value, by name."""
    return [(name, value) for name in NAMES if (value := getattr(limits, name)) is not None]


def check_minimum(name: str, value: int) -> None:
    """Raise InvalidRequest for a limit with which no session could start."""
    least = MINIMUM.get(name, 1)
    if value < least:
        raise InvalidRequest(
            f"the limit {name} is {amount(name, value)}; it must be at least {amount(name, least)}, or leave it out"
        )


def amount(name: str, value: int) -> str:
    """Return a limit as its flag takes it: `2G`."""
    return str(value) if name in COUNTS else text_of(BYTES, value)


def words(name: str, value: int) -> str:
    """Return a limit as answers name it: `memory limit 2 GiB`."""
    if name in COUNTS:
        return f"{NAMES[name]} {value}"
    for unit, short in UNITS:
        if value >= unit and value % unit == 0:
            return f"{NAMES[name]} {value // unit} {short}"
    return f"{NAMES[name]} {value} bytes"


def is_named(name: str, text: str) -> bool:
    """Return whether an answer's text begins with this limit, in the words of `words`."""
    return text.startswith(f"{NAMES[name]} ")


def behind(name: str, error: str, limits: SessionLimits) -> str | None:
    """Return the limit that caused a cell's error, if any."""
    if name == "MemoryError" and limits.memory is not None:
        return words("memory", limits.memory)
    for sign, names in ERRORS.items():
        if error.startswith(sign):
            found = [words(name, value) for name in names if (value := getattr(limits, name)) is not None]
            return " or ".join(found) or None
    return None
