"""Changes of a folder since a moment, as net effect: a file that came and went is none."""

import time
from dataclasses import dataclass, field

from ingle.files import FileChanges

MAX_CHANGES = 2000
"""Files that one answer names. Above it there is no answer."""

MAX_CHANGES_CHARS = 200_000
"""Characters of their paths together."""

NOTHING = FileChanges()


@dataclass(eq=False, slots=True)
class Mark:
    """Changes of one folder since the mark was set."""

    since_nanoseconds: int = 0
    created: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    dirty: bool = False
    """Whether anything has changed, directories and permissions included."""
    base: set[str] | None = None
    """The files at that moment, while events are not followed. Then `compare` has to follow."""
    unknown: bool = False
    """Whether the files at that moment are not known."""

    def reset(self) -> None:
        """Forget all changes so far."""
        self.since_nanoseconds = time.time_ns()
        if self.dirty or self.base is not None or self.unknown:
            self.created, self.changed, self.deleted = set(), set(), set()
            self.dirty = self.unknown = False
            self.base = None

    def appear(self, path: str) -> None:
        self.dirty = True
        if path in self.deleted:
            self.deleted.discard(path)
            self.changed.add(path)
        else:
            self.created.add(path)

    def write(self, path: str) -> None:
        self.dirty = True
        if path not in self.created:
            self.changed.add(path)

    def vanish(self, path: str) -> None:
        self.dirty = True
        self.changed.discard(path)
        if path in self.created:
            self.created.discard(path)
        else:
            self.deleted.add(path)

    def stop(self, known: set[str]) -> None:
        """Stop following events. `known` are the files after those followed so far."""
        if self.base is None:
            self.base = (known - self.created) | self.deleted

    def compare(self, files: dict[str, int]) -> None:
        """Take the changes from a list of all files with the times of their last change.

        The kernel's clock for files may lag behind by a tick. Changes that early were followed as events.
        """
        assert self.base is not None
        later = {path for path, changed in files.items() if changed > self.since_nanoseconds}
        self.created = files.keys() - self.base
        self.deleted = self.base - files.keys()
        self.changed = (later | (self.changed & files.keys())) & self.base
        self.dirty = True
        self.base = None

    def changes(self) -> FileChanges | None:
        """Return the changes with sorted paths, or None if they are unknown or too many."""
        if self.base is not None or self.unknown:
            return None
        if not (self.created or self.changed or self.deleted):
            return NOTHING
        groups = (self.created, self.changed, self.deleted)
        count = sum(map(len, groups))
        if count > MAX_CHANGES or sum(len(path) for group in groups for path in group) > MAX_CHANGES_CHARS:
            return None
        return FileChanges(*(sorted(map(_visible, group)) for group in groups))


def _visible(path: str) -> str:
    """Return a path that can be shown: bytes that are no text as escapes."""
    return path.encode("utf-8", "backslashreplace").decode()
