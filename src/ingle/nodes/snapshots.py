"""Snapshots of this machine's sessions: saving a live copy of the worker, and loading into a new session.

A save or a load that has begun is finished, also when its caller has gone. A target is a plain name, or the path of a
file below the session's folder or the start folder: a path has a `/`, or ends in `.ingle`. No other file is written or
read.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec

from ingle import errors
from ingle.events import Restored, Saved, Skipped, SnapshotInfo
from ingle.files import VariableState
from ingle.isolation.paths import real_path
from ingle.isolation.policy import Policy
from ingle.render.phrases import duration, some
from ingle.requests import Bounds, NewSession
from ingle.sessions.files import LocalFile, SessionFiles, split_path, system_errors
from ingle.sessions.manager import Manager
from ingle.sessions.persistence.comparison import Moment
from ingle.sessions.persistence.fingerprints import Fingerprint
from ingle.sessions.persistence.save_store import MAX_SLOW, Slots
from ingle.sessions.persistence.transfer import Transfer
from ingle.sessions.session import Session
from ingle.sessions.spec import NAME, check_name, tenant_of
from ingle.settings import LEVELS
from ingle.snapshots import disk_errors, manifest
from ingle.snapshots.manifest import Manifest, Summary
from ingle.snapshots.pack import write_whole
from ingle.snapshots.store import LoadableSnapshot, LoadCandidates, Snapshots
from ingle.trees.store import NotKept, Trees
from ingle.workers.worker import Worker

SUFFIX = ".ingle"
"""Suffix of every portable file, so that no interpreter or other program takes it for one of its own."""

CODE_FOLDERS = {"site-packages", "dist-packages"}

MAX_TRANSFERS = 4
"""Quick saves and loads at a time; others wait for their turn."""

FINISH_SAVE_SECONDS = 10.0
"""Time for a save to finish after its session was ended."""

DISK_THREADS = 4
"""Threads for work on the disk that waits for no session."""

Result = TypeVar("Result")


class LocalSnapshots:
    """Saved sessions of the node on this machine."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._executor = ThreadPoolExecutor(DISK_THREADS, "ingle-snapshots")
        # A slow session occupies a thread for as long as it likes, so that others need threads of their own.
        self._channels = ThreadPoolExecutor(MAX_TRANSFERS + MAX_SLOW, "ingle-channels")
        self._places = Slots(MAX_TRANSFERS)
        self._tasks: set[asyncio.Task[object]] = set()

    def of(self, tenant: str) -> Snapshots:
        """Return the store of a tenant."""
        return self._manager.saves.of(tenant)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for executor in (self._executor, self._channels):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _finish(self, task: "asyncio.Task[Result]") -> Result:
        """Wait for a task that goes on when its caller is cancelled."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        def plainly() -> Result:
            with disk_errors.system_errors("what is saved in the data folder"):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._executor, plainly)

    # --- saving ---

    async def save(self, session: Session, target: str, start: str | None) -> Saved:
        """Save a session under a name, or to a file below its folder or the start folder."""
        return await self._finish(asyncio.get_running_loop().create_task(self._save(session, target, start)))

    async def _save(self, session: Session, target: str, start: str | None) -> Saved:
        place = await self._place_of_save(session, target, start) if _is_path(target) else None
        target = target if place is None or target.endswith(SUFFIX) else target + SUFFIX
        began = time.monotonic()
        python, cell = session.info().python, session.last_cell
        copied = await session.copy()
        copy, files = copied.worker, session.kept_files.packed(copied.files)

        def describe(summary: Summary) -> Manifest:
            return Manifest(
                version=manifest.VERSION,
                session_id=session.id,
                saved_at=time.time(),
                python=python,
                isolation=session.spec.grant.isolation,
                cell=cell,
                stdlib=session.spec.library is not None,
                summary=summary,
            )

        snapshots = self.of(tenant_of(session.key))

        scratch = await self._in_thread(snapshots.chunks.scratch) if place is not None else -1
        replaced = await self._find_replaced(session, target) if place is None else []

        def take(connection: socket.socket) -> tuple[Manifest, int]:
            if place is None:
                return snapshots.save(target, connection, describe, files=files)
            return snapshots.save_portable(scratch, connection, describe, files)

        ending = asyncio.get_running_loop().create_task(_end_with(session, copy))
        try:
            async with self._places.one():
                made, new = await Transfer().save(copy, take, self._channels)
            if place is None:
                await self._send(tenant_of(session.key), target)
            else:
                folder, path = place
                complete = LocalFile(os.dup(scratch))
                try:
                    await folder.write(path, complete.chunks(0, complete.size), complete.size, mode=0o600)
                finally:
                    complete.close()
        finally:
            ending.cancel()
            copy.kill()  # it still runs if the save never got its turn
            session.kept_files.release(copied.files)
            if scratch >= 0:
                os.close(scratch)
        took = time.monotonic() - began
        summary = made.summary
        notices = [*replaced, *(each.replace("not copied", "not saved") for each in copied.notices)]
        if made.no_files:
            notices.append(f"the files are not saved: {made.no_files}")
        elif not isinstance(copied.files, NotKept):
            notices += copied.files.tree.notices
        return Saved(
            session_id=session.id,
            snapshot=target,
            variables=len(summary.variables),
            size=made.size,
            new_bytes=new,
            skipped=summary.skipped,
            paused=copied.paused,
            execution_time=took,
            notices=notices,
            files=None if made.files is None else made.files.count,
        )

    async def _find_replaced(self, session: Session, name: str) -> list[str]:
        """Return a notice if a save under this name replaces one of another session or of another ingle."""
        tenant = tenant_of(session.key)
        # The save itself reports a failing store.
        with contextlib.suppress(errors.StoreFailed):
            await self._fetch(tenant, name, whole=False)
        try:
            found = await self._in_thread(lambda: self.of(tenant).read(name))
        except errors.SnapshotUntrusted:
            return [f"it replaced a snapshot {name!r} that another ingle wrote; to keep both, use another name"]
        except errors.IngleError:
            return []
        if found.session_id == session.id:
            return []
        age = duration(max(0.0, time.time() - found.saved_at))
        return [
            f"it replaced a snapshot {name!r} of session {found.session_id!r}, saved {age} ago after cell "
            f"{found.cell}; to keep both, use another name"
        ]

    async def _send(self, tenant: str, name: str) -> None:
        """Have a snapshot in the object store too, if there is one."""
        shared = self._manager.saves.shared
        if shared is not None:
            try:
                await shared.push_named(tenant, self.of(tenant), name)
            except errors.StoreFailed as error:
                raise type(error)(f"the snapshot {name!r} is saved on this machine only: {error.message}") from None

    async def _fetch(self, tenant: str, name: str, *, whole: bool = True) -> None:
        """Have a snapshot of the object store on the disk. A path is none of its names."""
        shared = self._manager.saves.shared
        if shared is not None and NAME.fullmatch(name):
            await shared.pull_named(tenant, self.of(tenant), name, whole=whole)

    async def _place_of_save(self, session: Session, target: str, start: str | None) -> tuple[SessionFiles, str]:
        """Return the folder of a save to a path, as the session sees it, and the path of the file below that folder."""
        own = session.spec.cwd or session.folders.workspace
        root, path = _place(target, [*([start] if start else []), own])
        path = path if path.endswith(SUFFIX) else path + SUFFIX
        split_path(path)
        await asyncio.to_thread(_refuse_code_folders, os.path.join(root, path), self._manager.grants.policy)
        return (await session.files() if root == own else await session.files_below(root)), path

    # --- loading ---

    async def load(
        self, new: NewSession, source: str, start: str | None, *, trust: bool = False, rerun: bool = False
    ) -> Restored:
        """Create a session with the variables of a snapshot.

        `trust`: accept a snapshot of any writer. `rerun`: run the cells again that made what could not be saved.
        """
        return await self._finish(asyncio.get_running_loop().create_task(self._load(new, source, start, trust, rerun)))

    async def _load(self, new: NewSession, source: str, start: str | None, trust: bool, rerun: bool) -> Restored:
        began = time.monotonic()
        snapshots = self.of(new.tenant)
        await self._fetch(new.tenant, source)
        opening = await self._in_thread(lambda: self._open(snapshots, source, start, trust))
        with contextlib.ExitStack() as stack:
            stack.callback(opening.close)
            first: errors.SnapshotDamaged | None = None
            while True:
                opened = await self._in_thread(opening.next)
                if opened is None:
                    raise first or errors.SnapshotNotFound(source)
                if first is not None:
                    opened.notices.insert(0, f"the last save could not be used: {first.message}")
                try:
                    return await self._restore(new, opened, began, rerun)
                except errors.SnapshotDamaged as error:
                    first = first or error

    def _open(self, snapshots: Snapshots, source: str, start: str | None, trust: bool) -> LoadCandidates:
        if not _is_path(source):
            return LoadCandidates(snapshots.opened(source, trust))
        if start is None:
            raise errors.InvalidRequest(
                f"{source[:200]!r} is not the name of a snapshot, and files are loaded from a start folder only, which "
                "this service has not; list the snapshots"
            )
        root, path = _place(source, [start])
        try:
            fd = _open_below(root, path)
        except errors.FileNotThere:
            if source.endswith(SUFFIX):
                raise errors.SnapshotNotFound(source) from None
            return self._open(snapshots, source + SUFFIX, start, trust)
        return LoadCandidates(snapshots.opened_portable(fd, source, trust))

    async def _restore(self, new: NewSession, opened: LoadableSnapshot, began: float, rerun: bool) -> Restored:
        found = opened.manifest
        if found.isolation not in LEVELS:
            raise errors.SnapshotDamaged(opened.name, "it is of a level of isolation that there is not")
        floor = new.bounds.isolation
        if floor is None or LEVELS.index(floor) < LEVELS.index(found.isolation):
            bounds = msgspec.structs.replace(new.bounds, isolation=found.isolation)
            new = msgspec.structs.replace(new, bounds=bounds)
        name = new.session_id if new.session_id is not None else found.session_id
        new = msgspec.structs.replace(new, session_id=name, include_stdlib=found.stdlib)
        failed: list[Skipped] = []
        notices = [*opened.notices]
        names: list[str] = []
        files: int | None = None

        async def fill(session: Session) -> None:
            nonlocal files
            summary = msgspec.json.encode(found.summary)
            async with self._places.one():
                files, about_files = await session.load_files(opened)
                loaded = await session.load(summary, opened.send, self._channels, rerun=rerun)
            names.extend(loaded.names)
            failed.extend(Skipped(each.name, each.type, each.reason[:1000]) for each in loaded.failed)
            notices.extend(each[:1000] for each in loaded.notices[:20])
            notices.extend(about_files)
            python = session.info().python
            if python.split(".")[:2] != found.python.split(".")[:2]:
                notices.append(f"it was saved by Python {found.python} and is loaded into {python}")

        session = await self._manager.create(new, fill)
        skipped = [each for each in found.summary.skipped if each.name not in names]
        if not rerun:
            notices += _how_to_make(skipped)
        return Restored(
            session=session.info(),
            snapshot=opened.name,
            saved_at=found.saved_at,
            variables=len(names),
            skipped=[*failed, *skipped],
            execution_time=time.monotonic() - began,
            notices=notices,
            files=files,
        )

    # --- comparing ---

    async def moment(self, session: Session, name: str, seconds: float) -> Moment:
        """Return the files and variables of a snapshot, as a session of the same tenant would load them."""
        tenant = session.spec.tenant
        if not NAME.fullmatch(name):
            raise errors.SnapshotNotFound(name)
        await self._fetch(tenant, name)
        opening = await self._in_thread(lambda: self._open(self.of(tenant), name, None, False))
        try:
            opened = await self._in_thread(opening.next)
            if opened is None:
                raise errors.SnapshotNotFound(name)
            variables = await self._variables(session, opened, seconds)
            return Moment(Trees(await session.kept_files.unpack(opened)), variables)
        finally:
            opening.close()

    async def _variables(
        self, session: Session, opened: LoadableSnapshot, seconds: float
    ) -> dict[str, Fingerprint] | str:
        """Load a snapshot into a hidden session, and return its variables, or why they are not known."""
        found = opened.manifest
        levels = [each for each in (found.isolation, session.spec.grant.isolation) if each in LEVELS]
        bounds = Bounds(isolation=max(levels, key=LEVELS.index))
        try:
            async with self._places.one(), self._manager.scratch(session.spec.tenant, bounds) as scratch:
                summary = msgspec.json.encode(found.summary)
                loaded = await scratch.load(summary, opened.send, self._channels)
                moment = await scratch.comparison.now(seconds)
        except errors.LoadFailed as error:
            return error.message
        session.kept_files.release(moment.files.own)
        if isinstance(moment.variables, str):
            return moment.variables
        unknown = {each.name: each.type for each in found.summary.skipped}
        unknown |= {each.name: each.type for each in loaded.failed}
        lost = {each: Fingerprint(VariableState(kind), 0) for each, kind in unknown.items() if not each.startswith("_")}
        return lost | moment.variables

    # --- the store ---

    async def session_of(self, tenant: str, name: str) -> str:
        """Return the name of the session that was saved as a snapshot."""
        if _is_path(name):
            raise errors.SnapshotNotFound(name)
        await self._fetch(tenant, name, whole=False)
        return (await self._in_thread(lambda: self.of(tenant).read(name))).session_id

    async def delete(self, tenant: str, name: str) -> None:
        if not NAME.fullmatch(name):
            raise errors.SnapshotNotFound(name)
        await self._fetch(tenant, name, whole=False)
        shared = self._manager.saves.shared
        if shared is not None:
            await shared.named(tenant).remove(name)
        await self._in_thread(lambda: self.of(tenant).delete(name))

    async def open(self, tenant: str, name: str) -> LocalFile:
        """Return a snapshot as one file. The file has no name and vanishes when it is closed."""
        if not NAME.fullmatch(name):
            raise errors.SnapshotNotFound(name)
        await self._fetch(tenant, name)
        snapshots = self.of(tenant)

        def write() -> LocalFile:
            fd = snapshots.chunks.scratch()
            try:
                snapshots.export(name, fd)
                os.lseek(fd, 0, os.SEEK_SET)
                return LocalFile(fd)
            except BaseException:
                os.close(fd)
                raise

        return await self._in_thread(write)

    async def write(self, tenant: str, name: str, chunks: AsyncIterator[bytes], limit: int) -> SnapshotInfo:
        """Store a portable file under a name, while its chunks arrive."""
        snapshots = self.of(tenant)
        fd = await self._in_thread(snapshots.chunks.scratch)
        size = 0
        try:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise errors.TooLarge(f"the file is above the limit of {limit} bytes; raise max_snapshot")
                await self._in_thread(partial(write_whole, fd, chunk))
            found = await self._in_thread(lambda: snapshots.import_file(name, os.dup(fd)))
            await self._send(tenant, name)
        finally:
            os.close(fd)
        return found.info(name)

    async def list(self, tenant: str) -> AsyncIterator[SnapshotInfo]:
        snapshots, shared = self.of(tenant), self._manager.saves.shared
        here = set(await self._in_thread(snapshots.names))
        there = set() if shared is None else {*await shared.named(tenant).names()}
        elsewhere = there - here
        if shared is not None:
            for name in here - there:
                await self._in_thread(partial(snapshots.forget_shared, name))
        for name in sorted(here | elsewhere):
            if name in elsewhere:
                await self._fetch(tenant, name, whole=False)
            try:
                found = await self._in_thread(partial(snapshots.read, name))
                yield found.info(name)
            except errors.SnapshotNotFound:
                continue  # it was deleted meanwhile
            except errors.IngleError as error:
                yield SnapshotInfo(name, problem=error.message)


def _how_to_make(skipped: list[Skipped]) -> list[str]:
    """Name the cells that made what could not be saved."""
    made = [each for each in skipped if each.made_by]
    if not made:
        return []
    cells = list(dict.fromkeys(each.made_by.strip("<>") for each in made))
    names = some([each.name for each in made])
    return [f"{names}: made by {some(cells)}; load it with rerun to run {'it' if len(cells) == 1 else 'them'} again"]


async def _end_with(session: Session, copy: Worker) -> None:
    """Kill the copy after its session has ended, since saving runs the user's code in it."""
    await session.wait_ended()
    await asyncio.sleep(FINISH_SAVE_SECONDS)
    copy.kill("was killed: its session was ended")


