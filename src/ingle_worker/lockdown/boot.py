"""Entry point of a sandboxed zygote: `boot PLAN MODE ...` creates namespaces and root, then executes the guest there.

The guest is executed, not forked: a fork would hold the host's interpreter file open through a writable mount. The
first process of the pid namespace is the holder. So sessions outlive their zygote but never the server.
"""

import importlib.util
import os
import signal
import sys

from ingle_worker.lockdown import kernel_calls, root_fs
from ingle_worker.lockdown.plan import Plan, add_mounts, read_plan
from ingle_worker.processes import linux

GUEST = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SKIPPED_PIDS = 64
"""Process ids to skip where the zygote's cannot be chosen. A session's own is one of the first."""

NOT_POSSIBLE_EXIT_CODE = 42
"""Exit code when this level is not possible here. The reason is on stderr."""


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
        os._exit(NOT_POSSIBLE_EXIT_CODE)


def _cache_bytecode() -> None:
    """Write missing bytecode of the guest. Inside the sandbox nobody can, and every zygote would compile it again."""
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
            return  # the folder is not writable


def _is_cached(path: str) -> bool:
    try:
        return os.stat(importlib.util.cache_from_source(path)).st_mtime >= os.stat(path).st_mtime
    except OSError:
        return False


def _find_modules(first: str) -> None:
    """Compute `sys.path` without running any code from it.

    The interpreter was started without `site`, because `site` runs code from folders that sessions may write. Here that
    code would run on the host. Inside the sandbox `site` runs as usual and does not see such folders.
    """
    import site

    def nothing(*args: object) -> None:
        return None

    vars(site).update(exec=nothing, execsitecustomize=nothing, execusercustomize=nothing)
    site.main()
    sys.path[:0] = [os.path.abspath(path) for path in first.split(os.pathsep) if path]


def _isolate(plan: Plan, plan_fd: int, rest: list[str]) -> None:
    layout = root_fs.Layout(plan.data_folder, plan.granted, plan.devices)
    mounts = layout.mount_plan()
    add_mounts(plan_fd, mounts)
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
            root_fs.finish(mounts)
            _skip_to_last_pid()
            if uid != 0:
                kernel_calls.keep_capabilities()
            environment = {**os.environ, **plan.environment}
            os.execve(sys.executable, [sys.executable, f"{GUEST}/__main__.py", *rest], environment)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        finally:
            os._exit(NOT_POSSIBLE_EXIT_CODE)
    _wait_for(first)


def _skip_to_last_pid() -> None:
    """Make the kernel give the zygote, which is forked next, a process id that no session gets.

    Process ids start again in each session's namespace. Many libraries, such as OpenSSL's random generator, detect a
    fork by a changed id. With the zygote's id, all sessions would draw the same random numbers.
    """
    last = kernel_calls.read_number("/proc/sys/kernel/pid_max") - 1
    try:
        fd = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % (last - 1))
        finally:
            os.close(fd)
    except OSError:  # this kernel does not let us choose
        for _ in range(SKIPPED_PIDS):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)


def _wait_for(pid: int) -> None:
    """Close all descriptors, wait for the process, and exit with its status."""
    linux.set_name(b"ingle-outside")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nowhere, fd)
    os.closerange(3, 1 << 16)
    status = os.waitpid(pid, 0)[1]
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
