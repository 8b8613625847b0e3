"""Where a sandboxed zygote begins: `boot PLAN MODE ...` makes the namespaces and the root, then runs the guest in them
with the arguments that are left, as a program started anew.

Anew, because a fork of this process would keep the host's own file of the interpreter open as its executable, by a
mount that can be written to; a program started from the new root has it from there, where nothing can be changed. The
first process of the pid namespace is the holder, so that sessions outlive their zygote but never the server.
"""

import importlib.util
import os
import signal
import sys

from ingle_worker.lockdown import kernel_calls, root_fs
from ingle_worker.lockdown.plan import Plan, add_places, read_plan
from ingle_worker.processes import linux

GUEST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

USED_UP = 64
"""Numbers that nobody has where the zygote's cannot be chosen: a session's own is one of the first."""

CANNOT = 42
"""Exit code by which a host is told that it cannot have this level; the reason is on stderr."""


def main(args: list[str]) -> None:
    plan_fd = int(args[1])
    _cache_bytecode()
    plan = read_plan(plan_fd)
    _find_modules(plan.environment.get("PYTHONPATH", ""))
    try:
        _isolate(plan, plan_fd, args[2:])
    except kernel_calls.Refused as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(CANNOT)


def _cache_bytecode() -> None:
    """Of a package that is installed without bytecode, the first who loads it leaves some for the next. In the room
    nobody can, and every zygote would compile the whole guest anew."""
    if sys.dont_write_bytecode:
        return
    files = [f"{folder}/{name}" for folder, _, names in os.walk(GUEST) for name in names if name.endswith(".py")]
    missing = [path for path in files if not _is_cached(path)]
    if not missing:
        return
    import py_compile

    for path in missing:
        try:
            py_compile.compile(path)
        except OSError:
            return  # the folder is not ours


def _is_cached(path: str) -> bool:
    try:
        return os.stat(importlib.util.cache_from_source(path)).st_mtime >= os.stat(path).st_mtime
    except OSError:
        return False


def _find_modules(first: str) -> None:
    """Learn where this interpreter looks for modules, and load none of them.

    It was started without `site`, which runs what it finds on its way, and in these folders may be some that sessions
    write. Here that would run on the host. In the room it runs as always, where such folders are not to be seen.
    """
    import site

    def nothing(*args: object) -> None:
        return None

    vars(site).update(exec=nothing, execsitecustomize=nothing, execusercustomize=nothing)
    site.main()
    sys.path[:0] = [os.path.abspath(path) for path in first.split(os.pathsep) if path]


def _isolate(plan: Plan, plan_fd: int, rest: list[str]) -> None:
    layout = root_fs.Layout(plan.data_folder, plan.granted)
    places = layout.places()
    add_places(plan_fd, places)
    uid, gid = os.getuid(), os.getgid()
    if uid != 0:
        kernel_calls.unshare(kernel_calls.CLONE_NEWUSER, "user")
        kernel_calls.map_self(uid, gid)
    kernel_calls.unshare(kernel_calls.CLONE_NEWNS, "mount")
    root_fs.build(layout)
    kernel_calls.unshare(kernel_calls.CLONE_NEWPID, "pid")
    first = os.fork()
    if first == 0:
        try:
            linux.die_with_parent()
            root_fs.finish(places)
            _go_to_last_number()
            if uid != 0:
                kernel_calls.keep_capabilities()
            environment = {**os.environ, **plan.environment}
            os.execve(sys.executable, [sys.executable, f"{GUEST}/__main__.py", *rest], environment)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        finally:
            os._exit(CANNOT)
    _wait_for(first)


def _go_to_last_number() -> None:
    """As the first process of the zygote's pid namespace: have the zygote, which is forked next, be called by a number
    that no session comes to.

    Each has a namespace of its own, and its numbers begin anew. Many libraries know by their number that they were
    forked, OpenSSL's random numbers among them: as the zygote's own number they would not notice, and go on with what
    the zygote had drawn, in all sessions alike.
    """
    last = kernel_calls.read_number("/proc/sys/kernel/pid_max") - 1
    try:
        fd = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % (last - 1))
        finally:
            os.close(fd)
    except OSError:  # a kernel that lets nobody choose
        for _ in range(USED_UP):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)


def _wait_for(pid: int) -> None:
    """Be there as long as it is, hold nothing, and end as it ended."""
    linux.set_name(b"ingle-outside")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    os.closerange(3, 1 << 16)
    status = os.waitpid(pid, 0)[1]
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
