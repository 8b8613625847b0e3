"""The named snapshots of one tenant: written atomically, and checked before use.

A snapshot is a signed manifest in a folder, and chunks in the tenant's store. A new save with the same name replaces
the old one atomically and leaves it beside. If the new one is damaged, the old one is used with a notice.
Every function blocks, and is called in a thread.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ingle import errors
from ingle.render.phrases import size
from ingle.snapshots import disk_errors, manifest, transfer
from ingle.snapshots.chunks import ChunkStore
from ingle.snapshots.manifest import Manifest
from ingle.snapshots.pack import Pack, Writer
from ingle.snapshots.signature import Signer, read_key
from ingle.snapshots.used_chunks import CURRENT, UsedChunks

OWNER = ".owner"
"""Folder of the default tenant; tenants' names cannot start with a dot."""

NAMED = "named"
"""Folder of snapshots that callers have named."""

DURABLE, HIBERNATED = "sessions", "resting"
"""Folders of automatic saves: of sessions that outlive their server, and of those that do not."""

PREVIOUS = ".previous.json"
SHARED = ".shared"
"""End of the file that has the hash of a snapshot in the object store."""
MAX_MANIFEST = 64 * 1024 * 1024

logger = logging.getLogger(__name__)


class FileSource(Protocol):
    """Files that a snapshot takes in."""

    def chunks(self) -> dict[str, int]:
        """Return the sizes of all chunks by their hashes."""
        ...

    def pack(self, sink: transfer.Sink) -> manifest.Files:
        """Put all chunks into a sink."""
        ...


class LoadableSnapshot:
    """A snapshot to load."""

    def __init__(self, name: str, manifest: Manifest, source: transfer.Source, notices: list[str]) -> None:
        self.name = name
        self.manifest = manifest
        self.source = source
        self.notices = notices

    def send(self, connection: socket.socket) -> None:
        """Send all its chunks, each checked."""
        transfer.send(connection, self.source, self.manifest.summary.pieces())


