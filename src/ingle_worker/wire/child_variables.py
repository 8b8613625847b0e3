"""Environment variables with which child processes of a session find its interpreter, its pip and its packages.

The guest sets them for its own process, and the host for shell tasks.
"""

import os
from collections.abc import Mapping

BIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin")
"""Folder with the programs `python` and `pip`, which call those of the session."""

PYTHON, PACKAGES = "SESSION_PYTHON", "SESSION_PACKAGES"
"""Names of the variables that these programs read."""

ENDS_WITH = "SESSION_ENDS_WITH"
"""Variable that says when the session ends, and its packages with it: `this command`. Missing for other sessions."""

GPU_MEMORY = "SESSION_GPU_MEMORY"
"""Variable with the bytes that torch may take on each GPU."""

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Folders that keep their place on PATH, because programs of the machine are found in their order."""


def of_interpreter(executable: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that depend on the interpreter alone."""
    own = os.path.dirname(executable)
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    first = [BIN] if own in SYSTEM_FOLDERS and own in path else [BIN, own]
    return {PYTHON: executable, "PATH": os.pathsep.join([*first, *(each for each in path if each not in first)])}


def of_packages(folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the folder of a session's packages, next to those of its interpreter."""
    programs = os.path.join(folder, "bin")
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    if programs not in path:
        path.insert(1 if path[0] == BIN else 0, programs)
    modules = [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if folder not in modules:
        modules.append(folder)
    return {PACKAGES: folder, "PATH": os.pathsep.join(path), "PYTHONPATH": os.pathsep.join(modules)}


def of_session(executable: str, folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return all variables of a session with this interpreter and this folder of packages."""
    variables = of_interpreter(executable, environ)
    return {**variables, **of_packages(folder, {**environ, **variables})}
