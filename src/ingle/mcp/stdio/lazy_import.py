"""Import of the SDK in a thread, on first use."""

import asyncio
import contextlib
import importlib
import threading
from types import ModuleType
from typing import Any


async def load(name: str) -> ModuleType:
    """Import a module that needs the SDK, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[ModuleType] = loop.create_future()

    def work() -> None:
        module, failure = None, None
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is already closed
            loop.call_soon_threadsafe(_settle, loaded, module, failure)

    # Not in the loop's executor, whose threads are waited for at exit.
    threading.Thread(target=work, daemon=True).start()
    return await loaded


def _settle(future: "asyncio.Future[Any]", value: Any, failure: ImportError | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(value)
