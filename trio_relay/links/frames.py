"""WebSocket frames as bytes: the framing half of `socket.py`, without I/O.

wsproto decodes text chunk by chunk, hands it out in pieces and answers nothing to a broken peer. A relay
needs the opposite: whole messages as bytes, a limit in bytes that is known from a frame's header, and a close
frame that says what was wrong. This is RFC 6455 section 5 and no more: no extensions, text messages only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

MAX_CONTROL = 125
"""Longest payload of a control frame, in bytes (RFC 6455, 5.5)."""

_XOR = [bytes(value ^ key for value in range(256)) for key in range(256)]


class FrameError(Exception):
    """The peer broke the protocol or a limit; `code` is the close code it is answered with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def mask(data: bytes | bytearray, key: bytes, offset: int) -> bytes | bytearray:
    """XOR `data`, which begins `offset` bytes into its frame, with a 4-byte masking key."""
    if key == b"\0\0\0\0":
        return data
    out = bytearray(data)
    for i in range(4):
        out[i::4] = out[i::4].translate(_XOR[key[(offset + i) % 4]])
    return out


def frame(opcode: int, payload: bytes | bytearray, *, client: bool) -> bytes:
    """One whole frame. A client's is masked with a fresh random key."""
    bit = 0x80 if client else 0
    size = len(payload)
    if size < 126:
        header = bytes((0x80 | opcode, bit | size))
    elif size < 1 << 16:
        header = struct.pack("!BBH", 0x80 | opcode, bit | 126, size)
    else:
        header = struct.pack("!BBQ", 0x80 | opcode, bit | 127, size)
    if not client:
        return b"".join((header, payload))
    key = os.urandom(4)
    return b"".join((header, key, mask(payload, key, 0)))


def close_payload(code: int, reason: str | None) -> bytes:
    """Code and reason; the reason is cut on a character to what a control frame holds."""
    text = (reason or "").encode()[: MAX_CONTROL - 2].decode(errors="ignore")
    return struct.pack("!H", code) + text.encode()


class FrameReader:
    """Turns received chunks into messages and control frames.

    Args:
        client: Whether we are the client (then frames must not be masked, else they must be).
        max_message: Largest message in bytes, all its fragments together.
        check_text: Gets each message and returns it, perhaps rewritten. Raises UnicodeDecodeError for what is not
            UTF-8, as looking once is enough for 10 MB.
    """

    def __init__(self, *, client: bool, max_message: int, check_text: Callable[[bytes], bytes]) -> None:
        self._client = client
        self._check_text = check_text
        self.max_message = max_message
        self._header = bytearray()
        self._in_payload = False
        self._opcode = 0
        self._fin = True
        self._key = b""
        self._size = 0  # of this frame's payload
        self._received = 0  # of it so far
        self._control: list[bytes | bytearray] = []
        self._message: list[bytes | bytearray] | None = None  # parts of the current message
        self._message_size = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Parse one chunk.

        Returns:
            Complete messages and control frames, as (opcode, payload).

        Raises:
            FrameError: after which nothing more must be fed. What came before it in the chunk is in
                `FrameError.args[1]`.
        """
        out: list[tuple[int, bytes]] = []
        try:
            self._parse(data, out)
        except FrameError as error:
            error.args = (error.reason, out)
            raise
        return out

    def _parse(self, data: bytes, out: list[tuple[int, bytes]]) -> None:
        at, end = 0, len(data)
        while True:
            if not self._in_payload:
                while (missing := self._header_missing()) > 0:
                    if at == end:
                        return
                    self._header += data[at : at + missing]
                    at = min(end, at + missing)
                self._start_frame()
            take = min(self._size - self._received, end - at)
            if take:
                chunk = data if take == end else data[at : at + take]
                parts = self._control if self._opcode & 8 else self._message
                assert parts is not None
                parts.append(mask(chunk, self._key, self._received) if self._key else chunk)
                self._received += take
                at += take
            if self._received < self._size:
                return
            self._in_payload = False
            self._header.clear()
            self._finish_frame(out)

    def _header_missing(self) -> int:
        """How many more bytes the header needs, as far as can be told."""
        have = len(self._header)
        if have < 2:
            return 2 - have
        size = self._header[1] & 0x7F
        need = 2 + (2 if size == 126 else 8 if size == 127 else 0) + (4 if self._header[1] & 0x80 else 0)
        return need - have

    def _start_frame(self) -> None:
        first, second = self._header[0], self._header[1]
        opcode, masked, size = first & 0x0F, bool(second & 0x80), second & 0x7F
        if first & 0x70:
            raise FrameError(1002, "reserved bits are set; no extension was negotiated")
        if masked is self._client:
            raise FrameError(1002, "frame is masked" if masked else "frame is not masked")
        at = 2
        if size == 126:
            (size,) = struct.unpack_from("!H", self._header, 2)
            at = 4
            if size < 126:
                raise FrameError(1002, "length is not in its shortest form")
        elif size == 127:
            (size,) = struct.unpack_from("!Q", self._header, 2)
            at = 10
            if size < 1 << 16 or size >> 63:
                raise FrameError(1002, "length is not in its shortest form")
        self._opcode, self._fin, self._size, self._received = opcode, bool(first & 0x80), size, 0
        self._key = bytes(self._header[at : at + 4]) if masked else b""
        if opcode & 8:
            if opcode not in (CLOSE, PING, PONG) or not self._fin or size > MAX_CONTROL:
                raise FrameError(1002, "control frame is unknown, fragmented or too long")
            self._control = []
        else:
            self._start_data(opcode, size)
        self._in_payload = True

    def _start_data(self, opcode: int, size: int) -> None:
        if opcode == BINARY:
            raise FrameError(1003, "binary messages are not part of this protocol")
        if opcode not in (TEXT, CONTINUATION) or (opcode == TEXT) is not (self._message is None):
            raise FrameError(1002, "unexpected kind of data frame")
        if self._message is None:
            self._message, self._message_size = [], 0
        self._message_size += size
        if self._message_size > self.max_message:
            raise FrameError(1009, f"message is larger than {self.max_message} bytes (--max-payload)")

    def _finish_frame(self, out: list[tuple[int, bytes]]) -> None:
        if self._opcode & 8:
            out.append((self._opcode, b"".join(self._control)))
        elif self._fin:
            assert self._message is not None
            payload = b"".join(self._message)
            self._message = None
            try:
                out.append((TEXT, self._check_text(payload)))
            except UnicodeDecodeError:
                raise FrameError(1007, "text is not valid UTF-8") from None


def read_close(payload: bytes) -> tuple[int, str]:
    """Code and reason of a peer's close frame; 1005 stands for none.

    Raises:
        FrameError: for codes and texts a peer must not send.
    """
    if not payload:
        return 1005, ""
    if len(payload) == 1:
        raise FrameError(1002, "close frame of one byte")
    (code,) = struct.unpack_from("!H", payload)
    if not (1000 <= code <= 1014 and code not in (1004, 1005, 1006)) and not 3000 <= code <= 4999:
        raise FrameError(1002, f"close code {code} must not be sent")
    try:
        return code, payload[2:].decode()
    except UnicodeDecodeError:
        raise FrameError(1007, "close reason is not valid UTF-8") from None
