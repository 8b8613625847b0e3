"""Calls, streams, cancellation and errors between a gateway and an agent, over a real connection."""

import asyncio
import contextlib
import inspect
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
import pytest

from ingle import errors, nodes
from ingle.cluster.directory import AgentInfo, StaticDirectory
from ingle.cluster.remote import Direct, handle
from ingle.cluster.token import ClusterToken
from ingle.cluster.wire import frames
from ingle.cluster.wire.calls import GatewayLink
from ingle.cluster.wire.channel import BEAT_SECONDS, DEAD_AFTER_BEATS
from ingle.cluster.wire.failures import error_of, failure_of
from ingle.cluster.wire.link import Link
from ingle.cluster.wire.surface import describe
from support.waiting import until

TOKEN = ClusterToken("a token of the tests")
INFO = AgentInfo("abcd", "n1", "127.0.0.1", 0)
CHUNK = b"x" * 65536


class Opened(Protocol):
    size: int

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Served(Protocol):
    async def double(self, number: int, *, offset: int = 0) -> int: ...

    async def fail(self) -> None: ...

    async def break_down(self) -> None: ...

    async def sleep(self) -> None: ...

    def many(self) -> AsyncIterator[bytes]: ...

    async def count(self, name: str, chunks: AsyncIterator[bytes], limit: int) -> tuple[str, int]: ...

    async def open(self, size: int) -> Opened: ...


class RealOpened:
    def __init__(self, size: int) -> None:
        self.size = size
        self.notes: list[str] = []
        self.closed = False

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        self.closed = True


