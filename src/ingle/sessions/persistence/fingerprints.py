"""Variables of a session at one moment with hashes of their saved bytes, and how two such moments differ.

The worker itself tells hashes of values of builtin types. All others are hashed by a live copy, which ends afterwards.
It runs code of the user, so its answers are untrusted: they are typed, bounded, and every wait has a limit.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ingle import errors
from ingle.files import VariableDiff, VariableState
from ingle.sessions.persistence.transfer import Transfer
from ingle.support import bounded_json
from ingle.workers.copies import Copies
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, snapshot_channel

GRACE_SECONDS = 5.0
"""Time beyond that for the hashes: to list the variables, and for code of the user that does not look at the time."""

MAX_NAMES = 10_000

BOUNDS = bounded_json.Bounds(elements=100_000, text=4 * snapshot_channel.MAX_FINGERPRINTS)

Text = Annotated[str, Meta(max_length=1000)]
Digest = Annotated[str, Meta(max_length=64)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Listed(Struct, frozen=True):
    name: Text
    type: Text
    shape: Annotated[list[Number], Meta(max_length=100)] | None = None
    length: Number | None = None
    size: Number | None = None
    preview: Text | None = None
    identity: Number = 0
    digest: Digest = ""

    @property
    def fingerprint(self) -> "Fingerprint":
        state = VariableState(self.type, self.shape, self.length, self.size, self.preview)
        return Fingerprint(state, self.identity, self.digest)


class Fingerprint(Struct):
    """A variable at one moment."""

    state: VariableState
    identity: int
    """Address of the object. It means something among processes that are copies of each other."""
    digest: str = ""
    """Hash of its saved bytes. Empty: it was not hashed in time, or cannot be saved."""

    @property
    def extent(self) -> tuple[list[int] | None, int | None]:
        return self.state.shape, self.state.length


_listed = msgspec.json.Decoder(list[Listed])
_hashed = msgspec.json.Decoder(tuple[Number, Digest])


def told(variable: messages.Variable) -> Fingerprint:
    """Return what a worker has told of a variable. Raise ValidationError if it cannot be true."""
    return msgspec.convert(variable, Listed, from_attributes=True).fingerprint


async def take(copy: Worker, seconds: float, names: Sequence[str] = ()) -> dict[str, Fingerprint]:
    """Have a live copy hash its variables for so many seconds, or only those with these names.

    The copy has ended when this returns. Raise SaveFailed if it does not even list them.
    """
    connection = await Transfer().open(copy, messages.Compare(0, seconds, list(names)))
    try:
        connection.setblocking(False)
        frames = _frames(connection)
        found: list[tuple[str, Fingerprint]] = []
        complete = False
        with contextlib.suppress(TimeoutError, EOFError, OSError, ValueError, msgspec.MsgspecError, RecursionError):
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                async for frame in frames:
                    if complete:
                        number, digest = _hashed.decode(frame)
                        found[number][1].digest = digest
                        continue
                    part = _listed.decode(frame)
                    found += [(each.name, each.fingerprint) for each in part]
                    complete = not part or len(found) > MAX_NAMES
        if not complete:
            raise errors.SaveFailed("the session's copy did not list its variables")
        return dict(found[:MAX_NAMES])
    finally:
        connection.close()
        copy.kill()
        await copy.gone


async def take_from(copies: Copies, seconds: float, names: Sequence[str] = ()) -> dict[str, Fingerprint] | str:
    """Return what `take` returns for the first of new copies, or why it is not known. The copy has ended then."""
    try:
        (copy,) = await copies.up()
        return await take(copy, seconds, names)
    except errors.IngleError as error:
        return error.message
    except asyncio.CancelledError:
        copies.kill()
        raise


async def _frames(connection: socket.socket) -> AsyncIterator[bytes]:
    """Yield frames until the copy closes the channel."""
    while True:
        kind, size = snapshot_channel.PREFIX.unpack(await _exactly(connection, snapshot_channel.PREFIX.size))
        if kind != snapshot_channel.FINGERPRINTS or size > snapshot_channel.MAX_FINGERPRINTS:
            return
        data = await _exactly(connection, size)
        bounded_json.check(data, BOUNDS)
        yield data


async def _exactly(connection: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < count:
        part = await loop.sock_recv(connection, count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def compare(
    before: dict[str, Fingerprint], after: dict[str, Fingerprint], *, related: bool
) -> tuple[list[VariableDiff], list[str]]:
    """Return the variables that differ, and the names of those that cannot be told.

    `related`: both are of processes that are copies of each other, so an object has the same address in both.
    """
    changed: list[VariableDiff] = []
    unknown: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        change = _change(old, new, related=related)
        if change == "unknown":
            unknown.append(name)
        elif change is not None:
            states = (None if each is None else each.state for each in (old, new))
            changed.append(VariableDiff(name, change, *states))
    return changed, unknown


def _change(
    old: Fingerprint | None, new: Fingerprint | None, *, related: bool
) -> Literal["created", "changed", "deleted", "unknown"] | None:
    if old is None:
        return "created"
    if new is None:
        return "deleted"
    rebound = related and old.identity != new.identity
    if rebound or old.state.type != new.state.type:
        return "changed"
    if old.digest and new.digest:
        return "changed" if old.digest != new.digest else None
    return "changed" if old.extent != new.extent else "unknown"
