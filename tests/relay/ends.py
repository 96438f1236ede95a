"""The other ends of the relay protocol, for tests: a raw relay client, a relay server written by hand, strangers."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from tests.helpers import PATIENCE, FakeTab, open_tab
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, Target, ToolBackend
from trio_relay.core.results import CallResult
from trio_relay.core.roles import Role
from trio_relay.links.peer import join
from trio_relay.links.socket import connect
from trio_relay.relay.cluster import Cluster
from trio_relay.relay.hub import Hub
from trio_relay.relay.remote import Remote
from trio_relay.wire.peer import SUBPROTOCOL

EMPTY = Raw(b"{}")


class RawPeer(FakeTab):
    """A relay client: frames in, frames out. Create it with `open_peer`."""

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next frame of a kind; pushes of the list before it are passed over, anything else is an error."""
        while True:
            frame = await self.frame()
            if frame["type"] == kind:
                return frame
            assert frame["type"] == "relay/tools-changed", frame

    async def list_tools(self) -> dict[str, Any]:
        await self.send({"type": "relay/list-tools"})
        return await self.expect("relay/tools")

    async def invoke(self, name: str, call_id: str = "c1", **members: object) -> None:
        await self.send({"type": "relay/invoke", "callId": call_id, "toolName": name, **members})

    async def call(self, name: str, call_id: str = "c1", **members: object) -> dict[str, Any]:
        await self.invoke(name, call_id, **members)
        answer = await self.expect("relay/result")
        assert answer["callId"] == call_id
        result: dict[str, Any] = answer["result"]
        return result

    async def pushed(self, want: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next push of the list that is as wanted."""
        while not want(frame := await self.expect("relay/tools-changed")):
            pass
        return frame


@asynccontextmanager
async def open_peer(port: int, *, origin: str | None = None) -> AsyncIterator[RawPeer]:
    subprotocols = (SUBPROTOCOL, "webmcp.v1")
    async with connect("127.0.0.1", port, subprotocols=subprotocols, origin=origin, max_message=100_000_000) as ws:
        yield RawPeer(ws)


async def eventually(holds: Callable[[], object]) -> None:
    """Wait for what other tasks and sockets bring about."""
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110  (several sockets are involved; there is no one event)
            await trio.sleep(0.002)


@asynccontextmanager
async def open_remote(port: int, config: RelayConfig | None = None) -> AsyncIterator[Remote]:
    """Join a relay server and follow it."""
    config = config or RelayConfig()
    async with (
        join("127.0.0.1", port, max_payload=config.max_payload, patience=PATIENCE) as link,
        trio.open_nursery() as nursery,
    ):
        remote = Remote(config, link)
        nursery.start_soon(remote.run)
        yield remote
        nursery.cancel_scope.cancel()


async def settled(hub: Hub, *tools: str) -> None:
    """Return once the hub lists exactly these tools."""
    await eventually(lambda: sorted(tool.name for tool in hub.tools()) == sorted(tools))


class HandWrittenServer:
    """A relay server that says what it is told to. Create it with `serve_by_hand`."""

    def __init__(self, greet: Sequence[dict[str, Any]], tools: dict[str, Any] | None) -> None:
        self.port = 0
        self.joined = 0
        self._greet = greet
        self._tools = tools
        self._connection: WebSocketConnection | None = None
        self._send, self._receive = trio.open_memory_channel[dict[str, Any]](1000)

    async def handle(self, request: WebSocketRequest) -> None:
        connection = await request.accept(subprotocol=SUBPROTOCOL)
        self._connection = connection
        try:
            for message in self._greet:
                await connection.send_message(json.dumps(message))
            while True:
                frame = json.loads(await connection.get_message())
                if frame["type"] == "relay/list-tools" and self._tools is not None:
                    self.joined += 1
                    await connection.send_message(json.dumps(self._tools))
                self._send.send_nowait(frame)
        except ConnectionClosed:
            pass

    async def frame(self, kind: str) -> dict[str, Any]:
        """The next frame of a kind; others before it are passed over."""
        with trio.fail_after(PATIENCE):
            while True:
                frame = await self._receive.receive()
                if frame["type"] == kind:
                    return frame

    def frames(self) -> list[dict[str, Any]]:
        """What has come and was not asked for yet."""
        seen = []
        while self._receive.statistics().current_buffer_used:
            seen.append(self._receive.receive_nowait())
        return seen

    async def send(self, message: dict[str, Any] | str) -> None:
        assert self._connection is not None
        await self._connection.send_message(message if isinstance(message, str) else json.dumps(message))

    async def answer(self, invoke: dict[str, Any], text: str) -> None:
        result = {"content": [{"type": "text", "text": text}]}
        await self.send({"type": "relay/result", "callId": invoke["callId"], "result": result})

    async def vanish(self) -> None:
        """Close the connection without a word."""
        assert self._connection is not None
        await trio.aclose_forcefully(self._connection._stream)


@asynccontextmanager
async def serve_by_hand(
    *, port: int = 0, greet: Sequence[dict[str, Any]] = (), tools: dict[str, Any] | None = None
) -> AsyncIterator[HandWrittenServer]:
    """Args:
    greet: Sent to each client at once.
    tools: The answer to `relay/list-tools`; None for no answer.
    """
    server = HandWrittenServer(greet, tools)
    async with trio.open_nursery() as nursery:
        listening = await nursery.start(serve_websocket, server.handle, "127.0.0.1", port, None)
        server.port = listening.port
        yield server
        nursery.cancel_scope.cancel()


def plain_tools(*names: str, **members: object) -> dict[str, Any]:
    """The list of a relay without additions: each tool of a tab of its own, `s-<name>` and `t-<name>`."""
    return {
        "type": "relay/tools",
        "tools": [{"name": name, "description": "d", "inputSchema": {"type": "object"}} for name in names],
        "sources": [
            {"sourceId": f"s-{name}", "tabId": f"t-{name}", "connectedAt": 1, "lastSeenAt": 2, "toolCount": 1}
            for name in names
        ],
        "toolSourceMap": {name: [f"s-{name}"] for name in names},
        **members,
    }


@contextmanager
def silent_listener(port: int) -> Iterator[None]:
    """Takes connections, says nothing."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield


@asynccontextmanager
async def talker(port: int, answer: bytes) -> AsyncIterator[None]:
    """Answers the first bytes of a client with the same bytes each time, and hangs up."""

    async def handle(stream: trio.SocketStream) -> None:
        if answer:
            await stream.receive_some()
            await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, handle, port, host="127.0.0.1"))
        yield
        nursery.cancel_scope.cancel()


