"""The magics of a cell. The table is at the end.

A magic writes to the cell's stdout and stderr, runs programs in the cell's process group, and adds nothing to the
user's globals. It works even if the user redefines `print`, `os` or `open`.
"""

import glob
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from ingle_worker.magics import packages, subshell, timing
from ingle_worker.magics.program import Program
from ingle_worker.magics.subshell import expand, say, warn
from ingle_worker.session import traceback_text, variables

get_frame = sys._getframe


class Bound:
    """One magic of a cell: created when the cell is compiled, called when its line is reached."""

    __slots__ = ("_fixed", "_function")

    def __init__(self, function: Callable[..., Any], *fixed: Any) -> None:
        self._function = function
        self._fixed = fixed

    def __call__(self, *args: Any) -> Any:
        return self._function(get_frame(1), *self._fixed, *args)


class MagicFailed(Exception):
    """A magic could not do its work."""


MagicFailed.__module__ = "builtins"
MagicFailed.__qualname__ = MagicFailed.__name__ = "UsageError"


# --- shell -------------------------------------------------------------------------------------------------


def shell(frame: FrameType, command: str) -> None:
    command = expand(command, frame).strip()
    arguments = packages.arguments_of(command)
    if arguments is not None:
        frame.f_globals["_exit_code"] = packages.pip(arguments)
    elif packages.mentioned(command):
        frame.f_globals["_exit_code"] = packages.shell(command)
    else:
        subshell.system(frame, command)


def listed(frame: FrameType, command: str) -> subshell.Lines:
    return subshell.lines_of(frame, expand(command, frame).strip())


def _alias(command: str) -> Callable[[FrameType, str], None]:
    return lambda frame, line: subshell.system(frame, f"{command} {expand(line, frame)}".strip())


def bash(frame: FrameType, line: str, body: str, program: str = "bash") -> None:
    options = expand(line, frame).split()
    path = subshell.shell_path() if program == "bash" else "/bin/sh"
    code = subshell.run([path, *options], stdin=body.encode("utf-8", "surrogateescape"))
    frame.f_globals["_exit_code"] = code
    if code:
        import subprocess

        raise subprocess.CalledProcessError(code, f"%%{program}")


def sh(frame: FrameType, line: str, body: str) -> None:
    bash(frame, line, body, "sh")


def pip(frame: FrameType, line: str) -> None:
    frame.f_globals["_exit_code"] = packages.pip(packages.split(expand(line, frame)))


# --- folders, environment, files ---------------------------------------------------------------------------

_before: list[str] = []
"""The folder before the last `%cd`."""


def cd(frame: FrameType, line: str) -> None:
    quiet = line == "-q" or line.startswith("-q ")
    target = _unquoted(expand(line[2:].strip() if quiet else line, frame)) or "~"
    if target == "-":
        if not _before:
            raise MagicFailed("there is no folder to go back to: %cd was not used yet")
        target = _before[-1]
    was = os.getcwd()
    os.chdir(os.path.expanduser(target) if target.startswith("~") else target)
    _before[:] = [was]
    if not quiet:
        say(os.getcwd())


def pwd(frame: FrameType, line: str) -> str:
    return os.getcwd()


def env(frame: FrameType, line: str) -> Any:
    if not line:
        return dict(os.environ)
    name, separator, value = line.partition("=" if "=" in line.split(None, 1)[0] else " ")
    name = name.strip()
    if not separator:
        if name not in os.environ:
            raise MagicFailed(f"the environment has no variable {name}")
        return os.environ[name]
    value = _unquoted(expand(value.strip().removeprefix("= "), frame))
    os.environ[name] = value
    say(f"env: {name}={value}")
    return None


