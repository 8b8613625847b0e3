"""The states of a session and of a cell, and the table of legal transitions. Code, tests and docs use this table."""

from typing import Final

STARTING: Final = "starting"
IDLE: Final = "idle"
RUNNING: Final = "running"
WAITING: Final = "waiting_for_input"
APPROVAL: Final = "waiting_for_approval"
HIBERNATED: Final = "hibernated"
DEAD: Final = "dead"

MOVES: Final[dict[str, dict[str, str]]] = {
    STARTING: {
        IDLE: "the worker is ready",
        DEAD: "no worker could be started, or the session was ended",
    },
    IDLE: {
        RUNNING: "a cell begins",
        STARTING: "the worker ended between cells and is replaced",
        HIBERNATED: "the session was saved and its process freed",
        DEAD: "the session was ended",
    },
    RUNNING: {
        IDLE: "the cell ended",
        WAITING: "the cell reads standard input",
        APPROVAL: "the cell calls a tool that a person has to approve",
        STARTING: "the worker ended with the cell and is replaced",
        DEAD: "the session was ended",
    },
    WAITING: {
        RUNNING: "the input was taken",
        APPROVAL: "the input was taken, and a call waits for approval",
        IDLE: "the cell ended",
        STARTING: "the worker ended with the cell and is replaced",
        DEAD: "the session was ended",
    },
    APPROVAL: {
        RUNNING: "the call was approved, refused or given up",
        WAITING: "the call is over, and the cell reads standard input",
        IDLE: "the cell ended",
        STARTING: "the worker ended with the cell and is replaced",
        DEAD: "the session was ended",
    },
    HIBERNATED: {
        STARTING: "the next call brings it back",
        DEAD: "the session was ended",
    },
    DEAD: {
        STARTING: "the next call tries a new worker, unless the session was ended for good",
    },
}

STATES: Final = tuple(MOVES)

OK: Final = "ok"
ERROR: Final = "error"
INTERRUPTED: Final = "interrupted"
EXIT: Final = "exit"
FINAL_STATUSES: Final = (OK, ERROR, INTERRUPTED, EXIT)


class IllegalMove(Exception):
    """A transition that is not in the table: a bug in ingle, never a user's mistake."""


def move(old: str, new: str) -> str:
    """Return the new state if the table allows the transition, else raise IllegalMove."""
    if new not in MOVES.get(old, {}):
        raise IllegalMove(f"a session cannot go from {old} to {new}")
    return new
