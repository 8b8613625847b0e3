"""The filter of system calls as a program, run here for both machines: what it answers to which call.

The kernel of the machine that the tests run on obeys the program of that machine (tests/isolation); this is for the
other one as well. Numbers come from the headers of the system, where these are installed, not from the filter's tables.
"""

import errno
import re
import struct
from pathlib import Path

import pytest

from ingle_worker.lockdown import seccomp, syscall_table
from ingle_worker.lockdown.seccomp import KEY_WORDS

ALLOWED, UNKNOWN, FORBIDDEN = "allowed", "ENOSYS", "EPERM"
DONE = "answered as if it were done"
MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    # aarch64 takes the numbers that are every new machine's.
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK = 1, 2, 10, 16, 17, 38, 40
STREAM, DGRAM, RAW, CLOEXEC = 1, 2, 3, 0o2000000
TCP, UDP, SCTP = 6, 17, 132
NETLINK_AUDIT = 9
O_WRONLY, O_CREAT, O_TMPFILE = 1, 0o100, 0o20000000
NEW_USER, NEW_TIME, SIGCHLD = 0x10000000, 0x80, 17

LAST_DECIDED = 469
"""file_setattr, of Linux 6.17."""

RENAMED = {"fstatat": "newfstatat"}
NO_CALLS = r"syscalls|arch_specific_syscall|sync_file_range2|\w+_time64|(clock|timer|timerfd)_\w+64"
"""What only machines of 32 bits have, beside the headers' own words."""

NOT_IN_HEADERS = {"uprobe", "uretprobe"}
"""Later than their numbers would have it."""

