"""Text that Python's `faulthandler` writes when a process crashes, or on request, without what helps no reader.

Frames of the guest and the list of extension modules are left out. All other text passes unchanged.
"""

import re

BEGIN = re.compile(r"^(Fatal Python error: |(Current thread|Thread) 0x|Stack \(most recent call first\))", re.MULTILINE)
MARKS = ("Fatal Python error: ", "hread 0x", "Stack (most")
"""Every text that begins so has one of these, and they are found faster."""

MAX_HELD_CHARS = 65_536
"""Longest unfinished line that is held back. The list of extension modules of large libraries takes a tenth."""

_OF_A_CRASH = re.compile(
    r'Fatal Python error: |Python runtime state: |Current thread|Thread 0x|Stack \(most recent|  File "|  Binary file "'
    r"|  <|  \.\.\.|Extension modules: |$"
)
_LEFT_OUT = re.compile(
    r'  File "[^"]*/ingle_worker/|Extension modules: |Current thread\'s C stack trace|  Binary file "'
)


class CrashText:
    """Filter of one stream of text."""

    def __init__(self) -> None:
        self._held: str | None = None
        """Unfinished line of a crash, or None if the last line was not part of one."""

    def filter(self, text: str) -> str:
        """Return the text to show now."""
        shown = ""
        if self._held is None:
            found = BEGIN.search(text) if any(mark in text for mark in MARKS) else None
            if found is None:
                return text
            shown, text = text[: found.start()], text[found.start() :]
        else:
            text = self._held + text
        self._held = None
        while text:
            line, end, rest = text.partition("\n")
            if not end and len(line) <= MAX_HELD_CHARS:
                self._held = line
                return shown
            if not _OF_A_CRASH.match(line):
                return shown + text
            if not _LEFT_OUT.match(line):
                shown += line + end
            text = rest
        self._held = ""
        return shown

    def flush(self) -> str:
        """Return the rest, if there is one to show: no more output follows."""
        rest, self._held = self._held or "", None
        return "" if _LEFT_OUT.match(rest) else rest
