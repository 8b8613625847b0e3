"""Random sequences of changes to a folder, trees taken and brought back, against a plain model."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ingle.trees import restore, snapshot
from ingle.trees.index import Index
from ingle.trees.packing import PackedFiles, unpack
from ingle.trees.restore import InUse
from ingle.trees.snapshot import Bounds
from ingle.trees.store import KeptTree, TreeStore
from support.folder_agent import State, agent_of, state_of

NAMES = st.sampled_from(["a", "b", "c/d", "c/e", "c/f/g", "h"])
MODES = st.sampled_from([0o600, 0o644, 0o755, 0o400])


class Chunks:
    """Chunks of a snapshot, in memory."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    def has(self, digest: bytes) -> bool:
        return digest in self.held

    def put(self, digest: bytes, data: memoryview) -> None:
        assert hashlib.sha256(data).digest() == digest
        self.held[digest] = bytes(data)

    def read(self, digest: bytes, size: int) -> bytes:
        assert len(self.held[digest]) == size
        return self.held[digest]


class FolderMachine(RuleBasedStateMachine):
    kept = Bundle("kept")

    def __init__(self) -> None:
        super().__init__()
        self.parent = Path(tempfile.mkdtemp(prefix="ingle-trees-"))
        self.folder = self.parent / "folder"
        self.folder.mkdir()
        self.store = TreeStore(self.parent / "store", 1 << 30)
        self.index = Index()
        self.held: list[KeptTree] = []

    def teardown(self) -> None:
        shutil.rmtree(self.parent)

    def _clear(self, name: str) -> Path:
        """Make the way to a name free, whatever is on it."""
        path = self.folder
        for part in Path(name).parts[:-1]:
            path = path / part
            if path.is_symlink() or path.is_file():
                path.unlink()
            path.mkdir(exist_ok=True)
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        return path

    @rule(name=NAMES, data=st.binary(max_size=3))
    def write(self, name: str, data: bytes) -> None:
        path = self._clear(name)
        if path.is_symlink():
            path.unlink()
        path.write_bytes(data)

    @rule(name=NAMES, data=st.binary(min_size=1, max_size=3))
    def append(self, name: str, data: bytes) -> None:
        path = self.folder / name
        if path.is_file() and not path.is_symlink():
            with path.open("ab") as file:
                file.write(data)

    @rule(name=NAMES, other=NAMES)
    def rename(self, name: str, other: str) -> None:
        source = self.folder / name
        if source.is_file() and not source.is_symlink() and name != other:
            held = source.read_bytes(), source.stat().st_mode & 0o777
            source.unlink()
            target = self._clear(other)
            if target.is_symlink():
                target.unlink()
            target.write_bytes(held[0])
            target.chmod(held[1])

    @rule(name=NAMES, mode=MODES)
    def chmod(self, name: str, mode: int) -> None:
        path = self.folder / name
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)

    @rule(name=NAMES, leads_to=NAMES)
    def link(self, name: str, leads_to: str) -> None:
        path = self._clear(name)
        path.unlink(missing_ok=True)
        os.symlink(leads_to, path)

    @rule(name=st.sampled_from(["c", "c/f", "i", "a"]))
    def make_folder(self, name: str) -> None:
        path = self._clear(name)
        path.unlink(missing_ok=True)
        path.mkdir()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self._clear(name).unlink(missing_ok=True)

    @rule(target=kept)
    def take(self) -> tuple[KeptTree, State]:
        with agent_of(self.folder) as agent:
            kept = snapshot.take(agent, self.store, self.index, Bounds(1000, 1 << 20), frozenset())
        self.held.append(kept)
        return kept, state_of(self.folder)

    @rule(one=kept)
    def restore(self, one: tuple[KeptTree, State]) -> None:
        with agent_of(self.folder) as agent:
            done = restore.restore(agent, self.store, one[0].tree, self.index, InUse())
        assert done.failed == []
        assert state_of(self.folder) == one[1]

    @rule(one=kept)
    def pack_and_unpack(self, one: tuple[KeptTree, State]) -> None:
        """Into a snapshot and out of it, in another store, and from there into another folder."""
        chunks = Chunks()
        files = PackedFiles(self.store, one[0]).pack(chunks)
        assert {bytes.fromhex(digest) for digest, _ in (*files.tree, *files.contents)} == chunks.held.keys()
        other = TreeStore(self.parent / "other-store", 1 << 30)
        kept = unpack("snap", files, chunks, other)
        folder = self.parent / "other"
        folder.mkdir()
        with agent_of(folder) as agent:
            done = restore.restore(agent, other, kept.tree, Index(), InUse())
        assert done.failed == []
        assert state_of(folder) == one[1]
        other.release(kept)
        shutil.rmtree(folder)

    @rule(one=consumes(kept))
    def release(self, one: tuple[KeptTree, State]) -> None:
        self.held.remove(one[0])
        self.store.release(one[0])

    @invariant()
    def stores_what_is_held(self) -> None:
        files = list((self.parent / "store").glob("*"))
        wanted = {digest for kept in self.held for digest in kept.tree.digests}
        assert sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files) == sorted(wanted)
        assert self.store.used == sum(path.stat().st_size for path in files)


TestFolder = FolderMachine.TestCase
TestFolder.settings = settings(
    max_examples=200, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
