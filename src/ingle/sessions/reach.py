"""Folders that callers may name by their absolute paths: those granted to the session.

The host only chooses the folder to start at. The file agent opens it, with the rights of the session.
"""

from dataclasses import dataclass

from ingle import errors
from ingle.grants import OPEN_LEVELS
from ingle.isolation.levels import TMP, Confinement
from ingle.isolation.policy import Mount
from ingle.sessions.spec import SessionSpec


@dataclass(frozen=True)
class Reach:
    """Folders of one session, beside its own."""

    folders: tuple[Mount, ...]
    free: bool
    """Whether any path may be named: the session has the rights of the server, and is the owner's."""

    @classmethod
    def of(cls, spec: SessionSpec, workspace: str, confinement: Confinement | None) -> "Reach":
        """Return what a worker with this confinement reaches. Its folders may be newer than the session."""
        own = [Mount(workspace), *(Mount(each) for each in (spec.cwd, spec.home) if each)]
        if confinement is not None and confinement.has_own_root:
            own.append(Mount(TMP))
        newer: list[Mount] = []
        # At the other levels all tenants share a launcher, whose plan has the folders of the first one.
        if confinement is not None and spec.grant.isolation not in OPEN_LEVELS:
            newer = [Mount(folder, not writable) for folder, writable in confinement.granted]
        free = spec.grant.isolation in OPEN_LEVELS and not spec.tenant
        return cls((*own, *spec.grant.mounts, *newer), free)

    def find(self, path: str, *, write: bool) -> tuple[str, str]:
        """Return the folder to start at, and the path below it. Raise NotGranted for a path that is not granted."""
        path = path.rstrip("/") or "/"
        around = [mount for mount in self.folders if mount.holds(path)]
        if around:
            # Of two that are equal the later one counts, as in a sandbox.
            inner = max(enumerate(around), key=lambda each: (len(each[1].folder), each[0]))[1]
            if write and inner.read_only:
                raise errors.NotGranted(
                    f"{path[:200]!r} lies in a folder that this session may only read; write elsewhere, or ask the "
                    "operator to grant the folder without :ro"
                )
            return inner.folder, path[len(inner.folder.rstrip("/")) :].lstrip("/")
        if self.free:
            folder, _, name = path.rpartition("/")
            return folder or "/", name
        raise errors.NotGranted(
            f"{path[:200]!r} is in no folder of this session; use a path relative to the session's folder, or ask the "
            f"operator for --mount {path[:200]}"
        )
