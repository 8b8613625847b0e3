"""Checks of what a request says, where its type alone does not tell. Each raises InvalidRequest."""

import keyword
import math
import os

from ingle import errors
from ingle.batches import NewBatch
from ingle.requests import Limits, NewCell, NewTask, Script
from ingle.sessions.spec import check_name

MAX_ENVS = 1000

MAX_PATH_BYTES = 4096
"""The kernel's limit on a path, with the NUL at its end."""

MAX_SCRIPT_CHARS = 1_000_000
"""Characters of a program's arguments and path together."""

MAX_KEY_CHARS = 255
"""Longest idempotency key."""

MAX_ITEMS = 10_000
MAX_ITEM_ID_CHARS = 255
MAX_ITEM_INPUT_BYTES = 16 * 1024 * 1024
MAX_CONCURRENCY = 256
"""Bounds of a batch: its items, the name and the input of each, and how many run at once."""

MAX_NAME_CHARS = 1000


def check_cell(new: NewCell) -> None:
    if new.envs or new.timeout is not None or new.key is not None:
        check_environment(new.envs)
        check_seconds("timeout", new.timeout)
        check_key(new.key)
    if new.script is not None:
        check_script(new.script)


def check_batch(batch: NewBatch, max_code: int) -> None:
    check_seconds("timeout", batch.timeout)
    check_key(batch.key)
    if len(batch.code) > max_code:
        raise errors.InvalidRequest(f"the code has {len(batch.code)} characters, above the limit of {max_code}")
    if batch.concurrency is not None and not 1 <= batch.concurrency <= MAX_CONCURRENCY:
        raise errors.InvalidRequest(f"concurrency is {batch.concurrency}; it must be 1 to {MAX_CONCURRENCY}")
    if len(batch.items) > MAX_ITEMS:
        raise errors.InvalidRequest(f"{len(batch.items)} items are more than {MAX_ITEMS}; send several batches")
    for number, item in enumerate(batch.items):
        check_environment(item.env)
        if item.id is not None and not 0 < len(str(item.id)) <= MAX_ITEM_ID_CHARS:
            raise errors.InvalidRequest(f"the id of item {number} must have 1 to {MAX_ITEM_ID_CHARS} characters")
        if len(bytes(item.input)) > MAX_ITEM_INPUT_BYTES:
            raise errors.InvalidRequest(
                f"the input of item {number} is above {MAX_ITEM_INPUT_BYTES} bytes; pass the data in a file"
            )
        if item.files and batch.session.cwd is not None:
            raise errors.InvalidRequest("with cwd all items share a folder, so none can have files of its own")


def check_script(script: Script) -> None:
    texts = [*script.argv, script.file or ""]
    if not script.argv:
        raise errors.InvalidRequest("script.argv is empty; its first text is the program's own name")
    if sum(map(len, texts)) > MAX_SCRIPT_CHARS or any("\0" in text for text in texts):
        raise errors.InvalidRequest(
            f"script has more than {MAX_SCRIPT_CHARS} characters, or a NUL; pass the data in a file"
        )


def check_task(new: NewTask) -> None:
    check_path("cwd", new.cwd)
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


def check_path(name: str, path: str) -> None:
    if len(os.fsencode(path)) >= MAX_PATH_BYTES or "\0" in path:
        raise errors.InvalidRequest(
            f"{name} begins with {path[:80]!r} and is no path: it has {MAX_PATH_BYTES} bytes or more, or a NUL"
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


def check_variable(name: str) -> None:
    if len(name) > MAX_NAME_CHARS or not name.isidentifier() or keyword.iskeyword(name):
        raise errors.InvalidRequest(f"{name[:80]!r} is not the name of a variable; give a plain name")
