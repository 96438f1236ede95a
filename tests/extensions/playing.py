"""A browser with other extensions in it, played over raw frames of a tunnel: providers that answer, hosts that call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from tests.extensions.host_setting import ready, tool
from tests.helpers import PATIENCE
from tests.links.bridge import OWN_ORIGIN, Bridge, open_bridge
from trio_relay.links.socket import Closed

HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "a host", "version": "1"},
}


class Browser:
    """Create it with `open_browser`.

    Attributes:
        providers: What each provider extension answers to a probe; their tools echo.
        tools: What they list.
        hello: How the relay greeted.
    """

    def __init__(self, bridge: Bridge, hello: dict[str, Any]) -> None:
        self.bridge = bridge
        self.hello = hello
        self.providers: dict[str, object] = {}
        self.tools: list[object] = [tool("read", annotations={"readOnlyHint": True}), tool("write")]
        self.called: list[dict[str, Any]] = []
        self.probed = 0
        self._hosts: dict[str, Host] = {}
        self._answers: dict[str, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._number = 0

    def next_id(self) -> str:
        self._number += 1
        return f"b{self._number}"

    async def run(self) -> None:
        with suppress(Closed):
            while True:
                frame = json.loads(await self.bridge.socket.receive())
                await self._frame(frame)

    async def _frame(self, frame: dict[str, Any]) -> None:
        send, kind = self.bridge.send, frame["type"]
        if kind == "ping":
            await send({"type": "pong"})
        elif kind == "probe":
            self.probed += 1
            answer = self.providers.get(frame["extensionId"])
            error = {"kind": "not-installed", "message": "not there"}
            told: dict[str, Any] = {"error": error} if answer is None else {"response": answer}
            await send({"type": "probe/response", "probeId": frame["probeId"], **told})
        elif kind == "port/open":
            await send({"type": "port/opened", "portId": frame["portId"]})
        elif kind == "probe/response":
            self._answers.pop(frame["probeId"]).send_nowait(frame)
        elif frame["portId"] in self._hosts:
            self._hosts[frame["portId"]].hear(frame)
        elif kind == "port/message" and "id" in frame["message"] and "method" in frame["message"]:
            message = {"jsonrpc": "2.0", "id": frame["message"]["id"], **self._serve(frame["message"])}
            await send({"type": "port/message", "portId": frame["portId"], "message": message})

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        params = request.get("params", {})
        match request["method"]:
            case "initialize":
                server = {"name": "Notes", "version": "1"}
                capabilities = {"tools": {"listChanged": True}}
                version = params["protocolVersion"]
                return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server}}
            case "tools/list":
                return {"result": {"tools": self.tools}}
            case "tools/call":
                self.called.append(params)
                return {"result": {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}

    async def probe(self, sender: str, message: object) -> dict[str, Any]:
        """What an extension of this browser gets for a message to ours."""
        probe_id = self.next_id()
        self._answers[probe_id], receive = trio.open_memory_channel[dict[str, Any]](1)
        await self.bridge.send({"type": "probe", "probeId": probe_id, "senderId": sender, "message": message})
        with trio.fail_after(PATIENCE):
            return await receive.receive()

    async def host(self, sender: str, name: str = "lumo:mcp") -> Host:
        """A port of a host extension; it has said nothing yet."""
        host = Host(self, self.next_id())
        self._hosts[host.port_id] = host
        await self.bridge.send({"type": "port/open", "portId": host.port_id, "senderId": sender, "name": name})
        return host


class Host:
    """A host extension's end of a port, speaking plain JSON-RPC."""

    def __init__(self, browser: Browser, port_id: str) -> None:
        self.port_id = port_id
        self._browser = browser
        self._send, self._receive = trio.open_memory_channel[dict[str, Any]](1000)
        self._number = 0

    def hear(self, frame: dict[str, Any]) -> None:
        self._send.send_nowait(frame)

    async def frame(self, kind: str) -> dict[str, Any]:
        """The next frame of a kind about this port; others before it are passed over."""
        with trio.fail_after(PATIENCE):
            while True:
                frame = await self._receive.receive()
                if frame["type"] == kind:
                    return frame

    async def say(self, message: dict[str, Any]) -> None:
        frame = {"type": "port/message", "portId": self.port_id, "message": {"jsonrpc": "2.0", **message}}
        await self._browser.bridge.send(frame)

    async def ask(self, method: str, **params: Any) -> int:
        """Send a request; returns its id."""
        self._number += 1
        await self.say({"id": self._number, "method": method, "params": params})
        return self._number

    async def answer(self, request_id: int) -> dict[str, Any]:
        while (message := (await self.frame("port/message"))["message"]).get("id") != request_id:
            pass
        return dict(message)

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request."""
        answer = await self.answer(await self.ask(method, **params))
        assert "result" in answer, answer
        return dict(answer["result"])

    async def initialize(self) -> dict[str, Any]:
        result = await self.request("initialize", **HANDSHAKE)
        await self.say({"method": "notifications/initialized"})
        return result

    async def call(self, name: str, **arguments: object) -> dict[str, Any]:
        return await self.request("tools/call", name=name, arguments=arguments)

    async def tool_names(self) -> list[str]:
        return [entry["name"] for entry in (await self.request("tools/list"))["tools"]]

    async def cancel(self, request_id: int) -> None:
        await self.say({"method": "notifications/cancelled", "params": {"requestId": request_id}})


@asynccontextmanager
async def open_browser(
    port: int, providers: dict[str, object] | None = None, origin: str = OWN_ORIGIN
) -> AsyncIterator[Browser]:
    """Connect a browser with our extension and others in it.

    Args:
        providers: What each of them answers to a probe.
    """
    async with open_bridge(port, origin) as bridge, trio.open_nursery() as nursery:
        browser = Browser(bridge, await bridge.greet())
        assert browser.hello["type"] == "hello/accepted", browser.hello
        browser.providers = dict(providers or {})
        nursery.start_soon(browser.run)
        yield browser
        nursery.cancel_scope.cancel()


def notes() -> dict[str, Any]:
    """A probe's answer of a provider that can be used."""
    return ready("notes")
