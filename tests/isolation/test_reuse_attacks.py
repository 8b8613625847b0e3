"""A session that ends leaves its sandbox's init to the next session of its tenant. Nothing that it plants gets there.

Each attack plants something in the first session and looks for it in the second one, which has the same init. What the
second session finds must be what a session with a new init finds.
"""

import pytest

from ingle.service import Service
from ingle.settings import Settings
from ingle.workers import init_link
from support.cells import run, value
from support.internals import worker_of
from support.service import make_settings

pytestmark = pytest.mark.fresh_service

COMMON = """
import ctypes, errno, mmap, os, resource, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(call, *args):
    try:
        return call(*args)
    except (OSError, ValueError) as error:
        return getattr(error, "errno", "refused")
"""

ATTACKS: dict[str, tuple[str, str]] = {
    "message queues": (
        "attempt(libc.mq_open, b'/left', os.O_CREAT | os.O_RDWR, 0o666, None)",
        "libc.mq_open(b'/left', os.O_RDWR) == -1",
    ),
    "shared memory by name": (
        "fd = os.open('/dev/shm/left', os.O_CREAT | os.O_RDWR); os.write(fd, b'left')",
        "sorted(os.listdir('/dev/shm'))",
    ),
    "semaphores": ("libc.semget(0x1718, 1, 0o1666)", "libc.semget(0x1718, 1, 0o666) == -1"),
    "sockets in flight": (
        "a, b = socket.socketpair(); held = socket.socket(socket.AF_UNIX); held.bind('\\0left'); held.listen()\n"
        "socket.send_fds(a, [b'x'], [held.fileno(), a.fileno(), b.fileno()])",
        "[line.split()[-1] for line in open('/proc/net/unix') if '@left' in line]",
    ),
    "the host name": ("attempt(socket.sethostname, 'left')", "socket.gethostname()"),
    "addresses": (
        "subprocess.run(['ip', 'addr', 'add', '10.9.9.9/24', 'dev', 'lo'], stderr=subprocess.DEVNULL) "
        "if os.path.exists('/sbin/ip') else None",
        "open('/proc/net/fib_trie').read().count('10.9.9.9') if os.path.exists('/proc/net/fib_trie') else 0",
    ),
    "limits of init": (
        "attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE, (33, 33)); "
        "attempt(resource.prlimit, 1, resource.RLIMIT_FSIZE, (1, 1))",
        "(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_FSIZE))",
    ),
    "priority of init": ("attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)", "os.getpriority(os.PRIO_PROCESS, 0)"),
    "cores of init": (
        "attempt(os.sched_setaffinity, 1, {min(os.sched_getaffinity(0))})",
        "len(os.sched_getaffinity(0))",
    ),
    "scheduling of init": (
        "attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_getscheduler(0)",
    ),
    "signals to init": (
        "[attempt(os.kill, 1, number) for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM, signal.SIGSTOP)]",
        "[signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM)]",
    ),
    "memory of init": (
        "attempt(lambda: open('/proc/1/mem', 'r+b'))",
        "attempt(lambda: open('/proc/1/mem', 'rb')) in (errno.EACCES, errno.EPERM, errno.ENOENT)",
    ),
    "descriptors of init": (
        "[attempt(os.open, f'/proc/1/fd/{fd}', os.O_RDWR) for fd in range(40)]",
        "{attempt(os.open, f'/proc/1/fd/{fd}', os.O_RDWR) for fd in range(40)}"
        " <= {errno.EACCES, errno.EPERM, errno.ENOENT}",
    ),
    "score of init": (
        "attempt(lambda: open('/proc/1/oom_score_adj', 'w').write('-1000'))",
        "open('/proc/self/oom_score_adj').read()",
    ),
    "mounts": (
        "attempt(libc.mount, b'none', b'/tmp', b'tmpfs', 0, None); attempt(libc.unshare, 0x00020000)",
        "len(open('/proc/self/mountinfo').read().splitlines())",
    ),
    "locks": (
        "import fcntl; held = open('/tmp/left', 'w'); fcntl.lockf(held, fcntl.LOCK_EX)",
        "open('/proc/locks').read().count(str(os.getpid())) if os.path.exists('/proc/locks') else 0",
    ),
    "processes that hide": (
        "pids = []\n"
        "def block(): signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())\n"
        "for how in (lambda: None, os.setsid, block):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        how()\n"
        "        if os.fork() == 0:\n"
        "            os.kill(os.getpid(), signal.SIGSTOP)\n"
        "            time.sleep(600)\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)",
        "[pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) not in (1, os.getpid())]",
    ),
    "a debugger of init": (
        "attempt(libc.ptrace, 16, 1, None, None)",
        "[line for line in open('/proc/1/status') if line.startswith('TracerPid')]",
    ),
    "keys": (
        "libc.syscall(248, b'user', b'left', b'left', 4, -3)",
        "libc.syscall(249, b'user', b'left', None, -3) == -1",
    ),
    "variables of the interpreter": (
        "import builtins; builtins.left = 1; sys.modules['left'] = sys; os.environ['LEFT'] = '1'; sys.path[0] = '/tmp'",
        "(hasattr(__builtins__, 'left'), 'left' in sys.modules, 'LEFT' in os.environ, sys.path[0] == '/tmp')",
    ),
    "the umask and the folder": ("os.umask(0o777); os.chdir('/')", "(oct(os.umask(0o22)), os.getcwd() == '/')"),
}


@pytest.fixture
def settings() -> Settings:
    return make_settings(pool=0, preload=[], isolation="sandbox", network="none", mount=[])


@pytest.mark.req("scale.reuse")
@pytest.mark.parametrize("name", ATTACKS)
async def test_nothing_that_a_session_plants_reaches_the_next_one(
    service: Service, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, look = ATTACKS[name]
    # An init that has not ended everything by then is killed, and serves no second session.
    for patience in ("KILL_PATIENCE_SECONDS", "LEAVE_PATIENCE_SECONDS"):
        monkeypatch.setattr(init_link, patience, 30)
    # What a session with a new init finds.
    await service.create_session("fresh")
    expected = await value(service, "fresh", COMMON + look)
    await service.create_session("first")
    await run(service, "first", COMMON + plant)
    init = worker_of(service, "first").init_pid
    await service.end_session("first")
    await service.create_session("second")
    assert worker_of(service, "second").init_pid == init
    assert await value(service, "second", COMMON + look) == expected
