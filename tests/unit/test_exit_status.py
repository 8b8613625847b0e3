"""The sentence that explains the end of a worker."""

import pytest

from ingle.events import Exit
from ingle.workers.exit_status import KILLED_FROM_WITHIN, WIRE_LOST, explain
from ingle_worker.wire.constants import FAILED_EXIT_CODE

DONE = Exit(code=0, message="ended with exit code 0")
KILLED = Exit(signal="SIGKILL", message="was killed by SIGKILL")
FAILED = Exit(code=FAILED_EXIT_CODE, message=f"ended with exit code {FAILED_EXIT_CODE}")
BAD_MESSAGE = "the session's process broke the protocol (a Done that cannot be read)"


@pytest.mark.parametrize(
    ("exit", "killed_because", "broken", "explained"),
    [
        # Init reported the status.
        (DONE, None, None, DONE),
        (DONE, "the session was ended", None, Exit(code=0, message="the session was ended")),
        (KILLED, None, None, KILLED),
        (KILLED, "was killed: memory", None, Exit(signal="SIGKILL", message="was killed: memory")),
        # A lost wire says nothing about a process whose status is known.
        (DONE, None, WIRE_LOST, DONE),
        (KILLED, None, BAD_MESSAGE, KILLED),
        (KILLED, "was freed", BAD_MESSAGE, Exit(signal="SIGKILL", message="was freed")),
        # The guest failed by itself, and the host knows why.
        (FAILED, None, None, FAILED),
        (FAILED, None, BAD_MESSAGE, Exit(code=FAILED_EXIT_CODE, message=BAD_MESSAGE)),
        (FAILED, "was freed", BAD_MESSAGE, Exit(code=FAILED_EXIT_CODE, message="was freed")),
        # Init was killed and reported nothing.
        (None, None, None, Exit(message=KILLED_FROM_WITHIN)),
        (None, None, WIRE_LOST, Exit(message=KILLED_FROM_WITHIN)),
        (None, None, BAD_MESSAGE, Exit(message=BAD_MESSAGE)),
        (None, "was killed: memory", None, Exit(message="was killed: memory")),
        (None, "was killed: memory", BAD_MESSAGE, Exit(message="was killed: memory")),
    ],
)
def test_an_end_is_explained_by_what_is_known_of_it(
    exit: Exit | None, killed_because: str | None, broken: str | None, explained: Exit
) -> None:
    assert explain(exit, killed_because, broken) == explained
