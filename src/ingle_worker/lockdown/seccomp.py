"""The seccomp filter of a session, assembled once in the zygote.

It allows the system calls of `syscall_table`, some only with arguments listed here. All others, future ones included,
fail as if the kernel had no such call. The filter checks the machine first and refuses calls of another architecture.
"""

import ctypes
import errno
import os
import struct

from ingle_worker.lockdown import kernel_calls, syscall_table

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH constants of the kernel."""

Spans = tuple[tuple[int, int], ...]
"""Pairs of first and last value, both included."""

NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag, CLONE_NEWTIME included."""

TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423
"""Requests to fake key presses, to control a console, and to set a line discipline, which loads kernel modules."""

IOCTL_REQUESTS: Spans = (
    # Terminals and generic requests: bytes to read, non-blocking, close-on-exec.
    *((0x5401, 0x5411), (0x5413, 0x541B), (0x5420, 0x5422), (0x5424, 0x5425), (0x5427, 0x5429)),
    *((0x5441, 0x5441), (0x5450, 0x5452), (0x40045431, 0x40045431), (0x40045436, 0x40045436)),
    *((0x402C542B, 0x402C542D), (0x80045430, 0x80045430), (0x80045438, 0x80045440), (0x802C542A, 0x802C542A)),
    # Sockets: signal owner, urgent mark, and the list of interfaces with their speed.
    *((0x8901, 0x8907), (0x8910, 0x8910), (0x8912, 0x8913), (0x8915, 0x8915), (0x8917, 0x8917), (0x8919, 0x8919)),
    *((0x891B, 0x891B), (0x891D, 0x891D), (0x8921, 0x8921), (0x8927, 0x8927), (0x8933, 0x8933), (0x8942, 0x8942)),
    *((0x8946, 0x8946), (0x8970, 0x8970)),
    # Files: block size, copies that share blocks, and reading flags.
    *((0x2, 0x2), (0x40049409, 0x40049409), (0x4020940D, 0x4020940D), (0x80086601, 0x80086601)),
    # The available entropy.
    (0x80045200, 0x80045200),
)
"""Allowed ioctl requests. File systems and drivers have many more of their own, and nobody knows them all."""

GPU_REQUESTS: dict[str, tuple[tuple[int, int, Spans], ...]] = {
    "nvidia": (
        # Objects of the resource manager: allocate, free, control, share, map, and events.
        (
            *(0xC000FF00, 0xC0004600),
            (
                *((0x27, 0x27), (0x29, 0x2B), (0x34, 0x35), (0x41, 0x41), (0x4A, 0x4A), (0x4E, 0x4F), (0x52, 0x52)),
                *((0x54, 0x54), (0x57, 0x59), (0x5C, 0x5E)),
                # Cards, descriptors, versions.
                *((0xC8, 0xC9), (0xCE, 0xCF), (0xD1, 0xD2), (0xD4, 0xD4), (0xD6, 0xD7), (0xD9, 0xDA)),
            ),
        ),
        # Unified memory: its requests are plain numbers.
        (0xFFFFFF00, 0, ((0x1, 0x5F),)),
        (0xFFFFFFFC, 0x30000000, ((0x1, 0x2),)),
    ),
    "amd": ((0xFF00, 0x4B00, ((0x1, 0x30),)), (0xFF00, 0x6400, ((0x0, 0xFF),))),
}
"""Requests of a GPU's driver: bits of the request, their value, and allowed values of the lowest byte.

Of NVIDIA's, those are left out that reach the I2C bus or the registry, change settings of the card, or carry another
request inside. AMD's are from its headers, and have not been tried."""

F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ = 1024, 1026, 1031
"""Refused fcntl commands. A lease blocks others who open the file, for example the host, for up to 45 seconds. Folder
signals were replaced by inotify. Pipe memory is counted per user, so large pipes of a few sessions would leave one page
for all others."""

FCNTL_COMMANDS: Spans = ((0, 16), (36, 38), (1025, 1025), (1027, 1028), (1030, 1030), (1032, 1038))
"""Allowed fcntl commands: flags, owners, locks, copies of descriptors, pipe sizes, seals, hints."""

