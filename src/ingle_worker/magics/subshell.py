"""Shell commands of a cell. They run in the cell's process group, on its real streams.

A command shares stdout, stderr and stdin of the cell, and an interrupt reaches it too. This module uses no library that
a cell may have changed.
"""

import _signal  # type: ignore[import-not-found]
import ast
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

INTERRUPT_GRACE_SECONDS = 1.0
"""Seconds that a command has to end after an interrupt, which it got together with the cell."""

_PLACEHOLDERS = re.compile(r"\$\$|\$\{([^\W\d]\w*)\}|\$\{|\$([^\W\d]\w*(?:\.[^\W\d]\w*)*)|\{\{|\}\}|\{")
_LOST_CD = re.compile(r"\s*cd\b[^;&|\n]*")


class Lines(list):  # type: ignore[type-arg]
    """Output lines of a command: a list, with the text as `.n`, and on one line as `.s`."""

    @property
    def l(self) -> list[str]:  # noqa: E743  notebooks use this name
        return list(self)

    @property
    def n(self) -> str:
        return "\n".join(self)

    @property
    def s(self) -> str:
        return " ".join(self)

    nlstr = n
    spstr = s

    def grep(self, pattern: str, prune: bool = False) -> "Lines":
        """Return the lines that match the pattern, or with `prune` the others."""
        wanted = re.compile(pattern, re.IGNORECASE)
        return Lines(line for line in self if (wanted.search(line) is not None) != prune)

    def fields(self, *numbers: int) -> Any:
        """Return the words of each line, or only these words, joined by a blank."""
        rows = [line.split() for line in self]
        if not numbers:
            return rows
        return Lines(" ".join(row[n] for n in numbers if -len(row) <= n < len(row)) for row in rows)


def shell_path() -> str:
    """Return the path of bash if there is one, because people and models write bash."""
    for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
        if os.path.exists(path):
            return path
    return "/bin/sh"


def system(frame: FrameType, command: str) -> None:
    """Run `!command` with the cell's streams and set `_exit_code`."""
    if _LOST_CD.fullmatch(command):
        warn("!cd changes the folder of a shell that ends with this line; %cd changes the session's")
    frame.f_globals["_exit_code"] = run([shell_path(), "-c", command])


def lines_of(frame: FrameType, command: str) -> Lines:
    """Run `x = !command` and return its lines on stdout and stderr."""
    code, output = capture([shell_path(), "-c", command])
    frame.f_globals["_exit_code"] = code
    return Lines(output.decode("utf-8", "backslashreplace").splitlines())


# --- expansion ---------------------------------------------------------------------------------------------


def expand(text: str, frame: FrameType) -> str:
    """Replace `{expression}`, `$name` and `${name}` by values. Unknown names and shell braces stay."""
    if "$" not in text and "{" not in text:
        return text
    return "".join(_expanded(text, frame.f_globals, frame.f_locals))


def _expanded(text: str, space: dict[str, Any], local: Any) -> Iterator[str]:
    at = 0
    while True:
        match = _PLACEHOLDERS.search(text, at)
        if match is None:
            yield text[at:]
            return
        yield text[at : match.start()]
        at = match.end()
        found = match[0]
        named = match[1] or match[2]
        if found == "$$":
            yield "$"
        elif named:
            name, *attributes = named.split(".")
            if name in local or name in space:
                # In `$name.txt` the dot is text, unless the attribute exists.
                value, rest = _attribute(local[name] if name in local else space[name], attributes)
                yield f"{value}{rest}"
            else:
                yield found
        elif found in ("{{", "}}"):
            yield found[0]
        else:
            end = _closing(text, at)
            inner = text[at : end - 1] if end else ""
            value = _NOTHING if found == "${" or not end else _evaluate(inner, space, local)
            if value is _NOTHING:
                yield found
            else:
                yield str(value)
                at = end


_NOTHING: Any = object()


def _attribute(value: Any, names: list[str]) -> tuple[Any, str]:
    for place, name in enumerate(names):
        try:
            value = getattr(value, name)
        except Exception:  # user code: any object may be the value
            return value, "".join(f".{each}" for each in names[place:])
    return value, ""


