"""Errors about things that do not exist, or exist no more."""

from ingle.errors.base import IngleError


class NotFound(IngleError):
    code, status = "not_found", 404


class SessionNotFound(NotFound):
    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        problem = f"there is no session {session_id[:80]!r}"
        super().__init__(f"{problem}; list the sessions, or create it first", problem)


class SessionEnded(SessionNotFound):
    """A session of an earlier run of the server, which was not durable."""

    def __init__(self, session_id: str) -> None:
        problem = f"session {session_id[:80]!r} ended with its server; it was not durable, so its variables are gone"
        IngleError.__init__(self, f"{problem}; create it again", problem)


class SessionStopped(SessionNotFound):
    """A session that has ended, or never was, on a server that is stopping."""

    def __init__(self, session_id: str) -> None:
        problem = f"session {session_id[:80]!r} is not available: the server is stopping"
        remedy = "its sessions end with it, and durable ones come back with the next server"
        IngleError.__init__(self, f"{problem}; {remedy}", problem)


class SessionHeldBack(SessionNotFound):
    """A durable session of an earlier run of the server, which this server may not have."""

    def __init__(self, session_id: str, why: str) -> None:
        problem = f"session {session_id[:80]!r} is saved, and does not come back on this server"
        IngleError.__init__(self, f"{problem}: {why}", problem)


class CellNotFound(NotFound):
    code = "cell_not_found"

    def __init__(self, session_id: str, cell: int, last: int) -> None:
        known = f"its cells are 1 to {last}" if last else "it has run no cell yet"
        super().__init__(f"session {session_id!r} has no cell {cell}; {known}")


class CellElsewhere(CellNotFound):
    def __init__(self, session_id: str, cell: int, origin: str) -> None:
        NotFound.__init__(
            self, f"cell {cell} ran before session {session_id!r} was forked from {origin!r}; read it there"
        )


class CellForgotten(CellNotFound):
    code, status = "cell_forgotten", 410

    def __init__(self, cell: int | None) -> None:
        which = f"cell {cell}" if cell is not None else "the cell of this request"
        NotFound.__init__(
            self,
            f"{which} was started before the server restarted; it is not run again and its output is lost. "
            "Read the notices of the session to see after which cell it was restored, before you send more",
        )


class CheckpointNotFound(NotFound):
    code = "checkpoint_not_found"

    def __init__(self, session_id: str, name: str | None, known: list[str], why: str | None) -> None:
        which = (
            "checkpoint"
            if name is None
            else "state before the last cell"
            if name == ".auto"
            else f"checkpoint {name[:80]!r}"
        )
        lacks = f"session {session_id!r} has no {which}{f': {why}' if why else ''}"
        if known:
            lacks += f"; it has {', '.join(map(repr, known))}"
        super().__init__(lacks if known else f"{lacks}; make one first", lacks)


class CellNotKept(NotFound):
    code = "cell_not_kept"

    def __init__(self, session_id: str, cell: int, kept: list[int], *, auto: bool) -> None:
        lacks = f"session {session_id!r} has no checkpoint of its state after cell {cell}"
        hint = (
            "automatic checkpoints keep the state before the last cell"
            if auto
            else 'a session with checkpoints="auto" keeps the state before its last cell'
        )
        has = f"it has the state after {'cell' if len(kept) == 1 else 'cells'} {', '.join(map(str, kept))}"
        super().__init__(f"{lacks}; {has}; {hint}, and `checkpoint` keeps any other", lacks)


class TrialNotFound(NotFound):
    code = "trial_not_found"

    def __init__(self, session_id: str, name: str | None, known: list[str]) -> None:
        """Without a name, the session has no open trial at all."""
        lacks = f"session {session_id!r} has no {'open trial' if name is None else f'trial {name[:80]!r}'}"
        has = f"; it has {', '.join(map(repr, known))}" if known else ": it was committed, discarded, or has expired"
        super().__init__(lacks if name is None else f"{lacks}{has}", lacks)


class FailureNotFound(NotFound):
    code = "failure_not_found"

    def __init__(self, session_id: str, cell: int | None, known: list[int], *, kept: bool) -> None:
        which = "any cell" if cell is None else f"cell {cell}"
        lacks = f"session {session_id!r} keeps no failure of {which}"
        self.kept = kept
        if known:
            has = f"; it has those of the cells {', '.join(map(str, known))}"
        elif kept:
            has = ": no cell has failed, or the moment was dropped"
        else:
            has = "; make a session with keep_failures, or start the server with --keep-failures 3"
        super().__init__(f"{lacks}{has}", lacks)


class FigureNotFound(NotFound):
    code = "figure_not_found"

    def __init__(self, session_id: str, file_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has no stored image {file_id[:80]!r}; use an id from a display's metadata. "
            "The oldest images are removed when figures_disk is full"
        )


class VariableNotFound(NotFound):
    code = "variable_not_found"

    def __init__(self, name: str, near: list[str]) -> None:
        problem = f"there is no variable {name[:80]!r} in this session"
        hint = f"did you mean {' or '.join(near)}?" if near else "list the variables to see which exist"
        super().__init__(f"{problem}; {hint}", None if near else problem)
        self.near = near


class SnapshotNotFound(NotFound):
    code = "snapshot_not_found"

    def __init__(self, name: str) -> None:
        problem = f"there is no snapshot {name[:200]!r}"
        super().__init__(f"{problem}; list the snapshots to see which exist", problem)


class EnvironmentNotFound(NotFound):
    code = "environment_not_found"

    def __init__(self, name: str, known: list[str]) -> None:
        there = f"there are: {', '.join(known)}" if known else "there is none yet"
        problem = f"there is no environment {name[:80]!r}; {there}"
        super().__init__(f"{problem}; create it with `ingle env create {name[:80]} PACKAGE...`", problem)


class GrantNotFound(NotFound):
    code = "grant_not_found"

    def __init__(self, grant_id: str) -> None:
        super().__init__(f"there is no grant {grant_id[:80]!r}; list the grants with `ingle grant --list`")


class TaskNotFound(NotFound):
    code = "task_not_found"

    def __init__(self, task_id: str) -> None:
        problem = f"there is no task {task_id[:80]!r}"
        super().__init__(f"{problem}; list the tasks (old ones are removed after they end)", problem)


class SessionLost(NotFound):
    """A session whose machine was lost, and that was not saved."""

    code, status = "session_lost", 410

    def __init__(self, session_id: str, node: str) -> None:
        problem = f"session {session_id[:80]!r} was lost with the machine {node[:80]!r}, and no save of it exists"
        super().__init__(f"{problem}; create it again, and make it durable to keep its variables", problem)


class FileNotThere(NotFound):
    code = "file_not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no file {path[:200]!r} in the session's folder; list /files to see which exist")


class ApprovalNotFound(NotFound):
    code = "approval_not_found"

    def __init__(self, session_id: str, approval_id: str) -> None:
        super().__init__(
            f"nothing in session {session_id!r} waits for approval {approval_id[:80]!r}; it was answered or given up"
        )
