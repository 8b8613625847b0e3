"""Entry point in the user's interpreter: `python .../ingle_worker/__main__.py MODE FD...`.

Any Python can parse this file, so an old one is refused with a clear message instead of a syntax error. It loads the
guest from its own folder without adding that folder to `sys.path`. Each guest module gets private copies of `builtins`
and of some libraries, because cells may replace `builtins.Exception` or `time.perf_counter`.
"""

import sys

OLD_PYTHON_EXIT_CODE = 41

ENTRY_MODULES = {
    "shells": "ingle_worker.processes.task_zygote",
    "boot": "ingle_worker.lockdown.boot",
    "pip": "ingle_worker.magics.packages",
}
"""Entry module of each mode that is not the zygote's."""

PRIVATE_COPIES = ("ast", "codeop", "linecache", "os", "select", "time", "traceback", "warnings")
"""Modules that the guest has a private copy of. It calls their functions between and around cells, and sets none."""


def refuse_old_python():  # type: ignore[no-untyped-def]
    name = getattr(getattr(sys, "implementation", None), "name", "Python")
    if sys.version_info < (3, 10) or name != "cpython":
        sys.stderr.write(
            "ingle needs CPython 3.10 or later for a session; {} is {} {}.{}.{}. Name a newer interpreter.\n".format(
                sys.executable, name, *sys.version_info[:3]
            )
        )
        sys.stderr.flush()
        sys.exit(OLD_PYTHON_EXIT_CODE)


def load_guest(mode):  # type: ignore[no-untyped-def]
    """Make `ingle_worker` importable from its own folder while it is imported. Return the entry module of the mode."""
    import builtins
    import gc
    import importlib.machinery
    import importlib.util
    import os

    home = os.path.dirname(os.path.abspath(__file__))
    private = dict(vars(builtins))
    copies = {}
    for each in PRIVATE_COPIES:
        copies[each] = type(os)(each)
        vars(copies[each]).update(vars(importlib.import_module(each)))

    def import_private(name, globals=None, locals=None, fromlist=(), level=0, real=private["__import__"]):  # type: ignore[no-untyped-def]
        return copies[name] if name in copies and not level else real(name, globals, locals, fromlist, level)

    private["__import__"] = import_private

    class Loader(importlib.machinery.SourceFileLoader):
        def exec_module(self, module):  # type: ignore[no-untyped-def]
            module.__dict__["__builtins__"] = private
            super().exec_module(module)

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
            if name != "ingle_worker" and not name.startswith("ingle_worker."):
                return None
            base = os.path.join(home, *name.split(".")[1:])
            package = os.path.isdir(base)
            file = os.path.join(base, "__init__.py") if package else base + ".py"
            return importlib.util.spec_from_file_location(
                name, file, loader=Loader(name, file), submodule_search_locations=[base] if package else None
            )

    sys.meta_path.insert(0, Finder)
    # Modules stay, so that walking them again and again would only take a sixth of the start.
    collects = gc.isenabled()
    gc.disable()
    try:
        # The zygote of shell tasks loads no code of sessions.
        return importlib.import_module(ENTRY_MODULES.get(mode, "ingle_worker.processes.zygote"))
    finally:
        sys.meta_path.remove(Finder)
        if collects:
            gc.enable()


if __name__ == "__main__":
    refuse_old_python()  # type: ignore[no-untyped-call]
    # Python put the script's folder first on sys.path. Its modules must not be importable from there.
    del sys.path[0]
    load_guest(sys.argv[1]).main(sys.argv[1:])  # type: ignore[no-untyped-call]
