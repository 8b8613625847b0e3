"""Files that a session can reach, for callers outside the session: list, read, write whole, remove, pack, unpack.

The host never opens these paths. Each request is served by a file agent (`ingle_worker.processes.file_agent`), a
process that the session's init forks inside the session's confinement. So a caller reaches exactly what the session's
code could reach, by the kernel's own rules. The agent's answers are untrusted: they are typed, bounded, and every wait
has a limit.
"""

import asyncio
import contextlib
import errno
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ingle import errors
from ingle.files import FileInfo, FileList, Unpacked
from ingle.sessions.reach import Reach
from ingle.support import bounded_json
from ingle.support.bounded_json import Bounds
from ingle.workers.io.descriptors import refuse_descriptors
from ingle.workers.worker import Worker
from ingle_worker.wire import files as wire
from ingle_worker.wire import messages

MAX_DEPTH = 64
MAX_NAME_BYTES = 255
MAX_REPLY_BYTES = 64 * 1024
MAX_LIST_BYTES = 20 * 1024**2
"""Size of a reply that lists a folder: each name has at most 1,785 bytes there, when all its bytes are escaped."""

LIST_BOUNDS = Bounds(elements=6 * wire.MAX_LISTED + 100, text=4 * MAX_LIST_BYTES)
SILENCE_SECONDS = 30.0
"""How long the agent may take to answer, or to accept the next bytes."""

FOLDER_VERBS = frozenset({"list", "pack", "unpack", "stat"})
"""Verbs for which an empty path is the folder itself."""

WRITING_VERBS = frozenset({"write", "remove", "unpack", "make_folder", "move"})

UNREACHABLE = (
    "the session could not serve its files: it may have ended, or be at its limit of processes or memory; "
    "try again, or interrupt what runs in it"
)


Name = Annotated[str, Meta(max_length=6 * MAX_NAME_BYTES)]
Word = Annotated[str, Meta(max_length=100)]
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Mode = Annotated[int, Meta(ge=0, le=0o7777)]
Entry = tuple[Name, Literal["file", "folder", "link", "other"], Size, float, Mode]
"""Name, kind, size, time of change and permissions."""


class Failed(Struct, frozen=True):
    errno: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    why: Word = ""


class Listed(Failed, frozen=True):
    files: Annotated[list[Entry], Meta(max_length=wire.MAX_LISTED)] = []
    truncated: bool = False


class Opened(Failed, frozen=True):
    size: Size = 0
    modified: float = 0.0
    tag: Word = ""


class Written(Failed, frozen=True):
    info: Entry = ("", "file", 0, 0.0, 0)
    new: bool = False


class ArchiveWritten(Failed, frozen=True):
    files: int = 0
    bytes: int = 0
    detail: str = ""


def split_path(path: str) -> list[str]:
    """Return the names on the way to a file. Refuse names that lead back up or nowhere."""
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or len(os.fsencode(_plain(part))) > MAX_NAME_BYTES:
            raise errors.InvalidRequest(
                f"{path[:200]!r} is not the path of a file in the session's folder: give it relative to that folder, "
                "without '.', '..' or empty parts"
            )
    if len(parts) > MAX_DEPTH:
        raise errors.InvalidRequest(f"the path has {len(parts)} parts; {MAX_DEPTH} are allowed")
    return parts


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def raise_for(path: str, number: int, why: str = "") -> None:
    """Raise the error of ours for what the system answered about this path."""
    text = os.strerror(number)
    if why == wire.NOT_REGULAR:
        raise errors.InvalidRequest(f"{path[:200]!r} is no regular file; only regular files can be read")
    if number in (errno.ENOENT, errno.ENOTDIR):
        raise errors.FileNotThere(path)
    if number == errno.ELOOP:
        raise errors.InvalidRequest(f"{path[:200]!r} leads over a link, and links are not followed")
    if number in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
        raise errors.Conflict(f"{path[:200]!r} is a folder, or not empty: {text}")
    if number == errno.EROFS:
        raise errors.NotGranted(
            f"{path[:200]!r} lies in a folder that this session may only read; write elsewhere, or ask the operator to "
            "grant the folder without :ro"
        )
    if number == errno.EFBIG:
        raise errors.TooLarge(f"{path[:200]!r} is above the session's limit of file size; send it in parts")
    if number in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENXIO):
        raise errors.InvalidRequest(f"{path[:200]!r} cannot be used: {text}")
    raise errors.Unavailable(f"{path[:200]!r} could not be read or written: {text}")


