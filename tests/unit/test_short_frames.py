"""Short texts on a WebSocket: whatever comes, and in whatever pieces, is read as the library reads it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from ingle.tools.short_frames import MAX_SHORT_BYTES, ShortClientProtocol, ShortServerProtocol

SIZES = (0, 1, 125, 126, 127, MAX_SHORT_BYTES, MAX_SHORT_BYTES + 1)
MAX_SIZE = 60_000

NOTHING = Frame(Opcode.TEXT, b"").serialize(mask=True)
"""An empty text from a client."""

TEXTS = st.one_of(st.binary(max_size=200), st.sampled_from(SIZES).map(bytes))
FRAMES = st.one_of(
    TEXTS.map(lambda data: [Frame(Opcode.TEXT, data)]),
    TEXTS.map(lambda data: [Frame(Opcode.BINARY, data)]),
    st.just([Frame(Opcode.PING, b"?")]),
    st.lists(TEXTS, min_size=2, max_size=3).map(
        lambda parts: [
            Frame(Opcode.CONT if place else Opcode.TEXT, part, fin=place == len(parts) - 1)
            for place, part in enumerate(parts)
        ]
    ),
    # What no honest side sends: an end without a beginning, and a text inside of another one.
    st.just([Frame(Opcode.CONT, b"end")]),
    st.just([Frame(Opcode.TEXT, b"begin", fin=False)]),
    st.just([Frame(Opcode.CLOSE, b"\x03\xe8")]),
)


def opened(
    client: type[ClientProtocol], server: type[ServerProtocol], limit: int | None
) -> tuple[ClientProtocol, ServerProtocol]:
    """Return both sides of an open connection. Each has read a first frame."""
    near, far = client(parse_uri("ws://localhost/"), max_size=limit), server(max_size=limit)
    near.send_request(near.connect())
    far.receive_data(b"".join(near.data_to_send()))
    (request,) = far.events_received()
    far.send_response(far.accept(request))  # type: ignore[arg-type]
    near.receive_data(b"".join(far.data_to_send()))
    for side in (near, far):
        side.receive_data(Frame(Opcode.PONG, b"").serialize(mask=side is far))
        side.events_received()
    return near, far


def short(limit: int | None = MAX_SIZE) -> tuple[Protocol, Protocol]:
    return opened(ShortClientProtocol, ShortServerProtocol, limit)


def plain(limit: int | None = MAX_SIZE) -> tuple[Protocol, Protocol]:
    return opened(ClientProtocol, ServerProtocol, limit)


def read(reader: Protocol, pieces: list[bytes]) -> Any:
    """Return all that can be seen of a protocol that reads these pieces."""
    seen = []
    for piece in pieces:
        reader.receive_data(piece)
        events = [(each.opcode, bytes(each.data), each.fin) for each in reader.events_received()]  # type: ignore[union-attr]
        # What a client sends is masked with a new key each time.
        sent = [len(each) for each in reader.data_to_send()]
        seen.append((events, sent, reader.state, repr(reader.parser_exc)))
    return seen


@pytest.mark.parametrize("to_server", [True, False])
@given(messages=st.lists(FRAMES, max_size=6), cuts=st.lists(st.integers(0, 300), max_size=3), joined=st.booleans())
def test_all_frames_are_read_as_by_the_library(
    to_server: bool, messages: list[list[Frame]], cuts: list[int], joined: bool
) -> None:
    pieces = [frame.serialize(mask=to_server) for message in messages for frame in message]
    if joined:
        whole = b"".join(pieces)
        places = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
        pieces = [whole[first:last] for first, last in pairwise(places)]
    assert read(short()[to_server], pieces) == read(plain()[to_server], pieces)


@pytest.mark.parametrize("to_server", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_texts_of_all_sizes_are_read_within_the_limit(to_server: bool, size: int) -> None:
    pieces = [Frame(Opcode.TEXT, bytes(size)).serialize(mask=to_server)] * 2
    assert read(short()[to_server], pieces) == read(plain()[to_server], pieces)


@pytest.mark.parametrize("to_server", [True, False])
def test_the_first_piece_of_a_long_text_is_no_text(to_server: bool) -> None:
    whole = Frame(Opcode.TEXT, bytes(MAX_SHORT_BYTES + 1)).serialize(mask=to_server)
    # As long as the frame would be if the mark of a length in eight bytes were the length.
    first = 2 + 4 * to_server + 127
    pieces = [whole[:first], whole[first:]]
    assert read(short(None)[to_server], pieces) == read(plain(None)[to_server], pieces)


@pytest.mark.parametrize("to_server", [True, False])
@example(pieces=[Frame(Opcode.TEXT, b"masked or not").serialize(mask=True)])
@example(pieces=[Frame(Opcode.TEXT, b"masked or not").serialize(mask=False)])
@example(pieces=[b"\x81\x80", NOTHING])
@example(pieces=[NOTHING + b"\x81\x80", NOTHING])
@example(pieces=[Frame(Opcode.TEXT, b"begin", fin=False).serialize(mask=True), NOTHING])
@given(pieces=st.lists(st.binary(min_size=1, max_size=12).map(lambda data: b"\x81" + data), max_size=4))
def test_bytes_that_are_no_frame_are_refused_as_by_the_library(to_server: bool, pieces: list[bytes]) -> None:
    assert read(short()[to_server], pieces) == read(plain()[to_server], pieces)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("from_client", [True, False])
def test_texts_are_written_for_the_other_side(size: int, from_client: bool) -> None:
    sender = short()[not from_client]
    text = bytes(range(256)) * (size // 256 + 1)
    sender.send_text(text[:size])
    reader = plain(None)[from_client]
    assert read(reader, [b"".join(sender.data_to_send())])[0][0] == [(Opcode.TEXT, text[:size], True)]


def test_a_key_masks_one_text_only() -> None:
    client, _ = short()
    client.send_text(b"same")
    client.send_text(b"same")
    first, second = client.data_to_send()
    assert first != second


@pytest.mark.parametrize("closed", [False, True])
def test_a_text_inside_of_another_one_or_after_the_end_is_not_sent(closed: bool) -> None:
    outcomes = []
    for client, _ in (short(), plain()):
        if closed:
            client.send_close(1000)
        else:
            client.send_text(b"begin", fin=False)
        with pytest.raises(WebSocketException) as raised:
            client.send_text(b"text")
        outcomes.append(repr(raised.value))
    assert outcomes[0] == outcomes[1]
