"""The kernel's surface: calls that give more rights, more to attack, or a look at what is not the session's."""

from support.attack import attack

ONLY_ROOT = "only root may"
NOT_HERE = "not every machine has it, or lets root do it"
HELD = "no level lets it through"


@attack("restricted", user=NOT_HERE)
def a_user_namespace(t):
    import os

    pid = os.fork()
    if pid == 0:
        try:
            syscall("unshare", 0x10000000)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@attack("restricted", user=NOT_HERE)
def a_user_namespace_by_clone(t):
    import os
    import signal

    pid = syscall("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


@attack("restricted", user=NOT_HERE)
def a_user_namespace_by_clone3(t):
    import ctypes
    import os
    import signal

    order = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    pid = syscall("clone3", order, 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


@attack("restricted", user=ONLY_ROOT)
def a_mount_namespace(t):
    import os

    pid = os.fork()
    if pid == 0:
        try:
            syscall("unshare", 0x20000)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@attack("restricted", user=ONLY_ROOT)
def a_mount(t):
    import os

    os.mkdir("m")
    syscall("mount", b"tmpfs", b"m", b"tmpfs", 0, 0)
    syscall("umount2", b"m", 0)
    return True


@attack("restricted", user=ONLY_ROOT)
def a_file_system_by_the_new_calls(t):
    import os

    os.close(syscall("fsopen", b"tmpfs", 0))
    return True


@attack("restricted", user=ONLY_ROOT)
def a_copy_of_the_tree_of_mounts(t):
    import os

    clone = 1
    os.close(syscall("open_tree", -100, b"/", clone))
    return True


@attack("restricted", user=ONLY_ROOT)
def to_unmount_what_hides_something(t):
    import errno

    detach, no_follow = 2, 8
    try:
        syscall("umount2", b"/no/such/place", detach | no_follow)
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)


@attack("restricted", user=ONLY_ROOT)
def another_root(t):
    import os

    pid = os.fork()
    if pid == 0:
        try:
            os.chroot(".")
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def the_namespaces_of_the_first_process(t):
    with open("/proc/1/ns/mnt") as namespace:
        syscall("setns", namespace.fileno(), 0)
    return True


@attack("restricted", user=ONLY_ROOT)
def a_device_of_its_own_making(t):
    import os
    import stat

    os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    os.remove("disk")
    return True


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def devices_of_the_machine(t):
    import os

    worth = (
        "/dev/vd",
        "/dev/sd",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/port",
        "/dev/nvme",
        "/dev/rtc",
        "/dev/kvm",
        "/dev/fuse",
    )
    found = []
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        if path.startswith(worth):
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                found.append(path)
            except OSError:
                continue
    return found


@attack("restricted", user=ONLY_ROOT)
def to_be_root(t):
    import os

    os.setresuid(0, 0, 0)
    return os.geteuid() == 0


@attack("restricted", user=ONLY_ROOT)
def rights_of_root(t):
    status = open("/proc/self/status").read()
    held = [line.split()[1] for line in status.splitlines() if line.startswith(("CapEff", "CapPrm", "CapAmb"))]
    return any(int(each, 16) for each in held)


@attack("restricted")
def rights_that_it_could_get_back(t):
    import os

    status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    # Without the way to become root, what root could have means nothing.
    return int(status["CapBnd"], 16) and (os.geteuid() == 0 or status["NoNewPrivs"].strip() == "0")


@attack("limits")
def more_rights_by_a_program(t):
    import os

    pid = os.fork()
    if pid == 0:
        get_no_new_privs = 39
        os._exit(libc.prctl(get_no_new_privs, 0, 0, 0, 0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@attack("restricted", user=ONLY_ROOT, after=lambda fort, evidence: fort.is_setuid_root(evidence))
def a_program_with_rights_of_root_in_its_folder(t):
    import os
    import shutil

    shutil.copy("/bin/true", "rights")
    os.chmod("rights", 0o4755)
    return os.path.abspath("rights")


@attack("restricted", user=ONLY_ROOT)
def rights_on_a_file(t):
    import os
    import struct

    with open("rights", "w"):
        pass
    os.setxattr("rights", "security.capability", struct.pack("<IIIII", 0x02000000, 1 << 7, 0, 0, 0))
    return True


@attack("restricted")
def keys(t):
    process_keyring = -2
    return syscall("add_key", b"user", b"planted", b"x", 1, process_keyring)


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def io_uring(t):
    import ctypes
    import os

    place = ctypes.create_string_buffer(120)
    os.close(syscall("io_uring_setup", 4, place))
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def bpf(t):
    import ctypes
    import os
    import struct

    order = ctypes.create_string_buffer(struct.pack("<IIIII", 2, 4, 4, 1, 0), 120)
    os.close(syscall("bpf", 0, order, 120))
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def perf(t):
    import ctypes
    import os
    import struct

    order = ctypes.create_string_buffer(struct.pack("<IIQ", 1, 112, 0), 112)
    os.close(syscall("perf_event_open", order, 0, -1, -1, 0))
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def faults_of_pages_handled_by_itself(t):
    import os

    os.close(syscall("userfaultfd", 0))
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE, arms=False)
def calls_of_32_bits(t):
    import ctypes
    import mmap
    import os

    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("53 b8 14 00 00 00 cd 80 5b c3"))  # push rbx; mov eax, 20 (getpid); int 0x80; pop; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid()


@attack("restricted", root=NOT_HERE, user=NOT_HERE, arms=False)
def calls_of_x32(t):
    return syscall(0x40000000 + 39) > 0


@attack("restricted", user=ONLY_ROOT)
def files_by_their_handles(t):
    import ctypes
    import os
    import struct

    handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0), 136)
    number = ctypes.c_int()
    syscall("name_to_handle_at", -100, b"/etc/passwd", handle, ctypes.byref(number), 0)
    folder = os.open("/etc", os.O_RDONLY)
    fd = syscall("open_by_handle_at", folder, handle, os.O_RDONLY)
    return os.read(fd, 10)


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def keys_pressed_on_a_terminal(t):
    import fcntl
    import os
    import pty
    import termios

    pid, master = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSTI, b"x")
            os._exit(0)
        except OSError:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    os.close(master)
    return status == 0


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def settings_of_the_kernel(t):
    found = []
    for name in ("kernel/core_pattern", "kernel/hostname", "kernel/modprobe", "vm/drop_caches", "fs/file-max"):
        try:
            with open(f"/proc/sys/{name}", "r+"):
                found.append(name)
        except OSError:
            continue
    return found


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def the_magic_key(t):
    with open("/proc/sysrq-trigger", "w"):
        return True


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def files_of_sys(t):
    found = []
    for path in ("/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/kernel/uevent_helper"):
        try:
            with open(path, "r+"):
                found.append(path)
        except OSError:
            continue
    return found


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def modules_of_the_kernel(t):
    import errno

    try:
        syscall("init_module", 0, 0, 0)
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def another_kernel(t):
    import errno

    try:
        syscall("kexec_load", 0, 99, 0, 0)
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)