def _closing(text: str, at: int) -> int:
    depth = 1
    for place in range(at, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if not depth:
                return place + 1
    return 0


def _evaluate(inner: str, space: dict[str, Any], local: Any) -> Any:
    """Return the value of braces, or _NOTHING for shell syntax such as `{}`, `{1,2}`, `{a..b}` or awk's `{print}`."""
    try:
        tree: Any = compile(inner.strip(), "<braces>", "eval", ast.PyCF_ONLY_AST).body  # type: ignore[attr-defined]
    except (SyntaxError, ValueError):
        expression, colon, form = inner.rpartition(":")
        if not colon:
            return _NOTHING
        value = _evaluate(expression, space, local)
        try:
            return _NOTHING if value is _NOTHING else format(value, form)
        except Exception:  # user code: any object may be the value
            return _NOTHING
    if isinstance(tree, ast.Constant) or (isinstance(tree, ast.Tuple) and not inner.lstrip().startswith("(")):
        return _NOTHING
    if isinstance(tree, ast.Name) and tree.id not in local and tree.id not in space:
        return _NOTHING
    try:
        return eval(inner.strip(), space, local)
    except Exception:  # user code: text that cannot be evaluated stays
        return _NOTHING


# --- processes ---------------------------------------------------------------------------------------------


def run(argv: list[str], *, stdin: bytes | None = None, env: dict[str, str] | None = None) -> int:
    """Run a program on the cell's streams, or with this input. Return its exit code, or minus the signal number."""
    return _run(argv, stdin, env, list, lambda: None)


def capture(argv: list[str], *, env: dict[str, str] | None = None, stdin: bytes | None = None) -> tuple[int, bytes]:
    """Run a program and return its exit code and its output on both streams."""
    pieces: list[bytes] = []
    read, write = os.pipe()

    def actions() -> list[tuple[int, int, int]]:
        return [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)]

    def collect() -> None:
        nonlocal write
        os.close(write)
        write = -1
        while data := os.read(read, 65536):
            pieces.append(data)

    try:
        code = _run(argv, stdin, env, actions, collect)
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    return code, b"".join(pieces)


def _run(
    argv: list[str],
    stdin: bytes | None,
    env: dict[str, str] | None,
    actions: Callable[[], list[tuple[int, int, int]]],
    meanwhile: Callable[[], None],
) -> int:
    files = actions()
    source = -1
    if stdin is not None:
        source = _file_of(stdin)
        files.append((os.POSIX_SPAWN_DUP2, source, 0))
    try:
        # Python ignores these signals, but programs expect the default.
        pid = os.posix_spawn(
            argv[0],
            argv,
            # The dictionary inside: `os.environ` calls builtins that a user may have replaced.
            os.environ._data if env is None else env,  # type: ignore[attr-defined]
            file_actions=files,
            setsigdef=[_signal.SIGPIPE, _signal.SIGXFSZ],
        )
    finally:
        if source >= 0:
            os.close(source)
    try:
        meanwhile()
        return _exit_code(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the user ignores SIGCHLD, so the status is unknown
        return 0
    except BaseException:
        _wait_or_kill(pid)
        raise


def _file_of(data: bytes) -> int:
    """Return a descriptor to read these bytes from. A pipe would block on a long text."""
    fd = os.memfd_create("script", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _wait_or_kill(pid: int) -> None:
    """Wait for the command after an interrupt, which it got too, then kill it."""
    end = time.monotonic() + INTERRUPT_GRACE_SECONDS
    try:
        while time.monotonic() < end:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.005)
    except ChildProcessError:
        return
    finally:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                os.kill(pid, _signal.SIGKILL)
                os.waitpid(pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass


def _exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


# --- messages ----------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a line to the current stdout of the cell."""
    _write(sys.stdout or sys.__stdout__, text)


def warn(text: str) -> None:
    _write(sys.stderr or sys.__stderr__, text)


def _write(stream: Any, text: str) -> None:
    stream.write(text if text.endswith("\n") else text + "\n")
