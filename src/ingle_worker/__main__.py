"""The first lines that run in an interpreter named by a user: `python .../ingle_worker/__main__.py MODE FD...`.

This one file must be readable by any Python, so that an old one can be refused in plain words instead of a
syntax error. It loads the guest from its own folder without putting that folder on `sys.path`, and gives each
of the guest's modules private copies of `builtins` and of the libraries it cannot do without: code in a session
may replace `builtins.Exception` or `time.perf_counter`, and the guest must still catch the one and call the other.
"""

import sys

OLD = 41

ROOMS = {
    "shells": "ingle_worker.processes.task_zygote",
    "boot": "ingle_worker.lockdown.boot",
}
"""Where a mode begins that is not one of the zygote's."""

PRIVATE = ("ast", "codeop", "linecache", "os", "select", "time", "traceback", "warnings")
"""Modules of which the guest has a copy: those whose functions it calls between and around cells, and never sets."""


def refuse_old_python():  # type: ignore[no-untyped-def]
    name = getattr(getattr(sys, "implementation", None), "name", "Python")
    if sys.version_info < (3, 10) or name != "cpython":
        sys.stderr.write(
            "ingle needs CPython 3.10 or later for a session; {} is {} {}.{}.{}. Name a newer interpreter.\n".format(
                sys.executable, name, *sys.version_info[:3]
            )
        )
        sys.stderr.flush()
        sys.exit(OLD)


def load_guest(mode):  # type: ignore[no-untyped-def]
    """Make `ingle_worker` importable from its own folder only, then forget how. The room that the mode begins in."""
    import builtins
    import importlib.machinery
    import importlib.util
    import os

    home = os.path.dirname(os.path.abspath(__file__))
    private = dict(vars(builtins))
    copies = {}
    for each in PRIVATE:
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
    try:
        # Shell tasks are forked from a process that has loaded nothing of a session.
        return importlib.import_module(ROOMS.get(mode, "ingle_worker.processes.zygote"))
    finally:
        sys.meta_path.remove(Finder)


if __name__ == "__main__":
    refuse_old_python()  # type: ignore[no-untyped-call]
    # The script's own folder came first on sys.path: its modules must not be taken for anybody's else.
    del sys.path[0]
    load_guest(sys.argv[1]).main(sys.argv[1:])  # type: ignore[no-untyped-call]
