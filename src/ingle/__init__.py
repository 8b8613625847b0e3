"""ingle runs live Python sessions for agents. Sessions remember their state, and end without leaving processes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingle.client import AsyncClient as AsyncClient
    from ingle.client import CellFailed as CellFailed
    from ingle.client import Client as Client

__version__ = "0.1.0"

_OF_THE_CLIENT = ("AsyncClient", "CellFailed", "Client")


def __getattr__(name: str) -> Any:
    # Imported late: every command imports `ingle`, and the client imports httpx.
    if name in _OF_THE_CLIENT:
        import importlib

        return getattr(importlib.import_module("ingle.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_OF_THE_CLIENT])
