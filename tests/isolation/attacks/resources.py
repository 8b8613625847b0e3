"""Resources: whatever one session can take so that none is left for others. Each takes a bounded amount only."""

from support.attack import attack


@attack("limits")
def processes(t):
    import os
    import time

    children = []
    try:
        for _ in range(t.processes + 30):
            pid = os.fork()
            if pid == 0:
                time.sleep(20)
                os._exit(0)
            children.append(pid)
        time.sleep(0.3)
        return len(children) > t.processes
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


@attack("limits")
def threads(t):
    import threading
    import time

    over = threading.Event()
    started = []
    try:
        for _ in range(t.processes + 30):
            thread = threading.Thread(target=over.wait)
            thread.start()
            started.append(thread)
        time.sleep(0.3)
        return len(started) > t.processes
    finally:
        over.set()


@attack("limits")
def memory(t):
    import time

    kept = bytearray(t.memory + (100 << 20))
    time.sleep(0.3)
    return len(kept)


@attack("limits")
def memory_of_several_processes(t):
    import os
    import time

    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            kept = bytearray(t.memory // 3)
            time.sleep(0.7)
            os._exit(len(kept) == 0)
        children.append(pid)
    return all(os.waitpid(pid, 0)[1] == 0 for pid in children)


# Memory that no process has mapped is seen by a cgroup only, which an ordinary user seldom has.
@attack("limits", user_stops="restricted")
def memory_in_files_without_a_name(t):
    import os
    import time

    piece = bytes(1 << 20)
    for _ in range((t.memory >> 20) // 50 + 2):
        fd = os.memfd_create("kept")
        for _ in range(50):
            os.write(fd, piece)
    time.sleep(0.3)
    return True


@attack("limits", user_stops="sandbox")
def memory_in_segments_that_nobody_has_attached(t):
    import ctypes
    import time

    numbers = []
    try:
        for _ in range((t.memory >> 20) // 50 + 2):
            numbers.append(syscall("shmget", 0, 50 << 20, 0o1600))
            place = syscall("shmat", numbers[-1], 0, 0)
            ctypes.memset(place, 1, 50 << 20)
            syscall("shmdt", place)
        time.sleep(0.3)
        return True
    finally:
        for number in numbers:
            syscall("shmctl", number, 0, 0)


@attack("limits", user_stops="sandbox")
def memory_in_a_file_system(t):
    import os
    import time

    written = 0
    try:
        for number in range((t.memory >> 20) // 50 + 2):
            with open(f"/dev/shm/kept-{t.mark}-{number}", "wb") as file:
                for _ in range(50):
                    written += file.write(bytes(1 << 20))
        time.sleep(0.3)
        return written > t.memory
    finally:
        for name in os.listdir("/dev/shm"):
            if name.startswith(f"kept-{t.mark}"):
                os.remove(f"/dev/shm/{name}")


UNSEEN = "without a cgroup nobody sees whose connections hold what in a network that all share: SECURITY.md says so"


@attack("limits", known={(level, "user"): UNSEEN for level in ("limits", "restricted")})
def memory_in_connections(t):
    import socket
    import time

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(200)
    kept, total = [], 0
    for _ in range(100):
        way = socket.socket()
        way.connect(listener.getsockname())
        kept += [way, listener.accept()[0]]
        way.setblocking(False)
        try:
            while total <= 2 * t.memory:
                total += way.send(b"x" * 65536)
        except BlockingIOError:
            continue
    time.sleep(0.3)
    return total > t.memory


@attack("restricted")
def requests_to_the_disk_of_everybody(t):
    import ctypes

    context = ctypes.c_ulong()
    call = 206 if os.uname().machine == "x86_64" else 0
    syscall(call, 40_000, ctypes.byref(context))
    return context.value


@attack("limits")
def room_for_temporary_files(t):
    import os
    import tempfile
    import time

    path = os.path.join(tempfile.gettempdir(), "kept")
    for number in range(4):
        with open(f"{path}-{number}", "wb") as file:
            for _ in range(t.tmp >> 21):
                file.write(bytes(1 << 20))
    time.sleep(5 if t.watched else 0)
    return True


@attack("limits")
def room_on_the_disk(t):
    import time

    for number in range(4):
        with open(f"kept-{number}", "wb") as file:
            for _ in range(t.disk >> 21):
                file.write(bytes(1 << 20))
    time.sleep(5 if t.watched else 0)
    return True


@attack("limits")
def many_small_files(t):
    import os
    import time

    for folder in range(t.disk // 4096 // 1000 + 1):
        os.mkdir(f"d{folder}")
        for number in range(1000):
            os.close(os.open(f"d{folder}/{number}", os.O_CREAT | os.O_WRONLY))
    time.sleep(5 if t.watched else 0)
    return True


@attack("limits")
def a_large_file(t):
    import os

    with open("large", "wb") as file:
        file.truncate(t.file_size + 1)
    os.remove("large")
    return True


@attack("limits")
def descriptors(t):
    kept = []
    while len(kept) < t.files + 100:
        kept.append(open("/dev/null"))
    return len(kept)


@attack("restricted", root="not every root may", user="only root may")
def more_than_its_limits(t):
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard - 1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


@attack("restricted", user="what a user is allowed may be none")
def an_image_of_its_memory(t):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


@attack("restricted", user="only root may")
def priority_over_others(t):
    import os

    os.setpriority(os.PRIO_PROCESS, 0, -5)
    return True


@attack("restricted", user="only root may")
def the_processor_for_itself(t):
    import os

    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


@attack("restricted", user="only root may")
def locked_memory(t):
    import ctypes
    import mmap

    size = 64 << 20
    place = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    syscall("mlock", address, size)
    return True


@attack("restricted", root="not every root may", user="only root may")
def to_be_spared_when_memory_is_short(t):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-500")
    return True


@attack("restricted", root="not every machine has them", user="only root may")
def to_leave_its_cgroup(t):
    import glob
    import os

    left = []
    for path in glob.glob("/sys/fs/cgroup/cgroup.procs") + glob.glob("/sys/fs/cgroup/*/cgroup.procs"):
        pid = os.fork()
        if pid == 0:
            try:
                with open(path, "w") as file:
                    file.write("0")
                os._exit(0)
            except OSError:
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            left.append(path)
    return left


def victim_cannot(code):
    def after(fort, evidence):
        return fort.in_victim(code) != "fine"

    return after


@attack(
    "restricted",
    user_stops="sandbox",
    root="root has as many as it likes",
    after=victim_cannot(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "fd = libc.inotify_init1(0o2000000)\nprint('fine' if fd >= 0 else 'none left')\nfd >= 0 and os.close(fd)"
    ),
)
def watches_of_everybody(t):
    import ctypes

    libc = ctypes.CDLL(None)
    kept = [libc.inotify_init1(0) for _ in range(600)]
    globals()["kept"] = kept
    return len([each for each in kept if each >= 0])


@attack(
    "restricted",
    root="root has as many as it likes",
    after=victim_cannot(
        "import fcntl, os\nr, w = os.pipe()\n"
        "print('fine' if fcntl.fcntl(w, 1032) >= 65536 else 'small')\nos.close(r)\nos.close(w)"
    ),
)
def pipe_memory_of_everybody(t):
    import fcntl
    import os

    kept = globals()["kept"] = []
    try:
        for _ in range(300):
            kept.append(os.pipe())
            try:
                fcntl.fcntl(kept[-1][1], 1031, 1 << 20)
            except PermissionError:
                continue
    except OSError:
        pass
    return len(kept)


@attack("limits", root="no level fails by it", user="no level fails by it")
def output_without_end(t):
    import sys

    for _ in range(100):
        sys.stdout.write("x" * 100_000 + "\n")
    return False
