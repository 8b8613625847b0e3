"""The Python client: live sessions from your own program, synchronous or not.

    from ingle import Client

    with Client() as client, client.session("main") as session:
        session.run("x = 21")
        print(session.run("x * 2").text)

`AsyncClient` is the same with `await`. This door imports httpx and websockets; `import ingle` alone does not.
"""

from ingle.client.aio.client import AsyncClient
from ingle.client.aio.session import AsyncSession
from ingle.client.decode import Event, OtherEvent, kind_of
from ingle.client.results import CellFailed, Result
from ingle.client.sync.client import Client
from ingle.client.sync.session import Session

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "CellFailed",
    "Client",
    "Event",
    "OtherEvent",
    "Result",
    "Session",
    "kind_of",
]
