"""What a live copy has in common with its original beside files: connections, pipes, terminals and memory.

What a copy does there reaches the processes of the original. So each is named, and a trial can be cut off from it.
"""

import fcntl
import os
import socket
import struct
import termios

MAX_NAMED = 5

TERMINALS = ("/dev/pts/", "/dev/ptmx", "/dev/tty")
OWN_EVENTS = ("anon_inode:[eventpoll]", "anon_inode:[pidfd]", "anon_inode:[signalfd]")
"""Kinds of the kernel's descriptors that lead to nothing of the original. A copy has epoll objects of its own."""

MEMORY = ("/dev/zero", "/dev/shm/", "/memfd:", "/SYSV", "/tmp/")
"""Beginnings of the names of memory that processes share. Other mappings are of files or devices."""

_BEGINNINGS = ("socket:", "pipe:", "anon_inode:", *TERMINALS)

PAIR, EVENTS = "pair", "events"
"""Kinds of descriptors that a copy needs, and keeps."""

SPLICE_F_NONBLOCK = 2

Way = tuple[int, str]
"""Descriptor, and what it refers to."""


class InheritedWays:
    """Ways from a copy to its original. Those of the host are left out. Most sessions have none."""

    def __init__(self, own: "list[int]", maps: bytes, memory: memoryview) -> None:
        """`own`: descriptors that lead to the host. `maps`: the memory of this process. `memory`: that of init."""
        ways = [(fd, target(fd)) for fd in _descriptors()]
        without = {way for fd, way in ways if fd in own}.union(OWN_EVENTS)
        self._ways = [(fd, way) for fd, way in ways if way.startswith(_BEGINNINGS) and way not in without]
        self._maps = maps
        self._memory = memory

    def separate_pipes(self) -> None:
        """Give the copy pipes of its own where it has both ends, with the same content."""
        ends: dict[str, list[int]] = {}
        for fd, way in self._ways:
            if way.startswith("pipe:"):
                ends.setdefault(way, []).append(fd)
        for pipe, fds in ends.items():
            readers = [fd for fd in fds if _mode(fd) == os.O_RDONLY]
            writers = [fd for fd in fds if _mode(fd) == os.O_WRONLY]
            if readers and writers:
                _separate(readers, writers)
                self._ways = [(fd, way) for fd, way in self._ways if way != pipe]

    def disconnect(self) -> list[str]:
        """Close the connections of the original, also those to its processes. Return a notice of them.

        Socket pairs stay: nothing tells which two belong together, and event loops hang without theirs.
        """
        stay: list[Way] = []
        closed = []
        for fd, way in self._ways:
            kind, name = _named_way(fd, way)
            if kind in (PAIR, EVENTS):
                stay.append((fd, way))
            else:
                lead_nowhere(fd)
                closed.append(name)
        self._ways = stay
        return named("connections of the session that are closed", closed)

    def shared(self, *folders: str) -> list[str]:
        """Return notices of what the copy still shares with the original, but files of these folders."""
        names = [_named_way(fd, way)[1] for fd, way in self._ways]
        return [
            *named("connections that are shared with the original", names),
            *named("memory that is shared with the original", self._shared_memory(folders)),
        ]

    def _shared_memory(self, folders: "tuple[str, ...]") -> list[str]:
        mappings = [each for each in _writable_mappings(self._maps) if each[2].startswith(MEMORY)]
        if len(mappings) <= 1:
            return []  # that of init
        own, address = tuple(f"{folder}/" for folder in folders if folder), _address_of(self._memory)
        found = []
        for start, end, path in mappings:
            if not path.startswith(own) and not start <= address < end:
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


# --- names of descriptors ---


def _named_way(fd: int, way: str) -> tuple[str, str]:
    """Return the kind of a descriptor, and a name."""
    if way.startswith("socket:"):
        return _named_socket(fd)
    if way.startswith("anon_inode:"):
        return EVENTS, f"{way.removeprefix('anon_inode:').strip('[]')} (descriptor {fd})"
    if way.startswith("pipe:"):
        return "pipe", f"a pipe (descriptor {fd})"
    return "terminal", f"the terminal {way}"


def _named_socket(fd: int) -> tuple[str, str]:
    with socket.socket(fileno=os.dup(fd)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            return "other", f"a socket (descriptor {fd})"
        own, peer = copy.getsockname(), ""
        try:
            peer = copy.getpeername()
        except OSError:
            pass  # it listens, or is not connected
    if not own and not peer:
        return PAIR, f"a socket pair (descriptor {fd})"
    place = peer or own
    if isinstance(place, tuple):
        place = "{}:{}".format(*place[:2])
    return "socket", f"{'to' if peer else 'at'} {place}"


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


def _writable_mappings(maps: bytes) -> "list[tuple[int, int, str]]":
    """Return the memory that a process shares with others: beginning, end and name."""
    found = []
    for line in maps.splitlines() if b" rw-s " in maps else []:
        columns = line.split(None, 5)
        if b" rw-s " in line and len(columns) == 6:
            start, end = (int(each, 16) for each in columns[0].split(b"-"))
            found.append((start, end, os.fsdecode(columns[5])))
    return found


def _address_of(memory: memoryview) -> int:
    """Return the address of writable memory; 0 without any, or if this Python was built without libffi."""
    try:
        import ctypes
    except ImportError:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) if len(memory) else 0
