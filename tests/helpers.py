"""The other ends of our wires, for tests: a browser tab, an MCP client on raw lines, a relay process.

Real parts only: a real WebSocket, a real subprocess. Everything here fails after `PATIENCE` instead of hanging.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from trio_relay.links.socket import Closed, Socket, connect

PATIENCE = 10.0
EXTENSION = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


class FakeTab:
    """A browser tab: frames in, frames out. Create it with `open_tab`."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def send(self, frame: dict[str, Any] | bytes) -> None:
        await self.socket.send(frame if isinstance(frame, bytes) else json.dumps(frame, ensure_ascii=False).encode())

    async def frame(self) -> dict[str, Any]:
        """The next frame of the relay, whatever it is."""
        with trio.fail_after(PATIENCE):
            frame: dict[str, Any] = json.loads(await self.socket.receive())
        self.seen.append(frame)
        return frame

    async def frame_or_ping(self) -> dict[str, Any]:
        """The next frame that is not a ping, however long it takes; pings are answered."""
        while True:
            frame: dict[str, Any] = json.loads(await self.socket.receive())
            if frame["type"] != "ping":
                return frame
            await self.send({"type": "pong"})

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next frame of a kind; pings and greetings before it are passed over, anything else is an error."""
        while True:
            frame = await self.frame()
            if frame["type"] == kind:
                return frame
            assert frame["type"] in ("ping", "server-hello", "hello/accepted"), frame

    async def closed(self) -> Closed:
        """Wait until the relay closes the socket; frames before it are kept in `seen`."""
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    self.seen.append(json.loads(await self.socket.receive()))
                except Closed as closed:
                    return closed

    async def hello(self, tab_id: object = "t1", **members: object) -> None:
        """Say hello and wait until it is accepted."""
        await self.send({"type": "hello", "tabId": tab_id, "title": "A tab", "url": "https://a.example/x", **members})
        await self.expect("hello/accepted")

    async def offer(self, *tools: object, kind: str = "tools/list") -> None:
        """Send a tools list. A string stands for a tool of that name."""
        await self.send({"type": kind, "tools": [{"name": t} if isinstance(t, str) else t for t in tools]})

    async def answer(self, invoke: dict[str, Any], result: object = None) -> None:
        body = text_result(json.dumps(invoke["args"])) if result is None else result
        await self.send({"type": "result", "callId": invoke["callId"], "result": body})

    async def serve(self, reply: Callable[[dict[str, Any]], object] | None = None) -> None:
        """Answer every call until the socket closes: with `reply(invoke)`, or with its arguments as text."""
        with suppress(Closed):
            while True:
                frame = json.loads(await self.socket.receive())
                self.seen.append(frame)
                if frame["type"] == "invoke":
                    await self.answer(frame, None if reply is None else reply(frame))
                elif frame["type"] == "ping":
                    await self.send({"type": "pong"})


@asynccontextmanager
async def open_tab(
    port: int, *, origin: str | None = EXTENSION, subprotocols: tuple[str, ...] = ("webmcp.v1",)
) -> AsyncIterator[FakeTab]:
    """Connect a tab. It has said nothing yet."""
    async with connect("127.0.0.1", port, subprotocols=subprotocols, origin=origin, max_message=100_000_000) as socket:
        yield FakeTab(socket)


async def wait_for_port(port: int) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            except OSError:
                await trio.sleep(0.01)
            else:
                return


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class LineClient:
    """An MCP client that writes raw lines and reads raw lines, over any pair of byte streams."""

    def __init__(self, send: trio.abc.SendStream, receive: trio.abc.ReceiveStream) -> None:
        self._send = send
        self._receive = receive
        self._buffer = bytearray()
        self.lines: list[bytes] = []  # every line ever read
        self._next_id = 1000
        self.modern = False
        self.patience = PATIENCE

    async def write(self, line: bytes | dict[str, Any] | list[Any]) -> None:
        """Send one line; LF is added."""
        data = line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
        await self._send.send_all(data + b"\n")

    async def close_stdin(self) -> None:
        await self._send.aclose()

    async def raw_line(self, patience: float | None = None) -> bytes:
        """The next line with its LF; b"" at end of file."""
        with trio.fail_after(patience or self.patience):
            while b"\n" not in self._buffer:
                data = await self._receive.receive_some(1 << 20)
                if not data:
                    rest = bytes(self._buffer)
                    self._buffer.clear()
                    return rest
                self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        self.lines.append(line + b"\n")
        return line + b"\n"

    async def message(self, patience: float | None = None) -> dict[str, Any]:
        """The next message, which must be strict JSON on one line."""
        line = await self.raw_line(patience)
        assert line.endswith(b"\n"), line
        assert not line.endswith(b"\r\n")
        message: dict[str, Any] = json.loads(line.decode(), parse_constant=_no_constant)
        assert message["jsonrpc"] == "2.0"
        return message

    async def answer_to(self, request_id: object, patience: float | None = None) -> dict[str, Any]:
        """The next response with this id; notifications before it are passed over."""
        while True:
            message = await self.message(patience)
            if "id" in message and message["id"] == request_id:
                return message
            assert "method" in message, message

    async def send_request(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._next_id += 1
        if self.modern:
            params = dict(params or {})
            params["_meta"] = MODERN_META | params.get("_meta", {})
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": self._next_id, "method": method}
        await self.write(body if params is None else body | {"params": params})
        return self._next_id

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.answer_to(await self.send_request(method, params))

    async def call(self, name: str, args: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """Call a tool; returns the CallToolResult."""
        answer = await self.request("tools/call", {"name": name, "arguments": args or {}, **params})
        result: dict[str, Any] = answer["result"]
        return result

    async def tool_names(self) -> list[str]:
        """The names of the listed page tools, without the four of the relay."""
        answer = await self.request("tools/list", {})
        return [tool["name"] for tool in answer["result"]["tools"] if not tool["name"].startswith("webmcp_")]

    async def wait_tools(self, *names: str) -> None:
        """Return once exactly these page tools are listed."""
        with trio.fail_after(PATIENCE):
            while sorted(await self.tool_names()) != sorted(names):  # noqa: ASYNC110  (a list is asked for)
                await trio.sleep(0.01)

    async def initialize(self, version: str = "2025-11-25") -> dict[str, Any]:
        """The handshake of the older era."""
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        answer = await self.request("initialize", params)
        await self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def ping(self) -> None:
        """The session is alive."""
        if self.modern:
            answer = await self.request("server/discover", {})
            assert "result" in answer
        else:
            answer = await self.request("ping")
            assert answer["result"] == {}


def _no_constant(text: str) -> None:
    raise AssertionError(f"not strict JSON: {text}")


class RelayProcess(LineClient):
    """A real `python -m trio_relay` and its MCP client. Create it with `open_relay_process`."""

    def __init__(self, process: trio.Process, port: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(process.stdin, process.stdout)
        self.process = process
        self.port = port
        self._stderr = bytearray()

    async def drain_stderr(self) -> None:
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self._stderr += chunk

    @property
    def stderr(self) -> str:
        """What was logged so far."""
        return self._stderr.decode(errors="replace")

    async def logged(self, words: str) -> None:
        """Return once this was logged."""
        with trio.fail_after(PATIENCE):
            while words not in self.stderr:  # noqa: ASYNC110  (another process writes it)
                await trio.sleep(0.01)

    async def wait(self, patience: float = PATIENCE) -> int:
        """The exit code, which must come in time."""
        with trio.fail_after(patience):
            return await self.process.wait()


@asynccontextmanager
async def open_relay_process(
    *options: str,
    port: int | None = None,
    env: dict[str, str] | None = None,
    python: tuple[str, ...] = (),
    wait: bool = True,
) -> AsyncIterator[RelayProcess]:
    """Start a relay on a free port, and end it for good afterwards. Its stderr must show no traceback."""
    port = port or free_port()
    process = await trio.lowlevel.open_process(
        [sys.executable, *python, "-m", "trio_relay", "--port", str(port), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else os.environ | env,
    )
    relay = RelayProcess(process, port)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.drain_stderr)
            if wait:
                await wait_for_port(port)
            yield relay
            nursery.cancel_scope.cancel()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()
    assert "Traceback" not in relay.stderr, relay.stderr


def client_frame(payload: bytes, opcode: int = 1, *, fin: bool = True, key: bytes = b"\x11\x22\x33\x44") -> bytes:
    """One masked WebSocket frame, made without the code under test."""
    size = len(payload)
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", 0x80 | 126, size)
    else:
        head += struct.pack("!BQ", 0x80 | 127, size)
    if key == b"\0\0\0\0":
        return head + key + payload
    repeated = (key * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + key + masked.to_bytes(size, "big")


class RawSocket:
    """A WebSocket client that can send anything, right or wrong. Create it with `open_raw`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.head = b""
        self._buffer = bytearray()

    async def upgrade(self, *headers: str, host: str = "127.0.0.1") -> str:
        """Send the HTTP request (header lines as given) and return the head of the answer."""
        lines = [
            "GET / HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
            *headers,
        ]
        await self.stream.send_all("\r\n".join([*lines, "", ""]).encode())
        return await self.upgrade_answer()

    async def upgrade_answer(self) -> str:
        """The head of the relay's answer to an HTTP request."""
        with trio.fail_after(PATIENCE):
            while b"\r\n\r\n" not in self._buffer:
                data = await self.stream.receive_some(65536)
                if not data:
                    break
                self._buffer += data
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        return head.decode()

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send_text(self, text: str) -> None:
        await self.send(client_frame(text.encode()))

    async def frame(self) -> tuple[int, bytes] | None:
        """The next frame of the relay as (opcode, payload); None when the connection has ended."""
        with trio.fail_after(PATIENCE):
            while True:
                parsed = self._parse()
                if parsed is not None:
                    return parsed
                try:
                    data = await self.stream.receive_some(1 << 20)
                except trio.BrokenResourceError:
                    return None
                if not data:
                    return None
                self._buffer += data

    def _parse(self) -> tuple[int, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        assert buffer[0] & 0xF0 == 0x80, "the relay sends whole messages, without reserved bits"
        assert buffer[1] & 0x80 == 0, "a server does not mask"
        size, at = buffer[1] & 0x7F, 2
        if size == 126:
            if len(buffer) < 4:
                return None
            (size,), at = struct.unpack_from("!H", buffer, 2), 4
        elif size == 127:
            if len(buffer) < 10:
                return None
            (size,), at = struct.unpack_from("!Q", buffer, 2), 10
        if len(buffer) < at + size:
            return None
        frame = buffer[0] & 0x0F, bytes(buffer[at : at + size])
        del buffer[: at + size]
        return frame

    async def close_code(self) -> int | None:
        """The code of the relay's close frame, passing over messages; None if it just vanished."""
        while (frame := await self.frame()) is not None:
            if frame[0] == 8:
                code: int = struct.unpack_from("!H", frame[1])[0] if frame[1] else 1005
                return code
        return None


@asynccontextmanager
async def open_raw(port: int) -> AsyncIterator[RawSocket]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        yield RawSocket(stream)
