"""The isolation level of a session, carried out in the guest.

The zygote creates a `Confinement` from the host's plan, and each process of a session applies it to itself. `limits`
sets resource limits and no_new_privs. `restricted` adds Landlock, the seccomp filter and, if the server is root, a uid
per session. `sandbox` adds namespaces and a root file system.
"""

import errno
import os
import resource
import socket

from ingle_worker.lockdown import kernel_calls, landlock, root_fs, seccomp, session_mounts, views
from ingle_worker.lockdown.plan import Plan
from ingle_worker.processes import file_agent, linux, task_init
from ingle_worker.processes.limits import ProcessLimits, lower
from ingle_worker.wire import messages
from ingle_worker.wire.constants import HOMES, PROXY_PORT

MAX_LOCKED_BYTES = 8 * 1024**2

MAX_INOTIFY_INSTANCES = 32
"""The system allows 128 per user, and all sandboxes of an ordinary user's server run as that user."""

USER_SHARE = 8
"""One session gets at most 1/8 of a per-user resource of the system."""

MAX_PENDING_SIGNALS = 4096
"""The kernel counts pending signals per user, and timers use them too."""

READABLE_PATHS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    *root_fs.BOUND,
    *root_fs.COPIED,
)
"""Paths that a `restricted` session may read, beside its interpreter and its folders."""


DEVICE_FILES = (*(f"/dev/{name}" for name in root_fs.DEVICES), "/dev/pts", "/dev/ptmx", "/dev/shm", "/dev/fd")


FIRST_FOLDERS = 2
"""Number of own folders that a session needs at once: its workspace and its packages."""


def _readable_paths() -> list[str]:
    """Return the paths that a `restricted` session may read, beside the granted ones, with every link resolved."""
    return [os.path.realpath(path) for path in (*READABLE_PATHS, *root_fs.interpreter_paths(), "/proc")]


