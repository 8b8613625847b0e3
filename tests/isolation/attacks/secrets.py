"""The server's secrets: environment, arguments, memory, descriptors, files."""

from support.attack import attack


@attack("limits", secret=True)
def environment_of_its_own(t):
    import os

    return dict(os.environ)


@attack("limits", secret=True)
def environment_that_it_was_started_with(t):
    return open("/proc/self/environ", "rb").read()


@attack("restricted", secret=True)
def environment_of_the_server(t):
    return open(f"/proc/{t.server}/environ", "rb").read()


@attack("restricted", secret=True)
def environment_of_any_process(t):
    import glob

    found = b""
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            found += b"\n".join(each for each in open(path, "rb").read().split(b"\0") if b"SECRET" in each)
        except OSError:
            pass
    return found


@attack("restricted", secret=True)
def environment_of_whatever_started_it(t):
    import os

    found, pid = b"", os.getpid()
    while pid > 1:
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        try:
            found += open(f"/proc/{pid}/environ", "rb").read()
        except OSError:
            pass
    return found


@attack("sandbox")
def arguments_of_the_server(t):
    said = open(f"/proc/{t.server}/cmdline").read().replace("\0", " ")
    return said if "serve" in said else None


@attack("restricted")
def memory_of_the_server(t):
    maps = open(f"/proc/{t.server}/maps").read()
    place = next(int(line.split("-")[0], 16) for line in maps.splitlines() if "[heap]" in line)
    with open(f"/proc/{t.server}/mem", "rb", 0) as memory:
        memory.seek(place)
        return len(memory.read(4096))


@attack("restricted")
def memory_of_the_server_by_a_call(t):
    import ctypes

    place = ctypes.create_string_buffer(64)
    near = (ctypes.c_void_p * 2)(ctypes.addressof(place), 64)
    far = (ctypes.c_void_p * 2)(t.server_heap, 64)
    return syscall("process_vm_readv", t.server, near, 1, far, 1, 0)


@attack("restricted")
def tracing_the_server(t):
    seize, detach = 0x4206, 17
    syscall("ptrace", seize, t.server, 0, 0)
    try:
        syscall("ptrace", detach, t.server, 0, 0)
    except OSError:
        pass  # it was not stopped; the end of this thread lets go of it
    return True


@attack("restricted")
def descriptors_of_the_server(t):
    import os

    return [os.readlink(f"/proc/{t.server}/fd/{each}") for each in os.listdir(f"/proc/{t.server}/fd")]


@attack("restricted")
def a_descriptor_taken_from_the_server(t):
    pidfd = syscall("pidfd_open", t.server, 0)
    return syscall("pidfd_getfd", pidfd, 2, 0) > 2


@attack("restricted")
def memory_of_the_zygote(t):
    import ctypes

    place = ctypes.create_string_buffer(64)
    near = (ctypes.c_void_p * 2)(ctypes.addressof(place), 64)
    far = (ctypes.c_void_p * 2)(t.zygote_heap, 64)
    return syscall("process_vm_readv", t.zygote, near, 1, far, 1, 0)


@attack("restricted", secret=True)
def the_token(t):
    return open(f"{t.home}/token").read()


@attack("restricted", secret=True)
def the_token_through_the_root_of_another_process(t):
    found = ""
    for pid in (t.server, t.zygote, t.victim, 1, "self"):
        try:
            found += open(f"/proc/{pid}/root{t.home}/token").read()
        except OSError:
            pass
    return found


@attack("restricted", secret=True)
def the_token_through_a_folder_of_another_process(t):
    found = ""
    for pid in (t.server, t.zygote, t.victim):
        for steps in range(12):
            try:
                found += open(f"/proc/{pid}/cwd/{'../' * steps}{t.home.lstrip('/')}/token").read()
            except OSError:
                pass
    return found


@attack("restricted", secret=True)
def the_configuration(t):
    return open(f"{t.home}/config.toml").read()


@attack("restricted")
def what_is_in_the_data_folder(t):
    import os

    return "token" in os.listdir(t.home) or len(os.listdir(f"{t.home}/sessions")) > 1


@attack("restricted")
def the_log(t):
    return open(f"{t.home}/server.log").read(1)


@attack("restricted")
def writing_a_token_of_its_own(t):
    import os

    path = f"{t.home}/tokens.json.attack"
    with open(path, "w"):
        pass
    os.remove(path)
    return True


@attack("limits")
def the_servers_socket_for_its_owner(t):
    import socket

    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect(t.run_socket)
        way.sendall(b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"victim" in way.makefile("rb").read()


@attack("limits", root="no level leaks one", user="no level leaks one")
def descriptors_that_a_child_inherits(t):
    import subprocess

    listed = subprocess.run(["sh", "-c", "ls /proc/$$/fd"], capture_output=True, text=True, close_fds=False).stdout
    return [each for each in listed.split() if int(each) > 2]


@attack("limits", root="no level leaks one", user="no level leaks one")
def files_of_the_host_that_it_holds_open(t):
    import os

    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("/") and target not in ("/dev/null", "/proc/self/fd", f"/proc/{os.getpid()}/fd"):
            found.append(target)
    return found


@attack("sandbox")
def what_the_kernel_was_started_with(t):
    return open("/proc/cmdline").read().strip()


@attack("sandbox")
def who_else_is_on_this_machine(t):
    import os

    found = [int(each) for each in os.listdir("/proc") if each.isdigit()]
    return t.server in found and t.victim in found
