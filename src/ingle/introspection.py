"""The public shapes of help for people who write code: completions, descriptions, and whether code is complete."""

from msgspec import Struct, field


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
