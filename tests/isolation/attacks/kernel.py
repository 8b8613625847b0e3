"""The kernel's surface: calls that give more rights, more to attack, or a look at what is not the session's."""

from isolation.attack import attack

ONLY_ROOT = "only root may"
NOT_HERE = "not every machine has it, or lets root do it"


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
