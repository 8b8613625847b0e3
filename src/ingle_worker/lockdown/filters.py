"""The seccomp filter: which system calls of a session the kernel answers, assembled once, in the zygote.

It refuses what a session has no use for and what has been a way out before: the kernel's surface for administration,
namespaces, other processes, and kinds of sockets that no namespace covers. Calls newer than this list do not exist
for a session. The machine is checked first, so that calls by the numbers of another one are refused as a whole.
"""

import ctypes
import errno
import struct

from ingle_worker.lockdown import calls

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of each."""

X32 = 0x40000000
NEWEST = 469
"""Up to here every call was looked at; what the kernel has learned since is answered as unknown."""

COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "process_mrelease": 448,
    "statmount": 457,
    "listmount": 458,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
X86_64 = {
    "ptrace": 101,
    "syslog": 103,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "_sysctl": 156,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "get_kernel_syms": 177,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "fanotify_mark": 301,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
}
AARCH64 = {
    "lookup_dcookie": 18,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "adjtimex": 171,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "fanotify_mark": 263,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "kexec_file_load": 294,
}
FORBIDDEN = {"x86_64": {**X86_64, **COMMON}, "aarch64": {**AARCH64, **COMMON}}
"""Answered with EPERM, as a kernel does that knows a call and does not let one."""

ABSENT = {
    # There are so many requests of io_setup's kind for the whole machine, and one call can have them all.
    "x86_64": {"userfaultfd": 323, "io_setup": 206},
    "aarch64": {"userfaultfd": 282, "io_setup": 0},
}
ABSENT_COMMON = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
ABSENT_COMMON["memfd_secret"] = 447
"""Answered with ENOSYS, so that libraries take the older way. The flags of clone3 stand behind a pointer, where no
filter can look: libc then calls clone, whose flags can be seen."""

EXAMINED = {
    "x86_64": {"ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "fcntl": 72, "mknod": 133, "mknodat": 259},
    "aarch64": {"ioctl": 29, "socket": 198, "socketpair": 199, "clone": 220, "fcntl": 25, "mknodat": 33},
}
SECOND_IS_MODE = {"x86_64": {"chmod": 90, "fchmod": 91}, "aarch64": {"fchmod": 52}}
THIRD_IS_MODE = {"x86_64": {"fchmodat": 268, "fchmodat2": 452}, "aarch64": {"fchmodat": 53, "fchmodat2": 452}}
"""A program that lends its owner to whoever runs it would do so outside, too: files in a granted folder are there those
of the folder's owner. A file can also be made with that mark, but loses it when it is written or made longer."""
PERSONALITY = {"x86_64": 135, "aarch64": 92}
SETSOCKOPT = {"x86_64": 54, "aarch64": 208}
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
SEGMENTS = {"x86_64": {"shmget": 29, "msgget": 68}, "aarch64": {"shmget": 194, "msgget": 186}}
"""Memory that no process need have mapped, as that of memfd_create: only a cgroup counts it."""

NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag, that of time among them."""

TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
"""Keys pressed on a terminal, what a console shows, and a line's protocol, for which the kernel would load modules."""

F_SETPIPE_SZ = 1031
"""The memory of pipes is counted for each user: enlarged ones of a few sessions would leave all others with a page."""

SOL_SOCKET, SO_LINGER = 1, 13
"""A connection that lingers blocks whoever closes it last, and by a descriptor that is sent along that can be the host.
Where it cannot refuse these, none lingers: the call is answered as if it were done."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
SOCK_TYPE = 0xF
SOCK_STREAM, SOCK_DGRAM = 1, 2
PROTOCOLS = (0, 1, 6, 17, 58)
"""Any, ICMP (of the kind that needs no right), TCP, UDP, ICMPv6."""

S_IFMT, S_IFCHR, S_IFBLK = 0o170000, 0o020000, 0o060000
LENDS_OWNER = 0o6000
PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)

ALLOW = 0x7FFF0000
LOAD, JEQ, JGE, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
NR, ARCH, ARGS = 0, 4, 16
SET_MODE_FILTER = 1


def _refuse(number: int) -> int:
    return 0x00050000 | number


class Assembler:
    """Instructions with names for the places they jump to."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str, str]] = []
        self._places: dict[str, int] = {}

    def add(self, code: int, value: int, yes: str = "", no: str = "") -> None:
        self._code.append((code, value, yes, no))

    def place(self, name: str) -> None:
        self._places[name] = len(self._code)

    def load_argument(self, number: int) -> None:
        """Its low half: what is compared here fits into it, and the kernel looks at no more of it either."""
        self.add(LOAD, ARGS + 8 * number)

    def answer(self, value: int) -> None:
        self.add(RETURN, value)

    def assembled(self) -> bytes:
        packed = b""
        for at, (code, value, yes, no) in enumerate(self._code):
            jumps = [self._places[name] - at - 1 if name else 0 for name in (yes, no)]
            packed += struct.pack("HBBI", code, *jumps, value)
        return packed