class RealServed:
    """What the agent of these tests serves."""

    def __init__(self) -> None:
        self.sent = 0
        self.taken = 0
        self.ended: list[str] = []
        self.opened: list[RealOpened] = []
        self.may_read = asyncio.Event()

    def secret(self) -> str:
        raise AssertionError("not a verb")

    async def double(self, number: int, *, offset: int = 0) -> int:
        return number * 2 + offset

    async def fail(self) -> None:
        raise errors.Busy(7, 1.5, waiting=True)

    async def break_down(self) -> None:
        raise ZeroDivisionError

    async def sleep(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("sleep")

    async def many(self) -> AsyncIterator[bytes]:
        try:
            while True:
                self.sent += 1
                yield CHUNK
        finally:
            self.ended.append("many")

    async def count(self, name: str, chunks: AsyncIterator[bytes], limit: int) -> tuple[str, int]:
        size = 0
        await self.may_read.wait()
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise errors.TooLarge("too large")
        return name, size

    async def open(self, size: int) -> RealOpened:
        self.opened.append(RealOpened(size))
        return self.opened[-1]


@contextlib.asynccontextmanager
async def listening(root: object) -> AsyncIterator[tuple[int, list[GatewayLink]]]:
    """Serve an object on a port. Also yields the agent's ends of the connections."""
    links: list[GatewayLink] = []

    def accept() -> GatewayLink:
        links.append(GatewayLink(TOKEN, INFO, root, describe(Served)))
        return links[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], links
    finally:
        server.close()
        for link in links:
            link.close()


@pytest.fixture
def real() -> RealServed:
    return RealServed()


@pytest.fixture
async def served(real: RealServed) -> AsyncIterator[tuple[Any, Link, list[GatewayLink]]]:
    """The object as a gateway sees it, with both ends of the connection."""
    async with listening(real) as (port, links):
        link = await Link.open("127.0.0.1", port, TOKEN)
        yield handle(Served, Direct(link), []), link, links
        link.close()


async def test_calls_have_typed_arguments_and_answers(served: tuple[Any, Link, list[GatewayLink]]) -> None:
    remote = served[0]
    assert await asyncio.gather(*(remote.double(number, offset=1) for number in range(100))) == [
        number * 2 + 1 for number in range(100)
    ]
    with pytest.raises(TypeError):
        await remote.double()
    with pytest.raises(errors.InvalidRequest, match="double"):
        await remote.double("two")


async def test_lone_surrogates_are_made_visible(served: tuple[Any, Link, list[GatewayLink]], real: RealServed) -> None:
    opened = await served[0].open(1)
    opened.note("lone \ud800")
    assert await until(lambda: bool(real.opened[0].notes), 5)
    assert real.opened[0].notes == ["lone \\ud800"]


async def test_errors_arrive_as_they_were(served: tuple[Any, Link, list[GatewayLink]]) -> None:
    remote = served[0]
    with pytest.raises(errors.Busy) as caught:
        await remote.fail()
    assert (caught.value.cell, caught.value.waiting, caught.value.status) == (7, True, 409)
    assert caught.value.message == errors.Busy(7, 1.5, waiting=True).message
    with pytest.raises(errors.IngleError, match="see its log") as broken:
        await remote.break_down()
    assert broken.value.code == "internal"


def test_every_error_can_be_sent() -> None:
    for name, kind in vars(errors).items():
        if not (inspect.isclass(kind) and issubclass(kind, errors.IngleError)):
            continue
        error = kind.__new__(kind)
        errors.IngleError.__init__(error, f"{name}; do this", name)
        error.retry_after = 2.5
        frame = msgspec.msgpack.decode(msgspec.msgpack.encode(failure_of(1, error)), type=frames.Failure)
        found = error_of(frame)
        assert type(found) is kind
        assert (found.code, found.status, found.message, found.problem, found.retry_after) == (
            kind.code,
            kind.status,
            f"{name}; do this",
            name,
            2.5,
        )


async def test_a_reader_that_stops_holds_no_more_than_the_window(
    served: tuple[Any, Link, list[GatewayLink]], real: RealServed
) -> None:
    remote = served[0]
    async with aclosing(remote.many()) as items:
        assert await anext(items) == CHUNK
        most = frames.WINDOW_BYTES // len(CHUNK) + 2
        await until(lambda: real.sent >= 4, 5)
        # Other calls go on meanwhile, and each gives the sender a chance to send more.
        for _ in range(50):
            await remote.double(1)
        assert real.sent <= most
        for _ in range(3 * most):
            assert await anext(items) == CHUNK
    assert await until(lambda: real.ended == ["many"], 5)


async def test_an_upload_waits_for_its_reader(served: tuple[Any, Link, list[GatewayLink]], real: RealServed) -> None:
    remote, given = served[0], 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(100):
            given += 1
            yield CHUNK

    counting = asyncio.ensure_future(remote.count("a", chunks(), 10**9))
    assert await until(lambda: given >= 4, 5)
    for _ in range(50):
        await remote.double(1)
    assert given <= frames.WINDOW_BYTES // len(CHUNK) + 2
    real.may_read.set()
    assert await counting == ("a", 100 * len(CHUNK))


async def test_a_failed_upload_ends_on_both_sides(
    served: tuple[Any, Link, list[GatewayLink]], real: RealServed
) -> None:
    remote, link, _ = served
    real.may_read.set()
    closed = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield CHUNK
        finally:
            closed.append(True)

    with pytest.raises(errors.TooLarge):
        await remote.count("a", endless(), 10 * len(CHUNK))

    async def broken() -> AsyncIterator[bytes]:
        yield CHUNK
        raise ConnectionResetError("the client has gone")

    with pytest.raises(ConnectionResetError):
        await remote.count("a", broken(), 10**9)
    assert link.calls == 0


async def test_a_dropped_call_is_cancelled_at_the_agent(
    served: tuple[Any, Link, list[GatewayLink]], real: RealServed
) -> None:
    remote, link, _ = served
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(remote.sleep(), 0.05)
    assert await until(lambda: real.ended == ["sleep"], 5)
    assert link.calls == 0


async def test_opened_objects_are_closed_by_their_owner_or_with_the_connection(
    served: tuple[Any, Link, list[GatewayLink]], real: RealServed
) -> None:
    remote, link, _ = served
    first, second = await remote.open(5), await remote.open(6)
    assert (first.size, second.size) == (5, 6)
    first.note("hello")
    first.close()
    assert await until(lambda: real.opened[0].closed, 5)
    assert (real.opened[0].notes, real.opened[1].closed) == (["hello"], False)
    link.close()
    assert await until(lambda: real.opened[1].closed, 5)


async def test_a_broken_connection_tells_every_caller_at_once(
    served: tuple[Any, Link, list[GatewayLink]], real: RealServed
) -> None:
    remote, _, links = served
    sleeping = asyncio.ensure_future(remote.sleep())
    streaming = remote.many()
    await anext(streaming)
    links[0].close()
    with pytest.raises(errors.NodeLost, match="n1"):
        await sleeping
    with pytest.raises(errors.NodeLost):
        async for _ in streaming:
            pass
    with pytest.raises(errors.NodeLost):
        await remote.double(1)
    assert await until(lambda: sorted(real.ended) == ["many", "sleep"], 5)


async def test_a_silent_peer_is_dead(real: RealServed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.cluster.wire.channel.BEAT_SECONDS", BEAT_SECONDS / 20)
    async with listening(real) as (port, links):
        link = await Link.open("127.0.0.1", port, TOKEN)
        # Beats alone keep a connection alive.
        await asyncio.sleep(BEAT_SECONDS / 20 * (DEAD_AFTER_BEATS + 3))
        assert not link.lost.done()
        monkeypatch.setattr(links[0], "send_bytes", lambda frame: None)
        assert "silent" in await asyncio.wait_for(asyncio.shield(link.lost), 5)


# --- who may call ---


def read_frame(connection: socket.socket) -> frames.AnyFrame | None:
    """Return the next frame, or None at the end."""
    reader = frames.Reader()
    reader.limit = frames.MAX_FRAME_BYTES
    while data := connection.recv(65536):
        for frame in reader.feed(data):
            return frame
    return None


def proof_of(challenge: frames.Challenge, token: ClusterToken, nonce: bytes = b"n" * 32) -> frames.Proof:
    return frames.Proof(nonce, token.proof("gateway", challenge.nonce, nonce))


@pytest.fixture
async def talk(real: RealServed) -> AsyncIterator[Callable[..., Any]]:
    """Runs a function with a new plain connection, in a thread."""
    async with listening(real) as (port, _):

        def run(work: Callable[[socket.socket], Any]) -> Any:
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                return work(connection)

        yield lambda work: asyncio.to_thread(run, work)


async def test_without_the_token_there_is_nothing_but_a_challenge(talk: Callable[..., Any]) -> None:
    call = frames.encode(frames.Call(1, [], "double", msgspec.Raw(msgspec.msgpack.encode([2, 0]))))
    other = ClusterToken("another token, not of the tests")

    def first_frames(connection: socket.socket) -> tuple[Any, Any]:
        challenge = read_frame(connection)
        assert isinstance(challenge, frames.Challenge)
        connection.sendall(call)
        return challenge, read_frame(connection)

    def wrong(connection: socket.socket) -> Any:
        challenge = read_frame(connection)
        assert isinstance(challenge, frames.Challenge)
        connection.sendall(frames.encode(proof_of(challenge, other)) + call)
        return read_frame(connection)

    assert (await talk(first_frames))[1] is None
    assert await talk(wrong) is None


async def test_a_recorded_proof_is_worth_nothing(talk: Callable[..., Any]) -> None:
    recorded: list[frames.Proof] = []

    def honest(connection: socket.socket) -> Any:
        challenge = read_frame(connection)
        assert isinstance(challenge, frames.Challenge)
        recorded.append(proof_of(challenge, TOKEN))
        connection.sendall(frames.encode(recorded[0]))
        return read_frame(connection)

    def replay(connection: socket.socket) -> Any:
        read_frame(connection)
        connection.sendall(frames.encode(recorded[0]))
        return read_frame(connection)

    assert isinstance(await talk(honest), frames.Welcome)
    assert await talk(replay) is None


@pytest.mark.parametrize("size", [frames.MAX_GREETING_BYTES + 1, 2**32 - 1])
async def test_long_frames_of_strangers_are_not_read(talk: Callable[..., Any], size: int) -> None:
    def send(connection: socket.socket) -> Any:
        read_frame(connection)
        connection.sendall(struct.pack("!I", size))
        return read_frame(connection)

    assert await talk(send) is None


async def test_a_gateway_gives_its_calls_to_no_agent_without_the_token(real: RealServed) -> None:
    async with listening(real) as (port, _):
        with pytest.raises(errors.Unreachable, match="token"):
            await Link.open("127.0.0.1", port, ClusterToken("another token, not of the tests"))


async def test_only_described_verbs_can_be_called(talk: Callable[..., Any]) -> None:
    def ask(target: list[list[str]], verb: str) -> Callable[[socket.socket], Any]:
        def work(connection: socket.socket) -> Any:
            challenge = read_frame(connection)
            assert isinstance(challenge, frames.Challenge)
            connection.sendall(frames.encode(proof_of(challenge, TOKEN)))
            assert isinstance(read_frame(connection), frames.Welcome)
            connection.sendall(frames.encode(frames.Call(1, target, verb, msgspec.Raw(msgspec.msgpack.encode([])))))
            return read_frame(connection)

        return work

    for target, verb in (([], "secret"), ([], "__init__"), ([["__class__"]], "mro"), ([["double"]], "x")):
        answer = await talk(ask(target, verb))
        assert isinstance(answer, frames.Failure)
        assert answer.kind == "NotFound"


# --- the surface of a node ---

NOT_SENT = {"Node.start", "Node.stop", "ToolServers.names"}
"""The process of the node itself, and a question that is answered from the gateway's own settings."""


def test_every_method_of_a_node_can_be_called_from_elsewhere() -> None:
    missing = set()
    for protocol in vars(nodes).values():
        if not (inspect.isclass(protocol) and protocol.__module__ == nodes.__name__):
            continue
        surface = describe(protocol)
        names = [name for name in vars(protocol) if not name.startswith("_")]
        missing |= {f"{protocol.__name__}.{name}" for name in names if name not in (*surface.verbs, *surface.parts)}
    assert missing == NOT_SENT


def test_addresses_of_agents_are_read() -> None:
    directory = StaticDirectory.read("10.0.0.1:8400, [::1]:8401")
    assert [(each.host, each.port) for each in directory.agents().values()] == [("10.0.0.1", 8400), ("::1", 8401)]
    for wrong in ("", "host", "host:x", ":1", "host:70000"):
        with pytest.raises(errors.InvalidRequest):
            StaticDirectory.read(wrong)
