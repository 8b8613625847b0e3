"""What `ingle run` runs: code, a file, a module or a notebook, as steps that each become one cell."""

import os
import sys
import tokenize
from dataclasses import dataclass, field

from ingle.cli.failure import Failure
from ingle.render.notebook import InvalidNotebook, Notebook, NoteCell
from ingle.requests import Script

NOTEBOOK = ".ipynb"


@dataclass(frozen=True)
class Step:
    """Code that becomes one cell."""

    code: str
    script: Script | None = None
    may_fail: bool = False
    """The next step runs even if this one fails, and the exit code does not tell."""
    place: int = 0
    """Place of its cell in the notebook."""
    notes: tuple[NoteCell, ...] = ()
    """Texts of the notebook before the cell."""


@dataclass(frozen=True)
class Job:
    steps: list[Step]
    python: str | None = None
    environment: str | None = None
    isolation: str | None = None
    timeout: float | None = None
    """Seconds for each step."""
    env: dict[str, str] = field(default_factory=dict)
    as_json: bool = False
    takes_stdin: bool = True
    shows_value: bool = True
    """Print the value of the last expression."""
    figures: str | None = None
    """Folder for images that the code shows."""
    notebook: Notebook | None = None
    keep_going: bool = False
    """Run the next step also after an error."""
    last_notes: tuple[NoteCell, ...] = ()
    """Texts of the notebook after the last step."""
    output: str | None = None
    """File to write the executed notebook to."""
    durable: bool = False
    """Make a durable session, if it does not exist."""
    folders: tuple[str, ...] = ()
    """Folders that the code may use, each DIR or DIR:ro. It starts in the first."""


def of_code(code: str, arguments: list[str]) -> Job:
    return Job([Step(_compilable(code), Script(["-c", *arguments]) if arguments else None)])


def _compilable(code: str) -> str:
    """Return the code. Raise UnicodeEncodeError if it has bytes that are not UTF-8."""
    code.encode()
    return code


def of_module(module: str, arguments: list[str]) -> Job:
    """Return a job that runs a module as `python -m` does. The function has no public name, but `python` calls it."""
    code = f'__import__("runpy")._run_module_as_main({module!r});'
    return Job([Step(code, Script(["-m", *arguments]))], shows_value=False)


def of_standard_input(arguments: list[str]) -> Job:
    code = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return Job([Step(_compilable(code), Script(["-", *arguments]) if arguments else None)], takes_stdin=False)


def of_argument(source: str, arguments: list[str]) -> Job:
    """Return the job of a bare argument: of a file if it exists, of standard input for `-`, or else of the code."""
    if source == "-":
        return of_standard_input(arguments)
    if not names_file(source):
        return of_code(source, arguments)
    if source.endswith(NOTEBOOK):
        return _of_notebook(source, arguments)
    try:
        with tokenize.open(source) as file:  # respects the declared encoding
            code = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise Failure(f"{source} cannot be read as Python: {error}") from None
    script = Script([source, *arguments], os.path.abspath(source))
    return Job([Step(code, script)], shows_value=False)


def names_file(source: str) -> bool:
    """Return whether an argument names a file, and is not code. A folder and a missing file are refused."""
    # A plain word such as `data` is a variable, also beside a folder of this name. os.path returns False for text that
    # cannot be a path, however long.
    if source.isidentifier() and not os.path.isfile(source):
        return False
    if os.path.isdir(source):
        raise Failure(f"{source} is a folder; name a file in it, or pass the code itself")
    if os.path.exists(source):
        return True
    if source.endswith((".py", NOTEBOOK)) and not source.split()[1:]:
        raise Failure(f"there is no file {source}; name an existing one, or pass the code itself")
    return False


def _of_notebook(source: str, arguments: list[str]) -> Job:
    try:
        with open(source, encoding="utf-8") as file:
            notebook = Notebook.parse(file.read())
    except (OSError, UnicodeDecodeError, InvalidNotebook) as error:
        raise Failure(f"{source} cannot be run as a notebook: {error}") from None
    script = Script([source, *arguments]) if arguments else None
    steps, first = [], 0
    for cell in notebook.code_cells:
        notes = tuple(notebook.notes(first, cell.place))
        steps.append(Step(cell.source, script, cell.may_fail, cell.place, notes))
        first = cell.place + 1
    return Job(steps, notebook=notebook, last_notes=tuple(notebook.notes(first)))