def _is_path(target: str) -> bool:
    """Return whether a target is a path; otherwise it is a name. Raise InvalidName if it is neither."""
    if NAME.fullmatch(target):
        return False
    if "/" not in target and not target.endswith(SUFFIX):
        check_name(target)
    return True


def _place(target: str, folders: list[str]) -> tuple[str, str]:
    """Return the folder that a path lies below, and the path from there."""
    if not target or "\0" in target or target.endswith("/"):
        raise errors.InvalidRequest(f"{target[:200]!r} is neither a name nor the path of a file")
    if target.startswith("~"):
        raise errors.InvalidRequest(f"write the path in full instead of {target[:200]!r}; `~` is not expanded here")
    if not os.path.isabs(target):
        return folders[0], os.path.normpath(target) if not target.startswith("..") else target
    for folder in folders:
        root = real_path(folder)
        for base in (root, folder):
            if target.startswith(base.rstrip("/") + "/"):
                return folder, os.path.relpath(target, base)
    raise errors.InvalidRequest(
        f"{target[:200]!r} is outside of the session's folder; give a plain name, or a path below that folder"
    )


def _refuse_code_folders(path: str, policy: Policy) -> None:
    """Raise NotGranted if an interpreter or this server loads code from the folder of this path."""
    folder = real_path(os.path.dirname(path))
    if policy.loads_code_from(folder) or not CODE_FOLDERS.isdisjoint(folder.split("/")):
        raise errors.NotGranted(
            f"{path[:200]!r} lies in a folder that Python loads code from; save under a plain name, "
            "or in another folder"
        )


def _open_below(root: str, path: str) -> int:
    """Open a file below a folder without following any symbolic link."""
    *way, name = split_path(path)
    with system_errors(path), contextlib.ExitStack() as stack:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        for part in way:
            fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            stack.callback(os.close, fd)
        # Without O_NONBLOCK, the open of a pipe without a writer blocks. The reader refuses what is no regular file.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
