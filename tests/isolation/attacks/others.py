"""Other sessions: their files, processes, signals, memory, and whatever they share with nobody."""

from support.attack import attack


@attack("restricted", secret=True)
def files_of_another_session(t):
    return open(f"{t.victim_folder}/secret.txt").read()


@attack("restricted")
def list_of_another_sessions_folder(t):
    import os

    return os.listdir(t.victim_folder)


@attack("restricted")
def writing_into_another_sessions_folder(t):
    import os

    path = f"{t.victim_folder}/planted.py"
    with open(path, "w"):
        pass
    os.remove(path)
    return True


@attack("restricted", secret=True)
def files_of_another_session_through_its_root(t):
    return open(f"/proc/{t.victim}/root{t.victim_folder}/secret.txt").read()


@attack("restricted", secret=True)
def files_of_another_session_through_where_it_is(t):
    return open(f"/proc/{t.victim}/cwd/secret.txt").read()


@attack("restricted", secret=True)
def files_that_another_session_has_open(t):
    import os

    for name in os.listdir(f"/proc/{t.victim}/fd"):
        path = f"/proc/{t.victim}/fd/{name}"
        if os.readlink(path).endswith("secret.txt"):
            return open(path).read()


@attack("restricted", secret=True)
def output_of_another_session(t):
    return open(f"{t.victim_home}/timeline.ndjson").read()


@attack("restricted", secret=True)
def temporary_files_of_another_session(t):
    import glob

    return "".join(open(path).read() for path in glob.glob(f"{t.victim_tmp}/note-*"))


@attack("restricted")
def environment_of_another_session(t):
    return open(f"/proc/{t.victim}/environ", "rb").read()


@attack("restricted")
def memory_of_another_session(t):
    maps = open(f"/proc/{t.victim}/maps").read()
    place = next(int(line.split("-")[0], 16) for line in maps.splitlines() if "[heap]" in line)
    with open(f"/proc/{t.victim}/mem", "rb", 0) as memory:
        memory.seek(place)
        return len(memory.read(4096))


@attack("restricted")
def writing_another_sessions_memory(t):
    with open(f"/proc/{t.victim}/mem", "r+b", 0) as memory:
        return memory.fileno() > 0


@attack("restricted")
def memory_of_another_session_by_a_call(t):
    import ctypes

    place = ctypes.create_string_buffer(64)
    near = (ctypes.c_void_p * 2)(ctypes.addressof(place), 64)
    far = (ctypes.c_void_p * 2)(t.victim_heap, 64)
    return syscall("process_vm_readv", t.victim, near, 1, far, 1, 0)


@attack("restricted")
def tracing_another_session(t):
    seize, detach = 0x4206, 17
    syscall("ptrace", seize, t.victim, 0, 0)
    try:
        syscall("ptrace", detach, t.victim, 0, 0)
    except OSError:
        pass
    return True


@attack("restricted")
def signals_to_another_session(t):
    import os
    import signal

    os.kill(t.victim, signal.SIGCONT)
    return True


def was_heard(fort, evidence):
    return fort.in_victim("print(len(heard)); heard.clear()") != "0"


@attack("restricted", after=was_heard)
def signals_to_another_session_by_a_descriptor(t):
    """Whose owner is told, by any signal, when there is something to read."""
    import fcntl
    import os
    import signal
    import socket

    set_signal, set_owner = 10, 8
    here, there = socket.socketpair()
    fcntl.fcntl(here, set_signal, signal.SIGUSR2)
    fcntl.fcntl(here, set_owner, t.victim)
    fcntl.fcntl(here, fcntl.F_SETFL, os.O_ASYNC)
    there.send(b"x")
    return True


@attack("restricted")
def signals_to_the_init_of_another_session(t):
    import os
    import signal

    os.kill(t.victim_init, signal.SIGCONT)
    return True


@attack("restricted")
def signals_to_the_server(t):
    import os

    os.kill(t.server, 0)
    return True


@attack("restricted")
def a_descriptor_taken_from_another_session(t):
    pidfd = syscall("pidfd_open", t.victim, 0)
    return syscall("pidfd_getfd", pidfd, 1, 0) > 2


@attack("restricted", user_stops="sandbox")
def limits_of_another_session(t):
    import resource

    return resource.prlimit(t.victim, resource.RLIMIT_NOFILE)


@attack("restricted", user_stops="sandbox")
def processors_of_another_session(t):
    import os

    os.sched_setaffinity(t.victim, os.sched_getaffinity(t.victim))
    return True


@attack("restricted", user_stops="sandbox")
def priority_of_another_session(t):
    import os

    os.setpriority(os.PRIO_PROCESS, t.victim, os.getpriority(os.PRIO_PROCESS, t.victim))
    return True


@attack("restricted", user_stops="sandbox", secret=True)
def shared_memory_of_another_session_by_system_v(t):
    import ctypes

    number = syscall("shmget", t.ipc_key, 4096, 0)
    place = syscall("shmat", number, 0, 0o10000)
    return ctypes.string_at(place, 100)


@attack("restricted", user_stops="sandbox", secret=True)
def messages_of_another_session_by_system_v(t):
    import ctypes

    number = syscall("msgget", t.ipc_key, 0)
    place = ctypes.create_string_buffer(200)
    no_error, no_wait = 0o10000, 0o4000
    syscall("msgrcv", number, place, 100, 0, no_wait | no_error)
    syscall("msgsnd", number, place, 100, no_wait)
    return place.raw


@attack("restricted", user_stops="sandbox")
def semaphores_of_another_session_by_system_v(t):
    number = syscall("semget", t.ipc_key, 1, 0)
    get_value = 12
    return syscall("semctl", number, 0, get_value, 0) == 7


@attack(
    "restricted",
    user_stops="sandbox",
    secret=True,
)
def shared_memory_of_another_session(t):
    return open(f"/dev/shm/{t.shm_name}", "rb").read(200)


@attack("restricted", secret=True)
def message_queues_of_another_session(t):
    import ctypes

    queue = syscall("mq_open", t.queue_name.encode(), 0o4000, 0, 0)
    place = ctypes.create_string_buffer(8192)
    length = syscall("mq_timedreceive", queue, place, 8192, 0, 0)
    return place.raw[:length]


@attack("restricted", secret=True)
def abstract_socket_of_another_session(t):
    import socket

    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect("\0" + t.abstract_name)
        return way.recv(100)


@attack("restricted", user_stops="sandbox", secret=True)
def socket_in_another_sessions_folder(t):
    import socket

    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect(f"{t.victim_folder}/s")
        return way.recv(100)


@attack("sandbox", secret=True)
def port_of_another_session(t):
    import socket

    with socket.create_connection(("127.0.0.1", t.victim_port), 5) as way:
        return way.recv(100)


@attack("restricted")
def namespaces_of_another_session(t):
    import os

    for kind in ("mnt", "pid", "ipc"):
        fd = os.open(f"/proc/{t.victim}/ns/{kind}", os.O_RDONLY)
        os.close(fd)
    return True


@attack("restricted", secret=True)
def keys_of_another_session(t):
    import ctypes

    search, read = 10, 11
    user_keyring = -4
    number = syscall("keyctl", search, user_keyring, b"user", t.key_name.encode(), 0)
    place = ctypes.create_string_buffer(200)
    syscall("keyctl", read, number, place, 200)
    return place.raw
