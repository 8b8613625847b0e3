"""Importing the SDK without holding anything up: in a thread, once, when the first one asks."""

import asyncio
import contextlib
import importlib
import threading
from types import ModuleType
from typing import Any


async def load(name: str) -> ModuleType:
    """A module that imports the SDK. The loop goes on meanwhile: signals are heard, workers start."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[ModuleType] = loop.create_future()

    def work() -> None:
        module, failure = None, None
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the end came first
            loop.call_soon_threadsafe(_settle, loaded, module, failure)

    # Not one of the loop's own threads: those are waited for at the end.
    threading.Thread(target=work, daemon=True).start()
    return await loaded


def _settle(future: "asyncio.Future[Any]", value: Any, failure: ImportError | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(value)
