"""States of a session's process slot, and the legal moves between them."""

from enum import StrEnum
from typing import Final

from ingle_worker.wire import states


class SlotState(StrEnum):
    ABSENT = "absent"
    STARTING = "starting"
    UP = "up"
    HIBERNATED = "hibernated"
    FAILED = "failed"
    ENDED = "ended"


MOVES: Final[dict[SlotState, dict[SlotState, str]]] = {
    SlotState.ABSENT: {
        SlotState.STARTING: "the session is made",
        SlotState.UP: "a prepared worker needs nothing more",
        SlotState.HIBERNATED: "the session is one of an earlier server",
        SlotState.ENDED: "the session was ended",
    },
    SlotState.STARTING: {
        SlotState.UP: "the worker is ready",
        SlotState.FAILED: "no worker could be started",
        SlotState.ENDED: "the session was ended",
    },
    SlotState.UP: {
        SlotState.STARTING: "the worker ended, or is replaced by a checkpoint",
        SlotState.HIBERNATED: "the session was saved and its process freed",
        SlotState.ENDED: "the session was ended",
    },
    SlotState.HIBERNATED: {
        SlotState.STARTING: "the next call restores it",
        SlotState.ENDED: "the session was ended",
    },
    SlotState.FAILED: {
        SlotState.STARTING: "the next call tries a new worker",
        SlotState.ENDED: "the session was ended",
    },
    SlotState.ENDED: {},
}

SESSION_STATES: Final = {
    SlotState.ABSENT: states.STARTING,
    SlotState.STARTING: states.STARTING,
    SlotState.UP: states.IDLE,
    SlotState.HIBERNATED: states.HIBERNATED,
    SlotState.FAILED: states.DEAD,
    SlotState.ENDED: states.DEAD,
}
"""State of a session without a running cell."""
