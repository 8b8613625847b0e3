"""Checks of what a request says, where its type alone does not tell. Each raises InvalidRequest."""

import math

from ingle import errors
from ingle.requests import Limits, NewCell, NewTask, Script
from ingle.sessions.manager import check_name

MAX_ENVS = 1000

MAX_SCRIPT_CHARS = 1_000_000
"""Characters of a program's arguments and path together."""

MAX_KEY_CHARS = 255
"""Longest idempotency key."""


def check_cell(new: NewCell) -> None:
    if new.envs or new.timeout is not None or new.key is not None:
        check_environment(new.envs)
        check_seconds("timeout", new.timeout)
        check_key(new.key)
    if new.script is not None:
        check_script(new.script)


def check_script(script: Script) -> None:
    texts = [*script.argv, script.file or ""]
    if not script.argv:
        raise errors.InvalidRequest("script.argv is empty; its first text is the program's own name")
    if sum(map(len, texts)) > MAX_SCRIPT_CHARS or any("\0" in text for text in texts):
        raise errors.InvalidRequest(
            f"script has more than {MAX_SCRIPT_CHARS} characters, or a NUL; pass the data in a file"
        )


def check_task(new: NewTask) -> None:
    check_environment(new.env)
    check_seconds("timeout", new.timeout)
    check_limits(new.limits)
    check_size(new.rows, new.columns)
    check_key(new.key)
    if new.shell_session is None:
        return
    check_name(new.shell_session)
    if new.pty or new.interactive:
        raise errors.InvalidRequest(
            "a command in a persistent shell has no terminal and no open input; give stdin, or leave shell_session out"
        )
    if new.limits != Limits(output=new.limits.output):
        raise errors.InvalidRequest(
            "a command in a persistent shell can be limited in its output only, since the shell lives on; "
            "leave shell_session out to limit memory, CPU time, processes or files"
        )


def check_seconds(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise errors.InvalidRequest(f"{name} is {value}; it must be a number of seconds, 0 or more")


def check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise errors.InvalidRequest(f"{name} is {value[:80]!r}; it must be one of {', '.join(choices)}")


def check_key(key: str | None) -> None:
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        raise errors.InvalidRequest(f"an idempotency key is 1 to {MAX_KEY_CHARS} printable ASCII characters")


def check_environment(envs: dict[str, str]) -> None:
    for name, value in envs.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise errors.InvalidRequest(
                f"the environment variable {name[:80]!r} cannot be set: no '=' or NUL in names, no NUL in values"
            )
    if len(envs) > MAX_ENVS:
        raise errors.InvalidRequest(f"{len(envs)} environment variables are more than {MAX_ENVS}")


def check_limits(limits: Limits) -> None:
    for name in Limits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise errors.InvalidRequest(f"the limit {name} is {value}; it must be more than 0, or left out")


def check_size(rows: int, columns: int) -> None:
    if not (0 < rows < 65536 and 0 < columns < 65536):
        raise errors.InvalidRequest(f"a terminal of {rows} rows and {columns} columns cannot be; both are 1 to 65535")
