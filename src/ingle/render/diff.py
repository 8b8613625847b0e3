"""The difference between two states of a session as text."""

from ingle.files import Diff, FileDiff, FileState, VariableDiff, VariableState
from ingle.render.phrases import size
from ingle.render.terminal_text import clean

MAX_LINES_OF_FILE = 40
"""Lines of one file's diff that a model reads."""

MAX_LINE_CHARS = 300
MAX_CHARS = 9000
"""Characters that a model reads, without notices."""

MAX_VALUE_CHARS = 60
"""Characters of a value that is shown. Longer ones are told by type and size."""

MAX_VARIABLES = 50

DEFINITIONS = ("module", "type", "function")
"""Types whose size tells nothing."""


def variable_line(each: VariableDiff) -> str:
    """Return one line about a variable that differs."""
    states = [state for state in (each.before, each.after) if state is not None]
    values = [value for state in states if (value := short_value(state)) is not None]
    if len(values) == len(states) and len({state.type for state in states}) == 1:
        # Once if they read the same: the name was bound again, or a part differs that is not shown.
        told = f"{' -> '.join(dict.fromkeys(values))} ({states[0].type})"
    else:
        told = " -> ".join(map(_variable, states))
    return clean(f"{each.change} {each.name}: {told}")


def _variable(state: VariableState) -> str:
    value = short_value(state)
    if value is not None:
        return f"{value} ({state.type})"
    parts = [state.type]
    if state.shape is not None:
        parts.append(" x ".join(map(str, state.shape)) or "scalar")
    elif state.length is not None:
        parts.append(f"length {state.length}")
    if state.size is not None and state.type not in DEFINITIONS:
        parts.append(size(state.size))
    return ", ".join(parts)


def short_value(state: VariableState) -> str | None:
    """Return the value of a variable if it is short enough to read in a line, or None."""
    value = state.preview
    if value is None or len(value) > MAX_VALUE_CHARS or value.startswith("<"):
        return None
    return value


def file_line(each: FileDiff) -> str:
    """Return one line about a file that differs."""
    sides = [_file(state) for state in (each.before, each.after) if state is not None]
    return clean(f"{each.change} {each.path}: {' -> '.join(sides)}")


def _file(state: FileState) -> str:
    if state.kind == "link":
        return f"link to {state.target}"
    if state.kind == "folder":
        return "empty folder"
    return f"{state.size} bytes, mode {state.mode:o}, sha256 {state.digest[:12]}"


def _file_lines(each: FileDiff) -> list[str]:
    text = (each.text or "").splitlines()
    if not text:
        return [file_line(each)]
    more = len(text) - MAX_LINES_OF_FILE
    shown = [clean(line)[:MAX_LINE_CHARS] for line in text[:MAX_LINES_OF_FILE]]
    return [*shown, f"[{more} more lines of {clean(each.path)}]"] if more > 0 else shown


def heading(kind: str, name: str) -> str:
    """Return the line before what differs."""
    return f"compared with the {kind} {name!r}, now:"


def diff_text(diff: Diff) -> str:
    """Return what a model reads of a difference: a line for each variable, and the first lines of each text's diff."""
    lines = [heading(diff.kind, diff.to)]
    variables = diff.variables or []
    lines += [variable_line(each) for each in variables[:MAX_VARIABLES]]
    if len(variables) > MAX_VARIABLES:
        lines.append(f"and {len(variables) - MAX_VARIABLES} more variables")
    if diff.unknown:
        names = ", ".join(diff.unknown[:MAX_VARIABLES])
        lines.append(clean(f"variables that were not compared: {names}"))
    files = diff.files or []
    left = MAX_CHARS - sum(map(len, lines))
    shown = 0
    for each in files:
        part = _file_lines(each)
        if sum(map(len, part)) > left:
            part = [file_line(each)]
        left -= sum(map(len, part)) + len(part)
        if left < 0:
            break
        lines += part
        shown += 1
    more = diff.more_files + len(files) - shown
    if more:
        lines.append(f"and {more} more files")
    if len(lines) == 1:
        lines = [f"nothing differs from the {diff.kind} {diff.to!r}"]
    return "\n".join([*lines, *(f"[{clean(notice)}]" for notice in diff.notices)])
