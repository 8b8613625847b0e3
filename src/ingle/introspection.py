"""The public shapes of help for people who write code: completions, descriptions, and whether code is complete."""

from msgspec import Struct, field

MAX_ROWS = 1000
"""Rows of a table that are told at once."""


class Suggestion(Struct, frozen=True):
    text: str
    """Name to insert."""
    type: str = ""
    """`function`, `class`, `module`, `instance`, `property`, `key`, `keyword` or `magic`; empty if not known."""


class Completion(Struct, frozen=True):
    """Names that may stand at the cursor. Each replaces the code from `cursor_start` to `cursor_end`."""

    session_id: str
    matches: list[Suggestion]
    cursor_start: int
    cursor_end: int
    more: int = 0
    """Number of names that did not fit."""
    notices: list[str] = field(default_factory=list)


class Rows(Struct, frozen=True):
    """Rows of a variable to tell."""

    count: int
    first: int = 0
    column: int | None = None
    """Column whose points are told, counted from 0."""


class TablePage(Struct, frozen=True):
    """Some rows of a table, an array or a list, as text."""

    columns: list[str]
    """Labels of the columns that fit."""
    types: list[str]
    """Types of the columns, as their library names them."""
    index: list[str]
    """Labels of the rows."""
    cells: list[list[str]]
    """Text of each cell, row by row."""
    first: int
    """Number of rows before these."""
    total: int
    """Number of all rows."""
    width: int
    """Number of all columns."""
    points: list[float | None] | None = None
    """Numbers of the asked column, or of the only one, at even distances; null where a number is missing."""


class Inspection(Struct, frozen=True, omit_defaults=True):
    """Description of the object at the cursor, made without running its code."""

    session_id: str
    found: bool
    name: str = ""
    """Dotted name of the object."""
    type: str = ""
    signature: str = ""
    """Parameters of a function or class."""
    doc: str = ""
    """Documentation of the object or its class."""
    source: str = ""
    """Source of a function or class, if it was asked for."""
    preview: str = ""
    shape: list[int] | None = None
    length: int | None = None
    size: int | None = None
    notices: list[str] = field(default_factory=list)


class Completeness(Struct, frozen=True):
    """Whether code can run as it is."""

    session_id: str
    status: str
    """`complete`, `incomplete`, `invalid`, or `unknown` if the session did not answer."""
    indent: str = ""
    """Indentation of the next line of incomplete code."""
