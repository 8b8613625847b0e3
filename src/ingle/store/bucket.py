"""Objects in a bucket, by fsspec: S3 and what speaks its API, Google Cloud Storage.

The credentials are those that the library finds: environment, files of the user, or the machine's role.
"""

import os
import shutil
from typing import Any, BinaryIO

from ingle.store.objects import Entry

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
"""Seconds without a byte after which a request has failed. `Store` repeats it."""

ATTEMPTS = 2
"""Attempts of the client itself, within one of `Store`: a server may have closed an idle connection."""

CONNECTIONS = 32

SINGLE_BYTES = 8 * 1024 * 1024
"""Objects from this size on are uploaded in parts."""

COPY_BYTES = 4 * 1024 * 1024

OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "max_pool_connections": CONNECTIONS,
            "retries": {"total_max_attempts": ATTEMPTS, "mode": "standard"},
        },
        # Reading in several parts would ask for the size first: two requests for each of many small objects.
        "max_concurrency": 1,
    },
    "gs": {"requests_timeout": READ_SECONDS},
}


class BucketObjects:
    resolution = 1.0
    """S3 reports whole seconds."""

    def __init__(self, url: str) -> None:
        import fsspec

        scheme, _, path = url.partition("://")
        # Without caches: another server may have written a moment ago.
        options = {"use_listings_cache": False, "skip_instance_cache": True}
        self._files: Any = fsspec.filesystem(scheme, **options, **OPTIONS.get(scheme, {}), **_credentials(scheme))
        if scheme == "s3":
            self._files.retries = 1  # `Store` repeats what its client has repeated already
        self._root = path.strip("/")

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def read(self, path: str) -> bytes | None:
        try:
            data: bytes = self._files.cat_file(self._path(path))
        except FileNotFoundError:
            return None
        return data

    def write(self, path: str, data: bytes) -> None:
        self._files.pipe_file(self._path(path), data)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._files.pipe_file(self._path(path), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            # Not every server that speaks S3 names the condition that has failed.
            if "PreconditionFailed" in str(error.__cause__ or error):
                return False
            raise
        return True

    def upload(self, path: str, file: BinaryIO) -> None:
        first = file.read(SINGLE_BYTES)
        if len(first) < SINGLE_BYTES:
            self.write(path, first)  # one request instead of three
            return
        file.seek(0)
        target = self._files.open(self._path(path), "wb")
        try:
            shutil.copyfileobj(file, target, COPY_BYTES)
        except BaseException:
            # Closing it would publish the part that was written.
            target.discard()
            target.closed = True
            raise
        target.close()

    def download(self, path: str, file: BinaryIO) -> bool:
        try:
            # By its name in /dev/fd: the libraries take no open file. Unlike reading from `open`, it is one request.
            self._files.get_file(self._path(path), f"/dev/fd/{file.fileno()}")
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> list[Entry]:
        # With the last part as a filter it is one request, also where nothing is found.
        folder, _, last = self._path(prefix).removesuffix("/").rpartition("/")
        last += "/" if prefix.endswith("/") else ""
        try:
            found: dict[str, dict[str, Any]] = self._files.find(folder, prefix=last, detail=True)
        except FileNotFoundError:
            return []
        # Some stores list a folder itself, or an object that is no folder.
        inside = {path: about for path, about in found.items() if path.startswith(self._path(prefix))}
        return sorted(self._entry(path, about) for path, about in inside.items() if about.get("type") != "directory")

    def _entry(self, path: str, about: dict[str, Any]) -> Entry:
        modified: Any = about.get("LastModified") or about.get("updated") or about.get("mtime") or 0.0
        stamp: float = modified.timestamp() if hasattr(modified, "timestamp") else float(modified)
        version = str(about.get("ETag") or about.get("etag") or about.get("generation") or stamp)
        return Entry(path.removeprefix(self._root + "/"), int(about.get("size") or 0), stamp, version)

    def delete(self, path: str) -> None:
        try:
            self._files.rm_file(self._path(path))
        except FileNotFoundError:
            pass


def _credentials(scheme: str) -> dict[str, str]:
    """Return keys from the environment. They are removed there before a session could inherit them."""
    names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
    return {name: os.environ[each] for name, each in names.items() if scheme == "s3" and each in os.environ}
