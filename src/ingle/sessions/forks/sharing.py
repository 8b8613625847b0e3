"""Folder of a new session: its own, a granted one, or that of another session of its tenant."""

import os

import msgspec

from ingle import errors
from ingle.isolation.levels import Confinement
from ingle.requests import NewSession
from ingle.sessions.process.session_folders import SessionFolders
from ingle.sessions.session import Session
from ingle.sessions.spec import SessionSpec
from ingle_worker.wire.constants import HOMES


def placed(wanted: NewSession, original: Session | None, start: str | None) -> NewSession:
    """Return the request with its folder: that of `original` if there is one, or `start` for the owner's sessions."""
    _check_home(wanted)
    if original is not None:
        return _follow(wanted, original)
    if start is not None and not (wanted.cwd or wanted.own_folder or wanted.home or wanted.tenant):
        return msgspec.structs.replace(wanted, cwd=start)
    return wanted


def _check_home(wanted: NewSession) -> None:
    if wanted.home is not None and wanted.home not in HOMES:
        raise errors.InvalidRequest(f"home is {wanted.home[:80]!r}; it must be one of {', '.join(HOMES)}")


def _follow(wanted: NewSession, original: Session) -> NewSession:
    """Return the request of a session that shares the folder of `original`, with what it takes over."""
    if wanted.durable:
        raise errors.InvalidRequest("a durable session cannot share another's folder; leave out durable or shares")
    return msgspec.structs.replace(
        wanted,
        cwd=wanted.cwd or original.spec.cwd,
        home=wanted.home or original.spec.home or None,
    )


def share(spec: SessionSpec, original: Session, name: str) -> SessionSpec:
    """Return the description of a session whose folders are those of `original`, with some of its own below them."""
    if spec.grant.isolation != original.spec.grant.isolation:
        raise errors.InvalidRequest(
            f"session {original.id!r} has isolation {original.spec.grant.isolation!r}; "
            "a session that shares its folder must have the same"
        )
    return msgspec.structs.replace(spec, folders=original.folders.share(name))


def beside(original: Session, other: Session) -> SessionFolders:
    """Return the folders of `other`, for a fork of `original` that uses them."""
    if original.folders.root != other.folders.root:
        raise errors.InvalidRequest(
            f"session {other.id!r} does not descend from the session whose folder {original.id!r} uses; "
            "name a fork of that one"
        )
    return other.folders


def home_of(wanted: NewSession, confinement: Confinement | None) -> str:
    """Return the path at which a session sees its folder; empty where only the real path can be told.

    That is so without a mount namespace, and where the machine has such a folder: interpreters may be in there.
    """
    if wanted.home is None or confinement is None or not confinement.has_own_root or os.path.exists(wanted.home):
        return ""
    return wanted.home
