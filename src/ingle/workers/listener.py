"""The interface by which a session hears of its worker."""

from typing import Any, Protocol

from ingle.events import Exit


class WorkerListener(Protocol):
    """Listener of one worker. Messages and output come in one order, and the end comes last."""

    def on_message(self, message: Any) -> None: ...

    def on_output(self, stream: int, data: bytes, background: bool) -> None: ...

    def on_gone(self, exit: Exit) -> None: ...
