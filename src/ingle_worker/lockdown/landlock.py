"""Landlock: rules for which files a process may use, on top of permissions. It backs up the namespaces of a sandbox.

At `restricted` it is the main protection. It does not cover chmod, utime or sockets with a path, so it is no sandbox.
"""

import ctypes
import errno
import os
import stat
import struct

from ingle_worker.lockdown import kernel_calls
from ingle_worker.lockdown.real_paths import open_real

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
KNOWN_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""The rights over files that each version knows, as a mask."""

NETWORK_SINCE, SCOPES_SINCE = 4, 6
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READING = EXECUTE | READ_FILE | READ_DIR
VERSION_FLAG = 1
PATH_BENEATH = 1


def version() -> int:
    """Return the Landlock version of the kernel, or 0 if it has none."""
    try:
        return kernel_calls.system_call("landlock_create_ruleset", 0, 0, VERSION_FLAG)
    except kernel_calls.Refused:
        return 0


class Rules:
    """A set of rules that a process applies to itself. `read` includes executing, `write` includes reading.

    No path is followed over a link. A path of the system is resolved by the caller.
    """

    def __init__(self, known: int) -> None:
        if known < 1:
            raise kernel_calls.Refused("Landlock", errno.ENOSYS)
        self._version = known
        self._all = KNOWN_RIGHTS[min(known, max(KNOWN_RIGHTS))]
        self._ruleset = -1

    def begin(self, *, scopes: int = 0) -> None:
        scopes = scopes if self._version >= SCOPES_SINCE else 0
        size = 24 if self._version >= SCOPES_SINCE else 16 if self._version >= NETWORK_SINCE else 8
        packed = struct.pack("QQQ", self._all, 0, scopes)[:size]
        attributes = ctypes.create_string_buffer(packed, size)
        self._ruleset = kernel_calls.system_call("landlock_create_ruleset", ctypes.addressof(attributes), size, 0)

    def read(self, path: str) -> None:
        self._allow(path, READING)

    def use_existing(self, path: str) -> None:
        """Allow reading and writing existing files, but not creating, moving or removing any."""
        self._allow(path, READING | WRITE_FILE | TRUNCATE)

    def write(self, path: str) -> None:
        self._allow(path, self._all)

    def _allow(self, path: str, rights: int) -> None:
        try:
            fd = open_real(path)
        except OSError:
            return  # a missing path needs no rule, and neither does a link that a session has put there
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= ON_FILES
            packed = struct.pack("=Qi", rights & self._all, fd)
            rule = ctypes.create_string_buffer(packed, len(packed))
            kernel_calls.system_call("landlock_add_rule", self._ruleset, PATH_BENEATH, ctypes.addressof(rule), 0)
        finally:
            os.close(fd)

    def apply(self) -> None:
        """Apply the rules to this process and its future children, for good. Needs no_new_privs."""
        try:
            kernel_calls.system_call("landlock_restrict_self", self._ruleset, 0)
        finally:
            os.close(self._ruleset)
            self._ruleset = -1
