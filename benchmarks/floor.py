"""The physical floor: what it costs to move the bytes of a call between a socket and a pipe, and nothing else.

`python -m benchmarks.floor PORT [--whole]`. It speaks just enough of both protocols for the driver of these benchmarks
(and for nobody else) to treat it as a relay:

- it answers the WebSocket handshake, `initialize` and `tools/list`, and remembers which tab offers which tool;
- of a call it looks at the first bytes only, where this driver puts the id and the tool's name. Everything behind them
  is copied from stdin to the tab's socket as it comes, in blocks of up to 1 MiB, as one fragmented message;
- of a result it looks at the frame's header and the first bytes, where this driver puts the call id. Everything behind
  them is copied from the socket to stdout as it comes.

With `--whole` it waits until a message is complete before it writes the first byte of it. That is the floor of every
relay that checks what it passes on; without it the two ends and the relay work at the same time.

It checks nothing: no UTF-8, no JSON, no sizes, no schemas. It does not unmask (the driver's key is zeros), does not
match answers with calls (the call id is the request's id), knows no limits, timeouts, cancellation or second relay,
gives no names, and sends no pings and no notifications. It does look for line ends in what comes from stdin, as a
driver may write several small lines at once. It is written in Python and copies twice, into its buffer and out of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import selectors
import socket
import sys
from collections.abc import Callable, Iterable

from benchmarks.wire import CLOSE, header

BLOCK = 1 << 20
Part = bytes | bytearray | memoryview
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CALL = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),"method":"tools/call","params":\{"name":"([^"]+)","arguments":')
_OTHER = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),"method":"([^"]+)"')
_RESULT = re.compile(rb'\{"type":"result","callId":"(\d+)","result":')
_LINE_TAIL = 2
"""Bytes of a call's line behind its arguments that the page does not get: `}` and the line end."""


class Tab:
    """One socket: handshake, hello, tools, and results on their way to stdout."""

    def __init__(self, floor: Floor, sock: socket.socket) -> None:
        self.socket = sock
        self._floor = floor
        self._head = b""
        self._open = False
        self._left = 0  # bytes of a result that are still to be copied
        self._collected: bytearray | None = None  # with --whole: the rest of a result, and how much of it is there
        self._filled = 0

    def readable(self) -> None:
        if self._collected is not None:
            self._collect(self._collected)
            return
        size = self.socket.recv_into(self._floor.block)
        if size == 0:
            self._floor.forget(self.socket)
            return
        data = memoryview(self._floor.block)[:size]
        if self._left:
            data = self._copy(data)
        if self._head:
            data, self._head = memoryview(self._head + bytes(data)), b""
        while len(data):
            taken = self._message(data) if self._open else self._handshake(bytes(data))
            if taken == 0:
                self._head = bytes(data)
                return
            data = data[taken:]

    def _collect(self, result: bytearray) -> None:
        """Read on into the place for one whole result; what follows it stays in the socket."""
        size = self.socket.recv_into(memoryview(result)[self._filled :])
        if size == 0:
            self._floor.forget(self.socket)
            return
        self._filled += size
        if self._filled == len(result):
            self._collected = None
            self._floor.out(result, b"\n")

    def _copy(self, data: memoryview) -> memoryview:
        """Copy what belongs to the result that has begun. Returns the rest."""
        mine = data[: self._left]
        self._left -= len(mine)
        self._floor.out(mine) if self._left else self._floor.out(mine, b"\n")
        return data[len(mine) :]

    def _message(self, data: memoryview) -> int:
        """Take one message, or the beginning of a result. Returns its bytes, or 0 if there are not enough of it."""
        if len(data) < 2:
            return 0
        length = data[1] & 0x7F
        at = 2 if length < 126 else 4 if length == 126 else 10
        if len(data) < at + 4:
            return 0
        size = length if length < 126 else int.from_bytes(data[2:at], "big")
        at += 4  # the masking key, which is zeros
        end = min(len(data), at + size)
        match = _RESULT.match(data, at)
        if match is not None:
            left = at + size - end
            answer = b'{"jsonrpc":"2.0","id":%s,"result":' % match.group(1)
            if left and self._floor.whole:
                begun = answer + bytes(data[match.end() : end])
                self._collected, self._filled = bytearray(len(begun) + left), len(begun)
                self._collected[: len(begun)] = begun
            else:
                self._left = left
                self._floor.out(answer, data[match.end() : end], b"" if left else b"\n")
        elif end < at + size:
            return 0
        elif data[0] & 0x0F == CLOSE:
            self._floor.forget(self.socket)
        else:
            frame = json.loads(bytes(data[at:end]))
            if frame["type"] == "tools/list":
                self._floor.offer(self, frame["tools"])
        return end

    def _handshake(self, data: bytes) -> int:
        request, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            return 0
        (key,) = (line.split(b": ")[1] for line in request.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key"))
        accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())
        self.socket.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\nSec-WebSocket-Protocol: webmcp.v1\r\n\r\n"
        )
        self._open = True
        return len(data) - len(rest)