class LoadCandidates:
    """Snapshots to try in turn, under a lock that any thread may release."""

    def __init__(self, context: contextlib.AbstractContextManager[Iterator[LoadableSnapshot]]) -> None:
        self._context = context
        self._candidates = context.__enter__()

    def next(self) -> LoadableSnapshot | None:
        return next(self._candidates, None)

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class Snapshots:
    def __init__(self, home: Path, tenant: str, limit: int, files_limit: int, key: bytes | None = None) -> None:
        """`limit` is the size of one snapshot, `files_limit` the size of all files in all snapshots.

        Servers with one object store share the key that signs snapshots.
        """
        self._home = home
        self._tenant = tenant
        self._limit = limit
        self._files_limit = files_limit
        self._folder = home / "snapshots" / (tenant or OWNER)
        self.chunks = ChunkStore(self._folder / "chunks")
        self._shared_key = key
        self._signer: Signer | None = None
        self._used = UsedChunks(self._folder, lambda path: self._read(path, path.stem, True))

    @property
    def _signing(self) -> Signer:
        if self._signer is None:
            disk_errors.make_folder(self._home)
            own = read_key(self._home / "signing.key")
            self._signer = Signer(self._shared_key or own, self._tenant, own)
        return self._signer

    # --- saving ---

    def save(
        self,
        name: str,
        connection: socket.socket,
        describe: Callable[[manifest.Summary], Manifest],
        folder_name: str = NAMED,
        limit: int | None = None,
        files: FileSource | str = "",
    ) -> tuple[Manifest, int]:
        """Receive a save from a worker's copy under this name. Return the manifest and the number of new bytes.

        `files` are saved with it, or a text says why there are none.
        """
        most = min(self._limit, limit or self._limit)
        try:
            with self.chunks.shared():
                with self.chunks.begin() as addition:
                    made = describe(transfer.receive(connection, addition, most))
                    made = self._with_files(made, files, addition, most)
                    addition.finish()
                    new = addition.size
                self._put(name, folder_name, manifest.encode(made))
        except OSError as error:
            raise transfer.unsaved(error) from None
        self.collect()
        return made, new

    def save_portable(
        self,
        fd: int,
        connection: socket.socket,
        describe: Callable[[manifest.Summary], Manifest],
        files: FileSource | str = "",
    ) -> tuple[Manifest, int]:
        """Receive a save into one portable file, which is complete and on disk when this returns."""
        writer = Writer(fd, masked=True)
        made = describe(transfer.receive(connection, writer, self._limit))
        made = self._with_files(made, files, writer, self._limit)
        data = manifest.encode(made)
        writer.finish(data, self._signing.sign(data))
        return made, writer.size

    def _with_files(self, made: Manifest, files: FileSource | str, sink: transfer.Sink, limit: int) -> Manifest:
        """Add files to a save. Without room for them, the manifest says so."""
        if isinstance(files, str):
            return msgspec.structs.replace(made, no_files=files)
        chunks = files.chunks()
        needed, left = sum(chunks.values()), limit - made.size
        if needed > left:
            why = f"they need {size(needed)}, and {size(max(0, left))} of {size(limit)} are left for this save"
            return msgspec.structs.replace(made, no_files=why)
        held = self._used.of_files()
        new = sum(each for digest, each in chunks.items() if digest not in held)
        left = self._files_limit - sum(held.values())
        if new > left:
            why = f"they need {size(new)}, and {size(max(0, left))} of {size(self._files_limit)} are left (keep_disk)"
            return msgspec.structs.replace(made, no_files=why)
        return msgspec.structs.replace(made, version=manifest.VERSION_WITH_FILES, files=files.pack(sink))

    def _put(self, name: str, folder_name: str, data: bytes, signature: str | None = None) -> None:
        folder = self._folder / folder_name
        disk_errors.make_folder(folder)
        draft = folder / f".{secrets.token_hex(8)}.part"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write((signature or self._signing.sign(data)).encode() + b"\n" + data)
                file.flush()
                os.fsync(fd)
            # Between these two steps there is no current save, so readers use the previous one.
            with contextlib.suppress(FileNotFoundError):
                os.replace(folder / (name + CURRENT), folder / (name + PREVIOUS))
            os.replace(draft, folder / (name + CURRENT))
        finally:
            draft.unlink(missing_ok=True)
        disk_errors.sync_folder(folder)

    # --- reading ---

    def _read(self, path: Path, name: str, trust: bool) -> Manifest:
        signature, data = self._read_signed(path, name)
        self._check(name, data, signature, trust)
        return manifest.decode(data, name)

    def _read_signed(self, path: Path, name: str) -> tuple[str, bytes]:
        """Return the signature of a save, and its manifest."""
        try:
            with path.open("rb") as file:
                signature, _, data = file.read(MAX_MANIFEST).partition(b"\n")
        except FileNotFoundError:
            raise errors.SnapshotNotFound(name) from None
        except OSError as error:
            raise errors.DataFolderFailed(
                f"the snapshot {name[:200]!r} cannot be read: {error.strerror}; check the disk and its permissions"
            ) from None
        return signature.decode("ascii", "replace"), data

    def _read_last(self, name: str, folder_name: str) -> tuple[str, bytes]:
        """Return the signature of the last save, and its manifest."""
        folder = self._folder / folder_name
        try:
            return self._read_signed(folder / (name + CURRENT), name)
        except errors.SnapshotNotFound:
            return self._read_signed(folder / (name + PREVIOUS), name)

    def _check(self, name: str, data: bytes, signature: str, trust: bool) -> None:
        if not trust and not self._signing.is_ours(data, signature):
            raise errors.SnapshotUntrusted(name)

    @contextlib.contextmanager
    def opened(self, name: str, trust: bool = False, folder_name: str = NAMED) -> Iterator[Iterator[LoadableSnapshot]]:
        """Provide the loadable saves of this name: the last, and the one before in case that fails."""
        with self.chunks.shared():
            yield self._candidates(name, trust, folder_name)

    def _candidates(self, name: str, trust: bool, folder_name: str) -> Iterator[LoadableSnapshot]:
        first: errors.IngleError | None = None
        any_found = False
        for suffix in (CURRENT, PREVIOUS):
            try:
                found = self._read(self._folder / folder_name / (name + suffix), name, trust)
                missing = [digest for digest, _ in found.pieces() if not self.chunks.has(bytes.fromhex(digest))]
                if missing:
                    raise errors.SnapshotDamaged(name, "some of its bytes are missing")
            except errors.IngleError as error:
                first = first or error
                continue
            notices = []
            if suffix == PREVIOUS:
                why = "" if first is None or isinstance(first, errors.SnapshotNotFound) else f" ({first.message})"
                notices.append(f"the last save of {name} could not be used{why}; the previous one was loaded")
            any_found = True
            yield LoadableSnapshot(name, found, self.chunks, notices)
        if not any_found:
            raise first or errors.SnapshotNotFound(name)

    @contextlib.contextmanager
    def opened_portable(self, fd: int, name: str, trust: bool = False) -> Iterator[Iterator[LoadableSnapshot]]:
        """Provide the snapshot in a portable file. Closes the descriptor."""
        pack = Pack(fd, name)
        try:
            self._check(name, pack.manifest, pack.signature, trust)
            yield iter([LoadableSnapshot(name, manifest.decode(pack.manifest, name), pack, [])])
        finally:
            pack.close()

    def names(self, folder_name: str = NAMED) -> list[str]:
        """Return the names of all snapshots. Their manifests are read one by one: each may be large."""
        folder = self._folder / folder_name
        return sorted({each.name.removesuffix(PREVIOUS).removesuffix(CURRENT) for each in folder.glob("*" + CURRENT)})

    def read(self, name: str, folder_name: str = NAMED) -> Manifest:
        """Return the manifest that a load would use."""
        try:
            return self._read(self._folder / folder_name / (name + CURRENT), name, False)
        except errors.IngleError as error:
            try:
                return self._read(self._folder / folder_name / (name + PREVIOUS), name, False)
            except errors.IngleError:
                raise error from None

    def delete(self, name: str, folder_name: str = NAMED) -> None:
        gone = False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder / folder_name / (name + SHARED))
        for suffix in (CURRENT, PREVIOUS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / folder_name / (name + suffix))
                gone = True
        if not gone:
            raise errors.SnapshotNotFound(name)
        self.collect()

    def set_aside(self, name: str, folder_name: str, named: str, *, all: bool = False) -> bool:
        """Turn the last save in a folder into a named snapshot; with `all` the previous one too."""
        folder = self._folder / NAMED
        disk_errors.make_folder(folder)
        places = [CURRENT, PREVIOUS] if all else [CURRENT]
        for suffix in (CURRENT, PREVIOUS):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._folder / folder_name / (name + suffix), folder / (named + places[0]))
                del places[0]
                if not places:
                    return True
        return len(places) == 1 and all

    def salvage(self, folder_name: str, suffix: str) -> tuple[str, ...]:
        """Link all saves in a folder as snapshots named after their sessions, and return the names."""
        folder = self._folder / NAMED
        disk_errors.make_folder(folder)
        found: tuple[str, ...] = ()
        for number, name in enumerate(self.names(folder_name), 1):
            session_id = "session"
            with contextlib.suppress(errors.IngleError):
                session_id = self.read(name, folder_name).session_id
            named = f"{session_id[:30]}-{suffix}-{number}"
            # Files there are replaced and never changed, so a file may have two names.
            for kind in (CURRENT, PREVIOUS):
                with contextlib.suppress(FileNotFoundError):
                    os.link(self._folder / folder_name / (name + kind), folder / (named + kind))
            found += (named,)
        return found

    # --- portable files ---

    def export(self, name: str, fd: int, folder_name: str = NAMED) -> None:
        """Write a snapshot as one portable file."""
        with self.chunks.shared():
            signature, data = self._read_last(name, folder_name)
            writer = Writer(fd, masked=True)
            for digest, length in manifest.decode(data, name).pieces():
                key = bytes.fromhex(digest)
                if not writer.has(key):
                    writer.keep(key, self.chunks.read(key, length))
            writer.finish(data, signature)

    def import_file(self, name: str, fd: int, folder_name: str = NAMED) -> Manifest:
        """Store a portable file under a name, with its signature, which is checked when it is loaded."""
        pack = Pack(fd, name)
        try:
            found = manifest.decode(pack.manifest, name)
            with self.chunks.shared():
                with self.chunks.begin() as addition:
                    for digest, length in found.pieces():
                        key = bytes.fromhex(digest)
                        if not addition.has(key):
                            addition.writer.keep(key, pack.read(key, length))
                    addition.finish()
                self._put(name, folder_name, pack.manifest, pack.signature.replace("\n", " ") or "none")
        finally:
            pack.close()
        return found

    # --- chunks of an object store ---

    def raw(self, name: str, folder_name: str) -> tuple[bytes, dict[str, int]]:
        """Return the last save as it is on the disk, and the sizes of its chunks by hash."""
        signature, data = self._read_last(name, folder_name)
        return signature.encode() + b"\n" + data, dict(manifest.decode(data, name).pieces())

    def put_raw(self, name: str, folder_name: str, data: bytes) -> None:
        """Write a save as another server has it on its disk. Its chunks may be missing yet."""
        signature, _, content = data.partition(b"\n")
        # Unfinished files are removed with unused chunks, while no save is under way.
        with self.chunks.shared():
            self._put(name, folder_name, content, signature.decode("ascii", "replace"))

    def note_shared(self, name: str, data: bytes) -> None:
        """Note that an object store has a snapshot with this content. On a full disk that is not noted."""
        with contextlib.suppress(OSError):
            (self._folder / NAMED / (name + SHARED)).write_text(hashlib.sha256(data).hexdigest())

    def forget_shared(self, name: str) -> None:
        """Remove a snapshot that the object store had and has no more: another server has deleted it.

        One that was saved here since then is not in the store yet, and stays.
        """
        with contextlib.suppress(FileNotFoundError, errors.SnapshotNotFound):
            noted = (self._folder / NAMED / (name + SHARED)).read_text()
            if noted == hashlib.sha256((self._folder / NAMED / (name + CURRENT)).read_bytes()).hexdigest():
                self.delete(name)

    def missing(self, data: bytes, name: str) -> list[bytes]:
        """Return the chunks of a save that are not on the disk."""
        found = manifest.decode(data.partition(b"\n")[2], name)
        with self.chunks.shared():
            return [key for key in {bytes.fromhex(each) for each, _ in found.pieces()} if not self.chunks.has(key)]

    def scratch(self) -> int:
        return self.chunks.scratch()

    def write_pack(self, chunks: list[manifest.Chunk], fd: int) -> None:
        """Write chunks to a file as one pack."""
        with self.chunks.shared():
            writer = Writer(fd)
            for digest, length in chunks:
                writer.keep(bytes.fromhex(digest), self.chunks.read(bytes.fromhex(digest), length))
            writer.finish()

    def read_pack(self, fd: int, name: str, digests: list[bytes]) -> None:
        """Keep chunks of a pack, each checked."""
        pack = Pack(os.dup(fd), name)
        try:
            with self.chunks.shared(), self.chunks.begin() as addition:
                for digest in digests:
                    if not addition.has(digest):
                        size = pack.places[digest].size if digest in pack.places else 0
                        addition.writer.keep(digest, pack.read(digest, size))
                addition.finish()
        finally:
            pack.close()

    # --- removing ---

    def collect(self) -> None:
        """Remove unused chunks. A failure is repaired by the next call."""
        try:
            self.chunks.collect(self._all_used)
        except (OSError, errors.DataFolderFailed) as error:
            logger.warning("unused chunks of snapshots were not removed: %s", error)

    def _all_used(self) -> set[bytes]:
        for draft in self._folder.glob("*/.*.part"):
            draft.unlink(missing_ok=True)  # left by a dead server, since no one is saving now
        return self._used.all()
