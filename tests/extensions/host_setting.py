"""Browsers and provider extensions for the tests of the host side; providers are SDK servers over ports in memory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
import trio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.message import SessionMessage
from msgspec import Raw

from trio_relay.core.backend import ProviderView
from trio_relay.core.port import Port, PortClosed, Unanswered
from trio_relay.core.probe import Silence
from trio_relay.core.results import CallResult
from trio_relay.extensions.host import Providers
from trio_relay.links.memory_port import MemoryPort, port_pair

OURS = "a" * 32
NOTES = "b" * 32
MAIL = "c" * 32
OTHER_BROWSER = "d" * 32
SCHEMA: dict[str, Any] = {"type": "object"}

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Gets the arguments of a call, gives its result."""


def ready(namespace: str = "notes", **status: object) -> dict[str, Any]:
    """The response of a provider that can be used, or that says why not."""
    return {
        "ok": True,
        "service": {"namespace": namespace, "name": namespace.title(), "version": "1.2"},
        "status": {"enabled": True, "authorized": True, "ready": True, "pendingApproval": False} | status,
    }


def tool(name: str, **members: object) -> dict[str, Any]:
    return {"name": name, "inputSchema": SCHEMA, **members}


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def shown(result: CallResult) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(result.json)
    return value


def args(**members: object) -> Raw:
    return Raw(json.dumps(members).encode())