NUMBERS = {
    "bpf": (321, 280),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fcntl": (72, 25),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "mount": (165, 40),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "prctl": (157, 167),
    "process_vm_readv": (310, 270),
    "ptrace": (101, 117),
    "read": (0, 63),
    "setns": (308, 268),
    "setsockopt": (54, 208),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""Of the calls below, for each of the machines."""

ANSWERS = [
    *((name, (), ALLOWED) for name in ("read", "mmap", "execve", "openat", "memfd_create")),
    *((name, (), FORBIDDEN) for name in ("ptrace", "mount", "unshare", "setns", "bpf", "perf_event_open", "keyctl")),
    ("setns", (3 | KEY_WORDS[0] << 32, 0x20000 | KEY_WORDS[1] << 32), ALLOWED),
    ("setns", (3 | KEY_WORDS[0] << 32, 0x20000), FORBIDDEN),
    ("setns", (3, 0x20000 | KEY_WORDS[1] << 32), FORBIDDEN),
    *((name, (), FORBIDDEN) for name in ("open_by_handle_at", "process_vm_readv", "kexec_load")),
    *((name, (), UNKNOWN) for name in ("userfaultfd", "clone3", "io_setup", "io_uring_setup")),
    *(("ioctl", (0, request), ALLOWED) for request in (0x5401, 0x5411, 0x5413, 0x541B, 0x5421, 0x5451, 0x80045430)),
    *(("ioctl", (0, request), ALLOWED) for request in (0x8912, 0x8933, 0x40049409, 0x80086601)),
    *(("ioctl", (0, request), "ENOTTY") for request in (0x0, 0x1, 0x5400, 0x541E, 0x5426, 0x8914, 0x8940, 0x40086602)),
    *(("ioctl", (0, request), "ENOTTY") for request in (0x5000940E, 0xAE01, 0xC020660B, 0xFFFFFFFF)),
    ("ioctl", (0, 0x5412), FORBIDDEN),
    ("ioctl", (0, 0x7_0000_5412), FORBIDDEN),
    ("ioctl", (0, 0x541C), FORBIDDEN),
    ("ioctl", (0, 0x5423), FORBIDDEN),
    ("fchmod", (0, 0o1777), ALLOWED),
    ("fchmod", (0, 0o4755), FORBIDDEN),
    ("fchmodat", (0, 0o7777, 0o644), ALLOWED),
    ("fchmodat", (0, 0, 0o2755), FORBIDDEN),
    ("fchmodat2", (0, 0, 0o755), ALLOWED),
    ("fchmodat2", (0, 0, 0xFFFF_0000_0000_0800), FORBIDDEN),
    *(("fcntl", (0, command), ALLOWED) for command in (0, 1, 4, 8, 16, 37, 1030, 1032, 1033)),
    *(("fcntl", (0, command), FORBIDDEN) for command in (1024, 1026, 1031)),
    *(("fcntl", (0, command), "EINVAL") for command in (17, 35, 39, 1029, 1040, 0xFFFFFFFF)),
    *(("prctl", (option,), ALLOWED) for option in (1, 4, 15, 22, 36, 38, 47, 0x53564D41)),
    *(("prctl", (option,), "EINVAL") for option in (0, 35, 43, 59, 62, 67, 78, 0xFFFFFFFF)),
    *(
        ("setsockopt", (0, *option), ALLOWED)
        for option in ((1, 2), (1, 13), (1, 15), (6, 1), (6, 18), (17, 103), (41, 26))
    ),
    *(("setsockopt", (0, 1, option), "ENOPROTOOPT") for option in (26, 50, 51, 52)),
    *(("setsockopt", (0, 6, option), "ENOPROTOOPT") for option in (14, 31, 32, 38, 42)),
    *(("setsockopt", (0, *option), "ENOPROTOOPT") for option in ((17, 100), (41, 1))),
    ("mmap", (0, 4096, 3, 0x22), ALLOWED),
    ("mmap", (0, 4096, 3, 0x40022), FORBIDDEN),
    ("mmap", (0, 4096, 3, 21 << 26 | 0x40022), FORBIDDEN),
    ("memfd_create", (0, 3), ALLOWED),
    ("memfd_create", (0, 4), FORBIDDEN),
    ("shmget", (0, 4096, 0o1600), ALLOWED),
    ("shmget", (0, 4096, 0o5600), FORBIDDEN),
    ("clone", (SIGCHLD,), ALLOWED),
    ("clone", (SIGCHLD | NEW_USER,), FORBIDDEN),
    ("clone", (SIGCHLD | NEW_TIME,), FORBIDDEN),
    ("personality", (0xFFFFFFFF,), ALLOWED),
    ("personality", (0x0400000,), FORBIDDEN),
    ("mknodat", (0, 0, 0o010600), ALLOWED),
    ("mknodat", (0, 0, 0o100600), ALLOWED),
    ("mknodat", (0, 0, 0o020600), FORBIDDEN),
    ("mknodat", (0, 0, 0o060600), FORBIDDEN),
    ("mknodat", (0, 0, 0o104755), FORBIDDEN),
    ("mknodat", (0, 0, 0o012755), FORBIDDEN),
    ("openat", (0, 0, O_CREAT, 0o1777), ALLOWED),
    ("openat", (0, 0, O_CREAT, 0o4755), FORBIDDEN),
    ("openat", (0, 0, O_CREAT | O_WRONLY, 0o2755), FORBIDDEN),
    ("openat", (0, 0, O_TMPFILE | O_WRONLY, 0o4755), FORBIDDEN),
    # Without these flags the mode is whatever was left there.
    ("openat", (0, 0, O_WRONLY, 0o7777), ALLOWED),
    ("openat2", (), UNKNOWN),
    ("socketpair", (AF_UNIX, STREAM), ALLOWED),
    ("socketpair", (AF_INET, STREAM), "EAFNOSUPPORT"),
    ("socket", (AF_UNIX, STREAM | CLOEXEC), ALLOWED),
    ("socket", (AF_INET, STREAM | CLOEXEC, TCP), ALLOWED),
    ("socket", (AF_INET6, DGRAM, UDP), ALLOWED),
    ("socket", (AF_INET, STREAM, SCTP), "EPROTONOSUPPORT"),
    ("socket", (AF_INET, RAW, TCP), FORBIDDEN),
    ("socket", (AF_NETLINK, RAW, 0), ALLOWED),
    ("socket", (AF_NETLINK, RAW, NETLINK_AUDIT), "EAFNOSUPPORT"),
    *(("socket", (family, STREAM), "EAFNOSUPPORT") for family in (AF_PACKET, AF_ALG, AF_VSOCK)),
]


def number_of(name: str, machine: str) -> int:
    return NUMBERS[name][MACHINES.index(machine)]


def answer(program: bytes, machine: int, number: int, args: tuple[int, ...] = ()) -> str:
    """What the program says to a call: an interpreter of the few instructions that it is made of."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *args, *(0,) * (6 - len(args)))
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        operation, yes, no, constant = code[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        elif operation == 0x54:
            value &= constant
        elif operation == 0x05:
            at += constant
        elif operation == 0x25:
            at += yes if value > constant else no
        elif operation == 0x15:
            at += yes if value == constant else no
        elif operation == 0x35:
            at += yes if value >= constant else no
        else:
            assert operation == 0x06, f"an instruction that is not known here: {operation:#x}"
            if constant == 0x7FFF0000:
                return ALLOWED
            assert constant >> 16 == 0x0005, f"neither allowed nor answered with an error: {constant:#x}"
            return errno.errorcode[constant & 0xFFFF] if constant & 0xFFFF else DONE


def from_headers(machine: str) -> dict[str, int]:
    """Every call of a machine, as the C library's headers have it."""
    file = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if file is None:
        pytest.skip(f"no kernel headers with the numbers of {machine} (linux-libc-dev has them)")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", file.read_text(), re.MULTILINE)
    assert len(found) > 250, file
    return {RENAMED.get(name, name): int(number) for name, number in found if not re.fullmatch(NO_CALLS, name)}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "args", "expected"), ANSWERS)