@attack("restricted", user=ONLY_ROOT)
def to_end_the_machine(t):
    import errno

    try:
        syscall("reboot", 1, 2, 3, 0)  # none of these numbers means anything
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)


@attack("restricted", user=ONLY_ROOT)
def the_name_of_the_machine(t):
    import os

    name = os.uname().nodename.encode()
    syscall("sethostname", name, len(name))
    return True


@attack("restricted", user=ONLY_ROOT)
def the_clock_of_the_machine(t):
    import errno

    try:
        syscall("clock_settime", 0, 0)  # no time at that address
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def messages_of_the_kernel(t):
    size_of_buffer = 10
    return syscall("syslog", size_of_buffer, 0, 0)


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def memory_of_the_kernel(t):
    with open("/proc/kcore", "rb") as file:
        return file.fileno() > 0


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def addresses_of_the_kernel(t):
    return int(open("/proc/kallsyms").readline().split()[0], 16)


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def news_of_every_file(t):
    import os

    os.close(syscall("fanotify_init", 0, os.O_RDONLY))
    return True


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT, arms=False)
def ports_of_the_processor(t):
    syscall("iopl", 3)
    return True


@attack("restricted", user=ONLY_ROOT)
def swap(t):
    import errno

    try:
        syscall("swapon", b"/no/such/file", 0)
    except OSError as error:
        return error.errno not in (errno.EPERM, errno.ENOSYS)


