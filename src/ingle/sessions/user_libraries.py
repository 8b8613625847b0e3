"""Users' libraries of one node: read for new sessions, listed, and extended.

A library is parsed, compiled and run only in a hidden session that is made for it.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from ingle import errors
from ingle.events import Stdlib, StdlibChange, StdlibFunction, StdlibModule, StdlibOther
from ingle.requests import Bounds
from ingle.sessions.session import Session
from ingle.snapshots.user_library import MAX_BYTES, Library, StdlibFile
from ingle_worker.wire import messages

MAX_TRIES = 5
"""How often an addition is repeated because another server has changed the library meanwhile."""


class UserLibraries:
    def __init__(self, home: Path, scratch: Callable[[str, Bounds], AbstractAsyncContextManager[Session]]) -> None:
        self._home = home
        self._scratch = scratch
        self._files: dict[str, StdlibFile] = {}

    def _file(self, tenant: str) -> StdlibFile:
        if tenant not in self._files:
            path = self._home / "stdlibs" / f"{tenant}.py" if tenant else self._home / "stdlib.py"
            self._files[tenant] = StdlibFile(path)
        return self._files[tenant]

    async def read(self, tenant: str) -> Library | None:
        """Return the library that a new session begins with."""
        return await self._file(tenant).read()

    async def list(self, tenant: str) -> Stdlib:
        """Return what is in the library, without running it."""
        library = await self.read(tenant)
        if library is None:
            return Stdlib()
        if library.problem:
            return Stdlib(problem=library.problem)
        if library.listing is None:
            async with self._scratch(tenant, Bounds()) as session:
                described, _ = await session.edit_library(library.text, "")
            if described is None:
                return Stdlib(problem="looking at it took too long, or ended the process")
            library.listing = _listing(described)
        return library.listing

    async def add(self, tenant: str, addition: str, bounds: Bounds) -> StdlibChange:
        """Add code that compiles and runs together with the library. Other code is refused, and nothing changes.

        The code runs as confined as a session of a caller with these bounds.
        """
        if not addition.strip():
            raise errors.StdlibRefused("there is no code; give the whole of a function, from its `def` on")
        file = self._file(tenant)
        async with file.adding:
            for _ in range(MAX_TRIES):
                before = await file.read()
                if before is not None and before.problem:
                    raise errors.StdlibRefused(f"of the file as it is, {before.problem}")
                described = await self._try(tenant, bounds, before.text if before is not None else b"", addition)
                if await file.write(before, described.data):
                    listing = _listing(described)
                    return StdlibChange(
                        listing.functions,
                        listing.modules,
                        listing.other,
                        listing.count,
                        added=described.added,
                        replaced=described.replaced,
                    )
        raise errors.Conflict("the library is being changed by others all the time; try again")

    async def _try(self, tenant: str, bounds: Bounds, text: bytes, addition: str) -> messages.StdlibDescribed:
        """Return the library with the addition, after it was loaded once."""
        async with self._scratch(tenant, bounds) as session:
            described, loaded = await session.edit_library(text, addition)
        if described is None:
            raise errors.StdlibRefused("looking at it took too long, or ended the process")
        problem = described.problem or (loaded.problem if loaded is not None else "it ends the process that loads it")
        if not problem and len(described.data) > MAX_BYTES:
            problem = f"the library would be larger than {MAX_BYTES} bytes; put data into files"
        if problem:
            raise errors.StdlibRefused(problem)
        return described


def _listing(described: messages.StdlibDescribed) -> Stdlib:
    return Stdlib(
        [StdlibFunction(each.name, each.signature, each.doc) for each in described.functions],
        [StdlibModule(each.name, each.module) for each in described.modules],
        [StdlibOther(each.name, each.kind, each.doc) for each in described.other],
        described.count,
        described.problem or None,
    )
