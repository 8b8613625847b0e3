"""Cells that a test runs for what they show."""

from ingle.events import Result
from ingle.service import Service


async def run(service: Service, session_id: str, code: str) -> Result:
    """Run a cell that must succeed."""
    result = await service.execute(session_id, code)
    assert (result.status, result.error) == ("ok", None), result
    return result


async def value(service: Service, session_id: str, code: str) -> str:
    """Return the text of a cell's value."""
    result = await run(service, session_id, code)
    assert result.result is not None, result
    return result.result["text/plain"]


async def shown(service: Service, session_id: str, code: str) -> str:
    """Return the text of a cell's value, or what the cell printed when it has none."""
    result = await run(service, session_id, code)
    return result.result["text/plain"] if result.result else result.stdout
