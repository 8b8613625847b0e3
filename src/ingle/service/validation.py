"""What a request may say, where its type alone does not tell."""

import math

from ingle import errors
from ingle.requests import Limits

MAX_ENVS = 1000

MAX_KEY = 255
"""Characters of an idempotency key."""


def check_seconds(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise errors.InvalidRequest(f"{name} is {value}; it must be a number of seconds, 0 or more")


def check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise errors.InvalidRequest(f"{name} is {value[:80]!r}; it must be one of {', '.join(choices)}")


def check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise errors.InvalidRequest(f"an idempotency key is 1 to {MAX_KEY} printable ASCII characters")


def check_environment(envs: dict[str, str] | None) -> None:
    for name, value in (envs or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise errors.InvalidRequest(
                f"the environment variable {name[:80]!r} cannot be set: no '=' or NUL in names, no NUL in values"
            )
    if envs is not None and len(envs) > MAX_ENVS:
        raise errors.InvalidRequest(f"{len(envs)} environment variables are more than {MAX_ENVS}")


def check_limits(limits: Limits | None) -> None:
    for name in Limits.__struct_fields__ if limits is not None else ():
        value = getattr(limits, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise errors.InvalidRequest(f"the limit {name} is {value}; it must be more than 0, or left out")


def check_size(rows: int, columns: int) -> None:
    if not (0 < rows < 65536 and 0 < columns < 65536):
        raise errors.InvalidRequest(f"a terminal of {rows} rows and {columns} columns cannot be; both are 1 to 65535")
