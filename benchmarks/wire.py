"""Frames and lines as the driver sees them: built beforehand, and taken in without being read.

A relay's answer of 9.9 MB is looked at where its id stands (its first and last bytes) and where it ends; the
rest is only counted. RFC 6455 as far as a well-behaved client needs it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
NO_MASK = b"\0\0\0\0"
"""A legal masking key that leaves the payload as it is, so that masking costs the driver nothing."""

EDGE = 320
"""Bytes kept of each end of a message: enough for its id, its name and the mark of an error."""

_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d+)\s*\}\s*\Z')
_MEMBERS = {name: re.compile(rb'"%s"\s*:\s*"([^"\\]+)"' % name) for name in (b"type", b"callId", b"toolName")}


def header(size: int, opcode: int = TEXT, *, fin: bool = True, masked: bool = True, key: bytes = NO_MASK) -> bytes:
    """The header of a frame with a payload of `size` bytes; a client's frame is `masked`."""
    first = (0x80 if fin else 0) | opcode
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    return head + key if masked else head


def xor(data: bytes, key: bytes, phase: int = 0) -> bytes:
    """`data`, which stands `phase` bytes into its frame, with a four-byte masking key applied."""
    if key == NO_MASK or not data:
        return data
    turned = key[phase % 4 :] + key[: phase % 4]
    pad = (turned * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(len(data), "big")


@dataclass(slots=True)
class Message:
    """One message as far as it was looked at.

    Attributes:
        head: Its first bytes, at most `EDGE`.
        tail: Its last bytes, at most `EDGE`; of a short message the same bytes.
        size: All its bytes (of a line: without the line end).
        whole: All of it, if that was asked for.
        opcode: Of a frame; 0 for a line.
    """

    head: bytes
    tail: bytes
    size: int
    whole: bytes | None = None
    opcode: int = 0

    def member(self, name: bytes) -> bytes | None:
        """The string `type`, `callId` or `toolName` near the beginning or the end."""
        pattern = _MEMBERS[name]
        match = pattern.search(self.head) or pattern.search(self.tail)
        return None if match is None else match.group(1)

    def request_id(self) -> int | None:
        """The id of a JSON-RPC answer: the first member, or the last."""
        match = _ID_FIRST.match(self.head) or _ID_LAST.search(self.tail)
        return None if match is None else int(match.group(1))

    def is_error(self) -> bool:
        """Whether it is a JSON-RPC error or a result with `isError`, where relays put these."""
        return b'"isError":true' in self.head or b'"isError":true' in self.tail or b'"error":{' in self.head[:60]


class _Edges:
    """Gathers one message from chunks. With `keep` all of its bytes, else its two ends."""

    def __init__(self) -> None:
        self.keep = False
        self._clear()

    def _clear(self) -> None:
        self._head = b""
        self._tail = b""
        self.size = 0
        self._parts: list[bytes] = []

    def add(self, chunk: memoryview) -> None:
        if len(self._head) < EDGE:
            self._head += bytes(chunk[: EDGE - len(self._head)])
        self._tail = bytes(chunk[-EDGE:]) if len(chunk) >= EDGE else (self._tail + bytes(chunk))[-EDGE:]
        self.size += len(chunk)
        if self.keep:
            self._parts.append(bytes(chunk))

    def take(self, opcode: int = 0) -> Message:
        whole = b"".join(self._parts) if self.keep else None
        message = Message(self._head, self._tail, self.size, whole, opcode)
        self._clear()
        return message


class FrameScanner:
    """Takes a relay's bytes and gives its messages. Set `keep` to have them whole."""

    def __init__(self) -> None:
        self._edges = _Edges()
        self._header = b""
        self._left = 0  # payload bytes of this frame still to come
        self._in_payload = False
        self._fin = True
        self._opcode = 0  # of this frame
        self._kind = 0  # of the message it belongs to

    @property
    def keep(self) -> bool:
        return self._edges.keep

    @keep.setter
    def keep(self, value: bool) -> None:
        self._edges.keep = value

    def feed(self, data: memoryview) -> Iterator[Message]:
        at, end = 0, len(data)
        while at < end or (self._in_payload and self._left == 0):
            if not self._in_payload:
                at = self._read_header(data, at)
                if not self._in_payload:
                    return
            take = min(self._left, end - at)
            self._edges.add(data[at : at + take])
            at += take
            self._left -= take
            if self._left == 0:
                self._in_payload = False
                if self._fin:
                    yield self._edges.take(self._kind)

    def _read_header(self, data: memoryview, at: int) -> int:
        """Take header bytes; `_in_payload` is set once the header is complete, also of an empty frame."""
        have = len(self._header)
        window = self._header + bytes(data[at : at + 10 - have])
        need = 2
        if len(window) >= 2:
            length = window[1] & 0x7F
            need = 10 if length == 127 else 4 if length == 126 else 2
        if len(window) < need:
            self._header = window
            return len(data)
        length = window[1] & 0x7F
        if length >= 126:
            length = int.from_bytes(window[2:need], "big")
        self._fin, self._opcode = bool(window[0] & 0x80), window[0] & 0x0F
        self._kind = self._opcode or self._kind
        self._header, self._left, self._in_payload = b"", length, True
        return at + need - have


class LineScanner:
    """Takes a relay's stdout and gives its lines, without their line ends. Set `keep` to have them whole."""

    def __init__(self) -> None:
        self._edges = _Edges()

    @property
    def keep(self) -> bool:
        return self._edges.keep

    @keep.setter
    def keep(self, value: bool) -> None:
        self._edges.keep = value

    def feed(self, buffer: bytearray, size: int) -> Iterator[Message]:
        """Take the first `size` bytes of a buffer that is used again."""
        view = memoryview(buffer)
        at = 0
        while (end := buffer.find(b"\n", at, size)) >= 0:
            self._edges.add(view[at:end])
            at = end + 1
            yield self._edges.take()
        if at < size:
            self._edges.add(view[at:size])
