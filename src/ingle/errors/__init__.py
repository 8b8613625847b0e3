"""All errors that ingle raises: each has a stable code, an HTTP status, and a sentence with the remedy.

An exception in a user's cell is a result, not an error of ingle.

    IngleError
    ├── InvalidRequest          422  invalid_request      a field is unknown, missing, of the wrong type, or too large
    │   ├── InvalidName         422  invalid_name         a session's name breaks the rule for names
    │   ├── InterpreterRefused  422  interpreter_refused  not there, too old, or not a Python
    │   ├── StdlibRefused       422  stdlib_refused       code for the user's library that does not compile or run
    │   ├── SnapshotDamaged     422  snapshot_damaged     truncated, changed, or not a snapshot
    │   └── KeyReused           422  key_reused           an Idempotency-Key that belongs to another request
    ├── Unauthorized            401  unauthorized         no token, or a wrong one
    ├── Forbidden               403  forbidden            a page of another origin, or a token without the scope
    │   ├── SnapshotUntrusted   403  snapshot_untrusted   not signed by this ingle for this tenant
    │   └── NotGranted          403  not_granted          a folder, interpreter, level or network that is not granted
    ├── EnvironmentFailed       422  environment_failed   an environment could not be built
    ├── Misdirected             421  misdirected          a Host that this server does not serve
    ├── TooLarge                413  too_large            a body above the limit
    ├── NotFound                404  not_found            no such route
    │   ├── SessionNotFound     404  session_not_found
    │   │   ├── SessionEnded    404  session_not_found    ended with an earlier run of the server
    │   │   ├── SessionStopped  404  session_not_found    asked for while the server stops
    │   │   └── SessionHeldBack 404  session_not_found    saved, and this server may not bring it back
    │   ├── CellNotFound        404  cell_not_found
    │   │   ├── CellElsewhere   404  cell_not_found       ran before the session was forked from another
    │   │   └── CellForgotten   410  cell_forgotten       started before the server restarted
    │   ├── CellNotKept         404  cell_not_kept        no checkpoint holds the state after that cell
    │   ├── CheckpointNotFound  404  checkpoint_not_found
    │   ├── TrialNotFound       404  trial_not_found      it was committed or discarded, or has expired
    │   ├── FailureNotFound     404  failure_not_found    name a cell whose failure is kept; see keep_failures
    │   ├── FigureNotFound      404  figure_not_found     no stored image has that id
    │   ├── FileNotThere        404  file_not_found
    │   ├── VariableNotFound    404  variable_not_found
    │   ├── SnapshotNotFound    404  snapshot_not_found
    │   ├── GrantNotFound       404  grant_not_found
    │   ├── ApprovalNotFound    404  approval_not_found   nothing of that id waits for approval
    │   ├── EnvironmentNotFound 404  environment_not_found
    │   ├── TaskNotFound        404  task_not_found       unknown, or ended and removed
    │   └── SessionLost         410  session_lost         its machine was lost, and no save of it exists
    ├── Conflict                409  conflict
    │   ├── SessionExists       409  session_exists       the name is taken
    │   │   └── SessionDiffers  409  session_exists       it exists, and is not as the client asks for it
    │   ├── EnvironmentInUse    409  environment_in_use   sessions use it, or it is being built
    │   ├── Busy                409  busy                 a cell is running; nothing was started
    │   │   ├── TrialOpen       409  busy                 a trial is open; commit or discard it first
    │   │   └── ShellBusy       409  busy                 a command is running in that persistent shell
    │   ├── TrialRefused        409  trial_refused        the session cannot have this trial
    │   ├── FilesChanged        409  files_changed        others changed the same files; run the trial again
    │   ├── NotWaiting          409  not_waiting          no cell waits for input
    │   ├── TaskOver            409  task_over            the task has ended
    │   ├── InputClosed         409  input_closed         the task was started without an open stdin
    │   ├── StaleSave           409  stale_save           another server has the session by now; nothing was saved
    │   └── BatchBegun          409  batch_begun          a batch with this Idempotency-Key has begun already
    ├── TooManySessions         503  too_many_sessions    the machine or the setting max_sessions allows no more
    ├── Overloaded              503  overloaded           too many sessions wait to be started
    ├── TooManyTasks            429  too_many_tasks
    ├── QuotaExceeded           429  quota_exceeded       a limit of the token is reached
    ├── VariableUntold          504  variable_untold      its __repr__ took too long, or ended the worker
    ├── Unavailable             503  unavailable          the server is stopping
    ├── NodeLost                503  node_lost            the machine that carried it out was lost
    ├── StartFailed             503  start_failed         no worker could be started
    │   ├── IsolationUnavailable 409 isolation_unavailable this machine does not support the requested level
    │   └── LimitUnavailable    409  limit_unavailable    this machine does not apply the requested limit
    ├── DataFolderFailed        503  data_folder_failed   a file in the data folder cannot be read or written
    │   ├── RegistryBroken      503  registry_broken      the list of durable sessions cannot be read or written
    │   └── StoreFailed         503  store_failed         the object store does not answer, or answers with an error
    │       ├── StoreRefused    503  store_refused        the object store refuses the credentials of the server
    │       └── StoreFull       507  store_full           the object store has no space, or its quota is used up
    ├── SaveFailed              503  save_failed          the session's copy ended or broke the protocol, or disk full
    ├── LoadFailed              503  load_failed          the new session ended while a snapshot was being loaded
    └── Unreachable             503  unreachable          no server answers the client
"""

