"""The snapshots of one tenant, by name: written whole, checked before they are used, the one before kept until then.

A snapshot is a signed manifest on a shelf, and chunks among the tenant's blobs. A new save of the same name takes the
place of the old in one step and leaves that beside it: if the new one turns out to be damaged, the old one is used,
and that is said. Every function blocks, and is called in a thread.
"""

import contextlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from ingle import errors
from ingle.snapshots import disk_errors, manifest, transfer
from ingle.snapshots.chunks import Blobs
from ingle.snapshots.manifest import Manifest
from ingle.snapshots.pack import Pack, Writer
from ingle.snapshots.signature import Signer, read_key

OWNER = ".owner"
"""The folder of the default tenant; no tenant's name begins with a dot."""

NAMED = "named"
"""The shelf of those that callers have named."""

CURRENT, PREVIOUS = ".json", ".previous.json"
MAX_MANIFEST = 256 * 1024 * 1024
DIGEST = re.compile(rb'"([0-9a-f]{64})"')

logger = logging.getLogger(__name__)


class Opened:
    """A snapshot that is about to be loaded."""

    def __init__(self, name: str, manifest: Manifest, source: transfer.Source, notices: list[str]) -> None:
        self.name = name
        self.manifest = manifest
        self.source = source
        self.notices = notices

    def send(self, connection: socket.socket) -> None:
        """All its bytes, each checked."""
        transfer.send(connection, self.source, self.manifest.summary.pieces())


