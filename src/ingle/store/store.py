"""The object store of a server: a folder, or a bucket by URL.

Calls run in threads and never block the event loop. Each has a time limit, and is repeated a few times. A call that
still fails raises an error that names the store and the next step. An upload is seen when it is complete. Its time is
bounded by the library, which gives up when no byte passes.
"""

import asyncio
import contextlib
import errno
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ingle import errors
from ingle.store.folder import FolderObjects
from ingle.store.objects import Entry, Objects
from ingle.support.threads import finished

ATTEMPTS = 3
PAUSE_SECONDS = 0.2
"""Pause before the second attempt; it doubles."""

CALL_SECONDS = 15.0
"""Longest time of one attempt for a small object."""

MIN_BYTES_PER_SECOND = 512 * 1024
"""Rate below which a write has failed."""

THREADS = 16

TRANSFERS = 12
"""Uploads and downloads at a time. Other threads are left to renewals of the lease and other small requests."""

FINAL = (errors.StoreRefused, errors.StoreFull)
"""Failures that another attempt does not mend."""

FULL = {"QuotaExceeded", "StorageFull", "InsufficientStorage", "507"}
"""Codes and the status with which a store answers that it is full."""

REFUSED = ("NoCredentials", "PartialCredentials", "CredentialRetrieval", "RefreshError", "DefaultCredentialsError")
_SECRET = re.compile(r"//[^/@]*@|\?.*")

T = TypeVar("T")


class Store:
    def __init__(self, objects: Objects, name: str) -> None:
        """`name` is the store's URL without secrets, for messages."""
        self.objects = objects
        self.name = name
        self._threads = ThreadPoolExecutor(THREADS, "ingle-store")
        self._transfers = asyncio.Semaphore(TRANSFERS)

    async def read(self, path: str) -> bytes | None:
        """Return the content of an object, or None if there is none."""
        return await self._call(partial(self.objects.read, path))

    async def write(self, path: str, data: bytes, *, attempts: int = ATTEMPTS) -> None:
        """Create or replace an object."""
        seconds = CALL_SECONDS + len(data) / MIN_BYTES_PER_SECOND
        await self._call(partial(self.objects.write, path, data), seconds, attempts)

    async def create(self, path: str, data: bytes) -> bool:
        """Create an object unless it exists. Return True for exactly one caller.

        `data` must differ between callers. It tells the own object after an attempt of which the answer was lost.
        """
        lost = False
        for attempt in range(ATTEMPTS):
            try:
                made = await self._attempt(partial(self.objects.create, path, data), CALL_SECONDS)
            except errors.StoreFailed as error:
                if attempt == ATTEMPTS - 1 or isinstance(error, FINAL):
                    raise
                lost = True
                await asyncio.sleep(PAUSE_SECONDS * 2**attempt)
            else:
                return made or (lost and await self.read(path) == data)
        raise AssertionError

    async def upload(self, path: str, fd: int) -> None:
        """Create or replace an object with all that a file holds."""

        def work() -> None:
            with open(fd, "rb", closefd=False) as file:
                file.seek(0)
                self.objects.upload(path, file)

        async with self._transfers:
            await self._call(work, None)

    async def download(self, path: str, fd: int) -> bool:
        """Write the content of an object to an empty file. Return False if there is none."""

        def work() -> bool:
            with open(fd, "r+b", closefd=False) as file:
                file.seek(0)
                file.truncate()
                return self.objects.download(path, file)

        async with self._transfers:
            return await self._call(work, None)

    async def list(self, prefix: str) -> list[Entry]:
        """Return all objects whose path begins with a prefix, sorted by path. See `Objects.list`."""
        return await self._call(partial(self.objects.list, prefix))

    async def delete(self, path: str) -> None:
        """Remove an object, if it exists."""
        await self._call(partial(self.objects.delete, path))

    async def check(self) -> None:
        """Raise StoreFailed unless the store can be written, and keeps its word on exclusive creation."""
        path = f"checks/{secrets.token_hex(8)}"
        try:
            first = await self.create(path, b"first")
            second = await self._attempt(partial(self.objects.create, path, b"second"), CALL_SECONDS)
            listed = [each.path for each in await self.list("checks/")]
        finally:
            with contextlib.suppress(errors.StoreFailed):
                await self.delete(path)
        if not first or second or path not in listed:
            raise errors.StoreFailed(
                f"the store {self.name} does not create objects exclusively (If-None-Match), so two servers could own "
                "one session; use a store that does, such as S3, MinIO, Google Cloud Storage or a folder"
            )

    async def _call(self, work: Callable[[], T], seconds: float | None = CALL_SECONDS, attempts: int = ATTEMPTS) -> T:
        attempt = 0
        while True:
            try:
                return await self._attempt(work, seconds)
            except errors.StoreFailed as error:
                attempt += 1
                if attempt == attempts or isinstance(error, FINAL):
                    raise
            await asyncio.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))

    async def _attempt(self, work: Callable[[], T], seconds: float | None) -> T:
        """Run work in a thread. Without a time limit it is waited for in any case: it uses a file of the caller."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            if seconds is None:
                return await finished(running)
            async with asyncio.timeout(seconds):
                return await running
        except TimeoutError:
            limit = CALL_SECONDS if seconds is None else seconds
            raise errors.StoreFailed(
                f"the store {self.name} did not answer within {limit:.0f} s; check the network and the store, and retry"
            ) from None
        except Exception as error:  # the library of each kind of store has errors of its own
            raise _named(error, self.name) from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def open_store(url: str) -> Store:
    """Return the store of a URL, or of a folder by its absolute path. Blocks while the library is imported."""
    name = _SECRET.sub(lambda match: "//" if match[0].startswith("//") else "", url)
    if url.startswith("file://") or "://" not in url:
        path = Path(url.removeprefix("file://")).expanduser()
        if not path.is_absolute():
            raise errors.InvalidRequest(f"the store {url!r} is a relative path; give a URL or an absolute path")
        return Store(FolderObjects(path), str(path))
    from ingle.store.bucket import BucketObjects

    try:
        return Store(BucketObjects(url), name)
    except ImportError as error:
        raise errors.InvalidRequest(
            f"the store {name} needs a package that is missing ({error}); "
            "install `ingle[store]` for s3://, and gcsfs for gs://"
        ) from None
    except ValueError as error:
        raise errors.InvalidRequest(
            f"the store {name} is of an unknown kind ({error}); use a folder, s3:// or gs://"
        ) from None


def _named(error: Exception, name: str) -> errors.StoreFailed:
    """Return an exception of a store's library as an error of ingle."""
    cause = error.__cause__ or error
    text = f"{type(cause).__name__}: {cause}"[:500]
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or not FULL.isdisjoint(_answered(cause)):
        return errors.StoreFull(f"the store {name} is full ({text}); free space there or raise its quota, and retry")
    if isinstance(error, PermissionError) or any(word in text for word in REFUSED):
        return errors.StoreRefused(
            f"the store {name} refuses this server ({text}); check the server's credentials, and that they may read, "
            "write, list and delete there"
        )
    if isinstance(error, FileNotFoundError):
        return errors.StoreFailed(f"the store {name} does not exist ({text}); create the bucket or the folder")
    return errors.StoreFailed(f"the store {name} failed ({text}); check the network and the store, and retry")


def _answered(error: BaseException) -> set[str]:
    """Return the code and the status in the answer of a store. The text is no help: it may quote any path."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return {str(getattr(error, "code", ""))}
    return {
        str(response.get("Error", {}).get("Code")),
        str(response.get("ResponseMetadata", {}).get("HTTPStatusCode")),
    }