class Floor:
    """The whole program: one loop, no threads; a write waits until it is done."""

    def __init__(self, port: int, *, whole: bool = False, stdin: int = 0, stdout: int = 1) -> None:
        self.whole = whole
        self.block = bytearray(BLOCK)
        self._stdin, self._stdout = stdin, stdout
        for fd in (stdin, stdout):
            enlarge(fd)
        self._tools: dict[str, tuple[Tab, dict[str, object]]] = {}
        self._carry = b""  # of a line: its beginning, or its last bytes, which may not be arguments
        self._target: socket.socket | None = None  # where the call goes whose line has begun
        self._begun = False  # its first frame is out
        self._parts: list[bytes] = []  # with --whole: of the invoke message
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._watch(self._listener, self._accept)
        self._watch(stdin, self.line)
        self._running = True

    def run(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                ready: Callable[[], None] = key.data
                ready()

    def close(self) -> None:
        self._listener.close()
        self._selector.close()

    def out(self, *parts: Part) -> None:
        write_all(lambda some: os.writev(self._stdout, some), parts)

    def offer(self, tab: Tab, tools: list[dict[str, object]]) -> None:
        for tool in tools:
            self._tools[str(tool["name"])] = (tab, tool)

    def forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()

    def _watch(self, file: int | socket.socket, ready: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, ready)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch(sock, Tab(self, sock).readable)

    def line(self) -> None:
        """Take what has come from stdin."""
        size = os.readv(self._stdin, [self.block])
        if size == 0:
            self._running = False
            return
        view = memoryview(self.block)
        at = 0
        while at < size:
            end = self.block.find(b"\n", at, size)
            stop = size if end < 0 else end + 1
            self._take(view[at:stop], ended=end >= 0)
            at = stop

    def _take(self, data: memoryview, *, ended: bool) -> None:
        """A part of a line; `ended` if its line end is the last byte."""
        if self._target is None:
            if self._carry:
                data = memoryview(self._carry + bytes(data))
            match = _CALL.match(data)
            if match is None:
                self._carry = b"" if ended else bytes(data)
                if ended:
                    self._request(bytes(data))
                return
            tab, tool = self._tools[match.group(2).decode()]
            self._target, self._begun = tab.socket, False
            name = json.dumps(tool["name"]).encode()
            self._carry = b'{"type":"invoke","callId":"%s","toolName":%s,"args":' % (match.group(1), name)
            data = data[match.end() :]
        if len(data) < _LINE_TAIL:
            data, self._carry = memoryview(self._carry + bytes(data)), b""
        self._forward(self._carry, data[:-_LINE_TAIL], fin=ended)
        self._carry = b"" if ended else bytes(data[-_LINE_TAIL:])
        if ended:
            self._target = None

    def _forward(self, *parts: Part, fin: bool) -> None:
        assert self._target is not None
        if self.whole:
            self._parts += map(bytes, parts)
            if not fin:
                return
            parts, self._parts = tuple(self._parts), []
        head = header(sum(map(len, parts)), 0 if self._begun else 1, fin=fin, masked=False)
        self._begun = True
        write_all(self._target.sendmsg, (head, *parts))

    def _request(self, line: bytes) -> None:
        match = _OTHER.match(line)
        if match is None:
            return  # a notification
        results: dict[bytes, object] = {
            b"initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "floor", "version": "0"},
            },
            b"tools/list": {"tools": [tool for _, tool in self._tools.values()]},
        }
        result = json.dumps(results[match.group(2)]).encode()
        self.out(b'{"jsonrpc":"2.0","id":%s,"result":' % match.group(1), result, b"}\n")


def write_all(write: Callable[[list[Part]], int], parts: Iterable[Part]) -> None:
    """Write all parts with as few calls as the system allows."""
    left = [part for part in parts if len(part)]
    while left:
        sent = write(left)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = memoryview(left[0])[sent:]


def enlarge(fd: int) -> None:
    """A pipe of 1 MiB where that is possible: otherwise 9.9 MB are 150 turns of two processes."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, BLOCK)
        except OSError:
            return


if __name__ == "__main__":
    Floor(int(sys.argv[1]), whole="--whole" in sys.argv[2:]).run()