@attack("restricted")
def an_unusual_layout_of_memory(t):
    import os

    pid = os.fork()
    if pid == 0:
        try:
            no_randomization = 0x0040000
            syscall("personality", no_randomization)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@attack("restricted")
def tracing_its_own_init(t):
    import os

    seize = 0x4206
    syscall("ptrace", seize, os.getppid(), 0, 0)
    return True


@attack("restricted")
def memory_of_its_own_init(t):
    import os

    with open(f"/proc/{os.getppid()}/mem", "r+b", 0) as memory:
        return memory.fileno() > 0


@attack("restricted")
def descriptors_of_its_own_init(t):
    import os

    return [os.readlink(f"/proc/{os.getppid()}/fd/{each}") for each in os.listdir(f"/proc/{os.getppid()}/fd")]


# --- what the filter of system calls is there for --------------------------------------------------------------


@attack("restricted")
def calls_that_are_not_on_the_list(t):
    """Each with arguments that mean nothing: who is let through is told so, or dies. By this machine's numbers, and by
    those of x32."""
    import errno
    import os

    def try_from(first):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            for number in numbers[first:]:
                refused = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) == -1
                os.write(writing, b"n" if refused and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else b"y")
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answers:
            said = answers.read()
        os.waitpid(pid, 0)
        return said

    let_through = set(t.let_through)
    numbers = [number for number in range(600) if number not in let_through]
    numbers += [0x40000000 + number for number in range(600)] + [0x7FFFFFFF, 0xFFFFFFFF]
    said = b""
    while len(said) < len(numbers):
        said += try_from(len(said))
        if len(said) < len(numbers):
            said += b"y"
    return [number for number, answer in zip(numbers, said, strict=True) if answer == ord("y")]


@attack("restricted", root=NOT_HERE, user=NOT_HERE, arms=False)
def any_call_of_32_bits(t):
    """By the gate of i386, with -1 for all arguments."""
    import ctypes
    import errno
    import mmap

    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # push rbx, rbp; mov eax, edi; all others -1; int 0x80; pop; ret
    page.write(bytes.fromhex("53 55 89f8 83cbff 83c9ff 83caff 83ceff 83cfff 83cdff cd80 5d 5b c3"))
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return [number for number in range(600) if call(number) != -errno.ENOSYS]


@attack("restricted")
def a_lease_that_makes_who_opens_a_file_wait(t):
    import fcntl

    with open("leased", "w") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK


@attack("restricted")
def signals_for_what_happens_in_a_folder(t):
    import fcntl
    import os

    create = 4
    folder = os.open(".", os.O_RDONLY)
    fcntl.fcntl(folder, fcntl.F_NOTIFY, create)
    return True


