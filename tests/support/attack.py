"""An attack: what a cell does, from which level on it is held, and who shows that it works where it is not.

The body of an attack is sent to a session as text, so it imports what it needs itself. It gets `t`, which tells where
everything worth attacking is, and has `libc` and `syscall` at hand. What it returns is its evidence; nothing, or an
exception, or the end of the session, means that it was held.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LEVELS = ("none", "limits", "restricted", "sandbox")
ROOT, USER = "root", "user"

Shows = bool | str
"""Whether the attack is seen to work at `none`; else the reason why that is not shown."""


@dataclass(frozen=True)
class Attack:
    family: str
    name: str
    text: str
    stops: dict[str, str]
    """From which level on it must be held, where the server is root's and where it is a user's."""
    root: Shows
    user: Shows
    passes: frozenset[str]
    """Whose server lets it through at `restricted`, where it is held from `sandbox` on only."""
    secret: bool
    """Only a secret in the evidence counts."""
    after: Callable[[Any, Any], object] | None
    """Looks at the host or the victim afterwards, with the fort and the evidence; what it returns counts."""
    arms: bool
    """Whether it works the same on other processors than x86_64."""
    by_server: bool
    """Whether the server alone holds it, by bounds that are the same code at each level and for each user."""
    known: dict[tuple[str, str], str]
    """Breaches that are known, by level and user, each with its reason: expected to fail, and told when they do not."""

    def __str__(self) -> str:
        return f"{self.family}.{self.name}"

    def shows(self, who: str) -> Shows:
        return self.root if who == ROOT else self.user

    def is_repeated(self, level: str, who: str) -> bool:
        """Return whether another level shows the same. What the server holds is shown at both ends."""
        return self.by_server and (level, who) not in (("limits", ROOT), ("sandbox", USER))

    def must_hold(self, level: str, who: str) -> bool:
        if self.stops[who] == "sandbox" and level == "restricted":
            return who not in self.passes
        return LEVELS.index(level) >= LEVELS.index(self.stops[who])


ATTACKS: list[Attack] = []


def attack(
    stops: str = "sandbox",
    *,
    user_stops: str | None = None,
    root: Shows = True,
    user: Shows = True,
    passes: str = "root user",
    secret: bool = False,
    after: Callable[[Any, Any], object] | None = None,
    arms: bool = True,
    by_server: bool = False,
    known: dict[tuple[str, str], str] | None = None,
) -> Callable[[Callable[[Any], object]], Callable[[Any], object]]:
    def add(function: Callable[[Any], object]) -> Callable[[Any], object]:
        source = textwrap.dedent(inspect.getsource(function))
        text = source[source.index("def ") :].replace(f"def {function.__name__}", "def attack", 1)
        family = function.__module__.rpartition(".")[2]
        by = {ROOT: stops, USER: user_stops or stops}
        passing = frozenset(who for who in passes.split() if by[who] == "sandbox")
        ATTACKS.append(
            Attack(
                family, function.__name__, text, by, root, user, passing, secret, after, arms, by_server, known or {}
            )
        )
        return function

    return add


PRELUDE = """
import ctypes, json, os, types
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = dict(
    process_vm_readv=(310, 270), ptrace=(101, 117), pidfd_open=(434, 434), pidfd_getfd=(438, 438), clone3=(435, 435),
    unshare=(272, 97), setns=(308, 268), mount=(165, 40), umount2=(166, 39), fsopen=(430, 430), open_tree=(428, 428),
    add_key=(248, 217), keyctl=(250, 219), io_uring_setup=(425, 425), bpf=(321, 280), perf_event_open=(298, 241),
    userfaultfd=(323, 282), name_to_handle_at=(303, 264), open_by_handle_at=(304, 265), init_module=(175, 105),
    kexec_load=(246, 104), reboot=(169, 142), syslog=(103, 116), fanotify_init=(300, 262), swapon=(167, 224),
    clone=(56, 220), personality=(135, 92), sethostname=(170, 161), iopl=(172, -1), shmget=(29, 194), shmat=(30, 196),
    msgget=(68, 186), msgrcv=(70, 188), msgsnd=(69, 189), semget=(64, 190), semctl=(66, 191), mq_open=(240, 180),
    mq_timedreceive=(243, 183), mlock=(149, 228), clock_settime=(227, 112), shmdt=(67, 197), shmctl=(31, 195),
)
def syscall(name, *given):
    number = name if isinstance(name, int) else NUMBERS[name][0 if os.uname().machine == "x86_64" else 1]
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in given]
    words += [ctypes.c_long(0)] * (6 - len(words))
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
def wire():
    import socket, stat
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
    raise AssertionError("there is no wire")
def socket_of_init():
    import socket, stat
    init = syscall("pidfd_open", os.getppid(), 0)
    for fd in range(256):
        try:
            got = syscall("pidfd_getfd", init, fd, 0)
        except OSError as error:
            if error.errno == 9:
                continue
            raise
        if stat.S_ISSOCK(os.fstat(got).st_mode):
            return socket.socket(fileno=got)
        os.close(got)
    raise AssertionError("init has no socket")
def frame(kind, header, payload=b""):
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(said) + len(payload)
    return size.to_bytes(4, "big") + len(said).to_bytes(4, "big") + bytes([kind]) + said + payload
FAR = dict(unread=1 << 60, written=0)
NEVER = dict(before=0, after=1 << 62, stdout=FAR, stderr=dict(unread=0, written=0))
"""
"""`wire` is the session's end of it, `frame` what can be said there; `socket_of_init` is where init tells the server of
the session, if a process can have that. NEVER is a mark behind bytes that never come."""

CALL = """
try:
    evidence = attack(types.SimpleNamespace(**json.loads({targets!r})))
except BaseException as error:
    print("HELD", type(error).__name__, str(error)[:300])
else:
    print("EVIDENCE", json.dumps(evidence.decode("latin-1") if isinstance(evidence, bytes) else evidence, default=repr))
"""