def test_a_call_is_answered_as_it_shall_be(machine: str, name: str, args: tuple[int, ...], expected: str) -> None:
    program = seccomp.program(machine)
    assert answer(program, seccomp.MACHINES[machine], number_of(name, machine), args) == expected


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["memfd_create", "shmget", "msgget"])
def test_memory_without_a_place_is_refused_only_where_nobody_counts_it(machine: str, name: str) -> None:
    calls = seccomp.MACHINES[machine], number_of(name, machine)
    assert answer(seccomp.program(machine, memfd=False, segments=False), *calls) == FORBIDDEN
    assert answer(seccomp.program(machine), *calls) == ALLOWED


USED_BY_CUDA = (0xC020462A, 0xC030462B, 0xC038464E, 0xC00446C9, 0xC90046C8, 0x49, 0x1B, 0x30000001)
BEYOND_CUDA = {
    "the I2C bus": 0xC0384639,
    "the registry": 0xC030464D,
    "another request inside": 0xC01046D3,
    "memory of the machine": 0xC01046D8,
    "unified memory's tests": 0xC8,
    "a plain number": 0x60,
    "another direction": 0x4020462A,
    "another driver": 0xC0204B2A,
}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_gpus_requests_are_allowed_with_the_grant_only(machine: str) -> None:
    ioctl = seccomp.MACHINES[machine], number_of("ioctl", machine)
    granted, plain = seccomp.program(machine, gpu_driver="nvidia"), seccomp.program(machine)
    assert {answer(granted, *ioctl, (3, request)) for request in USED_BY_CUDA} == {ALLOWED}
    assert {answer(plain, *ioctl, (3, request)) for request in USED_BY_CUDA} == {"ENOTTY"}
    beyond = {what: answer(granted, *ioctl, (3, request)) for what, request in BEYOND_CUDA.items()}
    assert beyond == dict.fromkeys(BEYOND_CUDA, "ENOTTY")
    # All else is as before.
    for request, expected in ((0x5401, ALLOWED), (0x5412, FORBIDDEN), (0xAE01, "ENOTTY")):
        assert answer(granted, *ioctl, (3, request)) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_no_connection_lingers_where_the_host_cannot_refuse_descriptors(machine: str) -> None:
    setsockopt = seccomp.MACHINES[machine], number_of("setsockopt", machine)
    linger, keep_alive, to_tcp = (3, 1, 13), (3, 1, 9), (3, 6, 13)
    careful = seccomp.program(machine, linger=False)
    assert answer(careful, *setsockopt, linger) == DONE
    assert [answer(careful, *setsockopt, args) for args in (keep_alive, to_tcp)] == [ALLOWED, ALLOWED]
    assert answer(seccomp.program(machine), *setsockopt, linger) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_another_machines_calls_and_newer_ones_do_not_exist(machine: str) -> None:
    program = seccomp.program(machine)
    own = seccomp.MACHINES[machine]
    i386, arm = 0x40000003, 0x40000028
    others = {i386, arm, *seccomp.MACHINES.values()} - {own}
    assert {answer(program, other, number) for other in others for number in range(600)} == {UNKNOWN}
    assert {answer(program, own, number | 0x40000000) for number in range(600)} == {UNKNOWN}
    newer = (LAST_DECIDED + 1, LAST_DECIDED + 100, 0x7FFFFFFF, 0xFFFFFFFF)
    assert {answer(program, own, number) for number in newer} == {UNKNOWN}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    known = from_headers(machine)
    used = {
        **syscall_table.numbers(syscall_table.LET_THROUGH, machine),
        **syscall_table.numbers(syscall_table.FORBIDDEN, machine),
        **{name: number_of(name, machine) for name in NUMBERS},
    }
    # Headers may be older than the newest calls, whose numbers then are in no table of theirs.
    newest = max(known.values())
    named = {name: number for name, number in used.items() if number <= newest and name not in NOT_IN_HEADERS}
    assert named == {name: known.get(name) for name in named}


@pytest.mark.parametrize("machine", MACHINES)
def test_there_is_one_decision_for_every_call(machine: str) -> None:
    tables = syscall_table.LET_THROUGH, syscall_table.FORBIDDEN, syscall_table.ABSENT
    decided = [name for table in tables for text in table.values() for name in re.findall(r"[a-z_]\w*", text)]
    assert len(decided) == len(set(decided))
    known = {name for name, number in from_headers(machine).items() if number <= LAST_DECIDED}
    assert known - set(decided) == set()


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_is_answered_as_it_was_decided(machine: str) -> None:
    """Examined ones as with arguments of zero."""
    program, known = seccomp.program(machine), from_headers(machine)
    found = {name: answer(program, seccomp.MACHINES[machine], number) for name, number in known.items()}
    let_through = syscall_table.numbers(syscall_table.LET_THROUGH, machine).keys() & known.keys()
    odd = {"socket", "socketpair", "ioctl", "prctl"}  # for whose zero there is no use
    assert {name for name, said in found.items() if said == ALLOWED} == let_through - odd
    forbidden = syscall_table.numbers(syscall_table.FORBIDDEN, machine).keys() & known.keys()
    assert {name for name, said in found.items() if said == FORBIDDEN} == forbidden
    assert {found[name] for name in known.keys() - let_through - forbidden} == {UNKNOWN}