def write_file(frame: FrameType, line: str, body: str) -> None:
    line = expand(line, frame)
    append = line == "-a" or line.startswith("-a ")
    name = os.path.expanduser(_unquoted(line[2:].strip() if append else line))
    if not name:
        raise MagicFailed("%%writefile needs a file: %%writefile [-a] FILE")
    there = os.path.exists(name)
    with open(name, "a" if append else "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(body if not body or body.endswith("\n") else body + "\n")
    say(f"{'Appending to' if append else 'Overwriting' if there else 'Writing'} {name}")


def run_file(frame: FrameType, line: str) -> None:
    arguments = packages.split(expand(line, frame))
    while arguments and arguments[0] in ("-i", "-e"):
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        raise MagicFailed("%run needs a file of Python: %run FILE [arguments]")
    name = os.path.expanduser(arguments[0])
    if not os.path.exists(name) and os.path.exists(name + ".py"):
        name += ".py"
    given = [path for each in arguments[1:] for path in (sorted(glob.glob(each)) or [each])]
    with open(name, "rb") as file:
        code = compile(file.read(), name, "exec", dont_inherit=True)
    program = Program(frame.f_globals, [name, *given], name, os.path.dirname(os.path.abspath(name)))
    try:
        exec(code, frame.f_globals)
    except SystemExit as exc:
        if exc.code not in (None, 0):
            warn(f"{name} ended with exit code {exc.code}")
    finally:
        program.restore()


# --- time --------------------------------------------------------------------------------------------------


class Clock:
    """Clock of one `%time`. A recursive function may reach the same line again while it runs."""

    def __init__(self) -> None:
        self._began: list[timing.Moment] = []

    def begin(self, frame: FrameType) -> None:
        self._began.append(timing.now())

    def end(self, frame: FrameType, *values: Any) -> Any:
        return timing.report(self._began.pop(), values[-1] if values else None)


def time_it(frame: FrameType, code: CodeType, name: str, loops: int, runs: int, quiet: bool) -> None:
    made: dict[str, Any] = {}
    exec(code, frame.f_globals, made)
    timing.measure(made[name], loops, runs, quiet)


class Captured:
    """Output captured by `%%capture`."""

    def __init__(self, space: dict[str, Any], name: str) -> None:
        self._space, self._name = space, name
        self.stdout = self.stderr = ""

    def __enter__(self) -> None:
        import io

        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._buffers = io.StringIO(), io.StringIO()

    def __exit__(self, *exc: object) -> None:
        sys.stdout, sys.stderr = self._streams
        self.stdout, self.stderr = (each.getvalue() for each in self._buffers)
        del self._streams, self._buffers
        space, name = self._space, self._name
        del self._space
        if name:
            space[name] = self

    def __str__(self) -> str:
        return self.stdout

    def show(self) -> None:
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)


def capture(frame: FrameType, line: str) -> Captured:
    names = [each for each in line.split() if not each.startswith("-")]
    return Captured(frame.f_globals, names[0] if names else "")


# --- inspection --------------------------------------------------------------------------------------------


def who(frame: FrameType, line: str) -> None:
    names = variables.names_of(frame.f_globals)
    say("\t".join(names) if names else "There are no variables yet.")