class Extension:
    """A provider extension.

    Attributes:
        probe: What it answers to a probe: a JSON value, or an error of the browser.
        tools: What it lists; not checked by the SDK, so it may be anything.
        answers: What its tools do; a tool that is not here echoes its arguments.
        legacy: Whether it knows no `server/discover`.
        heard: Every message that came, in order.
        deaf: Methods that get no answer.
        ports: Its ends of the ports that were opened, oldest first.
        refusal: Why it takes no ports.
        pages: Tools per page of its list.
        reading: While it is not set, no more messages are taken.
        listening: While it is not set, nobody is confirmed that they will be told of changes.
        lines: The bytes of `heard`.
    """

    def __init__(self, *tools: object, namespace: str = "notes", legacy: bool = False) -> None:
        self.probe: object = ready(namespace)
        self.tools: list[object] = list(tools) or [tool("write"), tool("read")]
        self.answers: dict[str, Answer] = {}
        self.legacy = legacy
        self.heard: list[dict[str, Any]] = []
        self.lines: list[bytes] = []
        self.deaf: set[str] = set()
        self.ports: list[MemoryPort] = []
        self.refusal: str | None = None
        self.pages = 1000
        self.reading = trio.Event()
        self.reading.set()
        self.listening = trio.Event()
        self.listening.set()
        self.raw_result: str | None = None
        self.pending = 0
        self.cancelled = 0
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._legacy_sessions: list[Any] = []

    def count(self, method: str) -> int:
        return sum(message.get("method") == method for message in self.heard)

    @property
    def handshakes(self) -> int:
        """Fresh handshakes, of either era."""
        return self.count("initialize") if self.legacy else self.count("server/discover")

    async def change_tools(self, *tools: object) -> None:
        self.tools = list(tools)
        await self.tell_change()

    async def tell_change(self) -> None:
        await self._bus.publish(ToolsListChanged())
        for session in self._legacy_sessions:
            await session.send_tool_list_changed()

    async def serve(self, port: MemoryPort) -> None:
        """One SDK server per port."""
        server: Server[Any] = Server(
            "fixture",
            version="1",
            on_list_tools=self._list,
            on_call_tool=self._call,  # type: ignore[arg-type]  # dicts are results too
            on_subscriptions_listen=self._on_listen,
        )
        streams = _Streams(self, port)
        try:
            await server.run(
                streams, streams, server.create_initialization_options(NotificationOptions(tools_changed=True))
            )
        finally:
            port.close()

    async def _on_listen(self, ctx: Any, params: Any) -> Any:
        await self.listening.wait()
        return await self._listen(ctx, params)

    async def _list(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if ctx.session not in self._legacy_sessions and self.legacy:
            self._legacy_sessions.append(ctx.session)
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + self.pages
        return types.ListToolsResult(tools=[], next_cursor=str(end) if end < len(self.tools) else None)

    async def _call(self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> dict[str, Any]:
        self.pending += 1
        try:
            arguments = params.arguments or {}
            for number in range(arguments.get("progress", 0)):
                await ctx.session.report_progress(number + 1, 10, f"step {number + 1}")
            answer = self.answers.get(params.name)
            result = text(json.dumps(arguments)) if answer is None else await answer(arguments)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.pending -= 1
        return result if self.legacy else result | {"resultType": "complete"}


class _Streams:
    """The streams of the fixture's SDK server over one port."""

    def __init__(self, extension: Extension, port: MemoryPort) -> None:
        self._extension = extension
        self._port = port
        self._starts: dict[object, int] = {}

    def __aiter__(self) -> _Streams:
        return self

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    async def __anext__(self) -> SessionMessage | Exception:
        own = self._extension
        while True:
            await own.reading.wait()
            try:
                data = await self._port.receive()
            except PortClosed:
                raise StopAsyncIteration from None
            message = json.loads(data)
            own.heard.append(message)
            own.lines.append(data)
            if message.get("method") in own.deaf:
                continue
            if message.get("method") == "server/discover" and own.legacy:
                error = {"code": -32601, "message": "Method not found"}
                await self._port.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())
                continue
            if message.get("method") == "tools/list":
                self._starts[message["id"]] = int(message.get("params", {}).get("cursor") or 0)
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(data, by_name=False))

    async def send(self, item: SessionMessage) -> None:
        own = self._extension
        body = json.loads(item.message.model_dump_json(by_alias=True, exclude_unset=True))
        if body.get("id") in self._starts and "result" in body:
            start = self._starts.pop(body["id"])
            body["result"]["tools"] = own.tools[start : start + own.pages]
        data = json.dumps(body)
        if own.raw_result is not None and "content" in body.get("result", {}):
            data = f'{{"jsonrpc":"2.0","id":{json.dumps(body["id"])},"result":{own.raw_result}}}'
        try:
            await self._port.send(data.encode())
        except PortClosed:
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> _Streams:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Browser:
    """A browser with our extension in it: a `Carrier`.

    Attributes:
        probes: The messages of every probe, by extension id.
        probed: When each probe was sent.
        slow: Seconds until an extension has answered a probe.
        brittle: Whether ports break when a call is sent.
    """

    def __init__(self, nursery: trio.Nursery, **extensions: Extension) -> None:
        self._nursery = nursery
        self.extensions: dict[str, Extension] = extensions
        self.probes: list[dict[str, Any]] = []
        self.probed: list[float] = []
        self.timeouts: list[float] = []
        self.slow = 0.0
        self.brittle = False

    async def probe(self, extension_id: str, message: bytes, timeout: float) -> bytes:
        self.probes.append(json.loads(message))
        self.probed.append(trio.current_time())
        self.timeouts.append(timeout)
        await trio.sleep(self.slow)
        extension = self.extensions.get(extension_id)
        if extension is None:
            raise Unanswered(Silence.NOT_INSTALLED, "Could not establish connection.")
        if extension.probe is None:
            await trio.sleep(timeout)
            raise Unanswered(Silence.TIMEOUT, "The browser says: timed out.")
        if isinstance(extension.probe, Exception):
            raise extension.probe
        if isinstance(extension.probe, bytes):
            return extension.probe
        return json.dumps(extension.probe).encode()

    async def open_port(self, extension_id: str, name: str) -> Port:
        assert name == "lumo:mcp"
        await trio.lowlevel.checkpoint()
        extension = self.extensions.get(extension_id)
        if extension is None:
            raise PortClosed("Could not establish connection.")
        if extension.refusal is not None:
            raise PortClosed(extension.refusal)
        ours, theirs = port_pair(OURS, extension_id)
        extension.ports.append(theirs)
        self._nursery.start_soon(extension.serve, theirs)
        return _Brittle(ours) if self.brittle else ours


class _Brittle:
    """A port that closes instead of taking a call."""

    def __init__(self, port: MemoryPort) -> None:
        self._port = port
        self.extension_id = port.extension_id
        self.receive = port.receive
        self.close = port.close

    async def send(self, message: bytes) -> None:
        if b'"tools/call"' in message:
            raise PortClosed("it broke")
        await self._port.send(message)


async def row_that(providers: Providers, wanted: Callable[[ProviderView], bool], at: int = 0) -> ProviderView:
    """The row of a provider, as soon as it is as wanted."""
    with trio.fail_after(300):
        while not wanted(row := providers.rows()[at]):
            await providers.wait_rows(providers.rows_seen)
    return row


async def connected(providers: Providers, at: int = 0) -> ProviderView:
    return await row_that(providers, lambda row: row.state == "connected", at)


async def failed(providers: Providers, at: int = 0) -> ProviderView:
    return await row_that(providers, lambda row: row.state == "error", at)


async def until(condition: Callable[[], bool]) -> None:
    """Return once something is so that no event tells of. Only with a clock that jumps."""
    with trio.fail_after(300):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


class Gate:
    """A tool that answers when it is let."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(arguments)
        await self.opened.wait()
        return text(json.dumps(arguments))
