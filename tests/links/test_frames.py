"""The framing of RFC 6455, without I/O: what is accepted, what is refused with which code, and where a limit falls."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import client_frame
from trio_relay.links.frames import (
    CLOSE,
    CONTINUATION,
    MAX_CONTROL,
    PING,
    PONG,
    TEXT,
    FrameError,
    FrameReader,
    close_payload,
    frame,
    mask,
    read_close,
)
from trio_relay.wire.codec import clean_text

ROLES = [False, True]
Frames = list[tuple[int, bytes]]


def peer_frame(opcode: int, payload: bytes, *, client: bool, fin: bool = True) -> bytes:
    """A frame for a reader of the given role, made without the code under test."""
    data = client_frame(payload, opcode, fin=fin)
    if not client:
        return data
    size = len(payload)
    length = (
        bytes([size])
        if size < 126
        else struct.pack("!BH", 126, size)
        if size < 65_536
        else struct.pack("!BQ", 127, size)
    )
    return data[:1] + length + payload


def read(data: bytes, *, client: bool = False, limit: int = 1000, step: int = 0) -> Frames:
    reader = FrameReader(client=client, max_message=limit, check_text=clean_text)
    out: Frames = []
    for start in range(0, len(data), step or len(data) or 1):
        out += reader.feed(data[start : start + (step or len(data))])
    return out


def refused(data: bytes, *, client: bool = False, limit: int = 1000) -> FrameError:
    with pytest.raises(FrameError) as caught:
        read(data, client=client, limit=limit)
    return caught.value


# -- whole messages


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Frames, list[tuple[int, bytes, bool]]]:
    """What a reader should report, and the frames (opcode, payload, fin) that say it."""
    expected: Frames = []
    frames: list[tuple[int, bytes, bool]] = []
    control = st.lists(st.tuples(st.sampled_from([PING, PONG]), st.binary(max_size=MAX_CONTROL)), max_size=2)
    for text in draw(st.lists(st.text(max_size=400), max_size=4)):
        message = text.encode()
        cuts = sorted(draw(st.lists(st.integers(0, len(message)), max_size=4)))
        parts = [message[a:b] for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True)]
        for number, part in enumerate(parts):
            for opcode, payload in draw(control):
                frames.append((opcode, payload, True))
                expected.append((opcode, payload))
            frames.append((TEXT if number == 0 else CONTINUATION, part, number == len(parts) - 1))
        expected.append((TEXT, message))
    return expected, frames


@given(traffic(), st.booleans(), st.data())
def test_any_messages_in_any_fragments_and_chunks_come_out_as_they_were(
    story: tuple[Frames, list[tuple[int, bytes, bool]]], client: bool, data: st.DataObject
) -> None:
    expected, frames = story
    stream = b"".join(peer_frame(op, payload, client=client, fin=fin) for op, payload, fin in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader(client=client, max_message=2000, check_text=clean_text)
    got: Frames = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:end])
    assert got == expected


@pytest.mark.parametrize("client", ROLES)
def test_every_byte_may_come_alone(client: bool) -> None:
    frames = [(TEXT, b"a" * 70_000), (PING, b"p"), (TEXT, b""), (TEXT, "😀".encode() * 40)]
    stream = b"".join(peer_frame(op, payload, client=client) for op, payload in frames)
    assert read(stream, client=client, limit=70_000, step=1) == frames


@pytest.mark.parametrize("client", ROLES)
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_our_own_frames_can_be_read_by_the_other_role(size: int, client: bool) -> None:
    payload = os.urandom(size).hex().encode()[:size]
    data = frame(TEXT, payload, client=client)
    assert read(data, client=not client, limit=size) == [(TEXT, payload)]
    header = 2 if size < 126 else 4 if size < 65_536 else 10
    assert len(data) == header + size + (4 if client else 0)


def test_a_clients_frames_are_masked_with_a_fresh_key() -> None:
    assert len({frame(TEXT, b"the same text", client=True)[2:6] for _ in range(20)}) > 1


@given(st.binary(max_size=200), st.binary(min_size=4, max_size=4), st.integers(0, 9))
def test_masking_is_what_the_rfc_says_at_any_offset(data: bytes, key: bytes, offset: int) -> None:
    expected = bytes(byte ^ key[(offset + i) % 4] for i, byte in enumerate(data))
    assert bytes(mask(data, key, offset)) == expected
    assert bytes(mask(expected, key, offset)) == data


# -- the limit


@pytest.mark.parametrize("client", ROLES)
def test_a_message_of_exactly_the_limit_passes_and_one_byte_more_does_not(client: bool) -> None:
    """C10: bytes, not characters; whole or in fragments."""
    assert read(peer_frame(TEXT, b"x" * 1000, client=client), client=client) == [(TEXT, b"x" * 1000)]
    assert refused(peer_frame(TEXT, b"x" * 1001, client=client), client=client).code == 1009
    three = "搜".encode() * 334  # 334 characters, 1,002 bytes
    assert refused(peer_frame(TEXT, three, client=client), client=client).code == 1009
    halves = [(TEXT, b"x" * 500, False), (CONTINUATION, b"x" * 500, True)]
    fits = b"".join(peer_frame(op, part, client=client, fin=fin) for op, part, fin in halves)
    assert read(fits, client=client) == [(TEXT, b"x" * 1000)]
    above = peer_frame(TEXT, b"x" * 500, client=client, fin=False)
    above += peer_frame(CONTINUATION, b"x" * 501, client=client)
    assert refused(above, client=client).code == 1009


def test_the_limit_counts_each_message_anew() -> None:
    two = client_frame(b"x" * 1000) + client_frame(b"y" * 1000)
    assert read(two) == [(TEXT, b"x" * 1000), (TEXT, b"y" * 1000)]


def test_too_large_is_known_as_soon_as_the_header_is() -> None:
    reader = FrameReader(client=False, max_message=1000, check_text=clean_text)
    header = client_frame(b"x" * 100_000)[:14]
    assert reader.feed(header[:-1]) == []
    with pytest.raises(FrameError, match=r"1000 bytes \(--max-payload\)") as caught:
        reader.feed(header[-1:])
    assert caught.value.code == 1009


def test_a_length_of_nearly_2_to_the_63_needs_no_memory() -> None:
    assert refused(bytes([0x81, 0xFF]) + struct.pack("!Q", (1 << 63) - 1) + b"abcd").code == 1009


def test_control_frames_do_not_count_against_the_limit() -> None:
    data = client_frame(b"x" * 1000, fin=False) + client_frame(b"p" * 125, PING) + client_frame(b"", CONTINUATION)
    assert read(data) == [(PING, b"p" * 125), (TEXT, b"x" * 1000)]


# -- what is refused


MASK = b"abcd"
BAD: dict[str, tuple[int, bytes]] = {
    "reserved bit 1": (1002, b"\xc1\x80" + MASK),
    "reserved bit 2": (1002, b"\xa1\x80" + MASK),
    "reserved bit 3": (1002, b"\x91\x80" + MASK),
    "reserved bit on a ping": (1002, b"\xc9\x80" + MASK),
    "not masked": (1002, b"\x81\x01x"),
    "5 in 16 bits": (1002, b"\x81\xfe\x00\x05" + MASK + b"xxxxx"),
    "125 in 16 bits": (1002, b"\x81\xfe\x00\x7d" + MASK),
    "5 in 64 bits": (1002, b"\x81\xff" + struct.pack("!Q", 5) + MASK),
    "65,535 in 64 bits": (1002, b"\x81\xff" + struct.pack("!Q", 65_535) + MASK),
    "length with its highest bit set": (1002, b"\x81\xff" + struct.pack("!Q", 1 << 63) + MASK),
    "binary": (1003, client_frame(b"x", 2)),
    "binary, empty": (1003, client_frame(b"", 2)),
    "binary, first of several": (1003, client_frame(b"x", 2, fin=False)),
    "continuation of nothing": (1002, client_frame(b"x", 0)),
    "text inside a message": (1002, client_frame(b"x", fin=False) + client_frame(b"y")),
    "ping in fragments": (1002, client_frame(b"x", PING, fin=False)),
    "ping of 126 bytes": (1002, client_frame(b"x" * 126, PING)),
    "close of 126 bytes": (1002, client_frame(b"\x03\xe8" + b"x" * 124, CLOSE)),
    "bad UTF-8": (1007, client_frame(b"x\xff\xfe")),
    "half a character": (1007, client_frame("😀".encode()[:2])),
    "half a character over fragments": (1007, client_frame(b"\xf0\x9f", fin=False) + client_frame(b"", 0)),
    "a surrogate": (1007, client_frame(b"\xed\xa0\xbd")),
    "an overlong slash": (1007, client_frame(b"\xc0\xaf")),
    **{f"data opcode {op}": (1002, client_frame(b"", op)) for op in range(3, 8)},
    **{f"control opcode {op}": (1002, client_frame(b"", op)) for op in range(11, 16)},
}


@pytest.mark.parametrize("name", BAD)
def test_a_broken_frame_is_refused_with_its_code(name: str) -> None:
    code, data = BAD[name]
    error = refused(data)
    assert error.code == code
    assert error.reason


def test_a_client_refuses_masked_frames() -> None:
    assert refused(client_frame(b"x"), client=True).code == 1002


def test_what_came_before_a_broken_frame_is_not_lost() -> None:
    error = refused(client_frame(b"one") + client_frame(b"p", PING) + client_frame(b"x", 2))
    assert error.args[1] == [(TEXT, b"one"), (PING, b"p")]


def test_a_character_may_be_cut_by_fragments() -> None:
    emoji = "😀".encode()
    assert read(client_frame(emoji[:1], fin=False) + client_frame(emoji[1:], 0)) == [(TEXT, emoji)]


@given(st.binary(max_size=300), st.booleans())
def test_garbage_raises_nothing_but_frame_errors(data: bytes, client: bool) -> None:
    frames, code = read_or_refuse(data, client)
    assert code in (None, 1002, 1003, 1007, 1009)
    for opcode, payload in frames:
        if opcode == TEXT:
            payload.decode()


def read_or_refuse(data: bytes, client: bool) -> tuple[Frames, int | None]:
    try:
        return read(data, client=client), None
    except FrameError as error:
        return error.args[1], error.code


# -- close frames


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", (1005, "")),
        (struct.pack("!H", 1000), (1000, "")),
        *((struct.pack("!H", code) + b"why", (code, "why")) for code in (1000, 1001, 1003, 1007, 1011, 1014)),
        *((struct.pack("!H", code) + "搜".encode(), (code, "搜")) for code in (3000, 3999, 4000, 4999)),
    ],
)
def test_close_frames_a_peer_may_send(payload: bytes, expected: tuple[int, str]) -> None:
    assert read_close(payload) == expected


@pytest.mark.parametrize("code", [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65_535])
def test_close_codes_a_peer_must_not_send(code: int) -> None:
    """E03."""
    with pytest.raises(FrameError, match=str(code)) as caught:
        read_close(struct.pack("!H", code))
    assert caught.value.code == 1002


@pytest.mark.parametrize(("payload", "code"), [(b"\x03", 1002), (b"\x03\xe8\xff", 1007)])
def test_close_payloads_that_cannot_be_read(payload: bytes, code: int) -> None:
    with pytest.raises(FrameError) as caught:
        read_close(payload)
    assert caught.value.code == code


@given(st.text(max_size=200))
def test_a_reason_is_cut_on_a_character(reason: str) -> None:
    """E03: never more than a control frame holds, never half a character, never shorter than it must be."""
    payload = close_payload(1001, reason)
    code, text = read_close(payload)
    assert code == 1001
    assert len(payload) <= MAX_CONTROL
    assert reason.startswith(text)
    if text != reason:
        assert len(payload) + len(reason[len(text)].encode()) > MAX_CONTROL


@pytest.mark.parametrize("reason", [None, "", "x" * 123])
def test_a_reason_that_fits_is_kept(reason: str | None) -> None:
    assert close_payload(1000, reason)[2:].decode() == (reason or "")
