"""Page of the errors, and the table of codes by status, from the tree of error classes."""

import re

from ingle import errors
from ingle.http import problems
from reference.markdown import summary, table

HEAD = """\
# Errors

This page is generated from `src/ingle/errors/` by `python tools/reference`.

Every error of ingle has a stable code, an HTTP status, and a message with the remedy.
The Python client raises the class; HTTP answers with the status and a [problem](http.md#problems) that has the code.
An exception in a cell is not an error of ingle: it is a result with the status `error`.
[Troubleshooting](../troubleshooting.md) lists messages with their remedies.

"""

_ROW = re.compile(r"(\w+)\s+(\d{3})\s+(\w+)(?:\s+(.*))?$")

REQUESTS = """
## Errors of requests

These errors come from the HTTP interface only.

"""


def page() -> str:
    """Return the whole page."""
    meanings = _meanings()
    rows = [
        (f"`{kind.code}`", str(kind.status), f"`{kind.__name__}`", f"`{_parent(kind)}`", meanings[kind.__name__])
        for kind in _kinds(errors.IngleError)
        if kind.__module__.startswith(errors.__name__) and kind is not errors.IngleError
    ]
    requests = [
        (f"`{kind.code}`", str(kind.status), summary(kind))
        for kind in _kinds(errors.IngleError)
        if kind.__module__ == problems.__name__
    ]
    return (
        HEAD
        + table(("Code", "Status", "Class", "Base", "Meaning"), rows)
        + REQUESTS
        + table(("Code", "Status", "Meaning"), requests)
    )


def problems_table() -> str:
    """Return the codes by their HTTP status."""
    by_status: dict[int, list[str]] = {}
    for kind in _kinds(errors.IngleError):
        codes = by_status.setdefault(kind.status, [])
        # A client that finds no server has no status to report.
        if kind.code not in codes and kind is not errors.Unreachable:
            codes.append(kind.code)
    rows = ((str(status), ", ".join(f"`{code}`" for code in by_status[status])) for status in sorted(by_status))
    return table(("Status", "`code`"), rows)


def _kinds(of: type[errors.IngleError]) -> list[type[errors.IngleError]]:
    # Tests may define errors of their own.
    own = [each for each in of.__subclasses__() if each.__module__.startswith((errors.__name__, problems.__name__))]
    return [of, *(kind for each in own for kind in _kinds(each))]


def _parent(kind: type[errors.IngleError]) -> str:
    return kind.__bases__[0].__name__


def _meanings() -> dict[str, str]:
    """Return the words beside each class in the tree of the module's docstring."""
    rows = (_ROW.search(line) for line in (errors.__doc__ or "").splitlines())
    return {row[1]: row[4] or "" for row in rows if row}