@contextlib.contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Raise errors of ours for what the system says about this path."""
    try:
        yield
    except OSError as error:
        raise_for(path, error.errno or errno.EIO)


async def connect_agent(worker: Worker, *, outside: bool = False) -> socket.socket:
    """Have the init of this worker fork an agent. Return the connection to it, which blocks.

    If `outside`, the agent does not see the files as a view of the worker shows them.
    """
    ours, theirs = socket.socketpair()
    # An agent has no descriptor to send, and a process that took its place must not send any either.
    refuse_descriptors(ours)
    try:
        await worker.start_child(messages.ServeFiles(outside), theirs.detach())
    except BaseException as error:
        ours.close()
        if isinstance(error, OSError):
            raise errors.Unavailable(UNREACHABLE) from None
        raise
    return ours


class Agent:
    """Connection to the agent that serves one request."""

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection

    @classmethod
    async def start(cls, worker: Worker) -> "Agent":
        """Have the init of this worker fork an agent."""
        connection = await connect_agent(worker)
        connection.setblocking(False)
        return cls(connection)

    async def ask(self, request: dict[str, Any], answer: type[Struct]) -> Any:
        data = json.dumps(request).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self.send(wire.LENGTH.pack(len(data)) + data)
        return await self.receive_reply(answer)

    async def send(self, data: bytes) -> None:
        async with self._bounded():
            await self._loop.sock_sendall(self._socket, data)

    async def receive(self, most: int) -> bytes:
        async with self._bounded():
            return await self._loop.sock_recv(self._socket, most)

    async def receive_reply(self, answer: type[Struct]) -> Any:
        try:
            (length,) = wire.LENGTH.unpack(await self._receive_exactly(wire.LENGTH.size))
            if length > (MAX_LIST_BYTES if answer is Listed else MAX_REPLY_BYTES):
                raise errors.Unavailable(UNREACHABLE)
            data = await self._receive_exactly(length)
            bounded_json.check(data, LIST_BOUNDS)
            return msgspec.json.decode(data, type=answer)
        except (OSError, EOFError, msgspec.MsgspecError, ValueError, RecursionError):
            raise errors.Unavailable(UNREACHABLE) from None

    async def receive_chunk(self) -> bytes:
        """Return the next chunk, empty at the end. Raise Conflict if the agent stops before."""
        try:
            (length,) = wire.LENGTH.unpack(await self._receive_exactly(wire.LENGTH.size))
            if length > wire.MAX_CHUNK_BYTES:
                raise errors.Unavailable(UNREACHABLE)
            return await self._receive_exactly(length)
        except (OSError, EOFError):
            raise errors.Conflict(
                "a file changed or could not be read while the folder was packed; ask again"
            ) from None

    async def _receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = await self.receive(count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    @contextlib.asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                yield
        except TimeoutError:
            raise errors.Unavailable(UNREACHABLE) from None

    def close(self) -> None:
        self._socket.close()


class SessionFiles:
    """One folder as a session sees it. `fixed` folders are ours: they must not have become a link.

    An absolute path is one in the folders of `reach`.
    """

    def __init__(
        self, worker: Worker, root: str, *, fixed: bool, reach: Reach, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed` is called after each change."""
        self._worker = worker
        self._changed = changed
        self._root = root
        self._fixed = fixed
        self._reach = reach

    @contextlib.asynccontextmanager
    async def _agent(self) -> AsyncIterator[Agent]:
        agent = await Agent.start(self._worker)
        try:
            yield agent
        finally:
            agent.close()

    def _request(self, verb: str, path: str, **more: Any) -> dict[str, Any]:
        root, fixed = self._root, self._fixed
        if path.startswith("/"):
            root, path = self._reach.find(path, write=verb in WRITING_VERBS)
            fixed = False
        parts = split_path(path) if path or verb not in FOLDER_VERBS else []
        return {"verb": verb, "root": root, "fixed": fixed, "path": parts, **more}

    async def list(self, path: str) -> FileList:
        request = self._request("list", path)
        async with self._agent() as agent:
            found: Listed = await agent.ask(request, Listed)
        _check(path, found)
        infos = sorted((FileInfo(*each) for each in found.files), key=lambda info: info.name)
        return FileList(path, infos, found.truncated)

    async def open(self, path: str) -> "SessionFile":
        """Open a file to read from; the caller closes it."""
        return SessionFile(*await self._open(path))

    async def open_value(self, path: str, kind: str) -> "SessionValue":
        """Open a file with a value of this kind."""
        return SessionValue(kind, *await self._open(path))

    async def _open(self, path: str) -> tuple[Agent, Opened]:
        request = self._request("read", path)
        agent = await Agent.start(self._worker)
        try:
            found: Opened = await agent.ask(request, Opened)
            _check(path, found)
            return agent, found
        except BaseException:
            agent.close()
            raise

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], limit: int, mode: int = 0o644
    ) -> tuple[FileInfo, bool]:
        """Write a file, in one step as others see it. Return what it is now, and whether it is new."""
        request = self._request("write", path, mode=mode)
        async with self._agent() as agent:
            _check(path, await agent.ask(request, Failed))
            await _send_all(
                agent, chunks, limit, "the file is above the limit of {} bytes; raise max_file, or send it in parts"
            )
            written: Written = await agent.receive_reply(Written)
            _check(path, written)
            self._changed()
            return FileInfo(path, *written.info[1:]), written.new

    async def remove(self, path: str, *, whole: bool = False) -> None:
        """Remove a file, a link itself, or a folder: an empty one, or with `whole` all of it."""
        request = self._request("remove", path, whole=whole)
        async with self._agent() as agent:
            _check(path, await agent.ask(request, Failed))
            self._changed()

    async def stat(self, path: str) -> FileInfo:
        """Describe a file, a folder, or a link itself."""
        return (await self._describe("stat", path))[0]

    async def make_folder(self, path: str) -> tuple[FileInfo, bool]:
        """Make a folder and those around it. Return what it is now, and whether it is new."""
        return await self._describe("make_folder", path)

    async def move(self, path: str, target: str) -> FileInfo:
        """Move a file or a folder to another path, and replace a file there."""
        to = self._request("move", target)
        more = {"to_root": to["root"], "to_fixed": to["fixed"], "to_path": to["path"]}
        return (await self._describe("move", path, target, **more))[0]

    async def _describe(self, verb: str, path: str, target: str = "", **more: Any) -> tuple[FileInfo, bool]:
        request = self._request(verb, path, **more)
        async with self._agent() as agent:
            done: Written = await agent.ask(request, Written)
        _check(path, done)
        if verb in WRITING_VERBS:
            self._changed()
        return FileInfo(target or path, *done.info[1:]), done.new

    async def pack(self, path: str) -> "SessionArchive":
        """Begin to read a file or a folder as a tar stream; the caller closes it."""
        request = self._request("pack", path)
        agent = await Agent.start(self._worker)
        try:
            _check(path, await agent.ask(request, Failed))
            return SessionArchive(agent)
        except BaseException:
            agent.close()
            raise

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limit: int) -> Unpacked:
        """Unpack a tar stream into a folder. After an error, the files before it are there."""
        request = self._request("unpack", path)
        async with self._agent() as agent:
            _check(path, await agent.ask(request, Failed))
            await _send_all(agent, chunks, limit, "the archive is above the limit of {} bytes; raise max_archive")
            done: ArchiveWritten = await agent.receive_reply(ArchiveWritten)
            self._changed()
            if done.why == wire.MALFORMED:
                raise errors.InvalidRequest(f"the archive is refused: {done.detail[:1000]}")
            _check(f"{path}/{done.detail}".lstrip("/") if done.detail and path else done.detail or path, done)
            return Unpacked(done.files, done.bytes)