def free_range(count: int) -> range:
    """Consecutive free ports."""
    while True:
        start = random.randrange(20_000, 32_000)
        if all(is_free(port) for port in range(start, start + count)):
            return range(start, start + count)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def use_range(monkeypatch: pytest.MonkeyPatch, count: int) -> range:
    """Let relays discover each other in a range of this test's own."""
    ports = free_range(count)
    monkeypatch.setattr("trio_relay.relay.ports.DISCOVERY_PORTS", ports)
    return ports


def names(backend: ToolBackend) -> list[str]:
    return sorted(tool.name for tool in backend.tools())


async def record(backend: ToolBackend, into: list[Change]) -> None:
    seen = backend.change()
    while True:
        seen = await backend.wait_change(seen)
        into.append(seen)


def grace(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("trio_relay.relay.hub.GRACE_S", seconds)
    monkeypatch.setattr("trio_relay.relay.cluster.GRACE_S", seconds)


async def became(cluster: Cluster, role: Role) -> None:
    await eventually(lambda: cluster.roles.role is role)


async def shown(backend: ToolBackend, *names: str) -> None:
    """Return once exactly these tools are listed, woken by the backend's own changes."""
    with trio.fail_after(5):
        while True:
            seen = backend.change()
            if sorted(tool.name for tool in backend.tools()) == sorted(names):
                return
            await backend.wait_change(seen)


async def text(backend: ToolBackend, name: str, args: Raw = EMPTY, target: Target | None = None) -> str:
    with trio.fail_after(5):
        result = await backend.call(name, args, target=target)
    body: str = json.loads(bytes(result.json))["content"][0]["text"]
    return body


@asynccontextmanager
async def listed_tab(hub: Hub, tab_id: str, *tools: object) -> AsyncIterator[FakeTab]:
    async with open_tab(hub.port) as tab:
        await tab.hello(tab_id)
        await tab.offer(*tools)
        await eventually(lambda: any(row.tab_id == tab_id and row.tool_count == len(tools) for row in hub.sources()))
        yield tab


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


def error_of(result: dict[str, Any]) -> str:
    assert result["isError"], result
    return text_of(result)


async def calling(backend: ToolBackend, name: str, args: Raw) -> CallResult:
    """A call as a task of its own."""
    return await backend.call(name, args)
