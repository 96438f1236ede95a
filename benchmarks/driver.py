"""The other ends of a relay, in one process and without threads: an MCP client and any number of tabs.

It must not be what is measured: frames and lines are built beforehand, masked with a key of zeros, and what comes
is read in blocks of 1 MiB and only looked at where its id stands. `Check` alone reads answers whole, outside all
measurements.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import wire
from benchmarks.pump import Out, Part, Pump

READ_BYTES = 1 << 20
PATIENCE_S = 120.0
"""Longest wait for anything; a relay that needs longer has failed the scenario."""

ORIGIN = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
PONG = b'{"type":"pong"}'
_buffer = bytearray(READ_BYTES)
"""Everything is read into this one; each read is taken in before the next."""
_view = memoryview(_buffer)


class Fault(Exception):
    """What ends a scenario for a relay: it died, closed a tab, answered with an error or was too slow."""


@dataclass(frozen=True)
class Call:
    """A `tools/call` line without its id.

    Attributes:
        tail: From behind the id to the line end.
    """

    tool: str
    arguments: bytes = b"{}"
    tail: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = self.tool.encode()
        tail = b',"method":"tools/call","params":{"name":"%s","arguments":%s}}\n' % (name, self.arguments)
        object.__setattr__(self, "tail", tail)


class Reply:
    """A page's answer without its call id.

    Args:
        result: JSON text of the CallToolResult.
        key: Masking key of its frames; other keys than zeros are applied here, once for each phase.
    """

    HEAD = b'{"type":"result","callId":"'

    def __init__(self, result: bytes, key: bytes = wire.NO_MASK) -> None:
        self.result = result
        self._key = key
        body = b'","result":' + result + b"}"
        self._bodies = [wire.xor(body, key, phase) for phase in range(4 if key != wire.NO_MASK else 1)]

    def frame(self, call_id: bytes) -> tuple[bytes, bytes]:
        """The parts of a whole frame."""
        head = self.HEAD + call_id
        body = self._bodies[len(head) % 4 % len(self._bodies)]
        return wire.header(len(head) + len(body), key=self._key) + wire.xor(head, self._key), body


class Client:
    """The MCP client of one relay, on its pipes.

    Attributes:
        changes: How many `list_changed` notifications have come.
    """

    def __init__(self, pump: Pump, stdin: int, stdout: int, fault: Callable[[str], None]) -> None:
        for fd in (stdin, stdout):
            os.set_blocking(fd, False)
        self._pump = pump
        self._stdin, self._stdout = stdin, stdout
        self._fault = fault
        self._lines = wire.LineScanner()
        self._waiting: dict[int, Callable[[wire.Message], None]] = {}
        self._last_id = 100
        self.changes = 0

        def write(parts: Sequence[Part]) -> int:
            return os.writev(stdin, parts)

        self._out = Out(pump, stdin, write, fault)
        pump.watch(stdout, self._readable)

    def send(self, tail: bytes, on_answer: Callable[[wire.Message], None]) -> None:
        """Send a request, given from behind its id on."""
        self._last_id += 1
        self._waiting[self._last_id] = on_answer
        self._out.put(b'{"jsonrpc":"2.0","id":%d' % self._last_id, tail)

    def notify(self, method: str) -> None:
        self._out.put(b'{"jsonrpc":"2.0","method":"%s"}\n' % method.encode())

    def keep(self, whole: bool) -> None:
        """Whether answers are kept whole."""
        self._lines.keep = whole

    def close(self) -> None:
        self._pump.drop(self._out)
        for fd in (self._stdin, self._stdout):
            self._pump.forget(fd)

    def _readable(self) -> None:
        try:
            size = os.readv(self._stdout, [_buffer])
        except BlockingIOError:
            return
        if size == 0:
            self._pump.forget(self._stdout)
            self._fault("its stdout ended")
            return
        for line in self._lines.feed(_buffer, size):
            if b'"method":"' in line.head[:80]:
                self.changes += b"tools/list_changed" in line.head
                continue
            request_id = line.request_id()
            on_answer = None if request_id is None else self._waiting.pop(request_id, None)
            if on_answer is None:
                self._fault(f"a line that answers nothing: {line.head[:120]!r}")
            else:
                on_answer(line)


class Tab:
    """One browser tab: it connects, says hello, offers its tools, and answers calls and pings by itself.

    Args:
        tools: JSON text of its list of tools.
        replies: By the page's own name of the tool.
        fault: Called when it cannot go on.
    """

    def __init__(
        self,
        pump: Pump,
        port: int,
        tab_id: str,
        tools: bytes,
        replies: dict[bytes, Reply],
        fault: Callable[[str], None],
    ) -> None:
        self.ready = False  # the handshake is over, hello and tools are on their way
        self.last: wire.Message | None = None  # the last call
        self._pump = pump
        self._fault = fault
        self._replies = replies
        self._frames = wire.FrameScanner()
        self._head = b""
        where = {"url": f"https://shop.example/{tab_id}", "origin": "https://shop.example"}
        hello = json.dumps({"type": "hello", "tabId": tab_id, "title": f"Tab {tab_id}", **where}).encode()
        offer = b'{"type":"tools/list","tools":' + tools + b"}"
        self._greeting = (wire.header(len(hello)) + hello, wire.header(len(offer)) + offer)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()

        def write(parts: Sequence[Part]) -> int:
            return self._socket.sendmsg(parts)

        self._out = Out(pump, self._fd, write, fault)
        self._out.put(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: webmcp.v1\r\nOrigin: %s\r\n\r\n" % (port, ORIGIN.encode())
        )
        pump.watch(self._fd, self._readable)

    def reply(self, tool: str) -> Reply:
        return self._replies[tool.encode()]

    def keep(self, whole: bool) -> None:
        """Whether `last` is kept whole."""
        self._frames.keep = whole

    def close(self, *, politely: bool = False) -> None:
        """Leave; `politely` with a close frame in front, as a browser does."""
        if politely:
            self._out.put(wire.header(2, wire.CLOSE) + b"\x03\xe9")
            self._out.flush()
        self._pump.drop(self._out)
        self._pump.forget(self._fd)
        self._socket.close()

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(_buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(f"lost a tab: {error}")
            return
        if size == 0:
            self._lost("closed a tab")
            return
        data = _view[:size]
        if not self.ready:
            self._head += bytes(data)
            answer, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if not answer.startswith(b"HTTP/1.1 101"):
                self._lost(f"refused a tab: {answer[:60]!r}")
                return
            self.ready = True
            self._out.put(*self._greeting)
            data = memoryview(rest)
        for message in self._frames.feed(data):
            self._take(message)

    def _take(self, message: wire.Message) -> None:
        if message.opcode == wire.PING:
            self._out.put(wire.header(message.size, wire.PONG) + message.head)
        elif message.opcode == wire.CLOSE:
            self._lost(f"closed a tab: {message.head!r}")
        else:
            kind = message.member(b"type")
            if kind == b"invoke":
                self._answer(message)
            elif kind == b"ping":
                self._out.put(wire.header(len(PONG)) + PONG)

    def _answer(self, message: wire.Message) -> None:
        self.last = message
        call_id, tool = message.member(b"callId"), message.member(b"toolName")
        if call_id is None or tool is None or tool not in self._replies:
            self._fault(f"a call that cannot be answered: {message.head[:120]!r}")
            return
        self._out.put(*self._replies[tool].frame(call_id))

    def _lost(self, why: str) -> None:
        self._pump.forget(self._fd)
        self._fault(why)


class Driver:
    """A client and tabs at one relay, and the waiting for them.

    Args:
        stdin: The relay's, to write to; stdout likewise.
    """

    def __init__(self, pump: Pump, stdin: int, stdout: int, port: int) -> None:
        self.pump = pump
        self.port = port
        self.tabs: dict[str, Tab] = {}
        self._fault: str | None = None
        self.client = Client(pump, stdin, stdout, self._failed)

    def until(self, done: Callable[[], bool], what: str, patience: float = PATIENCE_S) -> None:
        """Work until `done()`. Raises `Fault` if the relay fails before, or takes longer than `patience` seconds."""
        in_time = self.pump.run_until(lambda: self._fault is not None or done(), patience)
        if self._fault is not None:
            raise Fault(self._fault)
        if not in_time:
            raise Fault(f"{what} took longer than {patience:.0f} s")

    def rest(self, seconds: float) -> None:
        """Let time pass, in which pings are answered. Raises `Fault` if the relay fails meanwhile."""
        self.pump.run_for(seconds)
        if self._fault is not None:
            raise Fault(self._fault)

    def request(self, tail: bytes, what: str = "an answer") -> tuple[float, wire.Message]:
        """Send a request and wait for its answer. Returns seconds from the sending to the last byte, and the answer."""
        came: list[tuple[float, wire.Message]] = []
        start = time.perf_counter()
        self.client.send(tail, lambda line: came.append((time.perf_counter(), line)))
        self.until(lambda: bool(came), what)
        end, line = came[0]
        return end - start, line

    def call(self, call: Call, at_least: int = 0) -> float:
        """Make a call that succeeds with a line of `at_least` bytes. Returns seconds."""
        seconds, line = self.request(call.tail, f"a call of {call.tool}")
        if line.is_error() or line.size < at_least:
            raise Fault(f"{call.tool} failed ({line.size} bytes): {line.head[:200]!r} … {line.tail[-100:]!r}")
        return seconds

    def check(self, call: Call, reply: Reply, tab: Tab) -> None:
        """Make a call and look at everything: the arguments that reach the page, the result that reaches the client."""
        for end in (self.client, tab):
            end.keep(True)
        _, line = self.request(call.tail, f"a call of {call.tool}")
        for end in (self.client, tab):
            end.keep(False)
        assert line.whole is not None
        assert tab.last is not None
        assert tab.last.whole is not None
        answer: dict[str, Any] = json.loads(line.whole)
        wanted = json.loads(reply.result)
        got = answer.get("result")
        if not isinstance(got, dict) or any(got.get(key) != value for key, value in wanted.items()):
            raise Fault(f"{call.tool} answered something else than the page: {line.head[:200]!r}")
        if json.loads(tab.last.whole).get("args") != json.loads(call.arguments):
            raise Fault(f"{call.tool} was called with other arguments: {tab.last.head[:200]!r}")

    def initialize(self) -> float:
        """Shake hands (2025-06-18). Returns seconds."""
        params = b'{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"benchmarks","version":"1"}}'
        seconds, _ = self.request(b',"method":"initialize","params":' + params + b"}\n", "initialize")
        self.client.notify("notifications/initialized")
        return seconds

    def open_tab(self, tab_id: str, tools: bytes, replies: dict[bytes, Reply]) -> Tab:
        """Begin to connect a tab; it does the rest while anything is waited for."""
        try:
            tab = Tab(self.pump, self.port, tab_id, tools, replies, self._failed)
        except OSError as error:
            raise Fault(f"no tab can connect: {error}") from None
        self.tabs[tab_id] = tab
        return tab

    def close_tab(self, tab_id: str) -> None:
        self.tabs.pop(tab_id).close(politely=True)

    def list_tools(self) -> bytes:
        """All pages of `tools/list`, one after the other."""
        pages: list[bytes] = []
        params = b"{}"
        self.client.keep(True)
        while True:
            _, page = self.request(b',"method":"tools/list","params":' + params + b"}\n", "tools/list")
            assert page.whole is not None
            pages.append(page.whole)
            if page.is_error():
                raise Fault(f"tools/list failed: {page.head!r}")
            _, found, rest = page.tail.partition(b'"nextCursor":"')
            if not found:
                break
            params = b'{"cursor":"' + rest.partition(b'"')[0] + b'"}'
        self.client.keep(False)
        return b"\n".join(pages)

    def close(self) -> None:
        for tab in self.tabs.values():
            tab.close()
        self.client.close()

    def _failed(self, why: str) -> None:
        if self._fault is None:
            self._fault = why
