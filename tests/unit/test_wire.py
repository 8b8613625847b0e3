"""The wire keeps its word: frames come back whole, messages mean the same on both sides, nonsense is refused."""

import functools
import json
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.workers.io import decode as decode_module
from ingle_worker.wire import BadFrame, BadMessage, Frame, FrameReader, FrameTooLarge, WireError, encode_frame, states
from ingle_worker.wire import messages as wire
from ingle_worker.wire.frames import PREFIX

FRAMES = st.lists(st.builds(Frame, st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=40)), max_size=12)
LIMIT = 100


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data, cut at these places."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def one_frame(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


# --- frames ------------------------------------------------------------------------------------------------


@given(FRAMES, st.lists(st.integers(0, 1100), max_size=30))
def test_frames_come_back_whole_and_in_order_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode_frame(*frame) for frame in frames)
    reader = FrameReader()
    assert [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)] == frames
    assert reader.held == 0


def test_a_frame_fed_byte_by_byte_appears_with_its_last_byte() -> None:
    data = encode_frame(7, b"head", b"payload")
    reader = FrameReader()
    seen = [reader.feed(data[place : place + 1]) for place in range(len(data))]
    assert seen == [[]] * (len(data) - 1) + [[Frame(7, b"head", b"payload")]]


def test_a_frame_of_exactly_the_limit_passes() -> None:
    data = encode_frame(1, b"h" * 40, b"p" * 60, limit=LIMIT)
    assert FrameReader(LIMIT).feed(data) == [Frame(1, b"h" * 40, b"p" * 60)]


def test_a_frame_one_byte_above_the_limit_is_not_made() -> None:
    with pytest.raises(FrameTooLarge, match=r"^a frame of 101 bytes is above the limit of 100$"):
        encode_frame(1, b"h" * 40, b"p" * 61, limit=LIMIT)


def test_a_frame_one_byte_above_the_limit_is_refused_before_any_of_it_is_held() -> None:
    reader = FrameReader(LIMIT)
    with pytest.raises(FrameTooLarge, match=r"^a frame of 101 bytes is above the limit of 100$"):
        reader.feed(PREFIX.pack(101, 0, 1))
    assert reader.held == 0


def test_a_header_longer_than_its_frame_is_refused() -> None:
    with pytest.raises(BadFrame, match=r"^a header of 11 bytes in a frame of 10$"):
        FrameReader().feed(PREFIX.pack(10, 11, 1))


def test_frames_before_a_broken_one_are_still_given() -> None:
    reader = FrameReader(LIMIT)
    good = encode_frame(1, b"{}")
    assert reader.feed(good + PREFIX.pack(101, 0, 1)) == [Frame(1, b"{}", b"")]
    with pytest.raises(FrameTooLarge):
        reader.feed(b"")


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_garbage_is_a_wire_error_or_frames_and_never_held_above_the_limit(chunks: list[bytes]) -> None:
    reader = FrameReader(LIMIT)
    broken = False
    for chunk in chunks:
        try:
            for frame in reader.feed(chunk):
                assert len(frame.header) + len(frame.payload) <= LIMIT
                assert not broken
        except WireError:
            broken = True
        assert reader.held < LIMIT + PREFIX.size


@given(st.binary(max_size=200))
def test_a_broken_reader_stays_broken(later: bytes) -> None:
    reader = FrameReader(LIMIT)
    with pytest.raises(FrameTooLarge) as first:
        reader.feed(PREFIX.pack(101, 0, 1) + encode_frame(1, b"{}"))
    with pytest.raises(FrameTooLarge) as second:
        reader.feed(encode_frame(1, b"{}") + later)
    assert str(second.value) == str(first.value)
    assert reader.held == 0


# --- messages ----------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec=None, categories=None), max_size=30) | st.sampled_from(
    ["", "\0", "\x1f\x7f", '"\\', "\ud800", "a\udcffb", "🔥", "\u2028", "\\ud800"]
)


