"""A level of isolation as the guest carries it out: made in the zygote from the host's plan, laid by every process of a
session on itself.

What a level is: `limits` sets bounds and takes away the way to more rights; `restricted` adds Landlock, the system call
filter and, where the server is root, a user of the session's own; `sandbox` adds namespaces and a root of its own.
"""

import errno
import os
import resource
import socket

from ingle_worker.lockdown import kernel_calls, landlock, root_fs, seccomp
from ingle_worker.lockdown.plan import Plan
from ingle_worker.processes import file_agent, linux, task_zygote
from ingle_worker.wire import messages
from ingle_worker.wire.constants import PROXY_PORT

LOCKED_MEMORY = 8 * 1024**2

WATCHES = 32
"""Instances in one room. The system has 128 for a user, and all rooms of an ordinary user's server are one user's."""

SHARE = 8
"""The part that one room may have of what the system has for a user."""

PENDING_SIGNALS = 4096
"""Counted for a user as well, and taken by timers too."""

READABLE = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    *root_fs.SHOWN,
    *root_fs.COPIED,
)
"""What `restricted`, which has no root of its own, lets a session read, beside its interpreter and its folders."""


DEVICE_FILES = (*(f"/dev/{name}" for name in root_fs.DEVICES), "/dev/pts", "/dev/ptmx", "/dev/shm", "/dev/fd")


AT_FIRST = 2
"""So many of its own folders a session needs from its first moment: its workspace, and its packages."""


