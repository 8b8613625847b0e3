"""The gateway's end of a connection to an agent: calls go out, answers and items come in."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from ingle.cluster.directory import AgentInfo
from ingle.cluster.token import ClusterToken, new_nonce
from ingle.cluster.wire.channel import Channel
from ingle.cluster.wire.credit import ReadWindow, SendWindow
from ingle.cluster.wire.failures import error_of
from ingle.cluster.wire.frames import (
    VERSION,
    Answer,
    AnyFrame,
    Call,
    Challenge,
    Credit,
    Drop,
    End,
    Failure,
    Item,
    Note,
    Proof,
    Welcome,
    encode_value,
)
from ingle.cluster.wire.surface import Verb
from ingle.errors import NodeLost, Unreachable

CONNECT_SECONDS = 3.0

Target = int | list[list[str]]
"""What a call has opened, by its number, or the steps from the agent to an object."""


class _Call:
    """A call that is under way."""

    def __init__(self, number: int, verb: Verb) -> None:
        self.number = number
        self.verb = verb
        self.answer: asyncio.Future[Raw | None] = asyncio.get_running_loop().create_future()
        """The answer; None at the end of a stream."""
        self.items: deque[Raw] = deque()
        self.arrived = asyncio.Event()
        self.upload = SendWindow()


class Link(Channel):
    """Connection of a gateway to one agent."""

    def __init__(self, token: ClusterToken) -> None:
        super().__init__()
        self._token = token
        self._nonces = b"", b""
        self._numbers = count(1)
        self._calls: dict[int, _Call] = {}
        self.welcome: asyncio.Future[AgentInfo] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, host: str, port: int, token: ClusterToken) -> "Link":
        """Connect to an agent. Raise Unreachable, also if it does not know the token."""
        loop = asyncio.get_running_loop()
        link: Link | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, link = await loop.create_connection(lambda: cls(token), host, port)
                await link.welcome
        except (OSError, TimeoutError) as error:
            if link is not None:
                link.close()
            raise Unreachable(f"no agent answers at {host}:{port}: {error or 'too late'}; start it") from None
        except BaseException:
            if link is not None:
                link.close()
            raise
        return link

    @property
    def info(self) -> AgentInfo:
        """The agent at the other end."""
        return self.welcome.result()

    @property
    def calls(self) -> int:
        """Calls that are under way."""
        return len(self._calls)

    # --- frames ---

    def on_frame(self, frame: AnyFrame) -> None:
        if not self.welcome.done():
            self._greet(frame)
            return
        if isinstance(frame, Answer):
            self._finish(frame.number, frame.value)
        elif isinstance(frame, Item):
            if (call := self._calls.get(frame.number)) is not None:
                call.items.append(frame.value)
                call.arrived.set()
        elif isinstance(frame, End):
            self._finish(frame.number, None)
        elif isinstance(frame, Failure):
            self._fail(self._calls.get(frame.number), error_of(frame))
        elif isinstance(frame, Credit) and (call := self._calls.get(frame.number)) is not None:
            call.upload.give(frame.size)

    def _greet(self, frame: AnyFrame) -> None:
        """Prove that this gateway knows the token, and check that the agent does."""
        if isinstance(frame, Challenge) and frame.version == VERSION:
            self._nonces = frame.nonce, new_nonce()
            self.send(Proof(self._nonces[1], self._token.proof("gateway", *self._nonces)))
        elif isinstance(frame, Welcome) and self._token.proves(frame.proof, "agent", *self._nonces):
            self.trust()
            self.welcome.set_result(frame.info)
        else:
            self.close("the agent has another token or another version of ingle")

    def on_lost(self, reason: str) -> None:
        if not self.welcome.done():
            self.welcome.set_exception(
                Unreachable(f"the agent closed the connection: {reason}; check that both have the same token")
            )
            self.welcome.exception()  # retrieved here, since the caller may have left
            return
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._fail(call, NodeLost(self.info.node, reason))

    def _finish(self, number: int, answer: Raw | None) -> None:
        call = self._calls.get(number)
        if call is not None and not call.answer.done():
            call.answer.set_result(answer)
            call.arrived.set()

    def _fail(self, call: _Call | None, error: Exception) -> None:
        if call is not None and not call.answer.done():
            call.answer.set_exception(error)
            call.answer.exception()  # retrieved here, since the caller may have left
            call.arrived.set()

    # --- calls ---

    async def call(self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a verb and return its answer. Cancelling this cancels it at the agent."""
        args, kwargs, upload = verb.take_upload(args, kwargs)
        call = self._begin(target, verb, args, kwargs)
        try:
            answer = await (call.answer if upload is None else self._sending(call, upload))
        except BaseException:
            self._drop(call)
            raise
        finally:
            self._calls.pop(call.number, None)
        assert answer is not None
        return verb.read_answer.decode(answer)

    async def open_handle(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, msgspec.Struct]:
        """Open an object at the agent. Return its number and its attributes."""
        call = self._begin(target, verb, args, kwargs)
        try:
            answer = await call.answer
        except BaseException:
            self.send(Drop(call.number))
            raise
        finally:
            self._calls.pop(call.number, None)
        assert answer is not None
        return call.number, verb.read_answer.decode(answer)

    async def stream(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """Yield the items of a stream. The agent sends no more than the window beyond what is read."""
        call = self._begin(target, verb, args, kwargs)
        window = ReadWindow()
        try:
            while True:
                while call.items:
                    item = call.items.popleft()
                    if credit := window.take(len(bytes(item))):
                        self.send(Credit(call.number, credit))
                    yield verb.read_answer.decode(item)
                if call.answer.done():
                    call.answer.result()
                    return
                call.arrived.clear()
                await call.arrived.wait()
        finally:
            self._drop(call)
            self._calls.pop(call.number, None)

    def note(self, target: int, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry out a verb that has no answer."""
        if verb.name == "close":
            self.send(Drop(target))
        else:
            self.send(Note(target, verb.name, Raw(encode_value(verb.arguments(*args, **kwargs)))))

    def _begin(self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        if self.lost.done():
            raise NodeLost(self.info.node, self.lost.result())
        arguments = Raw(encode_value(verb.arguments(*args, **kwargs)))
        call = _Call(next(self._numbers), verb)
        self._calls[call.number] = call
        self.send(Call(call.number, target, verb.name, arguments))
        return call

    def _drop(self, call: _Call) -> None:
        """Tell the agent that nobody waits for a call, unless it is over."""
        if not call.answer.done() or call.answer.cancelled():
            self.send(Drop(call.number))

    async def _sending(self, call: _Call, upload: AsyncIterator[bytes]) -> Raw | None:
        """Send an upload until its end, or until the agent has answered."""
        sending = asyncio.get_running_loop().create_task(self._send_upload(call, upload))
        try:
            either: set[asyncio.Future[Any]] = {sending, call.answer}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not call.answer.done():
                await sending  # raises what the upload itself raised
            return await call.answer
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send_upload(self, call: _Call, upload: AsyncIterator[bytes]) -> None:
        async for chunk in upload:
            await call.upload.take(len(chunk))
            await self.wait_writable()
            self.send(Item(call.number, Raw(encode_value(chunk))))
        self.send(End(call.number))
