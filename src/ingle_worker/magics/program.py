"""Code of a session that runs as a program: with arguments, a file of its own and the name `__main__`."""

import sys
from typing import Any

NAMES = ("__cached__", "__file__", "__loader__", "__name__", "__package__", "__spec__")
"""Names of a module that a program sees as its own. `runpy` changes them too."""


class Program:
    """A program that runs in the namespace `space`, until `restore`."""

    def __init__(self, space: dict[str, Any], argv: list[str], file: str, folder: str) -> None:
        """`folder` goes first on `sys.path`. Without a file both are empty."""
        self._space = space
        self._names = {name: space[name] for name in NAMES if name in space}
        self._argv = getattr(sys, "argv", [""])
        self._folder = folder
        sys.argv = list(argv)
        space["__name__"] = "__main__"
        if file:
            space["__file__"] = file
            sys.path.insert(0, folder)

    def restore(self) -> None:
        """Restore arguments, names and path. Everything else that the program made stays."""
        sys.argv = self._argv
        if self._folder and self._folder in sys.path:
            sys.path.remove(self._folder)
        for name in NAMES:
            self._space.pop(name, None)
        self._space.update(self._names)
