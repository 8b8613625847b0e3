"""The kernel features that isolation needs, each tried in a child process, for `ingle doctor`.

`self_test` decides whether a level holds; this module explains why not. It blocks for half a second.
"""

import json
import subprocess
import sys

from msgspec import Struct

from ingle.isolation.limits.cgroup_mounts import CPU, MEMORY, PROCESSES
from ingle.isolation.limits.cgroups import Groups

TRIAL_SECONDS = 20.0

TRIALS = r"""
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
def ok(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def user():
    ok(libc.unshare(NEWUSER))
def spaces():
    if os.geteuid():
        user()
    ok(libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET))
def mounts():
    spaces()
    if os.fork() == 0:
        try:
            ok(libc.mount(None, b"/", None, 0x44000, None))
            ok(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=1m"))
            ok(libc.mount(b"proc", b"/proc", b"proc", 0, None))
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    if code:
        raise OSError(code, os.strerror(code))
def landlock():
    libc.syscall.restype = ctypes.c_long
    return ok(libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint(1)))
def seccomp():
    ok(libc.prctl(38, 1, 0, 0, 0))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
    allow = (ctypes.c_uint64 * 1)(0x7FFF000000000006)
    ok(libc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(allow))), 0, 0))
found = {}
for trial in (user, spaces, mounts, landlock, seccomp):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = {"value": trial()}
        except (OSError, AttributeError) as error:
            said = {"error": str(getattr(error, "strerror", None) or error)}
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    found[trial.__name__] = json.loads(os.read(reading, 4096) or b'{"error": "the trial ended without an answer"}')
    os.close(reading)
    os.waitpid(pid, 0)
print(json.dumps(found))
"""

AS_FOR_MEMORY = "the remedy is the same as for memory"

LOST = {
    "user": "a server of an ordinary user cannot have sandboxes; on Ubuntu set "
    "kernel.apparmor_restrict_unprivileged_userns=0, elsewhere raise user.max_user_namespaces, or run as root",
    "spaces": "there are no sandboxes, so sessions share the network and see each other; start the container with "
    "--cap-add SYS_ADMIN, or run outside of it",
    "mounts": "a sandbox cannot have a root of its own; start the container with "
    "--security-opt systempaths=unconfined --security-opt apparmor=unconfined",
    "landlock": "`restricted` does not protect files; use a kernel 5.13 or later with landlock in lsm=",
    "seccomp": "dangerous system calls are not refused; use a kernel or a container profile that allows filters",
    MEMORY: "memory is only checked every 50 ms, so a fast program can exceed its limit; run as root, or "
    "under systemd with Delegate=yes (systemd-run --user --scope -p Delegate=yes ingle serve)",
    PROCESSES: f"processes are only counted every 50 ms; {AS_FOR_MEMORY}",
    CPU: f"sessions share the CPU by their nice value alone; {AS_FOR_MEMORY}",
}
"""By feature: the promise that is lost without it, and the remedy."""

TITLES = {
    "user": "User namespaces",
    "spaces": "Namespaces",
    "mounts": "Mounts of its own",
    "landlock": "Landlock",
    "seccomp": "System call filter",
    MEMORY: "Memory cgroup",
    PROCESSES: "Process cgroup",
    CPU: "CPU cgroup",
}


class Capability(Struct, frozen=True):
    name: str
    works: bool
    text: str


def examine() -> list[Capability]:
    """Return all features, the most important first."""
    if sys.platform != "linux":
        text = f"only Linux can confine sessions, and this is {sys.platform}; use a virtual machine, or WSL"
        return [Capability("Isolation", False, text)]
    return [*_kernel(), *_groups()]


def _kernel() -> list[Capability]:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", TRIALS],
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
            check=True,
        )
        found: dict[str, dict[str, object]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [Capability("Namespaces", False, f"the features could not be tried: {error}")]
    told = []
    for name, said in found.items():
        if "error" in said:
            told.append(Capability(TITLES[name], False, f"{said['error']}; {LOST[name]}"))
        else:
            version = f", version {said['value']}" if said["value"] is not None else ""
            told.append(Capability(TITLES[name], True, f"tried, and works{version}"))
    return told


def _groups() -> list[Capability]:
    """Try cgroups with a process inside, because creating the folder is not enough."""
    groups = Groups.find()
    working: frozenset[str] = frozenset()
    why = "no cgroup can be created"
    try:
        group = groups.make()
        if group is not None:
            with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
                try:
                    group.attach(process.pid)
                    group.bound(64 * 1024**2, 10)
                    working = groups.controllers
                    why = "this controller is not available"
                finally:
                    process.kill()
            group.remove()
    except OSError as error:
        why = f"a process could not be put into a cgroup ({error.strerror})"
    finally:
        groups.close()
    return [
        Capability(TITLES[name], True, "tried, and works")
        if name in working
        else Capability(TITLES[name], False, f"{why}; {LOST[name]}")
        for name in (MEMORY, PROCESSES, CPU)
    ]
