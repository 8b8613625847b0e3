"""Logging by level, to standard error or a file, as text or JSON. It never blocks the event loop.

A thread writes the lines. If its output is not read, the newest lines are dropped. Names, durations and reasons are
logged; code, output and tokens never.
"""

import contextlib
import json
import logging
import logging.handlers
import queue
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from ingle.errors import InvalidRequest
from ingle.settings import Settings

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

MAX_WAITING = 10_000
"""Maximum number of unwritten lines; more are dropped."""

FLUSH_SECONDS = 2.0
"""Time for the last lines at exit."""


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{clock}.{record.msecs:03.0f} {record.levelname.lower()} {_visible(record.getMessage())}{fields}"
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *map(_visible, traceback)])


class JsonFormatter(logging.Formatter):
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


def _visible(text: str) -> str:
    """Return one line for a terminal: a path or an error from outside may hold control characters."""
    return text if text.isprintable() else _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in fields.items() if value is not None}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    text = str(value)
    return json.dumps(text) if " " in text or not text.isprintable() or not text else text


class DroppingQueueHandler(logging.handlers.QueueHandler):
    """Passes records to the thread unchanged, and drops them if the queue is full."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def logging_to(settings: Settings) -> Iterator[None]:
    """Log according to the settings inside the context."""
    writer = _writer(settings.log_file)
    writer.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING)
    listener = logging.handlers.QueueListener(waiting, writer)
    handler = DroppingQueueHandler(waiting)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(settings.log_level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        # A full queue has no place for the sentinel.
        with contextlib.suppress(queue.Empty):
            if waiting.full():
                waiting.get_nowait()
        thread = listener._thread
        listener.enqueue_sentinel()
        if thread is not None:
            # `stop` would wait for ever if no one reads the pipe.
            thread.join(FLUSH_SECONDS)


def _writer(path: str) -> logging.Handler:
    if not path:
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.handlers.WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InvalidRequest(f"log_file {path!r} cannot be written: {error.strerror}; name another file") from None