PRCTL_OPTIONS: Spans = (
    # Parent death signal, dumpable, alignment, keeping capabilities, floating point, timing, name, byte order.
    (1, 20),
    # Filters, bounding set, time stamp counter, secure bits, timer slack.
    (21, 30),
    # Subreaper, no_new_privs, thread address, huge pages, ambient capabilities.
    *((36, 42), (47, 47)),
    # aarch64 features, speculation, write-xor-execute memory, shadow stacks.
    *((50, 56), (60, 61), (63, 66), (74, 76)),
    # Auxiliary vector, names of memory areas, allowed tracer.
    *((0x41555856, 0x41555856), (0x53564D41, 0x53564D41), (0x59616D61, 0x59616D61)),
)
"""Allowed prctl options."""

SOL_SOCKET, SOL_TCP, SOL_UDP, SOL_IPV6 = 1, 6, 17, 41
SO_LINGER = 13
"""A lingering socket blocks the process that closes it last, which can be the host if a descriptor was sent to it. If
the host cannot refuse descriptors, the option is ignored and the call reports success."""

REFUSED_OPTIONS: dict[int, Spans] = {
    # Programs that the kernel runs on received data.
    SOL_SOCKET: ((26, 26), (50, 52)),
    # Encryption in the kernel: segment signatures, protocols above TCP such as TLS.
    SOL_TCP: ((14, 14), (31, 32), (38, 42)),
    # UDP tunnels.
    SOL_UDP: ((100, 100),),
    # Conversion of an IPv6 socket to IPv4.
    SOL_IPV6: ((1, 1),),
}
"""Refused socket options by level: rarely used, and sources of kernel exploits in the past."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
SOCK_TYPE = 0xF
SOCK_STREAM, SOCK_DGRAM = 1, 2
PROTOCOLS = (0, 1, 6, 17, 58)
"""Any, ICMP (unprivileged), TCP, UDP, ICMPv6."""

S_IFMT, S_IFCHR, S_IFBLK = 0o170000, 0o020000, 0o060000
SET_ID_BITS = 0o6000
"""Set-user-id and set-group-id bits. In a granted folder they would also take effect outside of the sandbox. The kernel
ignores them when a folder is created."""

MODE_ARGUMENTS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1}
"""Index of the argument that is the mode."""

OPEN_ARGUMENTS = {"open": (1, 2), "openat": (2, 3)}
"""Index of the flags and of the mode."""

CREATES = 0o100 | 0o20000000
"""Flags O_CREAT and O_TMPFILE. Without them the mode has no meaning, and may hold anything."""

PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)

HUGE_PAGE_FLAGS = {"mmap": (3, 0x40000), "memfd_create": (1, 0x4), "shmget": (2, 0o4000)}
"""Argument index and flag that ask for huge pages. Operators reserve those, and no limit counts them."""

MKNOD_ARGUMENTS = {"mknod": 1, "mknodat": 2}
"""Index of the argument that is the kind and the mode of the file."""

EXAMINED = (
    *("ioctl", "fcntl", "prctl", "clone", "personality", "prlimit64"),
    *(*MKNOD_ARGUMENTS, *MODE_ARGUMENTS, *OPEN_ARGUMENTS, *HUGE_PAGE_FLAGS),
)
KEY_WORDS = (0xFFFFFFF1, 0xFFFFFFF2)
"""Stand for the two words of a key in an assembled program."""

MAX_KEY_WORD = (1 << 31) - 1

EXAMINED_SOCKET_CALLS = ("socket", "socketpair", "setsockopt")
"""System calls that are allowed with some arguments only."""

UNMAPPED, SEGMENTS = ("memfd_create",), ("shmget", "msgget")
"""Calls that allocate memory without mapping it. Only a cgroup counts that memory."""

ALLOW = 0x7FFF0000
LOAD, JUMP, JEQ, JGE, JGT, AND, RETURN = 0x20, 0x05, 0x15, 0x35, 0x25, 0x54, 0x06
NR, ARCH, ARGS = 0, 4, 16
SET_MODE_FILTER = 1


def _refuse(number: int) -> int:
    return 0x00050000 | number


class Assembler:
    """Assembler for BPF instructions with labels."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int | str, str, str]] = []
        self._labels: dict[str, int] = {}

    def add(self, code: int, value: int | str, yes: str = "", no: str = "") -> None:
        """Append an instruction. An unconditional jump has a label as value and any range; others reach 255
        instructions."""
        self._code.append((code, value, yes, no))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def load_argument(self, number: int) -> None:
        """Load the low half of an argument. All compared values fit into it, and the kernel reads no more of them."""
        self.add(LOAD, ARGS + 8 * number)

    def answer(self, value: int) -> None:
        self.add(RETURN, value)

    def is_in(self, spans: Spans, name: str, yes: int, no: int | str) -> None:
        """Answer `yes` if the value is in one of the spans, else `no`, or go on at that label.

        `name` makes the labels unique.
        """
        for number, (first, last) in enumerate(spans):
            if first == last:
                self.add(JEQ, first, f"{name} yes")
            else:
                self.add(JGE, first, "", f"{name} {number}")
                self.add(JGT, last, "", f"{name} yes")
                self.label(f"{name} {number}")
        if isinstance(no, str):
            self.add(JUMP, no)
        else:
            self.answer(no)
        self.label(f"{name} yes")
        self.answer(yes)

    def assembled(self) -> bytes:
        labels, packed = self._labels, bytearray()
        for at, (code, value, yes, no) in enumerate(self._code, 1):
            if isinstance(value, str):
                value = labels[value] - at
            packed += struct.pack("HBBI", code, labels[yes] - at if yes else 0, labels[no] - at if no else 0, value)
        return bytes(packed)


