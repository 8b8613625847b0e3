"""Host side of a file agent that serves a whole folder. Blocks, and is used in a thread.

The agent's answers are untrusted: they are typed, bounded, and every wait has a limit.
"""

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ingle.support import bounded_json
from ingle.trees.index import Stamp
from ingle.trees.store import NotKept
from ingle_worker.wire import trees as wire
from ingle_worker.wire.files import LENGTH

SILENCE_SECONDS = 60.0
"""How long the agent may take to answer: a step may copy a file of gigabytes."""

BOUNDS = bounded_json.Bounds(elements=200_000, text=4 * wire.MAX_MESSAGE_BYTES)
"""Bounds of one answer: many times what an agent sends in one message."""

UNREACHABLE = "the session's file agent did not answer"

Path = Annotated[str, Meta(max_length=wire.MAX_DEPTH * 256)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Inode = Annotated[int, Meta(ge=0)]


def draft_name(token: str) -> str:
    """Return the name of incomplete files. A token that is random keeps it apart from other names."""
    return f".{token}.part"


class AgentLost(NotKept):
    """The agent has ended or hangs."""


class Seen(NamedTuple):
    """An entry of a folder as the agent found it."""

    kind: Literal["f", "d", "l", "x", "r"]
    path: Path
    mode: Number
    inode: Inode
    size: Number
    modified: Time
    changed: Time
    text: Annotated[str, Meta(max_length=8192)]

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.inode, self.size, self.modified, self.changed)


class Fetched(NamedTuple):
    """Result of reading one file."""

    errno: Number
    mode: Number
    inode: Inode
    size: Number
    modified: Time
    changed: Time
    steady: bool

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.inode, self.size, self.modified, self.changed)


class Applied(NamedTuple):
    """Result of one step."""

    errno: Number
    inode: Inode
    size: Number
    modified: Time
    changed: Time

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.inode, self.size, self.modified, self.changed)


_seen = msgspec.json.Decoder(list[Seen])
_fetched = msgspec.json.Decoder(list[Fetched])
_applied = msgspec.json.Decoder(list[Applied])


class Failed(msgspec.Struct):
    errno: Number = 0


_failed = msgspec.json.Decoder(Failed)


class TreeAgent:
    """Connection to an agent. The caller closes it."""

    def __init__(
        self, connection: socket.socket, root: str, make: Sequence[str] = (), *, tracked: bool = False, draft: str = ""
    ) -> None:
        """Open the folder `root`. Raise NotKept if the agent cannot. The folders of `make` are made first.

        `draft`: the name of incomplete files. Default: one that no other file has.
        """
        connection.settimeout(SILENCE_SECONDS)
        self._socket = connection
        self.tracked = tracked
        """Whether the folder is a tracked one, of which ignored entries are left alone."""
        self._draft = draft or draft_name(secrets.token_hex(8))
        self._send({"verb": "tree", "root": root, "fixed": True, "make": list(make)})
        failed = self._receive(_failed)
        if failed.errno:
            raise NotKept(f"the folder cannot be opened: {os.strerror(failed.errno)}")

    def entries(self, most: int, rules: dict[str, str] | None = None, *, layer: bool = False) -> list[Seen]:
        """Return all entries. Raise NotKept above so many.

        In a tracked folder, ignored entries are left out: by these rules, or by those that are in the folder now. In a
        `layer` of overlayfs, entries that stand for a removed one are told as such.
        """
        self._send({"do": "list", "tracked": self.tracked, "rules": rules, "layer": layer})
        return self._listed(most)

    def find(self, paths: Iterable[tuple[str, bool]], most: int) -> list[Seen]:
        """Return those of these entries that exist, each folder before its contents. Raise NotKept above so many.

        Each has a path, and whether all that is below it is wanted too.
        """
        # By their parts, since a slash is not the lowest character of a name.
        wanted = sorted(paths, key=lambda each: each[0].split("/"))
        found: dict[str, Seen] = {}
        for start in range(0, len(wanted), wire.MAX_ENTRIES_PER_MESSAGE):
            self._send({"do": "find", "paths": wanted[start : start + wire.MAX_ENTRIES_PER_MESSAGE]})
            for each in self._listed(most):
                found.setdefault(each.path, each)
        return list(found.values())

    def _listed(self, most: int) -> list[Seen]:
        found: list[Seen] = []
        while part := self._receive(_seen):
            found += part
            if len(found) > most:
                raise NotKept(f"the folder has more than {most} entries (keep_files)")
        return found

    def fetch(self, files: list[tuple[str, int]], targets: list[int]) -> list[Fetched]:
        """Have files copied to descriptors. Each file has a path and a limit of its size."""
        self._send({"do": "fetch", "files": files}, targets)
        fetched: list[Fetched] = self._answers(_fetched, len(files))
        return fetched

    def apply(self, steps: list[list[Any]], sources: list[int]) -> list[Applied]:
        """Have steps carried out. Each step that writes a file takes the next descriptor."""
        self._send({"do": "apply", "steps": steps, "draft": self._draft}, sources)
        applied: list[Applied] = self._answers(_applied, len(steps))
        return applied

    def _answers(self, decoder: Any, count: int) -> Any:
        found = self._receive(decoder)
        if len(found) != count:
            raise AgentLost(UNREACHABLE)
        return found

    def _send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        data = json.dumps(request).encode()
        data = LENGTH.pack(len(data)) + data
        with self._reachable():
            sent = socket.send_fds(self._socket, [data], list(fds)) if fds else 0
            self._socket.sendall(data[sent:])

    def _receive(self, decoder: Any) -> Any:
        with self._reachable():
            (length,) = LENGTH.unpack(self._receive_exactly(LENGTH.size))
            if length > wire.MAX_MESSAGE_BYTES:
                raise AgentLost(UNREACHABLE)
            data = self._receive_exactly(length)
            bounded_json.check(data, BOUNDS)
            return decoder.decode(data)

    def _receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, ValueError, msgspec.MsgspecError, RecursionError):
            raise AgentLost(UNREACHABLE) from None
