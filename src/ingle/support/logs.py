"""The log: by level, to standard error or a file, as text or JSON. Writing it never holds the loop up.

Lines are handed to a thread that writes them. A reader that stops reading costs the newest lines, not the server.
Rooms log names, durations and reasons; none logs code, output or tokens.
"""

import contextlib
import json
import logging
import logging.handlers
import queue
import sys
import time
from collections.abc import Iterator
from typing import Any

from ingle.errors import InvalidRequest
from ingle.settings import Settings

MAX_WAITING = 10_000
"""Lines that wait to be written; more are dropped."""

FLUSH_PATIENCE = 2.0
"""How long the last lines may take to be written when the process ends."""


class Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{clock}.{record.msecs:03.0f} {record.levelname.lower()} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in fields.items() if value is not None}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    text = str(value)
    return json.dumps(text) if " " in text or not text.isprintable() or not text else text


class Handover(logging.handlers.QueueHandler):
    """Gives a record to the thread as it is; one too many is dropped."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def logging_to(settings: Settings) -> Iterator[None]:
    """Log as the settings say, for as long as the context lasts."""
    writer = _writer(settings.log_file)
    writer.setFormatter(Json() if settings.log_format == "json" else Text())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING)
    listener = logging.handlers.QueueListener(waiting, writer)
    handler = Handover(waiting)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(settings.log_level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        # Room for the word that ends it, however full it is.
        with contextlib.suppress(queue.Empty):
            if waiting.full():
                waiting.get_nowait()
        thread = listener._thread
        listener.enqueue_sentinel()
        if thread is not None:
            # Not for ever, as `stop` would: the pipe it writes to may be one that nobody reads.
            thread.join(FLUSH_PATIENCE)


def _writer(path: str) -> logging.Handler:
    if not path:
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.handlers.WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidRequest(f"log_file {path!r} cannot be written: {error.strerror}") from None
