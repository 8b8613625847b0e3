"""The seccomp filter: which system calls of a session the kernel answers, assembled once, in the zygote.

It lets through what is listed in `syscalls`, and some of it only with arguments that are listed here. All else does not
exist for a session, and so it is with what kernels will learn. The machine is checked first, so that calls by the
numbers of another one are refused as a whole.
"""

import ctypes
import errno
import struct

from ingle_worker.lockdown import kernel_calls, syscall_table

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of each."""

Spans = tuple[tuple[int, int], ...]
"""From, to, both of them included."""

NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag, that of time among them."""

TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423
"""Keys pressed on a terminal, what a console shows, and a line's protocol, for which the kernel would load modules."""

REQUESTS: Spans = (
    # Terminals, and what any descriptor understands: how much is to be read, not to block, not to be inherited.
    *((0x5401, 0x5411), (0x5413, 0x541B), (0x5420, 0x5422), (0x5424, 0x5425), (0x5427, 0x5429)),
    *((0x5441, 0x5441), (0x5450, 0x5452), (0x40045431, 0x40045431), (0x40045436, 0x40045436)),
    *((0x402C542B, 0x402C542D), (0x80045430, 0x80045430), (0x80045438, 0x80045440), (0x802C542A, 0x802C542A)),
    # Sockets: whom to signal, the urgent mark, and what interfaces there are, their speed included.
    *((0x8901, 0x8907), (0x8910, 0x8910), (0x8912, 0x8913), (0x8915, 0x8915), (0x8917, 0x8917), (0x8919, 0x8919)),
    *((0x891B, 0x891B), (0x891D, 0x891D), (0x8921, 0x8921), (0x8927, 0x8927), (0x8933, 0x8933), (0x8942, 0x8942)),
    *((0x8946, 0x8946), (0x8970, 0x8970)),
    # Files: the size of a block, copies that share their blocks, and marks, to be read.
    *((0x2, 0x2), (0x40049409, 0x40049409), (0x4020940D, 0x4020940D), (0x80086601, 0x80086601)),
    # How much entropy there is.
    (0x80045200, 0x80045200),
)
"""Of ioctl. Each file system and each driver has some of its own, and nobody knows them all; to a session, none has."""

F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ = 1024, 1026, 1031
"""Who opens a file that somebody has a lease on waits for three quarters of a minute, and a file in a granted folder is
opened by others. Signals for a folder are what inotify replaced. The memory of pipes is counted for each user: enlarged
ones of a few sessions would leave all others with a page."""

COMMANDS: Spans = ((0, 16), (36, 38), (1025, 1025), (1027, 1028), (1030, 1030), (1032, 1038))
"""Of fcntl: flags, owners, locks; copies of descriptors, sizes of pipes, seals, hints."""

OPTIONS: Spans = (
    # The parent's death, dumpable, alignment, capabilities kept, floating point, timing, the name, byte order.
    (1, 20),
    # Filters, the bounding set, the time stamp counter, secure bits, timer slack.
    (21, 30),
    # The subreaper, no_new_privs, the thread's address, huge pages, ambient capabilities.
    *((36, 42), (47, 47)),
    # What an aarch64 has of its own; speculation; no memory both written and executed; shadow stacks.
    *((50, 56), (60, 61), (63, 66), (74, 76)),
    # The auxiliary vector, names of memory, who may trace.
    *((0x41555856, 0x41555856), (0x53564D41, 0x53564D41), (0x59616D61, 0x59616D61)),
)
"""Of prctl."""

SOL_SOCKET, SOL_TCP, SOL_UDP, SOL_IPV6 = 1, 6, 17, 41
SO_LINGER = 13
"""A connection that lingers blocks whoever closes it last, and by a descriptor that is sent along that can be the host.
Where it cannot refuse these, none lingers: the call is answered as if it were done."""

WITHOUT: dict[int, Spans] = {
    # Programs for the kernel to run on what a socket gets.
    SOL_SOCKET: ((26, 26), (50, 52)),
    # Encryption in the kernel: signatures of segments, protocols above TCP such as TLS.
    SOL_TCP: ((14, 14), (31, 32), (38, 42)),
    # A tunnel's end.
    SOL_UDP: ((100, 100),),
    # A socket that becomes one of version 4.
    SOL_IPV6: ((1, 1),),
}
"""Options of sockets that there are not, by level: rarely used, and ways into the kernel before."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
SOCK_TYPE = 0xF
SOCK_STREAM, SOCK_DGRAM = 1, 2
PROTOCOLS = (0, 1, 6, 17, 58)
"""Any, ICMP (of the kind that needs no right), TCP, UDP, ICMPv6."""

S_IFMT, S_IFCHR, S_IFBLK = 0o170000, 0o020000, 0o060000
LENDS_OWNER = 0o6000
"""A program that lends its owner to whoever runs it would do so outside, too: files in a granted folder are there those
of the folder's owner. A file can also be made with that mark, but loses it when it is written or made longer."""

MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
"""Which argument is the mode."""

PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)

HUGE = {"mmap": (3, 0x40000), "memfd_create": (1, 0x4), "shmget": (2, 0o4000)}
"""Which argument asks for huge pages, by which flag. Operators reserve them for somebody, and no limit counts them."""

EXAMINED = ("ioctl", "fcntl", "prctl", "clone", "personality", "mknod", "mknodat", *MODES, *HUGE)
EXAMINED_TOO = ("socket", "socketpair", "setsockopt")
"""Let through with some arguments only."""

UNMAPPED, SEGMENTS = ("memfd_create",), ("shmget", "msgget")
"""Memory that no process need have mapped: only a cgroup counts it."""

ALLOW = 0x7FFF0000
LOAD, JUMP, JEQ, JGE, JGT, AND, RETURN = 0x20, 0x05, 0x15, 0x35, 0x25, 0x54, 0x06
NR, ARCH, ARGS = 0, 4, 16
SET_MODE_FILTER = 1


def _refuse(number: int) -> int:
    return 0x00050000 | number


class Assembler:
    """Instructions with names for the places they jump to."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int | str, str, str]] = []
        self._places: dict[str, int] = {}

    def add(self, code: int, value: int | str, yes: str = "", no: str = "") -> None:
        """A jump without a condition has the place it goes to for its value, and reaches everywhere; others reach 255
        instructions."""
        self._code.append((code, value, yes, no))

    def place(self, name: str) -> None:
        self._places[name] = len(self._code)

    def load_argument(self, number: int) -> None:
        """Its low half: what is compared here fits into it, and the kernel looks at no more of it either."""
        self.add(LOAD, ARGS + 8 * number)

    def answer(self, value: int) -> None:
        self.add(RETURN, value)

    def is_in(self, spans: Spans, name: str, yes: int, no: int) -> None:
        """Answer by whether the value is in one of these. `name` is for the places of this only."""
        for number, (first, last) in enumerate(spans):
            if first == last:
                self.add(JEQ, first, f"{name} yes")
            else:
                self.add(JGE, first, "", f"{name} {number}")
                self.add(JGT, last, "", f"{name} yes")
                self.place(f"{name} {number}")
        self.answer(no)
        self.place(f"{name} yes")
        self.answer(yes)

    def assembled(self) -> bytes:
        places, packed = self._places, bytearray()
        for at, (code, value, yes, no) in enumerate(self._code, 1):
            if isinstance(value, str):
                value = places[value] - at
            packed += struct.pack("HBBI", code, places[yes] - at if yes else 0, places[no] - at if no else 0, value)
        return bytes(packed)


def program(machine: str, *, memfd: bool = True, segments: bool = True, linger: bool = True) -> bytes:
    """The filter for a machine. Without `memfd` and `segments` there is no memory that nobody has mapped; without
    `linger` no socket that is slow to close."""
    known = syscall_table.numbers(syscall_table.LET_THROUGH, machine)
    decisions: dict[int, str] = dict.fromkeys(known.values(), "allowed")
    decisions |= dict.fromkeys(syscall_table.numbers(syscall_table.FORBIDDEN, machine).values(), "forbidden")
    decisions |= {known[name]: name for name in (*EXAMINED, *EXAMINED_TOO) if name in known}
    for name in (*(() if memfd else UNMAPPED), *(() if segments else SEGMENTS)):
        decisions[known[name]] = "forbidden"
    asm = Assembler()
    asm.add(LOAD, ARCH)
    asm.add(JEQ, MACHINES[machine], "same machine")
    asm.answer(_refuse(errno.ENOSYS))
    asm.place("same machine")
    asm.add(LOAD, NR)
    _decide(asm, _runs(decisions))
    _examine(asm, known)
    _examine_sockets(asm, linger)
    return asm.assembled()


def _runs(decisions: dict[int, str]) -> list[tuple[int, str]]:
    """Where, by number, another decision begins to hold. The calls of x32 lie above all of them."""
    runs = [(0, decisions.get(0, "absent"))]
    for number in range(1, max(decisions) + 2):
        decision = decisions.get(number, "absent")
        if decision != runs[-1][1]:
            runs.append((number, decision))
    return runs


ANSWERS = {"allowed": ALLOW, "forbidden": _refuse(errno.EPERM), "absent": _refuse(errno.ENOSYS)}


def _decide(asm: Assembler, runs: list[tuple[int, str]]) -> None:
    """By halves: the kernel tries every call when a filter is installed, and every session installs one."""
    if len(runs) == 1:
        decision = runs[0][1]
        if decision in ANSWERS:
            asm.answer(ANSWERS[decision])
        else:
            asm.add(JUMP, decision)
        return
    middle = runs[len(runs) // 2][0]
    asm.add(JGE, middle, f"from {middle}")
    _decide(asm, runs[: len(runs) // 2])
    asm.place(f"from {middle}")
    _decide(asm, runs[len(runs) // 2 :])


def _examine(asm: Assembler, known: dict[str, int]) -> None:
    asm.place("ioctl")
    asm.load_argument(1)
    for request in (TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD):
        asm.add(JEQ, request, "no such request")
    asm.is_in(REQUESTS, "ioctl", ALLOW, _refuse(errno.ENOTTY))
    asm.place("no such request")
    asm.answer(_refuse(errno.EPERM))

    asm.place("fcntl")
    asm.load_argument(1)
    for command in (F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ):
        asm.add(JEQ, command, "no such command")
    asm.is_in(COMMANDS, "fcntl", ALLOW, _refuse(errno.EINVAL))
    asm.place("no such command")
    asm.answer(_refuse(errno.EPERM))

    asm.place("prctl")
    asm.load_argument(0)
    asm.is_in(OPTIONS, "prctl", ALLOW, _refuse(errno.EINVAL))

    asm.place("personality")
    asm.load_argument(0)
    asm.is_in(_each(*PERSONALITIES), "personality", ALLOW, _refuse(errno.EPERM))

    asm.place("clone")
    asm.load_argument(0)
    asm.add(AND, NAMESPACES)
    asm.is_in(_each(0), "clone", ALLOW, _refuse(errno.EPERM))

    for name, argument in (("mknod", 1), ("mknodat", 2)):
        if name in known:
            asm.place(name)
            asm.load_argument(argument)
            asm.add(AND, S_IFMT)
            asm.is_in(_each(S_IFCHR, S_IFBLK), name, _refuse(errno.EPERM), ALLOW)

    for name, argument in MODES.items():
        if name in known:
            asm.place(name)
            asm.load_argument(argument)
            asm.add(AND, LENDS_OWNER)
            asm.is_in(_each(0), name, ALLOW, _refuse(errno.EPERM))

    for name, (argument, flag) in HUGE.items():
        asm.place(name)
        asm.load_argument(argument)
        asm.add(AND, flag)
        asm.is_in(_each(0), name, ALLOW, _refuse(errno.EPERM))


def _each(*values: int) -> Spans:
    return tuple((value, value) for value in values)


def _examine_sockets(asm: Assembler, linger: bool) -> None:
    asm.place("setsockopt")
    asm.load_argument(1)
    for level in WITHOUT:
        asm.add(JEQ, level, f"options of {level}")
    asm.answer(ALLOW)
    for level, without in WITHOUT.items():
        asm.place(f"options of {level}")
        asm.load_argument(2)
        if level == SOL_SOCKET and not linger:
            asm.add(JEQ, SO_LINGER, "not done")
        asm.is_in(without, f"option of {level}", _refuse(errno.ENOPROTOOPT), ALLOW)
    asm.place("not done")
    asm.answer(_refuse(0))

    asm.place("socketpair")
    asm.load_argument(0)
    asm.add(JEQ, AF_UNIX, "socket allowed", "no family")
    asm.place("socket")
    asm.load_argument(0)
    asm.add(JEQ, AF_UNIX, "socket allowed")
    asm.add(JEQ, AF_NETLINK, "netlink")
    asm.add(JEQ, AF_INET, "internet")
    asm.add(JEQ, AF_INET6, "internet", "no family")
    asm.place("netlink")
    asm.load_argument(2)
    asm.add(JEQ, NETLINK_ROUTE, "socket allowed", "no family")
    asm.place("internet")
    asm.load_argument(1)
    asm.add(AND, SOCK_TYPE)
    asm.add(JEQ, SOCK_STREAM, "protocol")
    asm.add(JEQ, SOCK_DGRAM, "protocol", "no raw")
    asm.place("protocol")
    asm.load_argument(2)
    for protocol in PROTOCOLS:
        asm.add(JEQ, protocol, "socket allowed")
    asm.answer(_refuse(errno.EPROTONOSUPPORT))
    asm.place("socket allowed")
    asm.answer(ALLOW)
    asm.place("no raw")
    asm.answer(_refuse(errno.EPERM))
    asm.place("no family")
    asm.answer(_refuse(errno.EAFNOSUPPORT))


class Filter:
    """A program in the shape in which the kernel takes it; made once, installed by every session."""

    def __init__(self, *, memfd: bool = True, segments: bool = True, linger: bool = True) -> None:
        if kernel_calls.MACHINE not in MACHINES:
            raise kernel_calls.Refused(f"a seccomp filter for {kernel_calls.MACHINE}", errno.ENOSYS)
        code = program(kernel_calls.MACHINE, memfd=memfd, segments=segments, linger=linger)
        self._code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))

    def install(self) -> None:
        """From now on, for this process and all that come from it. Needs no_new_privs."""
        kernel_calls.system_call("seccomp", SET_MODE_FILTER, 0, ctypes.addressof(self._header))