class Opening:
    """Snapshots to be tried in turn. A lock is held meanwhile, which is no thread's own: any may give it back."""

    def __init__(self, context: contextlib.AbstractContextManager[Iterator[Opened]]) -> None:
        self._context = context
        self._candidates = context.__enter__()

    def next(self) -> Opened | None:
        return next(self._candidates, None)

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class Snapshots:
    def __init__(self, home: Path, tenant: str, limit: int) -> None:
        self._home = home
        self._tenant = tenant
        self._limit = limit
        self._folder = home / "snapshots" / (tenant or OWNER)
        self.blobs = Blobs(self._folder / "chunks")
        self._signer: Signer | None = None
        self._used: dict[Path, tuple[tuple[int, int, int], set[bytes]]] = {}

    @property
    def _signing(self) -> Signer:
        if self._signer is None:
            disk_errors.make_folder(self._home)
            self._signer = Signer(read_key(self._home / "signing.key"), self._tenant)
        return self._signer

    # --- saving ---

    def save(
        self,
        name: str,
        connection: socket.socket,
        describe: Callable[[manifest.Summary], Manifest],
        shelf: str = NAMED,
        limit: int | None = None,
    ) -> tuple[Manifest, int]:
        """Take a save from a worker's copy and keep it under this name; the manifest, and how many bytes were new."""
        try:
            with self.blobs.shared():
                with self.blobs.begin() as addition:
                    made = describe(transfer.receive(connection, addition, min(self._limit, limit or self._limit)))
                    addition.finish()
                    new = addition.size
                self._put(name, shelf, manifest.encode(made))
        except OSError as error:
            raise transfer.unsaved(error) from None
        self.collect()
        return made, new

    def save_portable(
        self, fd: int, connection: socket.socket, describe: Callable[[manifest.Summary], Manifest]
    ) -> tuple[Manifest, int]:
        """The same into one file of its own, which is whole and on the disk when this returns."""
        writer = Writer(fd, masked=True)
        made = describe(transfer.receive(connection, writer, self._limit))
        data = manifest.encode(made)
        writer.finish(data, self._signing.sign(data))
        return made, writer.size

    def _put(self, name: str, shelf: str, data: bytes, signature: str | None = None) -> None:
        folder = self._folder / shelf
        disk_errors.make_folder(folder)
        draft = folder / f".{secrets.token_hex(8)}.part"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write((signature or self._signing.sign(data)).encode() + b"\n" + data)
                file.flush()
                os.fsync(fd)
            # Between these two steps there is no current one; whoever looks then takes the previous.
            with contextlib.suppress(FileNotFoundError):
                os.replace(folder / (name + CURRENT), folder / (name + PREVIOUS))
            os.replace(draft, folder / (name + CURRENT))
        finally:
            draft.unlink(missing_ok=True)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    # --- reading ---

    def _read(self, path: Path, name: str, trust: bool) -> Manifest:
        try:
            with path.open("rb") as file:
                signature, _, data = file.read(MAX_MANIFEST).partition(b"\n")
        except FileNotFoundError:
            raise errors.SnapshotNotFound(name) from None
        except OSError as error:
            raise errors.DataFolderFailed(
                f"the snapshot {name[:200]!r} cannot be read: {error.strerror}; see to the disk and its rights"
            ) from None
        self._check(name, data, signature.decode("ascii", "replace"), trust)
        return manifest.decode(data, name)

    def _check(self, name: str, data: bytes, signature: str, trust: bool) -> None:
        if not trust and not self._signing.is_ours(data, signature):
            raise errors.SnapshotUntrusted(name)

    @contextlib.contextmanager
    def opened(self, name: str, trust: bool = False, shelf: str = NAMED) -> Iterator[Iterator[Opened]]:
        """What may be loaded under this name: the last save, and where that fails the one before."""
        with self.blobs.shared():
            yield self._candidates(name, trust, shelf)

    def _candidates(self, name: str, trust: bool, shelf: str) -> Iterator[Opened]:
        first: errors.IngleError | None = None
        for suffix in (CURRENT, PREVIOUS):
            try:
                found = self._read(self._folder / shelf / (name + suffix), name, trust)
                missing = [digest for digest, _ in found.summary.pieces() if not self.blobs.has(bytes.fromhex(digest))]
                if missing:
                    raise errors.SnapshotDamaged(name, "some of its bytes are not there")
            except errors.IngleError as error:
                first = first or error
                continue
            notices = []
            if suffix == PREVIOUS:
                why = "" if first is None or isinstance(first, errors.SnapshotNotFound) else f" ({first.message})"
                notices.append(f"the last save of {name} could not be used{why}; this is the one before")
            yield Opened(name, found, self.blobs, notices)
        if first is not None:
            raise first
        raise errors.SnapshotNotFound(name)

    @contextlib.contextmanager
    def opened_portable(self, fd: int, name: str, trust: bool = False) -> Iterator[Iterator[Opened]]:
        """The same for a file of its own; the descriptor is closed."""
        pack = Pack(fd, name)
        try:
            self._check(name, pack.manifest, pack.signature, trust)
            yield iter([Opened(name, manifest.decode(pack.manifest, name), pack, [])])
        finally:
            pack.close()

    def list(self, shelf: str = NAMED) -> list[tuple[str, Manifest | errors.IngleError]]:
        """All names, with what is kept, or why that cannot be used."""
        folder = self._folder / shelf
        found: list[tuple[str, Manifest | errors.IngleError]] = []
        names = {each.name.removesuffix(PREVIOUS).removesuffix(CURRENT) for each in folder.glob("*" + CURRENT)}
        for name in sorted(names):
            try:
                found.append((name, self.read(name, shelf)))
            except errors.IngleError as error:
                found.append((name, error))
        return found

    def read(self, name: str, shelf: str = NAMED) -> Manifest:
        """The manifest that a load would use."""
        try:
            return self._read(self._folder / shelf / (name + CURRENT), name, False)
        except errors.IngleError as error:
            try:
                return self._read(self._folder / shelf / (name + PREVIOUS), name, False)
            except errors.IngleError:
                raise error from None

    def delete(self, name: str, shelf: str = NAMED) -> None:
        gone = False
        for suffix in (CURRENT, PREVIOUS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._folder / shelf / (name + suffix))
                gone = True
        if not gone:
            raise errors.SnapshotNotFound(name)
        self.collect()

    def set_aside(self, name: str, shelf: str, named: str, *, all: bool = False) -> bool:
        """Make the last save on a shelf a snapshot of that name, so that it is out of the way and not lost; with `all`
        the one before it too."""
        folder = self._folder / NAMED
        disk_errors.make_folder(folder)
        places = [CURRENT, PREVIOUS] if all else [CURRENT]
        for suffix in (CURRENT, PREVIOUS):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._folder / shelf / (name + suffix), folder / (named + places[0]))
                del places[0]
                if not places:
                    return True
        return len(places) == 1 and all

    def salvage(self, shelf: str, suffix: str) -> tuple[str, ...]:
        """Make all saves on a shelf snapshots too, named after their sessions; those names."""
        folder = self._folder / NAMED
        disk_errors.make_folder(folder)
        found: tuple[str, ...] = ()
        for number, (name, each) in enumerate(self.list(shelf), 1):
            session_id = each.session_id if isinstance(each, Manifest) else "session"
            named = f"{session_id[:30]}-{suffix}-{number}"
            # A file there is never changed, only replaced: it may have two names.
            for kind in (CURRENT, PREVIOUS):
                with contextlib.suppress(FileNotFoundError):
                    os.link(self._folder / shelf / (name + kind), folder / (named + kind))
            found += (named,)
        return found

    # --- portable files ---

    def export(self, name: str, fd: int, shelf: str = NAMED) -> None:
        """Write a snapshot as one file that can be taken elsewhere."""
        with self.blobs.shared():
            path = self._folder / shelf / (name + CURRENT)
            found = self._read(path, name, True)
            signature, _, data = path.read_bytes().partition(b"\n")
            writer = Writer(fd, masked=True)
            for digest, size in found.summary.pieces():
                key = bytes.fromhex(digest)
                if not writer.has(key):
                    writer.keep(key, self.blobs.read(key, size))
            writer.finish(data, signature.decode())

    def take_in(self, name: str, fd: int, shelf: str = NAMED) -> Manifest:
        """Keep a portable file under a name, with the signature it has; whose it is, is asked when it is loaded."""
        pack = Pack(fd, name)
        try:
            found = manifest.decode(pack.manifest, name)
            with self.blobs.shared():
                with self.blobs.begin() as addition:
                    for digest, size in found.summary.pieces():
                        key = bytes.fromhex(digest)
                        if not addition.has(key):
                            addition.writer.keep(key, pack.read(key, size))
                    addition.finish()
                self._put(name, shelf, pack.manifest, pack.signature.replace("\n", " ") or "none")
        finally:
            pack.close()
        return found

    # --- removing ---

    def collect(self) -> None:
        """Forget the bytes that no manifest uses. What fails of that is done the next time."""
        try:
            self.blobs.collect(self._all_used)
        except (OSError, errors.DataFolderFailed) as error:
            logger.warning("what snapshots do not need any more was not removed: %s", error)

    def _all_used(self) -> set[bytes]:
        for draft in self._folder.glob("*/.*.part"):
            draft.unlink(missing_ok=True)  # of a server that died: nobody saves now
        used: set[bytes] = set()
        seen = set()
        for path in self._folder.glob("*/*" + CURRENT):
            with contextlib.suppress(FileNotFoundError, errors.SnapshotNotFound):
                about = path.stat()
                stamp = (about.st_ino, about.st_mtime_ns, about.st_size)
                known = self._used.get(path)
                if known is None or known[0] != stamp:
                    known = self._used[path] = (stamp, self._chunks_of(path))
                used |= known[1]
                seen.add(path)
        for gone in self._used.keys() - seen:
            del self._used[gone]
        return used

    def _chunks_of(self, path: Path) -> set[bytes]:
        try:
            found = self._read(path, path.stem, True)
        except errors.SnapshotDamaged:
            # That may be of a later ingle, which will want its bytes: all that could be one of them.
            return {bytes.fromhex(digest.decode()) for digest in DIGEST.findall(path.read_bytes())}
        return {bytes.fromhex(digest) for digest, _ in found.summary.pieces()}