@attack("restricted")
def a_program_on_a_socket(t):
    import ctypes
    import socket
    import struct

    attach_filter = 26
    take_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF), 8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, attach_filter, struct.pack("HxxxxxxQ", 1, ctypes.addressof(take_all)))
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def a_protocol_above_tcp_in_the_kernel(t):
    import errno
    import socket

    upper_layer = 31
    with socket.socket() as one:
        try:
            one.setsockopt(socket.IPPROTO_TCP, upper_layer, b"tls")
        except OSError as error:
            return error.errno != errno.ENOPROTOOPT
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def segments_signed_by_the_kernel(t):
    import socket
    import struct

    md5_signature = 14
    address = struct.pack("=HHI120x", socket.AF_INET, 0, 0x0100007F)
    with socket.socket() as one:
        one.setsockopt(socket.IPPROTO_TCP, md5_signature, address + struct.pack("=BBHII80s", 0, 0, 3, 0, 0, b"key"))
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def the_end_of_a_tunnel(t):
    import socket

    encapsulation, of_esp = 100, 2
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.IPPROTO_UDP, encapsulation, of_esp)
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def marks_on_its_files(t):
    """What a file system has of its own: the first of many."""
    import errno
    import fcntl
    import struct

    set_flags, no_dump = 0x40086602, 0x40
    with open("marked", "w") as file:
        try:
            fcntl.ioctl(file, set_flags, struct.pack("l", no_dump))
        except OSError as error:
            return error.errno != errno.ENOTTY
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def requests_of_file_systems_and_drivers(t):
    """Told apart from those that this file does not understand by what comes before: a descriptor that there is not."""
    import errno
    import fcntl

    found = []
    for request in (
        0x4004587D,
        0x5000940E,
        0x50009418,
        0xC0609307,
        0xAE01,
        0x40086602,
        0xC020660B,
        0x40049385,
        0xC00CAA3F,
    ):
        try:
            fcntl.ioctl(999, request)
        except OSError as error:
            if error.errno == errno.EBADF:
                found.append(hex(request))
    return found


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def bridges_and_virtual_networks_by_a_socket(t):
    """For some of these requests the kernel looks for a module before it looks at rights."""
    import errno
    import fcntl
    import socket

    found = []
    with socket.socket() as one:
        for request in (0x8940, 0x8941, 0x8982, 0x8983, 0x89A0, 0x89A1, 0x89F0, 0x894C):
            try:
                fcntl.ioctl(one, request, b"\0" * 64)
            except OSError as error:
                if error.errno == errno.ENOTTY:
                    continue
            found.append(hex(request))
    return found


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def calls_that_are_handed_to_itself(t):
    dispatch, off = 59, 0
    return libc.prctl(dispatch, off, 0, 0, 0) == 0


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def memory_where_it_wants_it(t):
    default = 0
    syscall(238 if os.uname().machine == "x86_64" else 237, default, 0, 0)
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def huge_pages_that_are_reserved_for_others(t):
    """Told apart from a machine that has none to give, which would say that there is no memory."""
    import errno
    import mmap

    huge = 0x40000
    try:
        mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | huge)
    except OSError as error:
        return error.errno != errno.EPERM
    return True


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def pages_of_its_own_in_a_pipe(t):
    import os

    _, writing = os.pipe()
    place = ctypes.create_string_buffer(4096)
    pages = (ctypes.c_size_t * 2)(ctypes.addressof(place), 4096)
    return syscall(278 if os.uname().machine == "x86_64" else 75, writing, pages, 1, 0) > 0


@attack("restricted")
def settings_of_its_own_process(t):
    """Files that every process has of its own and may write, those for auditing and for security modules among them."""
    import os

    found = []
    for name in (
        "loginuid",
        "attr/current",
        "clear_refs",
        "oom_score_adj",
        "timerslack_ns",
        "autogroup",
        "uid_map",
        "mem",
    ):
        try:
            os.close(os.open(f"/proc/self/{name}", os.O_WRONLY))
            found.append(name)
        except OSError:
            continue
    return found


@attack("restricted", root=NOT_HERE, user=NOT_HERE)
def another_name_in_the_audit_log(t):
    """Who has no number there yet may give himself one."""
    with open("/proc/self/loginuid", "w") as file:
        file.write("1234")
    return open("/proc/self/loginuid").read() == "1234"


@attack("restricted", root=NOT_HERE, user=ONLY_ROOT)
def to_be_the_last_that_is_killed(t):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return True


@attack("restricted", user=ONLY_ROOT)
def a_share_that_nobody_else_gets(t):
    """Before all others, for as long as it likes."""
    import os

    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@attack("limits", root=HELD, user=HELD)
def a_filter_of_its_own_that_lets_more_through(t):
    """Of several filters the strictest counts: one that allows everything changes nothing."""
    import ctypes
    import os
    import struct

    pid = os.fork()
    if pid == 0:
        allow_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000), 8)
        header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow_all)), 16)
        set_seccomp, filter_mode = 22, 2
        before = open("/proc/self/status").read()
        worked = libc.prctl(set_seccomp, filter_mode, ctypes.c_void_p(ctypes.addressof(header)), 0, 0) == 0
        if not worked or "Seccomp:\t2" not in before:
            os._exit(1)
        try:
            syscall("unshare", 0x10000000)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