from ingle.errors.base import IngleError as IngleError
from ingle.errors.missing import (
    ApprovalNotFound as ApprovalNotFound,
)
from ingle.errors.missing import (
    CellElsewhere as CellElsewhere,
)
from ingle.errors.missing import (
    CellForgotten as CellForgotten,
)
from ingle.errors.missing import (
    CellNotFound as CellNotFound,
)
from ingle.errors.missing import (
    CellNotKept as CellNotKept,
)
from ingle.errors.missing import (
    CheckpointNotFound as CheckpointNotFound,
)
from ingle.errors.missing import (
    EnvironmentNotFound as EnvironmentNotFound,
)
from ingle.errors.missing import (
    FailureNotFound as FailureNotFound,
)
from ingle.errors.missing import (
    FigureNotFound as FigureNotFound,
)
from ingle.errors.missing import (
    FileNotThere as FileNotThere,
)
from ingle.errors.missing import (
    GrantNotFound as GrantNotFound,
)
from ingle.errors.missing import (
    NotFound as NotFound,
)
from ingle.errors.missing import (
    SessionEnded as SessionEnded,
)
from ingle.errors.missing import (
    SessionHeldBack as SessionHeldBack,
)
from ingle.errors.missing import (
    SessionLost as SessionLost,
)
from ingle.errors.missing import (
    SessionNotFound as SessionNotFound,
)
from ingle.errors.missing import (
    SessionStopped as SessionStopped,
)
from ingle.errors.missing import (
    SnapshotNotFound as SnapshotNotFound,
)
from ingle.errors.missing import (
    TaskNotFound as TaskNotFound,
)
from ingle.errors.missing import (
    TrialNotFound as TrialNotFound,
)
from ingle.errors.missing import (
    VariableNotFound as VariableNotFound,
)


class InvalidRequest(IngleError):
    code, status = "invalid_request", 422


class InvalidName(InvalidRequest):
    code = "invalid_name"


class InterpreterRefused(InvalidRequest):
    code = "interpreter_refused"


class StdlibRefused(InvalidRequest):
    code = "stdlib_refused"

    def __init__(self, problem: str) -> None:
        super().__init__(f"nothing was added to the library: {problem}")


class SnapshotDamaged(InvalidRequest):
    code = "snapshot_damaged"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the snapshot {name[:200]!r} cannot be used: {why}; use another copy of it, or save again")


class KeyReused(InvalidRequest):
    code = "key_reused"

    def __init__(self) -> None:
        super().__init__(
            "this idempotency key was used for another request; "
            "send the same request to get its result, or use a new key to run something else"
        )


class Unauthorized(IngleError):
    code, status = "unauthorized", 401


class Forbidden(IngleError):
    code, status = "forbidden", 403


class SnapshotUntrusted(Forbidden):
    code = "snapshot_untrusted"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the snapshot {name[:200]!r} was not written by this ingle, or was changed since, and loading it would "
            "run its code; if you trust its origin, load it with trust (`ingle load --trust`)"
        )


class NotGranted(Forbidden):
    code = "not_granted"


class EnvironmentFailed(IngleError):
    code, status = "environment_failed", 422

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the environment {name!r} could not be built, and nothing was changed:\n{why}")
        self.why = why


class Misdirected(IngleError):
    code, status = "misdirected", 421


class TooLarge(IngleError):
    code, status = "too_large", 413


class VariableUntold(IngleError):
    code, status = "variable_untold", 504


class Conflict(IngleError):
    code, status = "conflict", 409


class SessionExists(Conflict):
    code = "session_exists"

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        problem = f"a session {session_id!r} exists already"
        super().__init__(f"{problem}; use it, end it first, or choose another name", problem)


class SessionDiffers(SessionExists):
    """An existing session that is not as the client asks for it. Its options are those that it was created with."""

    def __init__(self, session_id: str, differs: str) -> None:
        self.session_id = session_id
        problem = f"session {session_id!r} exists, and {differs}"
        IngleError.__init__(
            self, f"{problem}; leave the option out, end the session first, or use another name", problem
        )


class EnvironmentInUse(Conflict):
    code = "environment_in_use"


class Busy(Conflict):
    code = "busy"

    def __init__(self, cell: int, seconds: float, *, waiting: bool = False) -> None:
        """`waiting`: the cell waits for input."""
        if waiting:
            problem, remedy = f"busy: cell {cell} waits for input", "answer it, or interrupt"
        else:
            problem, remedy = f"busy: cell {cell} has run for {seconds:.1f} s", "wait, or interrupt"
        super().__init__(f"{problem}; {remedy}", problem)
        self.cell = cell
        self.waiting = waiting


