"""What a live copy has in common with its original beside files: connections, pipes, terminals and memory.

What a copy does there reaches the processes of the original. So each is named, and a trial can be cut off from it.
"""

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable

MAX_NAMED = 5

TERMINALS = ("/dev/pts/", "/dev/ptmx", "/dev/tty")
OWN_EVENTS = ("anon_inode:[eventpoll]", "anon_inode:[pidfd]", "anon_inode:[signalfd]")
"""Kinds of the kernel's descriptors that lead to nothing of the original. A copy has epoll objects of its own."""

MEMORY = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV", "/tmp/")
"""Beginnings of the names of memory that processes share. Other mappings are of files or devices."""

SPLICE_F_NONBLOCK = 2

Inherited = tuple[int, str, str]
"""Descriptor, what it leads to, and a text that names it."""


class InheritedWays:
    """Ways from a copy to its original. Those of the host are left out."""

    def __init__(self, own: "list[int]", memory: int) -> None:
        """`own`: descriptors that lead to the host, and their copies. `memory`: an address in memory of init."""
        self._own = {target(fd) for fd in own}
        self._memory = memory

    def disconnect(self) -> list[str]:
        """Close the connections of the original, also those to its processes. Return a notice of them.

        Socket pairs stay: the event loops of the copy's own code need theirs.
        """
        found = [each for each in self._found() if each[1] not in ("pair", "events")]
        for fd, _, _ in found:
            lead_nowhere(fd)
        return named("connections of the session that are closed", [name for _, _, name in found])

    def shared(self, *folders: str) -> list[str]:
        """Return notices of what the copy still shares with the original, but files of these folders."""
        return [
            *named("connections that are shared with the original", [name for _, _, name in self._found()]),
            *named("memory that is shared with the original", self._shared_memory(folders)),
        ]

    def separate_pipes(self) -> None:
        """Give the copy pipes of its own where it has both ends, with the same content."""
        ends: dict[str, list[int]] = {}
        for fd in _descriptors():
            name = target(fd)
            if name.startswith("pipe:") and name not in self._own:
                ends.setdefault(name, []).append(fd)
        for fds in ends.values():
            readers = [fd for fd in fds if _mode(fd) == os.O_RDONLY]
            writers = [fd for fd in fds if _mode(fd) == os.O_WRONLY]
            if readers and writers:
                _separate(readers, writers)
                self._own.add(target(readers[0]))

    def _found(self) -> list[Inherited]:
        found = []
        for fd in _descriptors():
            way = target(fd)
            kind_of = next((each for begin, each in _KINDS.items() if way.startswith(begin)), None)
            if kind_of is None or way in self._own or way in OWN_EVENTS:
                continue
            kind, name = kind_of(fd, way)
            if kind:
                found.append((fd, kind, name))
        return found

    def _shared_memory(self, folders: "tuple[str, ...]") -> list[str]:
        found = []
        own = tuple(f"{folder}/" for folder in folders if folder)
        for start, end, path in _writable_mappings():
            if path.startswith(MEMORY) and not path.startswith(own) and not start <= self._memory < end:
                name = path.removesuffix(" (deleted)")
                found.append(f"{end - start} bytes" + ("" if name == "/dev/zero" else f" ({name})"))
        return found


def named(what: str, names: list[str]) -> list[str]:
    """Return a notice of these, or none."""
    if not names:
        return []
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return [f"{what}: {', '.join(names[:MAX_NAMED])}{more}"]


def target(fd: int) -> str:
    """Return what a descriptor refers to: the same text for two descriptors of one pipe."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def lead_nowhere(fd: int) -> None:
    """Have a descriptor lead to nothing, and stay in use."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd, inheritable=os.get_inheritable(fd))
    os.close(null)


def _descriptors() -> list[int]:
    try:
        return sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:
        return []


def _mode(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


# --- kinds of descriptors: each function returns the kind and a name ---


def _socket(fd: int, way: str) -> tuple[str, str]:
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:
        return "", ""
    with copy:
        if copy.family in (socket.AF_INET, socket.AF_INET6):
            try:
                return "network", "to {}:{}".format(*copy.getpeername()[:2])
            except OSError:
                return "network", "at {}:{}".format(*copy.getsockname()[:2])
        if copy.family != socket.AF_UNIX:
            return "", ""
        try:
            own, peer = copy.getsockname(), copy.getpeername()
        except OSError:
            own, peer = copy.getsockname(), ""
        if own or peer:
            return "socket", f"to {peer}" if peer else f"at {own}"
        return "pair", f"a socket pair (descriptor {fd})"


def _pipe(fd: int, way: str) -> tuple[str, str]:
    return "pipe", f"a pipe (descriptor {fd})"


def _terminal(fd: int, way: str) -> tuple[str, str]:
    return "terminal", f"the terminal {way}"


def _events(fd: int, way: str) -> tuple[str, str]:
    return "events", f"{way.removeprefix('anon_inode:').strip('[]')} (descriptor {fd})"


_KINDS: dict[str, Callable[[int, str], tuple[str, str]]] = {
    "socket:": _socket,
    "pipe:": _pipe,
    "anon_inode:": _events,
    **dict.fromkeys(TERMINALS, _terminal),
}


# --- pipes and memory ---


def _separate(readers: list[int], writers: list[int]) -> None:
    end, beginning = os.pipe()
    try:
        _copy_content(readers[0], beginning)
        for ends, own in ((readers, end), (writers, beginning)):
            for fd in ends:
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                os.dup2(own, fd, inheritable=os.get_inheritable(fd))
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    finally:
        os.close(end)
        os.close(beginning)


def _copy_content(reader: int, beginning: int) -> None:
    """Copy what waits in a pipe to another one, and leave it there."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"\0" * 4))
    if not waiting:
        return
    try:
        import ctypes
    except ImportError:  # a Python that was built without libffi
        return
    ctypes.PyDLL(None).tee(reader, beginning, ctypes.c_size_t(waiting), SPLICE_F_NONBLOCK)


def _writable_mappings() -> "list[tuple[int, int, str]]":
    """Return the memory that this process shares with others: beginning, end and name."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            lines = [line for line in file.readall().splitlines() if b" rw-s " in line]
    except OSError:
        return []
    found = []
    for line in lines:
        columns = line.split(None, 5)
        if len(columns) == 6:
            start, end = (int(each, 16) for each in columns[0].split(b"-"))
            found.append((start, end, os.fsdecode(columns[5])))
    return found


def address_of(memory: memoryview) -> int:
    """Return the address of writable memory; 0 without any, or if this Python was built without libffi."""
    try:
        import ctypes
    except ImportError:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) if len(memory) else 0
