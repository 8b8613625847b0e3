"""Names of a session's variables that the host knows, bounded in number and in size."""

from collections.abc import Iterable, Iterator

MAX_NAMES = 100_000
MAX_NAME_CHARS = 1000
MAX_CHARS = 4 * 1024 * 1024
"""Characters of all names together. A session may make names that it never shows, and the host has many sessions."""


class VariableNames:
    """Set of names. Names beyond the bounds are left out."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._chars = 0
        self.learn(names)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def learn(self, names: Iterable[str]) -> None:
        """Add names, as far as the bounds allow."""
        for name in names:
            if len(self._names) >= MAX_NAMES:
                return
            size = len(name)
            if size <= MAX_NAME_CHARS and self._chars + size <= MAX_CHARS and name not in self._names:
                self._names.add(name)
                self._chars += size

    def forget(self, names: Iterable[str]) -> None:
        """Remove names."""
        for name in names:
            if name in self._names:
                self._names.discard(name)
                self._chars -= len(name)

    def clear(self) -> None:
        self._names.clear()
        self._chars = 0
