"""The server's own access to a session's files: it must never be led to a file that is not the session's."""

from support.attack import attack

HELD = "no level lets it through"


def reads(*paths):
    """What the server hands out when it is asked for these."""

    def after(fort, evidence):
        return fort.secret_in(fort.download(path) for path in paths)

    return after


def writes(path):
    """Whether the server, asked to write this file, changes one of the host's."""

    def after(fort, evidence):
        fort.upload(path, b"planted")
        return fort.host_file_changed()

    return after


@attack("limits", root=HELD, user=HELD, after=reads("link"))
def a_link_to_a_file(t):
    import os

    os.symlink(t.host_file, "link")
    return True


@attack("limits", root=HELD, user=HELD, after=reads("folder/secret.txt"))
def a_link_to_a_folder(t):
    import os

    os.symlink(os.path.dirname(t.host_file), "folder")
    return True


@attack("limits", root=HELD, user=HELD, after=reads("a/b/c/secret.txt", "a/b/secret.txt"))
def a_link_deep_inside(t):
    import os

    os.makedirs("a/b")
    os.symlink(os.path.dirname(t.host_file), "a/b/c")
    os.symlink(t.host_file, "a/b/secret.txt")
    return True


@attack("limits", root=HELD, user=HELD, after=reads("self/environ", "root"))
def a_link_through_proc(t):
    import os

    os.symlink("/proc/self", "self")
    os.symlink(f"/proc/self/root{t.host_file}", "root")
    return True


@attack("limits", root=HELD, user=HELD, after=writes("link"))
def a_link_to_write_through(t):
    import os

    os.symlink(t.host_file, "link")
    return True


@attack("limits", root=HELD, user=HELD, after=writes("folder/secret.txt"))
def a_linked_folder_to_write_through(t):
    import os

    os.symlink(os.path.dirname(t.host_file), "folder")
    return True


@attack("limits", root=HELD, user=HELD, after=lambda fort, evidence: fort.remove("folder/secret.txt"))
def a_linked_folder_to_remove_through(t):
    import os

    os.symlink(os.path.dirname(t.host_file), "folder")
    return True


@attack("limits", root=HELD, user=HELD, after=lambda fort, evidence: "secret.txt" in fort.listed("folder"))
def a_linked_folder_to_list(t):
    import os

    os.symlink(os.path.dirname(t.host_file), "folder")
    return True


@attack("limits", root=HELD, user=HELD, after=lambda fort, evidence: not fort.answers_for("pipe"))
def a_pipe_that_nobody_writes(t):
    import os

    os.mkfifo("pipe")
    return True


@attack("limits", root=HELD, user=HELD, after=lambda fort, evidence: not fort.answers_for("socket"))
def a_socket(t):
    import socket

    with socket.socket(socket.AF_UNIX) as door:
        door.bind("socket")
    return True


@attack("limits", root=HELD, user=HELD, after=lambda fort, evidence: not fort.answers_for("device"))
def a_device(t):
    import os
    import stat

    try:
        os.mknod("device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except OSError:
        os.symlink("/dev/zero", "device")
    return True


@attack("limits", root=HELD, user=HELD, after=reads("secret.txt"))
def its_folder_replaced_by_a_link(t):
    import os

    folder = os.getcwd()
    try:
        os.rename(folder, folder + "-away")
        os.symlink(os.path.dirname(t.host_file), folder)
    except OSError:
        pass
    return True


@attack("limits", root=HELD, user=HELD, after=lambda fort, evidence: fort.races())
def a_folder_that_becomes_a_link(t):
    import os
    import time

    folder = os.path.dirname(t.host_file)
    os.mkdir("real")
    with open("real/secret.txt", "w") as file:
        file.write("mine")
    os.symlink(folder, "linked")
    if os.fork() == 0:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            os.rename("real", "way")
            os.rename("way", "real")
            os.rename("linked", "way")
            os.rename("way", "linked")
        os._exit(0)
    return True