def program(
    machine: str, *, memfd: bool = True, segments: bool = True, linger: bool = True, gpu_driver: str = ""
) -> bytes:
    """Return the filter program for a machine.

    `memfd` and `segments` allow memory that no process maps, `linger` allows sockets that are slow to close, and
    `gpu_driver` allows the requests of a GPU's driver.
    """
    known = syscall_table.numbers(syscall_table.LET_THROUGH, machine)
    decisions: dict[int, str] = dict.fromkeys(known.values(), "allowed")
    decisions |= dict.fromkeys(syscall_table.numbers(syscall_table.FORBIDDEN, machine).values(), "forbidden")
    decisions |= {known[name]: name for name in (*EXAMINED, *EXAMINED_SOCKET_CALLS) if name in known}
    for name in (*(() if memfd else UNMAPPED), *(() if segments else SEGMENTS)):
        decisions[known[name]] = "forbidden"
    decisions[syscall_table.numbers(syscall_table.FORBIDDEN, machine)["setns"]] = "setns"
    asm = Assembler()
    asm.add(LOAD, ARCH)
    asm.add(JEQ, MACHINES[machine], "same machine")
    asm.answer(_refuse(errno.ENOSYS))
    asm.label("same machine")
    asm.add(LOAD, NR)
    _decide(asm, _runs(decisions))
    _examine(asm, known, gpu_driver)
    _examine_sockets(asm, linger)
    return asm.assembled()


def _runs(decisions: dict[int, str]) -> list[tuple[int, str]]:
    """Return the numbers at which the decision changes. The calls of x32 are above all of them."""
    runs = [(0, decisions.get(0, "absent"))]
    for number in range(1, max(decisions) + 2):
        decision = decisions.get(number, "absent")
        if decision != runs[-1][1]:
            runs.append((number, decision))
    return runs


ANSWERS = {"allowed": ALLOW, "forbidden": _refuse(errno.EPERM), "absent": _refuse(errno.ENOSYS)}


