"""Helpers for tests that hold a hub in their own process: calls in the background, tabs made of raw frames."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import trio
from msgspec import Raw

from tests.helpers import EXTENSION, PATIENCE, FakeTab, RawSocket, client_frame
from trio_relay.core.backend import Target
from trio_relay.core.results import CallResult
from trio_relay.errors import RelayError
from trio_relay.relay.hub import Hub

NO_MASK = b"\0\0\0\0"


class Attempt:
    """A call in the background. It ends with a result, with a `RelayError`, or by `scope.cancel()`."""

    def __init__(
        self, nursery: trio.Nursery, hub: Hub, name: str, args: bytes = b"{}", target: Target | None = None
    ) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self._result: CallResult | None = None
        self._error: RelayError | None = None
        nursery.start_soon(self._run, hub, name, args, target)

    async def _run(self, hub: Hub, name: str, args: bytes, target: Target | None) -> None:
        with self.scope:
            try:
                self._result = await hub.call(name, Raw(args), target=target)
            except RelayError as error:
                self._error = error
        self.done.set()

    async def result(self) -> dict[str, Any]:
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        assert self._error is None, self._error
        assert self._result is not None, "cancelled"
        result: dict[str, Any] = json.loads(bytes(self._result.json))
        return result

    async def text(self) -> str:
        """The text of the only block of the result."""
        (block,) = (await self.result())["content"]
        text: str = block["text"]
        return text

    async def error(self) -> RelayError:
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        assert self._error is not None, self._result
        return self._error


def listed(hub: Hub) -> dict[str, dict[str, Any]]:
    """The catalogue as a client sees it: definitions by public name."""
    tools = json.loads(b"[" + b",".join(hub.listing()) + b"]")
    names = [tool["name"] for tool in tools]
    assert len(set(names)) == len(names), names
    assert sorted(names) == sorted(view.name for view in hub.tools())
    return {tool["name"]: tool for tool in tools}


async def wait_listed(hub: Hub, *names: str) -> dict[str, dict[str, Any]]:
    """Return the catalogue as soon as it has exactly these names."""
    with trio.fail_after(PATIENCE):
        while True:
            seen = hub.change()
            tools = listed(hub)
            if sorted(tools) == sorted(names):
                return tools
            await hub.wait_change(seen)


async def wait_sources(hub: Hub, count: int) -> None:
    """Return once so many sources are connected."""
    with trio.fail_after(PATIENCE):
        while len(hub.sources()) != count:  # noqa: ASYNC110  (rows without tools are no change to wait for)
            await trio.sleep(0.005)


async def in_step(tab: FakeTab) -> None:
    """Return once the relay has dealt with all that the tab sent before: it answers a ping behind it."""
    with trio.fail_after(PATIENCE):
        await tab.socket.ping()


async def offer(tab: FakeTab, tab_id: str = "t1", *tools: object) -> None:
    """Make a tab with tools (`f`, if none are given), and return once they are listed."""
    await tab.hello(tab_id)
    await tab.offer(*(tools or ("f",)))
    await in_step(tab)


async def begun(tab: FakeTab, hub: Hub, nursery: trio.Nursery) -> tuple[Attempt, dict[str, Any]]:
    """A call that the tab has received."""
    call = Attempt(nursery, hub, "f")
    return call, await tab.expect("invoke")


def result_frame(call_id: str, text: str = "hi") -> dict[str, Any]:
    return {"type": "result", "callId": call_id, "result": {"content": [{"type": "text", "text": text}]}}


async def join(raw: RawSocket, tab_id: str = "t1", *tools: str) -> None:
    """Make a raw socket a tab: handshake, hello, tools."""
    head = await raw.upgrade(f"Origin: {EXTENSION}", "Sec-WebSocket-Protocol: webmcp.v1")
    assert head.startswith("HTTP/1.1 101 "), head
    await send_json(raw, {"type": "hello", "tabId": tab_id})
    await next_json(raw, "hello/accepted")
    await send_json(raw, {"type": "tools/list", "tools": [{"name": name} for name in tools]})


async def send_json(raw: RawSocket, frame: dict[str, Any]) -> None:
    await raw.send(client_frame(json.dumps(frame, ensure_ascii=False).encode(), key=NO_MASK))


async def next_json(raw: RawSocket, kind: str) -> dict[str, Any]:
    """The next message of a kind; others before it are passed over."""
    while True:
        frame = await raw.frame()
        assert frame is not None, "the connection has ended"
        if frame[0] == 1:
            message: dict[str, Any] = json.loads(frame[1])
            if message["type"] == kind:
                return message


async def reset(raw: RawSocket) -> None:
    """Drop the connection as a crash does: with RST, what was sent and not read is lost."""
    raw.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await trio.aclose_forcefully(raw.stream)