class Confinement:
    """The confinement of a zygote's sessions. Each init and worker applies its own forked copy."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._mounts = plan.mounts
        self._uid, self._gid = os.getuid(), os.getgid()
        self._root = self._uid == 0
        self._network = plan.network
        self._namespace = self._mount_namespace = self._folders_mounted = -1
        self._listener: socket.socket | None = None
        """Listening socket of the host's proxy, in the network namespace of this init."""
        self._own: list[str] = []
        self._used: list[str] = []
        self._tmp_size = plan.tmp_size
        self._limits = ProcessLimits(plan.files, plan.file_size, plan.memory, plan.nice)
        self._key: list[int] = []
        """Key of `setns` for live copies of this session's worker. The worker itself forgets it."""
        self.grouped = False
        """Whether the session's processes are in a cgroup of their own."""
        self._files = landlock.Rules(landlock.version()) if plan.level in ("restricted", "sandbox") else None
        # Resolved before any session runs: later a session may have put links there.
        self._readable = _readable_paths() if plan.level == "restricted" else []
        # At the other levels, all sessions share the segments of the machine anyway.
        segments = plan.memfd or plan.level != "sandbox"
        self._filter = (
            seccomp.Filter(
                memfd=plan.memfd,
                segments=segments,
                linger=kernel_calls.can_refuse_descriptors(),
                gpu_driver=plan.gpu_driver,
            )
            if self._files is not None
            else None
        )
        if self._mounts is not None:
            self._namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self._mount_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            kernel_calls.set_dumpable(False)

    # --- in the zygote ---

    def fork(self) -> int:
        """Fork like `linux.fork_bare`. In a sandbox the child is the first process of a new pid namespace."""
        if not self._mounts is not None:
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
        """Do all work that does not depend on the session."""
        self._network = network
        if self._mounts is not None:
            # The session must not get back into the zygote's namespace.
            os.close(self._namespace)
            session_mounts.isolate(network=network == "full")
            session_mounts.mount_private(self._mounts, tmp_size=self.plan.tmp_size)
            self._key = seccomp.new_key()

    def prepare_again(self) -> None:
        """Prepare for another session of the same tenant, after `leave`: no process of the one before is left.

        It gets fresh mounts and a fresh ipc namespace. The pid, network and uts namespaces are as good as new: only
        processes and sockets could leave something there.
        """
        if self._mounts is not None:
            kernel_calls.unshare(kernel_calls.CLONE_NEWIPC, "ipc")
            session_mounts.mount_private(self._mounts, tmp_size=self.plan.tmp_size)
            self._key = seccomp.new_key()

    def set_limits(self, given: dict[str, int]) -> None:
        """Take over the limits of the next session that differ from the plan. Its processes apply them themselves."""
        plan = self.plan
        limits = {"files": plan.files, "file_size": plan.file_size, "memory": plan.memory, "nice": plan.nice}
        self._limits = ProcessLimits.of({**limits, **given})
        self._tmp_size = given.get("tmp", plan.tmp_size)
        if self._mounts is not None and self._tmp_size != plan.tmp_size:
            session_mounts.resize_tmp(self._tmp_size)

    def tmp_bytes(self) -> int:
        """Return the size of the session's own file system at /tmp, as the kernel has it; 0 without one."""
        if self._mounts is None:
            return 0
        found = os.statvfs("/tmp")
        return found.f_blocks * found.f_frsize

    def set_identity(self, uid: int, fds: list[int], *, pooled: bool = False) -> None:
        """Set the session's uid: chosen by the host if the server is root, else the server's own."""
        if self._root and uid and self._files is not None:
            self._uid = self._gid = uid
            for fd in fds[:3]:
                # The session may then open its own streams by path, such as /dev/stdin.
                try:
                    os.fchown(fd, uid, uid)
                except OSError as error:
                    raise kernel_calls.Refused("a session as a user of its own", error.errno or errno.EINVAL) from None
        if self._mounts is not None:
            session_mounts.write_accounts(self._mounts, self._uid, self._gid)
            if pooled:
                session_mounts.rehearse(self._mounts, self._uid, self._gid)
            self._folders_mounted = os.eventfd(0, os.EFD_CLOEXEC)
            if self._network == "allowlist" and self._listener is None:
                # Kept for the next session: the host may not have closed its own descriptor of it by then.
                self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._listener.bind(("127.0.0.1", PROXY_PORT))
                self._listener.listen(64)

    @property
    def listener(self) -> int:
        """Descriptor on which the host's proxy accepts, in the session's network namespace; -1 without one."""
        return -1 if self._listener is None else self._listener.fileno()

    def enter(self, order: messages.Enter) -> None:
        """Mount the session's folders, give up all rights over the sandbox, and release the worker."""
        if self._mounts is None:
            self._own = [f"{self.plan.data_folder}/{folder}" for folder in order.own]
            self._used = [f"{self.plan.data_folder}/{folder}" for folder in order.shown]
            for folder in self._used:
                session_mounts.make_folder(folder, 0o711)
            return
        # Before the worker runs.
        session_mounts.make_mount_points(self._mounts, order)
        if self._root:
            # The worker needs only the first folders, and cannot use the staging area: it is not root.
            first = messages.Enter(order.own[:FIRST_FOLDERS], order.shared, sources=order.sources, home=order.home)
            session_mounts.mount_session_folders(self._mounts, first, self._uid, self._gid)
            self._release_worker()
            session_mounts.mount_session_folders(
                self._mounts, messages.Enter(order.own[FIRST_FOLDERS:], [], order.shown), self._uid, self._gid
            )
            session_mounts.detach_staging()
        else:
            session_mounts.mount_session_folders(self._mounts, order, self._uid, self._gid)
            session_mounts.detach_staging()
            self._release_worker()

    def leave(self, folders: list[str]) -> None:
        """Leave the mounts of a session that has ended, and remove those of its folders that are empty."""
        if self._mounts is not None:
            kernel_calls.setns(self._mount_namespace, kernel_calls.CLONE_NEWNS)
            data = self.plan.data_folder
            folders = [root_fs.STAGED_DATA + each.removeprefix(data) for each in folders]
        linux.remove_empty(folders)

    def _release_worker(self) -> None:
        os.eventfd_write(self._folders_mounted, 1)
        os.close(self._folders_mounted)

    def run_shell(self, status: int) -> None:
        """Be the init of a shell task, confined like the session. Runs in a child of the session's init."""
        self._confine_child()
        task_init.TaskInit(status).run()

    def serve_files(self, connection: int) -> None:
        """Be a file agent, confined like the session and not traceable by it. Runs in a child of the session's init."""
        self._confine_child()
        file_agent.serve(connection)

    def make_view(self, order: messages.MakeView, worker: int, connection: int) -> None:
        """Make a view for a copy of a worker, given by its pid. Runs in a child of the session's init."""
        with socket.socket(fileno=connection) as channel:
            try:
                if self._mounts is None:
                    raise kernel_calls.Refused("a view without a sandbox", errno.ENOTSUP)
                # The kernel limits processes by the limits of the one that makes a user namespace.
                self._set_limits()
                if self._root:
                    kernel_calls.become(self._uid, self._gid)
                # The user who made a namespace may open it. Root may not in most containers, without CAP_SYS_PTRACE.
                users = views.open_users(worker)
                about = views.make(order, users, self._uid, self._gid)
                views.reply(channel, self._key, about, network=order.network)
            except OSError as error:
                views.reply_failure(channel, error)

    def close_view(self, order: messages.CloseView, view: int, connection: int) -> None:
        """Undo a view. Runs in a child of the session's init."""
        with socket.socket(fileno=connection) as channel:
            try:
                self.enter_mounts(view)
                views.close(order)
                channel.sendall(b"{}")
            except OSError as error:
                views.reply_failure(channel, error)

    @staticmethod
    def enter_mounts(view: int) -> None:
        """Enter the mount namespace of a view, in a child of the session's init."""
        kernel_calls.setns(view, kernel_calls.CLONE_NEWNS)

    def _confine_child(self) -> None:
        """Confine a child of init like a worker. Init keeps its rights for the next session, and runs no user code."""
        self._key = []
        self._close_namespaces()
        self._lock_down()
        if self._files is not None:
            kernel_calls.set_dumpable(False)

    def _close_namespaces(self) -> None:
        """Close what only init may use."""
        if self._mounts is not None:
            os.close(self._mount_namespace)
            session_mounts.close_mappings()
        if self._listener is not None:
            self._listener.close()

    # --- in the worker ---

    def confine(self) -> None:
        """Confine the worker before it runs any code. `restricted` waits for `start`, which names its folders."""
        self._close_namespaces()
        if self.plan.level != "restricted":
            self._lock_down()
        else:
            # The host looks at them before the session has its folders.
            self._set_limits()

    def start(self, start: messages.Start) -> None:
        """Finish the confinement when the worker learns which session it is."""
        if self._mounts is not None:
            os.read(self._folders_mounted, 8)
            os.close(self._folders_mounted)
            root_fs.restore_search_path(self._mounts)
        elif self.plan.level == "restricted":
            own = [folder for folder in (*start.folders[1:], start.packages) if folder]
            for folder in (start.folders[0], *own):
                session_mounts.make_folder(folder, 0o700)
            if self._root:
                self._allow_traversal(start.folders[0])
                for folder in own:
                    session_mounts.change_owner(folder, self._uid, self._gid)
            self._own = own
            self._lock_down()

    def enter_view(self, key: list[int], namespaces: list[int]) -> list[str]:
        """Move a live copy into a view. From then on it reaches no process outside of it. Return notices."""
        assert self._files is not None
        views.enter(key, namespaces)
        try:
            # One more layer: a process may only trace, look into and signal processes with the same layers or more.
            self._restrict_files(self._files, landlock.SCOPE_SIGNALS)
        except kernel_calls.Refused as error:
            if error.errno != errno.E2BIG:
                raise
            return ["its processes can reach those of the original: it descends from too many forks"]
        return []

    def _allow_traversal(self, folder: str) -> None:
        """Let the session's user pass through the folders around its own, without listing them."""
        data = self.plan.data_folder
        while folder == data or folder.startswith(data + "/"):
            os.chmod(folder, 0o711)
            folder = os.path.dirname(folder)

    # --- in both ---

    def _lock_down(self) -> None:
        """Give up, for good, everything that the level takes away."""
        if self._mounts is not None:
            # Only now, inside its cgroup: the namespace hides all other groups, and no fork into another group works
            # inside.
            kernel_calls.unshare(kernel_calls.CLONE_NEWCGROUP, "cgroup")
        if self._mounts is not None and not self._root:
            # A user namespace counts processes per session and gives no rights over the sandbox. It comes before the
            # limits, which at this moment would apply to all sandboxes of the user together.
            kernel_calls.set_dumpable(True)
            kernel_calls.unshare(kernel_calls.CLONE_NEWUSER, "user")
            kernel_calls.map_self(self._uid, self._gid)
            kernel_calls.limit_user("max_inotify_instances", MAX_INOTIFY_INSTANCES)
            kernel_calls.limit_user(
                "max_inotify_watches", kernel_calls.read_number("/proc/sys/fs/inotify/max_user_watches") // USER_SHARE
            )
        self._set_limits()
        if self._files is None or self._filter is None:
            kernel_calls.no_new_privileges()
            return
        if self._root or self._mounts is not None:
            # The bounding set first: dropping it needs a capability that is gone afterwards.
            kernel_calls.drop_bounding_set()
        if self._root:
            kernel_calls.become(self._uid, self._gid)
            if self._mounts is None:
                # Other users share /dev/shm and the granted folders with this one.
                os.umask(0o077)
        kernel_calls.drop_capabilities()
        # A change of uid clears the flag, and then the session could not read its own /proc/self.
        kernel_calls.set_dumpable(True)
        kernel_calls.no_new_privileges()
        self._restrict_files(self._files)
        self._filter.install(self._key)
        self._key = []

    def _set_limits(self) -> None:
        plan = self.plan
        if plan.grouped_memory and self.grouped:
            self._limits.memory = 0
        self._limits.apply()
        lower(resource.RLIMIT_MEMLOCK, MAX_LOCKED_BYTES)
        lower(resource.RLIMIT_SIGPENDING, MAX_PENDING_SIGNALS)
        lower(resource.RLIMIT_RTPRIO, 0)
        own_user = plan.level == "sandbox" or (plan.level == "restricted" and self._root)
        if own_user and plan.processes:
            # The kernel counts by user. Elsewhere it would count everything that the server's user runs.
            lower(resource.RLIMIT_NPROC, plan.processes)

    def _restrict_files(self, files: landlock.Rules, scopes: int = 0) -> None:
        if self._mounts is not None:
            files.begin(scopes=landlock.SCOPE_ABSTRACT_SOCKETS | scopes)
            files.read("/")
            # Not /proc: a process could change its name in the kernel's audit log there.
            # Read-only mounts protect what lies below the data folder and the homes and is not the session's. Landlock
            # does not look at a mount point itself, so that the rule has to be about the folder above it.
            homes = {os.path.dirname(home) for home in HOMES}
            writable = ["/tmp", root_fs.VAR_TMP, "/dev", self._mounts.data, *homes]
            writable += self._mounts.writable
            # Views mount overlays there, of which the same is true.
            above = {os.path.dirname(path) for path in self._mounts.writable}
            writable += sorted(above - {"/"})
        else:
            files.begin(scopes=landlock.SCOPE_ABSTRACT_SOCKETS | landlock.SCOPE_SIGNALS)
            for path in self._readable:
                files.read(path)
            for path, may_write in self.plan.granted:
                if not may_write:
                    files.read(path)
            for path in self._used:
                files.use_existing(path)
            devices = [os.path.realpath(path) for path in (*DEVICE_FILES, *(node for node, _ in self.plan.devices))]
            writable = [*self._own, *devices, *(path for path, may_write in self.plan.granted if may_write)]
        for path in writable:
            files.write(path)
        if self.plan.gpu_driver:
            # CUDA does not start where it cannot name its threads, by a file below /proc.
            files.use_existing("/proc")
        files.apply()
