"""Paths below an open folder, reached name by name without following links."""

import os

from ingle_worker.wire.trees import decode_path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Paths:
    """Opens the folder that a path lies in. The last one stays open, because the next path mostly lies there too."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._way = ""
        self._folder = root

    def find(self, path: str) -> "tuple[int, str]":
        """Return the open folder and the name in it. The folder stays open until the next call."""
        way, _, name = path.rpartition("/")
        if way != self._way:
            self.forget()
            folder = self._root
            for part in way.split("/") if way else []:
                try:
                    below = os.open(_checked(part), _FOLDER, dir_fd=folder)
                finally:
                    if folder != self._root:
                        os.close(folder)
                folder = below
            self._way, self._folder = way, folder
        return self._folder, _checked(name)

    def forget(self) -> None:
        """Close the last folder. Needed before it is removed or replaced."""
        if self._folder != self._root:
            os.close(self._folder)
        self._way, self._folder = "", self._root


def _checked(text: str) -> str:
    """Return a name that leads neither up nor to nothing."""
    name = decode_path(text)
    if name in ("", ".", ".."):
        raise OSError(22, "Invalid argument")
    return name