class TrialOpen(Busy):
    """The session waits until its trial is committed or discarded."""

    def __init__(self, cell: int, trial: str) -> None:
        problem = f"busy: {trial} is open"
        Conflict.__init__(self, f"{problem}; commit or discard it", problem)
        self.cell = cell
        self.trial = trial
        self.waiting = False


class TrialRefused(Conflict):
    """A session cannot have a trial, with the reason."""

    code = "trial_refused"


class FilesChanged(Conflict):
    """A trial cannot be committed: others have changed the files that it has changed."""

    code = "files_changed"


class NotWaiting(Conflict):
    code = "not_waiting"

    def __init__(self, session_id: str) -> None:
        problem = f"session {session_id!r} is not waiting for input, so the text was not sent"
        super().__init__(f"{problem}; send it when the status is waiting_for_input", problem)


class ShellBusy(Busy):
    """The one command of a persistent shell is running; nothing was started."""

    def __init__(self, shell_session: str, task_id: str, seconds: float) -> None:
        Conflict.__init__(
            self,
            f"busy: task {task_id} has run in the shell {shell_session!r} for {seconds:.1f} s; "
            "wait for it, cancel it, or use another shell",
        )
        self.cell = 0
        self.waiting = False


class TaskOver(Conflict):
    code = "task_over"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} has ended, so nothing was done; read its output with shell_status")


class InputClosed(Conflict):
    code = "input_closed"

    def __init__(self, task_id: str) -> None:
        problem = f"task {task_id} has no open stdin, so the text was not sent"
        super().__init__(
            f"{problem}; set interactive or pty at its start to send input later, or stdin to send it at once", problem
        )


class StaleSave(Conflict):
    code = "stale_save"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id[:80]!r} was taken over by another server, so this one cannot save it; "
            "use the session of the other server"
        )


class BatchBegun(Conflict):
    code = "batch_begun"

    def __init__(self) -> None:
        super().__init__(
            "a batch with this idempotency key has begun already, and its results went to that request; nothing runs "
            "twice: use a new key to run it again"
        )


class TooManySessions(IngleError):
    code, status = "too_many_sessions", 503
    retry_after = 10.0

    def __init__(self, limit: int | None, bound: str, remedy: str) -> None:
        """`bound` is what limits the number of sessions, and `remedy` how to raise it. None: the number varies."""
        full = "the server is full" if limit is None else f"all {limit} sessions are in use"
        super().__init__(f"{full}: {bound}; end one, try again later, or {remedy}", f"{full}: {bound}")


class Overloaded(IngleError):
    code, status = "overloaded", 503

    def __init__(self, retry_after: float) -> None:
        problem = "too many sessions wait to be started, and this one was not"
        super().__init__(f"{problem}; try again in {retry_after:.0f} s", problem)
        self.retry_after = retry_after


class TooManyTasks(IngleError):
    code, status = "too_many_tasks", 429

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} tasks are running already; cancel one, wait for one, or raise max_tasks")


class QuotaExceeded(IngleError):
    code, status = "quota_exceeded", 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(IngleError):
    code, status = "unavailable", 503
    retry_after = 5.0


class DataFolderFailed(IngleError):
    code, status = "data_folder_failed", 503


class RegistryBroken(DataFolderFailed):
    code = "registry_broken"


class StoreFailed(DataFolderFailed):
    code = "store_failed"
    retry_after = 5.0


class StoreRefused(StoreFailed):
    code = "store_refused"


class StoreFull(StoreFailed):
    code, status = "store_full", 507


class SaveFailed(IngleError):
    code, status = "save_failed", 503


class LoadFailed(IngleError):
    code, status = "load_failed", 503


class NodeLost(IngleError):
    """The machine that carried out a call was lost. How far it came is not known, and it is not repeated."""

    code, status = "node_lost", 503

    def __init__(self, node: str, why: str) -> None:
        problem = f"the machine {node[:80]!r} was lost while it carried this out: {why[:200]}"
        super().__init__(
            f"{problem}. It is not run again: call the session, which returns from its last save if it is durable",
            problem,
        )
        self.node = node


class StartFailed(IngleError):
    code, status = "start_failed", 503


class LimitUnavailable(StartFailed):
    """A limit that this machine does not apply. No code runs without it."""

    code, status = "limit_unavailable", 409

    def __init__(self, limit: str, why: str) -> None:
        super().__init__(f"this machine does not apply the limit {limit}: {why}; leave it out, or ask the operator")


class IsolationUnavailable(StartFailed):
    """A level that the caller requested by name; the server can offer another one."""

    code, status = "isolation_unavailable", 409

    def __init__(self, level: str, why: str) -> None:
        choices = "--isolation auto uses the strongest level available, --isolation none confines nothing"
        super().__init__(f"isolation {level} is not available here: {why}. {choices}")
        self.why = why


class Unreachable(IngleError):
    """Raised by clients only, never by a server."""

    code, status = "unreachable", 503