def program(machine: str, *, memfd: bool = True, segments: bool = True, linger: bool = True) -> bytes:
    """The filter for a machine. Without `memfd` and `segments` there is no memory that nobody has mapped; without
    `linger` no socket that is slow to close."""
    asm = Assembler()
    asm.add(LOAD, ARCH)
    asm.add(JEQ, MACHINES[machine], "same machine", "absent at once")
    asm.place("absent at once")
    asm.answer(_refuse(errno.ENOSYS))
    asm.place("same machine")
    asm.add(LOAD, NR)
    # x32 lies above everything else, and goes with what is too new.
    asm.add(JGE, NEWEST + 1, "absent at once too")
    examined = {**EXAMINED[machine], "personality": PERSONALITY[machine]}
    for name, number in examined.items():
        # Jumps reach 255 instructions, which is why what is examined stands last and close by.
        asm.add(JEQ, number, name)
    if not linger:
        asm.add(JEQ, SETSOCKOPT[machine], "setsockopt")
    for place, calls_with_mode in (("second is mode", SECOND_IS_MODE), ("third is mode", THIRD_IS_MODE)):
        for number in calls_with_mode[machine].values():
            asm.add(JEQ, number, place)
    for number in sorted({**ABSENT[machine], **ABSENT_COMMON}.values()):
        asm.add(JEQ, number, "absent")
    forbidden = set(FORBIDDEN[machine].values())
    if not memfd:
        forbidden.add(MEMFD_CREATE[machine])
    if not segments:
        forbidden |= set(SEGMENTS[machine].values())
    for number in sorted(forbidden):
        asm.add(JEQ, number, "forbidden")
    asm.place("allowed")
    asm.answer(ALLOW)
    asm.place("forbidden")
    asm.answer(_refuse(errno.EPERM))
    asm.place("absent")
    asm.place("absent at once too")
    asm.answer(_refuse(errno.ENOSYS))
    _examine(asm, machine)
    return asm.assembled()


def _examine(asm: Assembler, machine: str) -> None:
    asm.place("ioctl")
    asm.load_argument(1)
    for request in (TIOCSTI, TIOCLINUX, TIOCSETD):
        asm.add(JEQ, request, "no here")
    asm.answer(ALLOW)
    asm.place("no here")
    asm.answer(_refuse(errno.EPERM))

    asm.place("fcntl")
    asm.load_argument(1)
    asm.add(JEQ, F_SETPIPE_SZ, "no enlarging", "yes to fcntl")
    asm.place("yes to fcntl")
    asm.answer(ALLOW)
    asm.place("no enlarging")
    asm.answer(_refuse(errno.EPERM))

    asm.place("clone")
    asm.load_argument(0)
    asm.add(AND, NAMESPACES)
    asm.add(JEQ, 0, "yes here", "no here 2")
    asm.place("yes here")
    asm.answer(ALLOW)
    asm.place("no here 2")
    asm.answer(_refuse(errno.EPERM))

    for name, argument in (("mknod", 1), ("mknodat", 2)):
        if name in EXAMINED[machine]:
            asm.place(name)
            asm.load_argument(argument)
            asm.add(AND, S_IFMT)
            asm.add(JEQ, S_IFCHR, f"{name} refused")
            asm.add(JEQ, S_IFBLK, f"{name} refused")
            asm.answer(ALLOW)
            asm.place(f"{name} refused")
            asm.answer(_refuse(errno.EPERM))

    asm.place("setsockopt")
    asm.load_argument(1)
    asm.add(JEQ, SOL_SOCKET, "of any socket", "another option")
    asm.place("of any socket")
    asm.load_argument(2)
    asm.add(JEQ, SO_LINGER, "not done", "another option")
    asm.place("another option")
    asm.answer(ALLOW)
    asm.place("not done")
    asm.answer(_refuse(0))

    for place, argument in (("second is mode", 1), ("third is mode", 2)):
        asm.place(place)
        asm.load_argument(argument)
        asm.add(AND, LENDS_OWNER)
        asm.add(JEQ, 0, f"{place} and usual", f"{place} and refused")
        asm.place(f"{place} and usual")
        asm.answer(ALLOW)
        asm.place(f"{place} and refused")
        asm.answer(_refuse(errno.EPERM))

    asm.place("personality")
    asm.load_argument(0)
    for value in PERSONALITIES:
        asm.add(JEQ, value, "usual")
    asm.answer(_refuse(errno.EPERM))
    asm.place("usual")
    asm.answer(ALLOW)

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
        if calls.MACHINE not in MACHINES:
            raise calls.Refused(f"a seccomp filter for {calls.MACHINE}", errno.ENOSYS)
        code = program(calls.MACHINE, memfd=memfd, segments=segments, linger=linger)
        self._code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))

    def install(self) -> None:
        """From now on, for this process and all that come from it. Needs no_new_privs."""
        calls.system_call("seccomp", SET_MODE_FILTER, 0, ctypes.addressof(self._header))
