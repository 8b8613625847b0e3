"""Table of makers, and the state of the load that they take part in."""

import importlib
import importlib.util
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ingle_worker.session import traceback_text

MODULE = "ingle_saved"
MAGIC = importlib.util.MAGIC_NUMBER

MAKERS: dict[str, Callable[..., Any]] = {}
"""All makers by their names in a stream."""

FUTURE_MASK = 0
for _each in importlib.import_module("__future__").all_feature_names:
    FUTURE_MASK |= getattr(importlib.import_module("__future__"), _each).compiler_flag
FUTURE_MASK &= ~0x10


def maker(make: Any) -> Any:
    """Register a function as the maker of its name."""
    make.__module__, make.__qualname__ = MODULE, make.__name__
    MAKERS[make.__name__] = make
    return make


class Lost:
    """Placeholder for code that this interpreter cannot run and has no source for."""

    def __init__(self, why: str) -> None:
        self.why = why


class CannotRebuild(Exception):
    """An object of a snapshot cannot be created here. The message says why."""


class LoadState:
    """State of one load that makers need."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space
        self.defined: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        """Sources of cells by file name in the stream."""
        self.renamed: dict[str, str] = {}
        """New file names of cells by file name in the stream."""
        self.lost: list[Lost] = []
        """Functions of the current group that could not be rebuilt so far."""
        self.marks: dict[int, int] = {}
        """Number of lost functions before each class, by the class's id."""
        self.devices: dict[str, int] = {}
        """How many devices of a kind, such as `cuda`, this process has, as far as it was asked."""
        self.moved: dict[str, str] = {}
        """Devices that are missing here, and where their data went."""

    def remember_sources(self) -> None:
        """Register the sources of loaded cells for tracebacks and `inspect`."""
        for filename, source in self.sources.items():
            traceback_text.remember_source(self.renamed.get(filename, filename), source)


CURRENT: ContextVar[LoadState] = ContextVar("ingle_load")
"""State of the current load. pickle calls makers, so it cannot be an argument."""