@functools.cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return st.lists(values(args[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=4)
    if origin is types.UnionType:
        return st.one_of(*map(values, args))
    if is_dataclass(kind):
        return instances(kind)
    return {
        int: st.integers(0, 2**63 - 1),
        float: st.floats(0, allow_infinity=False),
        bool: st.booleans(),
        str: TEXT,
        bytes: st.binary(max_size=30),
        Any: st.recursive(st.booleans() | TEXT, lambda each: st.lists(each, max_size=2), max_leaves=3),
        type(None): st.none(),
    }[kind]


@functools.cache
def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{each.name: values(hints[each.name]) for each in fields(cls)})


def visible(value: Any) -> Any:
    """The value as it arrives: lone surrogates have become escapes that can be shown."""
    if isinstance(value, str):
        return "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, list):
        return [visible(item) for item in value]
    if isinstance(value, dict):
        return {visible(key): visible(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: visible(getattr(value, each.name)) for each in fields(value)})
    return value


def arrived(message: Any) -> Any:
    """The message as the other side should see it. What travels raw keeps even its lone surrogates."""
    expected = visible(message)
    raw = wire.PAYLOADS.get(type(message))
    return replace(expected, **{raw: getattr(message, raw)}) if raw else expected


def plain(value: Any) -> Any:
    """Nested messages as the guest's decoder leaves them, which the host never sends."""
    if is_dataclass(value) and not isinstance(value, type):
        given = {each.name: (getattr(value, each.name), each.default) for each in fields(value)}
        return {name: plain(one) for name, (one, default) in given.items() if one != default}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


@pytest.mark.parametrize("cls", decode_module.FROM_GUEST)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_the_guest_says_is_what_the_host_reads(cls: type, data: st.DataObject) -> None:
    expected = arrived(message := data.draw(instances(cls)))
    read = decode_module.decode(one_frame(wire.encode(message)))
    assert type(read) is cls
    assert {each.name: getattr(read, each.name) for each in fields(cls)} == vars(expected)


@pytest.mark.parametrize("cls", wire.NUMBERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_message_comes_back_through_the_guests_own_decoder(cls: type, data: st.DataObject) -> None:
    message = data.draw(instances(cls))
    back = wire.decode(one_frame(wire.encode(message)))
    expected = arrived(message)
    assert type(back) is cls
    assert vars(back) == {name: plain(value) for name, value in vars(expected).items()}


def test_every_kind_is_a_message_of_the_host_or_of_the_guest() -> None:
    asking = {wire.ListVariables, wire.AskVariable, wire.MoveValue, wire.Complete, wire.Inspect, wire.CheckCode}
    asking |= {wire.AskFrame}
    shell = {wire.Run, wire.Signal}
    preparing = {wire.LoadStdlib, wire.EditStdlib, wire.Clear, wire.ToolReply}
    to_guest = {wire.Start, wire.Execute, wire.Shutdown, wire.Interrupt, wire.Kill, wire.Fork}
    copying = {wire.ForkSelf, wire.Ends, wire.Rehome, wire.Reopen, wire.Adopt, wire.Save, wire.Load, wire.Compare}
    copying |= {wire.NoteFiles}
    sandboxes = {wire.Enter, wire.Join, wire.Shell, wire.ServeFiles, wire.Prove}
    sandboxes |= {wire.MakeView, wire.UseView, wire.CloseView}
    staying = {wire.Stay, wire.KeepEnds, wire.ReturnEnds, wire.Reopen}
    to_guest |= asking | shell | preparing | copying | sandboxes | staying
    assert set(decode_module.FROM_GUEST) | to_guest == set(wire.NUMBERS)
    assert set(decode_module.FROM_GUEST) & to_guest == set()
    assert {wire.KINDS[number]: number for number in wire.KINDS} == wire.NUMBERS


def test_fields_with_defaults_may_be_left_out() -> None:
    frame = Frame(wire.NUMBERS[wire.Done], b'{"cell":3,"status":"ok","execution_time":0.5}', b"")
    assert decode_module.decode(frame) == wire.Done(3, "ok", 0.5)
    assert wire.encode(wire.Done(3, "ok", 0.5)) == encode_frame(frame.kind, frame.header)


DEEP = b"[" * 200_000


@pytest.mark.parametrize("header", [DEEP, b'{"pid":' + DEEP, b'{"other":' + DEEP + b"]" * 200_000 + b"}"])
@pytest.mark.parametrize("decode", [decode_module.decode, wire.decode])
def test_deeply_nested_headers_are_bad_messages(decode: Any, header: bytes) -> None:
    with pytest.raises(BadMessage, match=r"^a Ready that cannot be read: "):
        decode(Frame(wire.NUMBERS[wire.Ready], header, b""))


@pytest.mark.parametrize("decode", [decode_module.decode, wire.decode])
def test_an_unknown_kind_is_a_bad_message(decode: Any) -> None:
    for kind in set(range(256)) - set(wire.KINDS):
        with pytest.raises(BadMessage, match=rf"^no message .*has the kind {kind}$"):
            decode(Frame(kind, b"{}", b""))


@pytest.mark.parametrize("cls", sorted(set(wire.NUMBERS) - set(decode_module.FROM_GUEST), key=lambda cls: cls.__name__))
def test_a_worker_cannot_send_what_only_the_host_says(cls: type) -> None:
    with pytest.raises(BadMessage, match=rf"^no message from a worker has the kind {wire.NUMBERS[cls]}$"):
        decode_module.decode(Frame(wire.NUMBERS[cls], b"{}", b""))


WRONG = {int: "one", float: "soon", bool: 1, str: 5, types.NoneType: 5}


def wrong_for(kind: Any) -> Any:
    """A value that a field of this type must not take."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [wrong_for(args[0])]
    if origin is dict:
        return 5 if args[1] is Any else {"name": wrong_for(args[1])}
    if origin is types.UnionType:
        return [1]
    return {} if is_dataclass(kind) else WRONG[kind]


def fields_of_the_guest() -> list[Any]:
    return [
        pytest.param(cls, each, id=f"{cls.__name__}.{each.name}")
        for cls in decode_module.FROM_GUEST
        for each in fields(cls)
        if wire.PAYLOADS.get(cls) != each.name
    ]


def example(kind: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, dict):
        return origin()
    if origin is types.UnionType:
        return example(args[0])
    if is_dataclass(kind):
        hints, raw = typing.get_type_hints(kind), wire.PAYLOADS.get(kind)
        return {each.name: example(hints[each.name]) for each in fields(kind) if each.name != raw}
    return kind()


@pytest.mark.parametrize(("cls", "which"), fields_of_the_guest())
def test_a_field_of_the_wrong_type_is_a_bad_message(cls: Any, which: Any) -> None:
    hints = typing.get_type_hints(cls)
    right = example(cls)
    assert isinstance(decode_module.decode(Frame(wire.NUMBERS[cls], json.dumps(right).encode(), b"")), cls)
    wrong = {**right, which.name: wrong_for(hints[which.name])}
    with pytest.raises(BadMessage, match=rf"^a {cls.__name__} that cannot be read: "):
        decode_module.decode(Frame(wire.NUMBERS[cls], json.dumps(wrong).encode(), b""))


@pytest.mark.parametrize(("cls", "which"), fields_of_the_guest())
def test_a_missing_field_without_a_default_is_a_bad_message(cls: Any, which: Any) -> None:
    left = {name: value for name, value in example(cls).items() if name != which.name}
    frame = Frame(wire.NUMBERS[cls], json.dumps(left).encode(), b"")
    if which.default is MISSING and which.default_factory is MISSING:
        with pytest.raises(BadMessage, match=rf"^a {cls.__name__} that cannot be read: "):
            decode_module.decode(frame)
    else:
        assert isinstance(decode_module.decode(frame), cls)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"pid":1,"python":"\xff","executable":""}',
        b'{"pid":1,"python":"\\ud800","executable":""}',
        b'{"pid":NaN,"python":"","executable":""}',
        b'{"pid":1e999,"python":"","executable":""}',
        b'{"pid":' + b"9" * 5000 + b',"python":"","executable":""}',
        b'{"pid":1,"python":"","executable":""} and more',
    ],
)
def test_headers_that_are_no_message_are_bad_messages(header: bytes) -> None:
    with pytest.raises(BadMessage, match=r"^a Ready that cannot be read: "):
        decode_module.decode(Frame(wire.NUMBERS[wire.Ready], header, b""))


@pytest.mark.parametrize("header", [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b'{"unknown":1}'])
def test_the_guest_refuses_headers_that_are_no_message(header: bytes) -> None:
    with pytest.raises(BadMessage, match=r"^a Execute that cannot be read: "):
        wire.decode(Frame(wire.NUMBERS[wire.Execute], header, b"1 + 1"))


@settings(deadline=None)
@given(st.integers(0, 255), st.binary(max_size=200), st.binary(max_size=20))
def test_no_frame_raises_anything_but_a_wire_error(kind: int, header: bytes, payload: bytes) -> None:
    for decode in (decode_module.decode, wire.decode):
        try:
            message = decode(Frame(kind, header, payload))
        except WireError:
            continue
        assert type(message) is wire.KINDS[kind]


# --- states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", states.STATES)
@pytest.mark.parametrize("new", [*states.STATES, "nonsense"])
def test_a_move_is_legal_exactly_when_the_table_holds_it(old: str, new: str) -> None:
    if new in states.MOVES[old]:
        assert states.move(old, new) == new
    else:
        with pytest.raises(states.IllegalMove, match=rf"^a session cannot go from {old} to {new}$"):
            states.move(old, new)


def test_a_state_that_does_not_exist_has_no_moves() -> None:
    with pytest.raises(states.IllegalMove, match=r"^a session cannot go from nonsense to idle$"):
        states.move("nonsense", states.IDLE)


def test_every_state_can_be_reached_and_every_state_can_end() -> None:
    reached = {states.STARTING}
    while more := {new for old in reached for new in states.MOVES[old]} - reached:
        reached |= more
    assert reached == set(states.STATES)
    assert [old for old in states.STATES if old != states.DEAD and states.DEAD not in states.MOVES[old]] == []


# --- the classes that messages are -------------------------------------------------------------------------


def test_messages_are_equal_by_class_and_fields_and_say_what_they_are() -> None:
    one = wire.ForkFailed(1, "no memory")
    assert one == wire.ForkFailed(1, "no memory")
    assert one != wire.ForkFailed(2, "no memory")
    assert one != object()
    assert repr(one) == "ForkFailed(ticket=1, reason='no memory')"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


# --- what a message would become -----------------------------------------------------------------------------------


def long_frame(cls: type, header: bytes) -> Frame:
    return Frame(wire.NUMBERS[cls], header, b"")


def test_a_long_message_is_read_if_it_is_a_text() -> None:
    text = '<p class="x">\\"</p>' * 200_000
    done = wire.Done(1, "ok", 0.1, {"text/html": text, "text/plain": "a" * 10_000_000})
    back = decode_module.decode(one_frame(wire.encode(done)))
    assert back.value == done.value


@pytest.mark.parametrize(
    ("cls", "header", "why"),
    [
        (wire.Started, lambda: b'{"cwd":"' + b"x" * 2_000_000 + b'"}', "a Started of 2000010 bytes"),
        (wire.InputWait, lambda: b'{"wait":1,"prompt":"' + b"x" * 2_000_000 + b'"}', "an? InputWait of"),
        (wire.Copied, lambda: b'{"ticket":1,"notices":[' + b'"",' * 700_000 + b'""]}', "a Copied of"),
        (wire.Cleared, lambda: b'{"names":[' + b'"",' * 1_000_000 + b'""]}', "elements"),
        (wire.Cleared, lambda: b'{"names":[' + rb'"\\",' * 1_200_000 + b'""]}', "elements"),
        (
            wire.Result,
            lambda: b'{"cell":1,"data":{},"metadata":{"a":[' + b"[]," * 200_000 + b"[]]}}",
            "bytes of metadata",
        ),
        (wire.Result, lambda: b'{"cell":1,"data":{},"metadata":{"a":[' + b"[]," * 500_000 + b"[]]}}", "elements"),
        (
            wire.Listed,
            lambda: b'{"ticket":1,"variables":[{"name":"","type":"","shape":[' + b"0," * 1_000_000 + b"0]}]}",
            "elem",
        ),
        (
            wire.Result,
            lambda: b'{"cell":1,"data":{},"metadata":{"a":' + b"[" * 40_000 + b"]" * 40_000 + b"}}",
            "nested",
        ),
        (wire.Done, lambda: ('{"a":"' + "x" * 34_000_000 + '😀"}').encode(), "bytes in memory"),
    ],
)
def test_a_long_message_that_would_become_far_more_is_refused(cls: type, header: Callable[[], bytes], why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_module.decode(long_frame(cls, header()))
