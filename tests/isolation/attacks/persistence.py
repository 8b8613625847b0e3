"""What outlasts a session: files that other programs, other sessions or the next server will load."""

from support.attack import attack


def on_the_host(fort, evidence):
    """Whether what it wrote is there for the server, and so for everybody."""
    return fort.mark in fort.read_as_the_server(evidence)


@attack("restricted", user="its interpreter is not this user's", after=on_the_host)
def a_module_among_the_installed_ones(t):
    path = f"{t.installed}/planted_{t.mark}.py"
    with open(path, "w") as file:
        file.write(t.mark)
    return path


@attack("restricted", after=on_the_host)
def a_pth_file_in_the_environment(t):
    import sysconfig

    path = f"{sysconfig.get_path('purelib')}/planted-{t.mark}.pth"
    with open(path, "w") as file:
        file.write(f"# {t.mark}")
    return path


@attack("restricted", after=on_the_host)
def a_startup_file_of_the_users(t):
    path = f"{t.host_home}/.bash_profile"
    with open(path, "w") as file:
        file.write(f"# {t.mark}")
    return path


@attack("restricted", after=on_the_host)
def a_customization_of_the_users_python(t):
    import os

    folder = f"{t.host_home}/.local/lib/python3/site-packages"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/usercustomize.py"
    with open(path, "w") as file:
        file.write(f"# {t.mark}")
    return path


@attack("restricted", user="only root may", after=on_the_host)
def a_job_for_cron(t):
    path = f"/etc/cron.d/planted-{t.mark}"
    with open(path, "w") as file:
        file.write(f"# {t.mark}\n")
    return path


@attack("restricted", user="only root may", after=on_the_host)
def a_profile_for_every_shell(t):
    path = f"/etc/profile.d/planted-{t.mark}.sh"
    with open(path, "w") as file:
        file.write(f"# {t.mark}\n")
    return path


@attack("restricted", after=on_the_host)
def a_file_in_tmp(t):
    path = f"/tmp/planted-{t.mark}"
    with open(path, "w") as file:
        file.write(t.mark)
    return path


@attack("restricted", after=on_the_host)
def a_file_in_var_tmp(t):
    path = f"/var/tmp/planted-{t.mark}"
    with open(path, "w") as file:
        file.write(t.mark)
    return path


@attack("sandbox", after=on_the_host)
def a_file_in_shared_memory(t):
    path = f"/dev/shm/planted-{t.mark}"
    with open(path, "w") as file:
        file.write(t.mark)
    return path


@attack("restricted", after=on_the_host)
def compiled_code_beside_its_own_interpreter(t):
    import os

    folder = f"{t.environment}/bin/__pycache__"
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/planted-{t.mark}"
    with open(path, "w") as file:
        file.write(t.mark)
    return path


@attack("restricted", user="ingle is not this user's", after=on_the_host)
def code_beside_ingles_own(t):
    path = f"{t.guest}/planted_{t.mark}.py"
    with open(path, "w") as file:
        file.write(f"# {t.mark}")
    return path


@attack("restricted", user_stops="sandbox")
def rights_of_its_own_interpreter(t):
    import os
    import sys

    path = os.path.realpath(sys.executable)
    os.chmod(path, os.stat(path).st_mode & 0o7777)
    return True


@attack("restricted", user_stops="sandbox")
def rights_of_the_program_that_it_is(t):
    import os

    os.chmod("/proc/self/exe", os.stat("/proc/self/exe").st_mode & 0o7777)
    return True


@attack("restricted", user_stops="sandbox")
def times_of_the_program_that_it_is(t):
    import os

    about = os.stat("/proc/self/exe")
    os.utime("/proc/self/exe", ns=(about.st_atime_ns, about.st_mtime_ns))
    return True


@attack("restricted", user_stops="sandbox")
def attributes_of_the_program_that_it_is(t):
    import os

    os.setxattr("/proc/self/exe", "user.planted", b"1")
    os.removexattr("/proc/self/exe", "user.planted")
    return True


@attack("restricted", root="a program that runs is not written", user="a program that runs is not written")
def the_program_that_it_is(t):
    with open("/proc/self/exe", "r+b") as file:
        return file.fileno() > 0


@attack("restricted")
def the_interpreter_replaced(t):
    import os
    import sys

    other = os.path.join(os.path.dirname(sys.executable), f"python-{t.mark}")
    os.link(os.path.realpath(sys.executable), other)
    os.remove(other)
    return True


@attack("restricted")
def the_environments_configuration(t):
    with open(f"{t.environment}/pyvenv.cfg", "a") as file:
        return file.fileno() > 0


@attack("restricted")
def the_users_library_of_every_session(t):
    import os

    path = f"{t.home}/stdlib.py.attack"
    with open(path, "a"):
        pass
    os.remove(path)
    return True


@attack("restricted", user_stops="sandbox")
def rights_of_a_file_of_the_users(t):
    import os

    os.chmod(t.host_file, 0o600)
    return True


@attack("restricted", user_stops="sandbox")
def times_of_a_file_of_the_users(t):
    import os

    os.utime(t.host_file)
    return True


@attack("restricted")
def a_second_name_for_a_file_of_the_users(t):
    import os

    os.link(t.host_file, "second")
    return True
