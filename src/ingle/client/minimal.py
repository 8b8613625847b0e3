"""The minimal HTTP client: one request on one connection, with the standard library only.

The commands for running services use it, because it imports in a few milliseconds. The full client uses httpx for
connection pools, proxies and `await`. Both get exceptions for server errors from `failure`.
"""

import contextlib
import http.client
import json
from collections.abc import Iterable
from types import TracebackType
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from ingle import errors
from ingle.client.address import Address
from ingle.support.running_servers import connect


def reason(error: Exception) -> str:
    """Return the reason of a failed connection in a few words."""
    return "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _by_code(kind: type[errors.IngleError]) -> dict[str, type[errors.IngleError]]:
    """Return the classes of `ingle.errors` by code; the first in the tree if several share one."""
    found: dict[str, type[errors.IngleError]] = {kind.code: kind}
    for each in kind.__subclasses__():
        if each.__module__.startswith(errors.__name__):
            found.update({code: made for code, made in _by_code(each).items() if code not in found})
    return found


_BY_CODE = _by_code(errors.IngleError)


def failure(status: int, body: bytes, retry_after: str | None = None) -> errors.IngleError:
    """Return the exception for an unsuccessful answer.

    A server may be newer than its client: an unknown error becomes an `IngleError` with its code and status.
    """
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):
        return errors.Unreachable(
            f"the server is not an ingle server, or a proxy that cannot reach one: it answered {status}; "
            "check the URL, and whether `ingle serve` runs"
        )
    code = problem["code"]
    # Created without its own __init__, because the server has already written the sentence.
    trial = problem.get("trial")
    kind = errors.TrialOpen if trial else _BY_CODE.get(code, errors.IngleError)
    error = kind.__new__(kind)
    errors.IngleError.__init__(error, str(problem.get("detail", code)))
    error.code, error.status = code, status
    if retry_after is not None and retry_after.isdecimal():
        error.retry_after = float(retry_after)
    if isinstance(error, errors.Busy):
        error.cell = int(problem.get("cell") or 0)
    if isinstance(error, errors.TrialOpen):
        error.trial = str(trial)
    return error


class MinimalClient:
    """Requests to one service. Connections are not reused, and nothing is sent twice."""

    def __init__(self, address: Address, name: str | None = None) -> None:
        self._address = address
        self._name = name or str(address)
        """Name of the service in errors."""

    def request(self, method: str, path: str, body: Any = None, *, timeout: float) -> Any:
        """Return the decoded answer, or raise the error that it describes, or `Unreachable`."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        with self.open(method, path, data, timeout=timeout) as answer:
            said = answer.read()
        try:
            return json.loads(said) if said else None
        except (ValueError, RecursionError):
            raise errors.Unreachable(f"{self._name} is not an ingle server; check the URL") from None

    def open(
        self, method: str, path: str, data: "bytes | BinaryIO | Iterable[bytes] | None" = None, *, timeout: float
    ) -> "StreamedAnswer":
        """Return a successful answer with an unread body. Raises as `request` does."""
        streamed = data is not None and not isinstance(data, bytes)
        headers = {"Content-Type": "application/octet-stream" if streamed else "application/json"}
        try:
            connection = self._connect(timeout)
            try:
                prefix = urlsplit(self._address.url).path
                # If the server stops reading a body, its answer says why.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, prefix + path, data, {**headers, **self._address.headers})
                answer = connection.getresponse()
                if not 200 <= answer.status < 300:
                    raise failure(answer.status, answer.read(), answer.headers.get("Retry-After"))
            except BaseException:
                connection.close()
                raise
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(self._name, error) from None
        return StreamedAnswer(connection, answer, self._name)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._address.path is not None:
            connection = http.client.HTTPConnection("localhost", timeout=timeout)
            connection.sock = connect(self._address.path)
            connection.sock.settimeout(timeout)
            return connection
        parts = urlsplit(self._address.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(str(parts.hostname), parts.port, timeout=timeout)


class StreamedAnswer:
    """The body of a successful answer, with its connection. Close it after use."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, name: str) -> None:
        self._connection = connection
        self._answer = answer
        self._name = name

    def __enter__(self) -> "StreamedAnswer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def read(self, size: int | None = None) -> bytes:
        """Return up to `size` bytes, empty at the end; without a size all of them."""
        try:
            return self._answer.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(self._name, error) from None


def _no_answer(name: str, error: Exception) -> errors.Unreachable:
    return errors.Unreachable(f"the server ({name}) does not answer: {reason(error)}; check that it runs there")