async def _send_all(agent: Agent, chunks: AsyncIterator[bytes], limit: int, too_large: str) -> None:
    """Send a body to the agent in bounded pieces. If the agent has stopped reading, its reply says why."""
    size = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise errors.TooLarge(too_large.format(limit))
            for start in range(0, len(chunk), wire.MAX_CHUNK_BYTES):
                piece = chunk[start : start + wire.MAX_CHUNK_BYTES]
                await agent.send(wire.LENGTH.pack(len(piece)) + piece)
        await agent.send(wire.LENGTH.pack(0))


def _check(path: str, answer: Failed) -> None:
    if answer.errno:
        raise_for(path, answer.errno, answer.why)


class SessionFile:
    """A file of a session that is being read. It has the size it had when it was opened, or reading fails."""

    def __init__(self, agent: Agent, found: Opened) -> None:
        self._agent = agent
        self.size = max(0, found.size)
        self.modified = found.modified
        self.tag = "".join(each for each in found.tag[:100] if each in "0123456789abcdef-")

    async def chunks(self, start: int, count: int) -> AsyncIterator[bytes]:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._agent.send(wire.RANGE.pack(start, count))
        while count:
            try:
                data = await self._agent.receive(min(wire.SEND_BYTES, count))
            except OSError:
                data = b""
            if not data:
                raise errors.Conflict("the file became shorter while it was read; ask again")
            count -= len(data)
            yield data

    def close(self) -> None:
        self._agent.close()


class SessionValue(SessionFile):
    """A value of a session's variable that is being read."""

    def __init__(self, kind: str, agent: Agent, found: Opened) -> None:
        super().__init__(agent, found)
        self.kind = kind


class SessionArchive:
    """A tar stream that a session's file agent sends."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def chunks(self) -> AsyncIterator[bytes]:
        while data := await self._agent.receive_chunk():
            yield data

    def close(self) -> None:
        self._agent.close()


class LocalFile:
    """A file of the host's own that is being read: an exported snapshot."""

    CHUNK_BYTES = 256 * 1024

    def __init__(self, fd: int) -> None:
        about = os.fstat(fd)
        self._fd = fd
        self.size = about.st_size
        self.modified = about.st_mtime
        self.tag = f"{about.st_ino:x}-{about.st_mtime_ns:x}-{about.st_size:x}"

    async def chunks(self, start: int, count: int) -> AsyncIterator[bytes]:
        end = start + count
        while start < end:
            data = await asyncio.to_thread(os.pread, self._fd, min(self.CHUNK_BYTES, end - start), start)
            if not data:
                raise errors.Conflict("the file became shorter while it was read; ask again")
            start += len(data)
            yield data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
