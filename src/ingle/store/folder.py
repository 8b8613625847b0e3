"""Objects in a folder, which several machines may share. It needs no package.

An object gets its name when it is complete and on the disk, so a crash leaves no part of one.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ingle.snapshots.disk_errors import make_folder, sync_folder
from ingle.store.objects import Entry

DRAFT = ".part"
COPY_BYTES = 1024 * 1024


class FolderObjects:
    resolution = 0.01
    """File systems take the time from a clock that ticks every few milliseconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str) -> bytes | None:
        try:
            return (self._folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        self._publish(path, lambda file: file.write(data), os.replace)

    def create(self, path: str, data: bytes) -> bool:
        try:
            # Unlike a rename, a link never replaces a file.
            self._publish(path, lambda file: file.write(data), os.link)
        except FileExistsError:
            return False
        return True

    def upload(self, path: str, file: BinaryIO) -> None:
        self._publish(path, lambda target: shutil.copyfileobj(file, target, COPY_BYTES), os.replace)

    def _publish(self, path: str, fill: Callable[[BinaryIO], object], publish: Callable[[Path, Path], object]) -> None:
        target = self._folder / path
        make_folder(target.parent)
        draft = target.with_name(f".{secrets.token_hex(8)}{DRAFT}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(fd)
            publish(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(target.parent)

    def download(self, path: str, file: BinaryIO) -> bool:
        try:
            with (self._folder / path).open("rb") as source:
                shutil.copyfileobj(source, file, COPY_BYTES)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> list[Entry]:
        found = []
        for folder, _, names in os.walk(self._folder / prefix.rpartition("/")[0]):
            for name in names:
                where = Path(folder, name).relative_to(self._folder).as_posix()
                if where.startswith(prefix) and not name.endswith(DRAFT):
                    with contextlib.suppress(FileNotFoundError):
                        about = (self._folder / where).stat()
                        version = f"{about.st_ino}.{about.st_mtime_ns}.{about.st_size}"
                        found.append(Entry(where, about.st_size, about.st_mtime, version))
        return sorted(found)

    def delete(self, path: str) -> None:
        (self._folder / path).unlink(missing_ok=True)
