"""Verb for batches: the same code once for each item, each time in a session of its own.

Results come in the order in which items end. An item begins only when a result was taken, so a slow reader slows the
batch down and never fills the memory. Closing the stream of results ends the items that run.
"""

import asyncio
import contextlib
import hashlib
import io
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from ingle import errors
from ingle.batches import BatchItem, FileBytes, ItemProblem, ItemResult, NewBatch
from ingle.callers import EXECUTE
from ingle.events import Result
from ingle.isolation.limits.limits import is_named
from ingle.nodes import Node, SessionHandle
from ingle.requests import Author, NewCell
from ingle.service.access import Access
from ingle.service.validation import check_batch
from ingle.service.verbs import Verbs
from ingle.support.processes import usable_cores
from ingle_worker.wire import states

ITEMS_PER_CORE = 2
"""Items that run at once by default: while one starts or ends, another one computes."""

CAPACITY_SECONDS = 60.0
"""Time that an item waits while all sessions are in use."""

RETRY_SECONDS = 1.0
"""Longest pause before such an item tries again."""

POLL_SECONDS = 60.0
"""Length of each wait for an item that runs."""

NOT_RUN = "not_run"
"""Status of an item that could not be started."""

FULL = (errors.TooManySessions, errors.Overloaded, errors.QuotaExceeded)
"""Refusals that pass when other sessions end."""

KILLED = "was killed: "
"""Begin of the message of an exit by a limit."""


class Batches(Verbs):
    async def batch(self, batch: NewBatch) -> AsyncGenerator[ItemResult, None]:
        """Check a batch and return its results as they come. The caller closes the generator. Nothing runs before.

        A second batch with the same `key` raises BatchBegun.
        """
        self.access.check(EXECUTE)
        self.access.check_accepting()
        check_batch(batch, self.settings.max_code)
        if batch.key is not None:
            await self._begin_once(batch)
        caller = self.access.caller
        session = msgspec.structs.replace(
            batch.session, tenant=caller.tenant, bounds=caller.bounds, one_off=True, own_folder=True
        )
        runner = ItemRunner(self.access, self._node, msgspec.structs.replace(batch, session=session))
        cores = usable_cores()
        quotas = [each for each in (caller.limits.sessions, caller.limits.running) if each]
        return _results(runner, batch.items, min([batch.concurrency or ITEMS_PER_CORE * cores, *quotas]))

    async def _begin_once(self, batch: NewBatch) -> None:
        """Take the idempotency key. Raise BatchBegun if another batch has it."""
        digest = await asyncio.to_thread(lambda: hashlib.blake2b(msgspec.json.encode(batch)).hexdigest())
        begun: list[bool] = []

        async def begin() -> bool:
            begun.append(True)
            return True

        await self.access.once(batch.key, ("batch", digest), begin)
        if not begun:
            raise errors.BatchBegun


async def _results(runner: "ItemRunner", items: list[BatchItem], concurrency: int) -> AsyncGenerator[ItemResult, None]:
    """Run the items, and yield the result of each as it ends."""
    loop = asyncio.get_running_loop()
    waiting = iter(enumerate(items))
    running: set[asyncio.Task[ItemResult]] = set()
    try:
        while True:
            while len(running) < concurrency and (following := next(waiting, None)) is not None:
                running.add(loop.create_task(runner.run(*following)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


class ItemRunner:
    """Runs the items of one batch, each from its session's start to its session's end."""

    def __init__(self, access: Access, node: Node, batch: NewBatch) -> None:
        self._access = access
        self._node = node
        self._batch = batch

    async def run(self, number: int, item: BatchItem) -> ItemResult:
        """Return the result of an item. One that cannot be started has the reason in its result."""
        name = str(number) if item.id is None else item.id
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CAPACITY_SECONDS
        while True:
            try:
                return _item_result(name, await self._run(item))
            except errors.IngleError as error:
                if not isinstance(error, FULL) or loop.time() > deadline:
                    problem = ItemProblem(error.code, error.message)
                    return ItemResult(session_id="", cell=0, status=NOT_RUN, id=name, problem=problem)
                await asyncio.sleep(min(error.retry_after or RETRY_SECONDS, RETRY_SECONDS))

    async def _run(self, item: BatchItem) -> Result:
        self._access.check_accepting()
        await self._access.check_sessions()
        info = await self._node.create(msgspec.structs.replace(self._batch.session, env=item.env))
        session = self._access.session(info.session_id, EXECUTE)
        try:
            if item.files:
                folder = await session.files()
                archive = await asyncio.to_thread(_pack, item.files)
                await folder.unpack("", _only(archive), len(archive))
            text = bytes(item.input).decode()
            cell = await self._access.begin(session, NewCell(self._batch.code, self._batch.timeout, item=text))
            return await _finish(session, cell, item.stdin, self._access.author)
        finally:
            # It ends with its result, which an agent does before it is asked to.
            with contextlib.suppress(errors.SessionNotFound):
                await session.end()


async def _finish(session: SessionHandle, cell: int, stdin: str, author: Author) -> Result:
    """Return the result of a cell at its end. Its first read of standard input gets all of it."""
    while True:
        result = await session.wait(cell, POLL_SECONDS)
        if result.status in states.FINAL_STATUSES:
            return result
        if result.status == states.WAITING:
            with contextlib.suppress(errors.NotWaiting):  # it was interrupted meanwhile
                await session.input(stdin, author, eof=True)
                stdin = ""
        elif result.status == states.APPROVAL:
            await asyncio.sleep(POLL_SECONDS)


def _item_result(name: str | int, result: Result) -> ItemResult:
    values = {field: getattr(result, field) for field in Result.__struct_fields__}
    return ItemResult(**values, id=name, limit=limit_of(result))


def limit_of(result: Result) -> str | None:
    """Return the limit that ended the cell."""
    if result.timed_out:
        return "time"
    killed = ""
    if result.exit is not None and result.exit.code is None:
        killed = (result.exit.message or "").removeprefix(KILLED)
    return "memory" if any(is_named("memory", text) for text in (killed, *result.notices)) else None


def _pack(files: dict[str, str | FileBytes]) -> bytes:
    """Return a tar archive of these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            data = content.base64 if isinstance(content, FileBytes) else content.encode("utf-8", "surrogatepass")
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


async def _only(data: bytes) -> AsyncIterator[bytes]:
    yield data
