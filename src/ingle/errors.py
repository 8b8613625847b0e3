"""Every failure of ours has a name, a stable code, an HTTP status, and a sentence that says what to do next.

An exception in a user's cell is a result, not an error of ours.

    IngleError
    ├── InvalidRequest          422  invalid_request      a field is unknown, missing, of the wrong type, or too large
    │   ├── InvalidName         422  invalid_name         a session's name breaks the rule for names
    │   ├── InterpreterRefused  422  interpreter_refused  not there, too old, or not a Python
    │   └── KeyReused           422  key_reused           an Idempotency-Key that stood for another request
    ├── Unauthorized            401  unauthorized         no token, or a wrong one
    ├── Forbidden               403  forbidden            a page of a foreign origin, or a token without the scope
    ├── Misdirected             421  misdirected          a Host this server does not answer to
    ├── TooLarge                413  too_large            a body above the limit
    ├── NotFound                404  not_found            no such route
    │   ├── SessionNotFound     404  session_not_found
    │   ├── CellNotFound        404  cell_not_found
    │   └── FileNotThere        404  file_not_found
    ├── Conflict                409  conflict
    │   ├── SessionExists       409  session_exists       the name is taken
    │   ├── Busy                409  busy                 a cell runs; nothing was started
    │   └── NotWaiting          409  not_waiting          nobody waits for input
    ├── TooManySessions         429  too_many_sessions
    ├── QuotaExceeded           429  quota_exceeded       the token's own limit is reached
    ├── Unavailable             503  unavailable          the server is stopping
    ├── StartFailed             503  start_failed         no worker could be started
    └── Unreachable             503  unreachable          no server answers the client
"""


class IngleError(Exception):
    code = "internal"
    status = 500
    retry_after: float | None = None
    """Seconds after which the same request may succeed, where that is known."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(IngleError):
    code, status = "invalid_request", 422


class InvalidName(InvalidRequest):
    code = "invalid_name"


class InterpreterRefused(InvalidRequest):
    code = "interpreter_refused"


class KeyReused(InvalidRequest):
    code = "key_reused"

    def __init__(self) -> None:
        super().__init__(
            "this Idempotency-Key was used for another request to the session; "
            "send the same body to get its result, or take a new key to run something else"
        )


class Unauthorized(IngleError):
    code, status = "unauthorized", 401


class Forbidden(IngleError):
    code, status = "forbidden", 403


class Misdirected(IngleError):
    code, status = "misdirected", 421


class TooLarge(IngleError):
    code, status = "too_large", 413


class NotFound(IngleError):
    code, status = "not_found", 404


class SessionNotFound(NotFound):
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id[:80]!r}; list the sessions, or create it first")


class CellNotFound(NotFound):
    code = "cell_not_found"

    def __init__(self, session_id: str, cell: int, last: int) -> None:
        known = f"its cells are 1 to {last}" if last else "it has run no cell yet"
        super().__init__(f"session {session_id!r} has no cell {cell}; {known}")


class FileNotThere(NotFound):
    code = "file_not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no file {path[:200]!r} in the session's folder; list /files to see what there is")


class Conflict(IngleError):
    code, status = "conflict", 409


class SessionExists(Conflict):
    code = "session_exists"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"a session {session_id!r} exists already; use it, end it first, or take another name")


class Busy(Conflict):
    code = "busy"

    def __init__(self, cell: int, seconds: float) -> None:
        super().__init__(f"busy: cell {cell} has run for {seconds:.1f} s; wait, or interrupt")
        self.cell = cell


class NotWaiting(Conflict):
    code = "not_waiting"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is not waiting for input, so the text was not sent; "
            "send it when the status is waiting_for_input"
        )


class TooManySessions(IngleError):
    code, status = "too_many_sessions", 429
    retry_after = 10.0

    def __init__(self, limit: int) -> None:
        super().__init__(f"all {limit} sessions are in use; end one, or raise max_sessions")


class QuotaExceeded(IngleError):
    code, status = "quota_exceeded", 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(IngleError):
    code, status = "unavailable", 503
    retry_after = 5.0


class StartFailed(IngleError):
    code, status = "start_failed", 503


class Unreachable(IngleError):
    """Said by a client, never by a server."""

    code, status = "unreachable", 503
