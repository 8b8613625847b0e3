"""How a process ended, in words."""

import os
import signal

from ingle.events import Exit
from ingle_worker.wire import BadMessage

MOST = 0xFFFF
"""No wait status is more."""


def check_status(status: int) -> None:
    """Raises BadMessage for what is no wait status: it is a process's word for how another ended."""
    if not 0 <= status <= MOST or not (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
        raise BadMessage(f"no process ends with the status {status}")


def exit_of(status: int) -> Exit:
    """A wait status in words. Raises BadMessage, as above."""
    check_status(status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal_name(number)
        meaning = f" ({MEANINGS[name]})" if name in MEANINGS else ""
        return Exit(signal=name, message=f"was killed by {name}{meaning}")
    code = os.waitstatus_to_exitcode(status)
    return Exit(code=code, message=f"ended with exit code {code}")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"


MEANINGS = {
    "SIGSEGV": "segmentation fault",
    "SIGABRT": "aborted",
    "SIGBUS": "bus error",
    "SIGFPE": "arithmetic fault",
    "SIGILL": "illegal instruction",
    "SIGKILL": "by its own code or from outside; the system does this when memory runs out",
}
