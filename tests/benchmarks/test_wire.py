"""What the driver sends and how it takes in what comes, in whatever pieces it comes."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import wire
from benchmarks.driver import Call, Reply
from benchmarks.wire import EDGE, FrameScanner, LineScanner, Message
from tests.helpers import client_frame
from trio_relay.links.frames import FrameReader, frame
from trio_relay.wire.codec import clean_text


def scanned(data: bytes, step: int, *, keep: bool = False) -> list[Message]:
    """What a scanner makes of bytes that come `step` at a time."""
    frames = FrameScanner()
    frames.keep = keep
    found: list[Message] = []
    for at in range(0, len(data), step):
        found += frames.feed(memoryview(data[at : at + step]))
    return found


@pytest.mark.parametrize("size", [0, 1, 125, 126, EDGE - 1, EDGE, EDGE + 1, 65_535, 65_536, 70_000])
def test_a_relays_message_is_found_whatever_its_size_and_however_it_is_cut(size: int) -> None:
    payload = bytes(itertools.islice(itertools.cycle(b"abcdefghijk"), size))
    data = frame(1, payload, client=False) + frame(1, b"next", client=False)
    for step in (1, 7, 4_096, len(data)) if size < 1_000 else (1_009, 4_096, len(data)):
        first, second = scanned(data, step)
        assert (first.size, first.head, first.tail) == (size, payload[:EDGE], payload[-EDGE:] if size else b"")
        assert first.whole is None
        assert second.head == b"next"
        assert [message.whole for message in scanned(data, step, keep=True)] == [payload, b"next"]


def test_fragments_are_one_message_of_the_first_ones_kind() -> None:
    parts = [
        wire.header(3, 1, fin=False, masked=False) + b"abc",
        wire.header(0, 0, fin=False, masked=False),
        wire.header(2, 0, masked=False) + b"de",
    ]
    for step in (1, 2, 100):
        (message,) = scanned(b"".join(parts), step, keep=True)
        assert (message.opcode, message.whole, message.size) == (wire.TEXT, b"abcde", 5)


@pytest.mark.parametrize("key", [wire.NO_MASK, b"\x8e\x31\xc7\x5a"])
@pytest.mark.parametrize("call_id", [b"7", b"77727672-1", b"77727672-10", b"77727672-100"])
def test_a_reply_is_a_frame_that_a_relay_can_read(key: bytes, call_id: bytes) -> None:
    result = b'{"content":[{"type":"text","text":"%s"}]}' % (b"x" * 200)
    sent = b"".join(Reply(result, key).frame(call_id))
    reader = FrameReader(client=False, max_message=10_000, check_text=clean_text)
    assert reader.feed(sent) == [(1, b'{"type":"result","callId":"%s","result":%s}' % (call_id, result))]
    assert sent == client_frame(b'{"type":"result","callId":"%s","result":%s}' % (call_id, result), key=key)


def test_a_call_is_one_line() -> None:
    assert Call("it", b'{"a":1}').tail == b',"method":"tools/call","params":{"name":"it","arguments":{"a":1}}}\n'


def test_lines_are_found_however_they_are_cut() -> None:
    long = b"y" * 1_000
    data = b"one\n" + long + b"\n\nlast\n"
    for step in (1, 3, 999, len(data)):
        lines = LineScanner()
        lines.keep = True
        found: list[Message] = []
        buffer = bytearray(b"\n" * len(data))  # what was read before must not be taken for this
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            buffer[: len(piece)] = piece
            found += lines.feed(buffer, len(piece))
        assert [line.whole for line in found] == [b"one", long, b"", b"last"]
        assert (found[1].size, found[1].head, found[1].tail) == (1_000, long[:EDGE], long[-EDGE:])


def line(text: bytes) -> Message:
    return Message(text[:EDGE], text[-EDGE:], len(text))


@pytest.mark.parametrize(
    ("text", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":12,"result":{"id":3}}', 12),
        (b'{"result":{"items":[{"id":3}]},"jsonrpc":"2.0","id":12}', 12),
        (b'{"id": 12, "jsonrpc": "2.0", "result": {}}', 12),
        (b'{"jsonrpc":"2.0","id":12,"result":' + b'{"x":[1]}' * 100 + b',"id":3}}', 12),
        (b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}', None),
    ],
)
def test_the_id_of_an_answer_is_its_own(text: bytes, request_id: int | None) -> None:
    assert line(text).request_id() == request_id


@pytest.mark.parametrize(
    ("text", "is_error"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}', True),
        (b'{"result":{"content":[],"isError":true},"jsonrpc":"2.0","id":1}', True),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}', True),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}', False),
    ],
)
def test_an_error_is_noticed(text: bytes, is_error: bool) -> None:
    assert line(text).is_error() is is_error


def test_members_are_found_at_either_end() -> None:
    first = line(b'{"type":"invoke","callId":"a-1","toolName":"it","args":{"x":"' + b"x" * 2_000 + b'"}}')
    last = line(b'{"args":{"x":"' + b"x" * 2_000 + b'"},"callId":"a-1","toolName":"it","type":"invoke"}')
    for message in (first, last):
        assert message.member(b"type") == b"invoke"
        assert message.member(b"callId") == b"a-1"
        assert message.member(b"toolName") == b"it"
