"""Outliving the session: whatever it starts must be gone when it ends. No level lets any of these through."""

from support.attack import attack

HELD = "no level lets it through"


def still_there(fort, evidence):
    return fort.end_and_count(some=True)


def anything_there(fort, evidence):
    return fort.end_and_count(some=False)


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_process_forked_twice(t):
    import os
    import time

    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_daemon_of_its_own_session(t):
    import os
    import signal
    import time

    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            for fd in range(3):
                os.close(fd)
            time.sleep(60)
        os._exit(0)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_stopped_process(t):
    import os
    import signal
    import time

    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(pid, signal.SIGSTOP)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_sibling_instead_of_a_child(t):
    import os
    import signal
    import time

    clone_parent = 0x8000
    pid = syscall("clone", clone_parent | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_process_that_adopts_others(t):
    import os
    import time

    set_child_subreaper = 36
    if os.fork() == 0:
        libc.prctl(set_child_subreaper, 1, 0, 0, 0)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
        time.sleep(60)
        os._exit(0)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_program_started_anew(t):
    import subprocess

    subprocess.Popen(["setsid", "sleep", "61"], start_new_session=True)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def many_at_once(t):
    import os
    import time

    for _ in range(20):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
            os._exit(0)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def a_process_from_its_last_words(t):
    import atexit
    import os
    import time

    def last():
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)

    atexit.register(last)
    return True


@attack("limits", root=HELD, user=HELD, after=anything_there)
def the_death_of_its_init(t):
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    os.kill(os.getppid(), 9)
    time.sleep(1)
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def its_init_stopped(t):
    import os
    import signal
    import time

    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    try:
        os.kill(os.getppid(), signal.SIGSTOP)
    except OSError:
        pass
    return True


@attack("limits", root=HELD, user=HELD, after=still_there)
def an_init_that_is_stopped_and_hung_up_for(t):
    """Where a process can have its init's socket, and stop it: the server then hears that init is going."""
    import os
    import signal
    import socket
    import time

    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    try:
        way = socket_of_init()
        os.kill(os.getppid(), signal.SIGSTOP)
        way.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # then the process is what there is to end
    return True
