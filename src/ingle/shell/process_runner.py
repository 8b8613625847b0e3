"""What the two kinds of runners have in common: signals for the whole tree, and output with back-pressure."""

import signal

from ingle.shell.output_reader import OutputReader
from ingle.shell.task_process import TaskProcess


class ProcessRunner:
    """Base of a runner whose processes are below one init."""

    def __init__(self, process: TaskProcess) -> None:
        self._process = process
        self._reader: OutputReader

    def stop(self) -> None:
        """Stop every process of the tree."""
        self._process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue every process of the tree."""
        self._process.signal(signal.SIGCONT)

    def pause_reading(self) -> None:
        """Leave output in its pipes, so that the writers wait."""
        self._reader.pause()

    def resume_reading(self) -> None:
        """Read output again after a pause."""
        self._reader.resume()

    @property
    def at_end_of_output(self) -> bool:
        """Whether no process has the output open any more."""
        return self._reader.at_end
