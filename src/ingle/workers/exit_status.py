"""Exit statuses as text: how a process ended, and why a worker did."""

import os
import signal

from ingle.events import Exit
from ingle_worker.wire import BadMessage
from ingle_worker.wire.constants import FAILED_EXIT_CODE

MAX_WAIT_STATUS = 0xFFFF

WIRE_LOST = "the session's process closed its control channel"

KILLED_FROM_WITHIN = "the session's process tree was killed from within"


def check_status(status: int) -> None:
    """Raise BadMessage unless `status` is the wait status of a process that has ended."""
    if not 0 <= status <= MAX_WAIT_STATUS or not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
        raise BadMessage(f"no process ends with the status {status}")


def exit_of(status: int) -> Exit:
    """Describe a wait status. Raises BadMessage for any other number."""
    check_status(status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal_name(number)
        meaning = f" ({MEANINGS[name]})" if name in MEANINGS else ""
        return Exit(signal=name, message=f"was killed by {name}{meaning}")
    code = os.waitstatus_to_exitcode(status)
    return Exit(code=code, message=f"ended with exit code {code}")


def explain(exit: Exit | None, killed_because: str | None, broken: str | None) -> Exit:
    """Return the end of a worker with the sentence that explains it best.

    `exit` is the status that init reported, or None if init was killed and reported nothing.
    `killed_because` is the reason for which the host killed the worker.
    `broken` says how the worker or its init left the protocol.
    """
    if exit is None:
        # The wire breaks with the process tree, before or after init: that it was lost explains nothing.
        exit = Exit(message=KILLED_FROM_WITHIN if broken in (None, WIRE_LOST) else broken)
    if killed_because is not None:
        return Exit(exit.code, exit.signal, killed_because)
    if broken and exit.code == FAILED_EXIT_CODE:
        return Exit(exit.code, exit.signal, broken)
    return exit


def signal_name(number: int) -> str:
    """Return the name of a signal, or "signal N" for a real-time signal, which has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


MEANINGS = {
    "SIGSEGV": "segmentation fault",
    "SIGABRT": "aborted",
    "SIGBUS": "bus error",
    "SIGFPE": "arithmetic fault",
    "SIGILL": "illegal instruction",
    "SIGKILL": "by its own code or from outside; the system does this when memory runs out",
}
