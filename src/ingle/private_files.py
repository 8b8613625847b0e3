"""Checks of files that decide what ingle does: only this user and root may have written them. Every function blocks."""

import contextlib
import os
import stat
from pathlib import Path

from ingle.errors import DataFolderFailed

GROUP_OR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def check_folder(folder: Path) -> None:
    """Raise DataFolderFailed if another user can write the data folder, or put another in its place.

    A user who can write it can grant folders in `config.toml`, make tokens, and sign snapshots. A folder that does not
    exist is made for this user only.
    """
    try:
        _check(os.stat(folder), folder, f"`chmod go-w {folder}`")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DataFolderFailed(
            f"the data folder {folder} cannot be used: {error.strerror}; name another by INGLE_HOME"
        ) from None
    for parent in Path(os.path.realpath(folder)).parents:
        with contextlib.suppress(OSError):
            mode = os.stat(parent).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise DataFolderFailed(
                    f"others can replace the data folder {folder}, because they can write {parent}; "
                    f"`chmod o-w {parent}`, or name another data folder by INGLE_HOME"
                )


def check_file(fd: int, file: Path) -> None:
    """Raise DataFolderFailed if another user owns an open file of the data folder, or can write it."""
    _check(os.fstat(fd), file, f"`chmod go-w {file}`")


def _check(about: os.stat_result, path: Path, remedy: str) -> None:
    if about.st_uid not in (0, os.geteuid()):
        raise DataFolderFailed(
            f"{path} belongs to another user (uid {about.st_uid}), who could give orders to this server; "
            "`chown` it, or name another data folder by INGLE_HOME"
        )
    if about.st_mode & GROUP_OR_OTHERS:
        raise DataFolderFailed(f"others can write {path}; {remedy}, or name another data folder by INGLE_HOME")