class Confinement:
    """Alive in the zygote; every init and worker works on its own copy of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._places = plan.places
        self._uid, self._gid = os.getuid(), os.getgid()
        self._root = self._uid == 0
        self._network = plan.network
        self._namespace = self._gate = -1
        self._own: list[str] = []
        self._used: list[str] = []
        self._files = landlock.Rules(landlock.version()) if plan.level in ("restricted", "sandbox") else None
        # Elsewhere all sessions share the segments of the machine anyway.
        segments = plan.memfd or plan.level != "sandbox"
        self._filter = (
            seccomp.Filter(memfd=plan.memfd, segments=segments, linger=kernel_calls.can_refuse_descriptors())
            if self._files is not None
            else None
        )
        if self._places is not None:
            self._namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            kernel_calls.set_dumpable(False)

    # --- in the zygote ---

    def fork(self) -> int:
        """As kernel.fork_bare; the child is the first process of a pid namespace where there are rooms."""
        if not self._places is not None:
            return linux.fork_bare()
        kernel_calls.unshare(kernel_calls.CLONE_NEWPID, "pid")
        pid = -1
        try:
            pid = linux.fork_bare()
        finally:
            if pid:
                kernel_calls.setns(self._namespace, kernel_calls.CLONE_NEWPID)
        return pid

    # --- in the init ---

    def prepare(self, network: str) -> None:
        """All that does not depend on which session this will be."""
        self._network = network
        if self._places is not None:
            # The way back into the zygote's namespace is not for a session.
            os.close(self._namespace)
            root_fs.furnish(self._places, network=network == "full", tmp_size=self.plan.tmp_size)

    def introduce(self, uid: int, fds: list[int], *, spare: bool = False) -> None:
        """Who the session is: its number is the host's choice where it is root, and our own where it is not."""
        if self._root and uid and self._files is not None:
            self._uid = self._gid = uid
            for fd in fds[:3]:
                # So that it may open its own streams by their names, /dev/stdin for one.
                try:
                    os.fchown(fd, uid, uid)
                except OSError as error:
                    raise kernel_calls.Refused("a session as a user of its own", error.errno or errno.EINVAL) from None
        if self._places is not None:
            root_fs.introduce(self._places, self._uid, self._gid)
            if spare:
                root_fs.rehearse(self._places, self._uid, self._gid)
            self._gate = os.eventfd(0, os.EFD_CLOEXEC)
            if self._network == "allowlist":
                self._open_door(fds[4])

    def _open_door(self, status: int) -> None:
        """A socket on which the host's proxy accepts, inside of the session's network, to the host."""
        channel = socket.socket(fileno=os.dup(status))
        with channel, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
            door.bind(("127.0.0.1", PROXY_PORT))
            door.listen(64)
            socket.send_fds(channel, [messages.encode(messages.Door(PROXY_PORT))], [door.fileno()])

    def enter(self, order: messages.Enter) -> None:
        """Lay in what is this session's, give up every right over the room, and let the worker begin."""
        if self._places is None:
            self._own = [f"{self.plan.data_folder}/{folder}" for folder in order.own]
            self._used = [f"{self.plan.data_folder}/{folder}" for folder in order.shown]
            for folder in self._used:
                root_fs.make_folder(folder, 0o711)
            return
        if self._root:
            # The worker needs little of it at first, and cannot go by the way that is still open: it is not root.
            first = messages.Enter(order.own[:AT_FIRST], order.shared)
            root_fs.lay(self._places, first, self._uid, self._gid)
            self._open_gate()
            root_fs.lay(self._places, messages.Enter(order.own[AT_FIRST:], [], order.shown), self._uid, self._gid)
            root_fs.close(self._places)
        else:
            root_fs.lay(self._places, order, self._uid, self._gid)
            root_fs.close(self._places)
            self._open_gate()
        self._lock(init=True)

    def _open_gate(self) -> None:
        os.eventfd_write(self._gate, 1)
        os.close(self._gate)

    def run_shell(self, status: int) -> None:
        """As a child of init: be the init of a shell task, held as the session is."""
        if self.plan.nice:
            os.nice(self.plan.nice)
        self._confine_child()
        task_zygote.TaskInit(status).run()

    def serve_files(self, connection: int) -> None:
        """As a child of init: be a file agent, held as the session is. Code of the session cannot trace it."""
        self._confine_child()
        if self._files is not None:
            kernel_calls.set_dumpable(False)
        file_agent.serve(connection)

    def _confine_child(self) -> None:
        if self._places is None:
            # There init itself is not confined.
            self._lock()

    # --- in the worker ---

    def confine(self) -> None:
        """Before it runs anything. Where the walls are drawn around its folder, they wait for that."""
        if self.plan.level != "restricted":
            self._lock()

    def start(self, start: messages.Start) -> None:
        """When it learns which session it is."""
        if self._places is not None:
            os.read(self._gate, 8)
            os.close(self._gate)
            root_fs.search_all(self._places)
        elif self.plan.level == "restricted":
            own = [folder for folder in (*start.folders[1:], start.packages) if folder]
            for folder in (start.folders[0], *own):
                root_fs.make_folder(folder, 0o700)
            if self._root:
                self._let_pass(start.folders[0])
                for folder in own:
                    root_fs.give(folder, self._uid, self._gid)
            self._own = own
            self._lock()

    def _let_pass(self, folder: str) -> None:
        """What lies around a session's own folders is to be passed by its user, and not to be seen."""
        data = self.plan.data_folder
        while folder == data or folder.startswith(data + "/"):
            os.chmod(folder, 0o711)
            folder = os.path.dirname(folder)

    # --- in both ---

    def _lock(self, *, init: bool = False) -> None:
        """Give up, for good, whatever this level takes away."""
        if self._places is not None:
            # Not before it is in its group: that is all it sees then, and from inside nobody is forked into another.
            kernel_calls.unshare(kernel_calls.CLONE_NEWCGROUP, "cgroup")
        if self._places is not None and not self._root:
            # A namespace of its own for its user: processes are counted there, and none of its rights are the room's.
            # Before the limits: what they are at this moment holds for all rooms of this user together.
            kernel_calls.set_dumpable(True)
            kernel_calls.unshare(kernel_calls.CLONE_NEWUSER, "user")
            kernel_calls.map_self(self._uid, self._gid)
            kernel_calls.limit_user("max_inotify_instances", WATCHES)
            kernel_calls.limit_user(
                "max_inotify_watches", kernel_calls.read_number("/proc/sys/fs/inotify/max_user_watches") // SHARE
            )
        self._set_limits()
        if self._files is None or self._filter is None:
            kernel_calls.no_new_privileges()
            return
        if self._root or self._places is not None:
            # First the set that bounds what could ever be had again: afterwards there is no right left to do it.
            kernel_calls.drop_bounding_set()
        if self._root:
            kernel_calls.become(self._uid, self._gid)
            if self._places is None:
                # Others share /dev/shm and the granted folders with this user, which is nobody to them.
                os.umask(0o077)
        kernel_calls.drop_capabilities()
        # A new user clears it, and with it the session's access to its own /proc/self.
        kernel_calls.set_dumpable(not init)
        kernel_calls.no_new_privileges()
        self._rule_files(self._files)
        self._filter.install()

    def _set_limits(self) -> None:
        plan = self.plan
        bounds = {
            resource.RLIMIT_FSIZE: plan.file_size,
            resource.RLIMIT_DATA: plan.data,
            resource.RLIMIT_NOFILE: plan.files,
            resource.RLIMIT_MEMLOCK: LOCKED_MEMORY,
            resource.RLIMIT_SIGPENDING: PENDING_SIGNALS,
            # Counted by user: below `restricted` that user is everybody's.
            resource.RLIMIT_NPROC: 0 if plan.level == "limits" else plan.processes,
        }
        for limit, value in bounds.items():
            if value:
                hard = resource.getrlimit(limit)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(limit, (value, value))
        for limit in (resource.RLIMIT_CORE, resource.RLIMIT_RTPRIO):
            resource.setrlimit(limit, (0, 0))

    def _rule_files(self, files: landlock.Rules) -> None:
        if self._places is not None:
            files.begin(scopes=landlock.SCOPE_ABSTRACT_SOCKETS)
            files.read("/")
            # Not /proc: among what a process may write of itself is its name in the kernel's audit log.
            writable = ["/tmp", root_fs.OTHER_TMP, "/dev", self._places.data]
            writable += self._places.writable
        else:
            files.begin(scopes=landlock.SCOPE_ABSTRACT_SOCKETS | landlock.SCOPE_SIGNALS)
            for path in (*READABLE, *root_fs.interpreter_paths(), "/proc"):
                files.read(os.path.realpath(path))
            for path, may_write in self.plan.granted:
                if not may_write:
                    files.read(path)
            for path in self._used:
                files.use(path)
            writable = [*self._own, *DEVICE_FILES, *(path for path, may_write in self.plan.granted if may_write)]
        for path in writable:
            files.write(path)
        files.obey()