def _decide(asm: Assembler, runs: list[tuple[int, str]]) -> None:
    """Emit a binary search. The kernel runs the filter for every call number at install, once per session."""
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
    asm.label(f"from {middle}")
    _decide(asm, runs[len(runs) // 2 :])


def _examine(asm: Assembler, known: dict[str, int], gpu_driver: str) -> None:
    asm.label("ioctl")
    for number, (mask, value, spans) in enumerate(GPU_REQUESTS.get(gpu_driver, ())):
        asm.load_argument(1)
        asm.add(AND, mask)
        asm.add(JEQ, value, "", f"not gpu {number}")
        asm.load_argument(1)
        asm.add(AND, 0xFF)
        asm.is_in(spans, f"gpu {number}", ALLOW, f"not gpu {number}")
        asm.label(f"not gpu {number}")
    asm.load_argument(1)
    for request in (TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD):
        asm.add(JEQ, request, "no such request")
    asm.is_in(IOCTL_REQUESTS, "ioctl", ALLOW, _refuse(errno.ENOTTY))
    asm.label("no such request")
    asm.answer(_refuse(errno.EPERM))

    asm.label("fcntl")
    asm.load_argument(1)
    for command in (F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ):
        asm.add(JEQ, command, "no such command")
    asm.is_in(FCNTL_COMMANDS, "fcntl", ALLOW, _refuse(errno.EINVAL))
    asm.label("no such command")
    asm.answer(_refuse(errno.EPERM))

    asm.label("prctl")
    asm.load_argument(0)
    asm.is_in(PRCTL_OPTIONS, "prctl", ALLOW, _refuse(errno.EINVAL))

    # The kernel reads the low halves only, so the high halves can carry a key that the filter checks.
    asm.label("setns")
    for argument, word in enumerate(KEY_WORDS):
        asm.add(LOAD, ARGS + 8 * argument + 4)
        asm.add(JEQ, word, "", "no key")
    asm.answer(ALLOW)
    asm.label("no key")
    asm.answer(_refuse(errno.EPERM))

    asm.label("personality")
    asm.load_argument(0)
    asm.is_in(_each(*PERSONALITIES), "personality", ALLOW, _refuse(errno.EPERM))

    # A process may read the limits of others, and set its own: a fork has the user of its original.
    asm.label("prlimit64")
    asm.load_argument(0)
    asm.add(JEQ, 0, "own limits")
    for half in (0, 4):
        asm.add(LOAD, ARGS + 8 * 2 + half)
        asm.add(JEQ, 0, "", "limits of others")
    asm.label("own limits")
    asm.answer(ALLOW)
    asm.label("limits of others")
    asm.answer(_refuse(errno.EPERM))

    asm.label("clone")
    asm.load_argument(0)
    asm.add(AND, NAMESPACES)
    asm.is_in(_each(0), "clone", ALLOW, _refuse(errno.EPERM))

    for name, argument in MKNOD_ARGUMENTS.items():
        if name in known:
            asm.label(name)
            asm.load_argument(argument)
            asm.add(AND, S_IFMT)
            for kind in (S_IFCHR, S_IFBLK):
                asm.add(JEQ, kind, f"{name} device")
            _examine_mode(asm, name, argument)
            asm.label(f"{name} device")
            asm.answer(_refuse(errno.EPERM))

    for name, argument in MODE_ARGUMENTS.items():
        if name in known:
            asm.label(name)
            _examine_mode(asm, name, argument)

    for name, (flags, mode) in OPEN_ARGUMENTS.items():
        if name in known:
            asm.label(name)
            asm.load_argument(flags)
            asm.add(AND, CREATES)
            asm.add(JEQ, 0, "", f"{name} creates")
            asm.answer(ALLOW)
            asm.label(f"{name} creates")
            _examine_mode(asm, name, mode)

    for name, (argument, flag) in HUGE_PAGE_FLAGS.items():
        asm.label(name)
        asm.load_argument(argument)
        asm.add(AND, flag)
        asm.is_in(_each(0), name, ALLOW, _refuse(errno.EPERM))


def _examine_mode(asm: Assembler, name: str, argument: int) -> None:
    """Refuse the call if the mode has a set-user-id or set-group-id bit."""
    asm.load_argument(argument)
    asm.add(AND, SET_ID_BITS)
    asm.is_in(_each(0), name, ALLOW, _refuse(errno.EPERM))


def _each(*values: int) -> Spans:
    return tuple((value, value) for value in values)


def _examine_sockets(asm: Assembler, linger: bool) -> None:
    asm.label("setsockopt")
    asm.load_argument(1)
    for level in REFUSED_OPTIONS:
        asm.add(JEQ, level, f"options of {level}")
    asm.answer(ALLOW)
    for level, without in REFUSED_OPTIONS.items():
        asm.label(f"options of {level}")
        asm.load_argument(2)
        if level == SOL_SOCKET and not linger:
            asm.add(JEQ, SO_LINGER, "not done")
        asm.is_in(without, f"option of {level}", _refuse(errno.ENOPROTOOPT), ALLOW)
    asm.label("not done")
    asm.answer(_refuse(0))

    asm.label("socketpair")
    asm.load_argument(0)
    asm.add(JEQ, AF_UNIX, "socket allowed", "no family")
    asm.label("socket")
    asm.load_argument(0)
    asm.add(JEQ, AF_UNIX, "socket allowed")
    asm.add(JEQ, AF_NETLINK, "netlink")
    asm.add(JEQ, AF_INET, "internet")
    asm.add(JEQ, AF_INET6, "internet", "no family")
    asm.label("netlink")
    asm.load_argument(2)
    asm.add(JEQ, NETLINK_ROUTE, "socket allowed", "no family")
    asm.label("internet")
    asm.load_argument(1)
    asm.add(AND, SOCK_TYPE)
    asm.add(JEQ, SOCK_STREAM, "protocol")
    asm.add(JEQ, SOCK_DGRAM, "protocol", "no raw")
    asm.label("protocol")
    asm.load_argument(2)
    for protocol in PROTOCOLS:
        asm.add(JEQ, protocol, "socket allowed")
    asm.answer(_refuse(errno.EPROTONOSUPPORT))
    asm.label("socket allowed")
    asm.answer(ALLOW)
    asm.label("no raw")
    asm.answer(_refuse(errno.EPERM))
    asm.label("no family")
    asm.answer(_refuse(errno.EAFNOSUPPORT))


class Filter:
    """A filter program in the kernel's format. It is created once and installed by every session."""

    def __init__(self, *, memfd: bool = True, segments: bool = True, linger: bool = True, gpu_driver: str = "") -> None:
        if kernel_calls.MACHINE not in MACHINES:
            raise kernel_calls.Refused(f"a seccomp filter for {kernel_calls.MACHINE}", errno.ENOSYS)
        code = program(kernel_calls.MACHINE, memfd=memfd, segments=segments, linger=linger, gpu_driver=gpu_driver)
        self._code = ctypes.create_string_buffer(code, len(code))
        self._key_places = [_place_of(code, word) for word in KEY_WORDS]
        header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))

    def install(self, key: list[int] | None = None) -> None:
        """Apply the filter to this process and its future children, for good. Needs no_new_privs.

        The process may call `setns` with the key. Without a key, it gets one that nobody knows.
        """
        for place, word in zip(self._key_places, key or new_key(), strict=True):
            struct.pack_into("I", self._code, place, word)
        kernel_calls.system_call("seccomp", SET_MODE_FILTER, 0, ctypes.addressof(self._header))
        for place, word in zip(self._key_places, KEY_WORDS, strict=True):
            struct.pack_into("I", self._code, place, word)


def new_key() -> list[int]:
    """Return a new key for `setns`."""
    return [word & MAX_KEY_WORD for word in struct.unpack("II", os.urandom(8))]


def _place_of(code: bytes, word: int) -> int:
    """Return where the comparison with this word has its operand."""
    compared = struct.pack("H", JEQ), struct.pack("I", word)
    (place,) = (at + 4 for at in range(0, len(code), 8) if (code[at : at + 2], code[at + 4 : at + 8]) == compared)
    return place