def whos(frame: FrameType, line: str) -> None:
    rows = [(each["name"], each["type"], _about(each)) for each in variables.listing(frame.f_globals)[0]]
    if not rows:
        say("There are no variables yet.")
        return
    rows.insert(0, ("Variable", "Type", "Data/Info"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{row[0]:<{widths[0]}}   {row[1]:<{widths[1]}}   {row[2]}".rstrip() for row in rows]
    lines.insert(1, "-" * min(80, max(map(len, lines))))
    say("\n".join(lines))


def _about(variable: Mapping[str, Any]) -> str:
    shape = variable.get("shape")
    extent = "x".join(map(str, shape)) + ": " if shape else f"n={variable['length']}: " if "length" in variable else ""
    return extent + str(variable.get("preview", "")).replace("\n", " ")


def explain(frame: FrameType, name: str, marks: str) -> None:
    """Show type, signature and docstring for `name?`, and the source too for `name??`."""
    if name.startswith("%"):
        known = (LINES if name[1] != "%" else CELLS).get(name.lstrip("%"))
        say(inspect.getdoc(known) or f"{name} is a magic of this session." if known else _unknown(name))
        return
    first, *rest = name.split(".")
    space = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    if first not in space:
        say(f"Object `{name}` not found.")
        return
    value = space[first]
    for each in rest:
        value = getattr(value, each)
    parts = [("Type", type(value).__name__)]
    if callable(value):
        try:
            parts.append(("Signature", f"{rest[-1] if rest else first}{inspect.signature(value)}"))
        except (TypeError, ValueError):
            pass
    else:
        parts.append(("Value", traceback_text._shorten(repr(value), 2000)))
    try:
        parts.append(("File", inspect.getfile(value)))
    except (TypeError, OSError):
        pass
    parts.append(("Docstring", inspect.getdoc(value) or "<no docstring>"))
    if marks == "??":
        try:
            parts.append(("Source", "\n" + inspect.getsource(value)))
        except (TypeError, OSError):
            pass
    say("\n".join(f"{label + ':':<11}{text}" for label, text in parts))


def list_magics(frame: FrameType, line: str) -> None:
    say(_known())


# --- accepted, with nothing to do --------------------------------------------------------------------------

INLINE = ("", "inline", "agg", "notebook", "ipympl", "widget", "nbagg", "--list", "-l")


def matplotlib(frame: FrameType, line: str) -> None:
    if line.lower() not in INLINE:
        say(f"There is no display for {line!r} in a session: figures are shown inline.")


def load_extension(frame: FrameType, line: str) -> None:
    if line != "autoreload":
        say(f"Extensions of IPython are not loaded here, so {line!r} does nothing.")


def auto_reload(frame: FrameType, line: str) -> None:
    say("Modules are not reloaded by themselves here; use importlib.reload(module) after a change.")


def configure(frame: FrameType, line: str) -> None:
    if not line.startswith("InlineBackend"):
        say("%config has no effect here.")


# --- the table ---------------------------------------------------------------------------------------------

LINES: dict[str, Callable[[FrameType, str], Any]] = {
    "autoreload": auto_reload,
    "cat": _alias("cat"),
    "cd": cd,
    "config": configure,
    "cp": _alias("cp"),
    "env": env,
    "load_ext": load_extension,
    "ls": _alias("ls"),
    "lsmagic": list_magics,
    "matplotlib": matplotlib,
    "mkdir": _alias("mkdir"),
    "mv": _alias("mv"),
    "pip": pip,
    "pwd": pwd,
    "reload_ext": load_extension,
    "rm": _alias("rm"),
    "run": run_file,
    "set_env": env,
    "sx": listed,
    "system": listed,
    "who": who,
    "whos": whos,
}
CELLS: dict[str, Callable[[FrameType, str, str], Any]] = {
    "bash": bash,
    "file": write_file,
    "sh": sh,
    "writefile": write_file,
}
WRAPPING: dict[str, Callable[[FrameType, str], Any]] = {"capture": capture, "time": lambda frame, line: None}
"""Cell magics whose body is Python and is compiled in place."""

COMPILED = ("time", "timeit")
"""Magics whose text is Python. They exist in the compiler only."""

ALTERNATIVES = {
    "reset": "use `del name`, or clear the session",
    "debug": "use `import pdb; pdb.pm()`",
    "pdb": "use `breakpoint()` where it should stop",
    "conda": "use %pip, or !conda where there is one",
    "mamba": "use %pip, or !mamba where there is one",
    "html": "use `from IPython.display import HTML, display; display(HTML(...))`",
    "markdown": "use `from IPython.display import Markdown, display; display(Markdown(...))`",
    "latex": "use `from IPython.display import Latex, display; display(Latex(...))`",
    "javascript": "scripts do not run in a session",
    "prun": "use `import cProfile; cProfile.run(...)`",
    "load": "use `print(open(FILE).read())`, or %run FILE",
    "history": "ask for the cells of the session",
}


def problem(sign: str, name: str) -> str | None:
    """Return why there is no such magic, or None if there is."""
    if sign not in ("%", "%%") or name in COMPILED or name in (LINES if sign == "%" else (*CELLS, *WRAPPING)):
        return None
    return _unknown(f"{sign}{name}")


def _unknown(written: str) -> str:
    sign, name = ("%%", written[2:]) if written.startswith("%%") else ("%", written[1:])
    if name in ALTERNATIVES:
        return f"there is no {written} here; {ALTERNATIVES[name]}"
    if sign == "%" and name in (*CELLS, *WRAPPING):
        return f"%{name} is a cell magic: write %%{name} on the first line of a cell"
    if sign == "%%" and name in LINES:
        return f"%%{name} is a line magic: write %{name}"
    return f"there is no {written} here. {_known()}"


def _known() -> str:
    lines = " ".join(f"%{name}" for name in sorted({*LINES, *COMPILED}))
    cells = " ".join(f"%%{name}" for name in sorted({*CELLS, *WRAPPING, *COMPILED}))
    return f"Known magics: !command, {lines}, and for whole cells {cells}"


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
