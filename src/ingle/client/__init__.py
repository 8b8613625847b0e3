"""The Python client: live sessions from your own program, synchronous or asynchronous.

    from ingle import Client

    with Client() as client, client.session("main") as session:
        session.run("x = 21")
        print(session.run("x * 2").text)

`AsyncClient` is the same with `await`. Names are imported on first use, because httpx is slow to import. The command
line uses only `minimal` and `address`, which do not need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingle.client.aio.client import AsyncClient
    from ingle.client.aio.session import AsyncSession
    from ingle.client.batch import Item
    from ingle.client.decode import Event, OtherEvent, kind_of
    from ingle.client.results import CellFailed, ItemResult, Result
    from ingle.client.sync.client import Client
    from ingle.client.sync.session import Session

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "CellFailed",
    "Client",
    "Event",
    "Item",
    "ItemResult",
    "OtherEvent",
    "Result",
    "Session",
    "kind_of",
]

_MODULES = {
    "AsyncClient": "aio.client",
    "AsyncSession": "aio.session",
    "CellFailed": "results",
    "Client": "sync.client",
    "Event": "decode",
    "Item": "batch",
    "ItemResult": "results",
    "OtherEvent": "decode",
    "Result": "results",
    "Session": "sync.session",
    "kind_of": "decode",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
