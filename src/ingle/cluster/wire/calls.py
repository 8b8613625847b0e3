"""The agent's end of a connection: carries out the calls of one gateway."""

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Raw

from ingle import errors
from ingle.cluster.directory import AgentInfo
from ingle.cluster.token import ClusterToken, new_nonce
from ingle.cluster.wire.channel import Channel
from ingle.cluster.wire.credit import ReadWindow, SendWindow
from ingle.cluster.wire.failures import failure_of
from ingle.cluster.wire.frames import (
    MAX_FRAME_BYTES,
    VERSION,
    Answer,
    AnyFrame,
    Call,
    Challenge,
    Credit,
    Drop,
    End,
    FrameBroken,
    Item,
    Note,
    Proof,
    Welcome,
    encode,
    encode_value,
)
from ingle.cluster.wire.surface import Kind, Surface, Verb

MAX_CALLS = 20_000
"""Calls of one gateway that may be under way."""

logger = logging.getLogger(__name__)


class _Upload:
    """Stream of bytes that a gateway sends for one call."""

    def __init__(self) -> None:
        self.items: deque[bytes] = deque()
        self.ended = False
        self.arrived = asyncio.Event()


class _Running:
    """A call that is carried out."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.window = SendWindow()
        self.upload = _Upload()


class GatewayLink(Channel):
    """Connection of one gateway to this agent. `root` is what its calls begin at."""

    def __init__(self, token: ClusterToken, info: AgentInfo, root: object, surface: Surface) -> None:
        super().__init__()
        self._token = token
        self._info = info
        self._root = root
        self._surface = surface
        self._nonce = new_nonce()
        self._trusted = False
        self._running: dict[int, _Running] = {}
        self._opened: dict[int, tuple[Any, Surface]] = {}

    def on_connected(self) -> None:
        self.send(Challenge(VERSION, self._nonce))

    def on_frame(self, frame: AnyFrame) -> None:
        if not self._trusted:
            self._greet(frame)
        elif isinstance(frame, Call):
            self._begin(frame)
        elif isinstance(frame, Note):
            self._carry_out_note(frame)
        elif isinstance(frame, Drop):
            self._drop(frame.number)
        elif (running := self._running.get(getattr(frame, "number", -1))) is not None:
            if isinstance(frame, Credit):
                running.window.give(frame.size)
            elif isinstance(frame, Item):
                running.upload.items.append(msgspec.msgpack.decode(frame.value, type=bytes))
                running.upload.arrived.set()
            elif isinstance(frame, End):
                running.upload.ended = True
                running.upload.arrived.set()

    def _greet(self, frame: AnyFrame) -> None:
        """Check that the gateway knows the token. Otherwise it is told nothing."""
        if not isinstance(frame, Proof) or not self._token.proves(frame.proof, "gateway", self._nonce, frame.nonce):
            logger.warning("a connection without the cluster's token was closed")
            self.close("it does not know the token")
            return
        self._trusted = True
        self.trust()
        self.send(Welcome(self._token.proof("agent", self._nonce, frame.nonce), self._info))

    def on_lost(self, reason: str) -> None:
        """Cancel every call of the gateway, and close what it has opened."""
        for running in self._running.values():
            if running.task is not None:
                running.task.cancel()
        for number in list(self._opened):
            self._close(number)

    # --- calls ---

    def _begin(self, frame: Call) -> None:
        if len(self._running) >= MAX_CALLS or frame.number in self._running or frame.number in self._opened:
            raise FrameBroken("too many calls, or a number that is in use")
        running = self._running[frame.number] = _Running()
        running.task = asyncio.get_running_loop().create_task(self._carry_out(frame, running))

    async def _carry_out(self, frame: Call, running: _Running) -> None:
        """Carry out one call, whatever happens in it."""
        number = frame.number
        try:
            await self._answer(frame, running)
        except errors.IngleError as error:
            self.send(failure_of(number, error))
        except asyncio.CancelledError:
            # The gateway has dropped it, and knows; or this agent stops.
            self.send(failure_of(number, errors.Unavailable("the call was cancelled; send it again")))
        except Exception:  # the edge of a request: its caller gets an answer, and the agent goes on
            logger.exception("a call failed: %s", frame.verb)
            self.send(failure_of(number, errors.IngleError("an error in the agent; see its log")))
        finally:
            self._running.pop(number, None)

    async def _answer(self, frame: Call, running: _Running) -> None:
        target, surface = await self._find(frame.target)
        verb = surface.verbs.get(frame.verb)
        if verb is None or verb.kind is Kind.NOTE:
            raise errors.NotFound(f"there is no verb {frame.verb[:80]!r} of {surface.name}")
        arguments = _arguments(verb, frame.arguments)
        upload = None if verb.upload is None else self._receive(frame.number, running.upload)
        answer = verb.carry_out(target, arguments, upload)
        if verb.kind is Kind.STREAM:
            await self._send_stream(frame.number, answer, running.window)
            return
        value = await answer
        if verb.kind is Kind.OPEN:
            assert verb.opens is not None
            self._opened[frame.number] = value, verb.opens
            value = [getattr(value, name) for name in verb.opens.attributes]
        data = encode(Answer(frame.number, Raw(encode_value(value))))
        if len(data) > MAX_FRAME_BYTES:
            raise errors.TooLarge(f"the answer is above {MAX_FRAME_BYTES} bytes; read it in parts")
        self.send_bytes(data)

    async def _find(self, target: int | list[list[str]]) -> tuple[Any, Surface]:
        """Return the object that a call is about. Only described parts are on the way to one."""
        if isinstance(target, int):
            if target not in self._opened:
                raise errors.NotFound("it was closed")
            return self._opened[target]
        found: Any = self._root
        surface = self._surface
        for name, *given in target:
            part = surface.parts.get(name)
            if part is None:
                raise errors.NotFound(f"there is no part {name[:80]!r} of {surface.name}")
            found = getattr(found, name)
            if not part.is_property:
                found = found(*given)
                if part.is_async:
                    found = await found
            surface = part.surface
        return found, surface

    async def _send_stream(self, number: int, items: AsyncIterator[Any], window: SendWindow) -> None:
        async with _closing(items):
            async for item in items:
                value = encode_value(item)
                await window.take(len(value))
                await self.wait_writable()
                self.send(Item(number, Raw(value)))
        self.send(End(number))

    async def _receive(self, number: int, upload: _Upload) -> AsyncIterator[bytes]:
        """Yield what the gateway sends."""
        window = ReadWindow()
        while True:
            while upload.items:
                chunk = upload.items.popleft()
                if credit := window.take(len(chunk)):
                    self.send(Credit(number, credit))
                yield chunk
            if upload.ended:
                return
            upload.arrived.clear()
            await upload.arrived.wait()

    def _carry_out_note(self, frame: Note) -> None:
        found = self._opened.get(frame.target)
        if found is None:
            return  # it was closed meanwhile
        target, surface = found
        verb = surface.verbs.get(frame.verb)
        if verb is None or verb.kind is not Kind.NOTE:
            raise FrameBroken(f"no note {frame.verb[:80]!r}")
        verb.carry_out(target, _arguments(verb, frame.arguments), None)

    def _drop(self, number: int) -> None:
        running = self._running.get(number)
        if running is not None and running.task is not None:
            running.task.cancel()
        self._close(number)

    def _close(self, number: int) -> None:
        found = self._opened.pop(number, None)
        if found is not None:
            found[0].close()


def _arguments(verb: Verb, data: Raw) -> msgspec.Struct:
    try:
        found: msgspec.Struct = verb.read_arguments.decode(data)
        return found
    except msgspec.MsgspecError as error:
        raise errors.InvalidRequest(f"{verb.name}: {error}; use one version of ingle on all machines") from None


@contextlib.asynccontextmanager
async def _closing(items: Any) -> AsyncIterator[None]:
    """Close an async generator at the end; other iterators need not be closed."""
    if inspect.isasyncgen(items):
        async with aclosing(items):
            yield
    else:
        yield
