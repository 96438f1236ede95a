"""What the tests of the provider side share: a provider with four tools, and official clients over ports in memory."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
import trio
from mcp import Client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server

from trio_relay.core.reviews import Review
from trio_relay.errors import TimedOut
from trio_relay.extensions.audit import AuditLog
from trio_relay.extensions.gate import Facts
from trio_relay.extensions.provider import Caller, Provider, Served, ServerFactory
from trio_relay.extensions.serving import PortStream
from trio_relay.extensions.store import ProviderStore
from trio_relay.links.memory_port import MemoryPort, port_pair
from trio_relay.wire.probe import Service

PATIENCE = 20.0
OURS, HOST, OTHER = "p" * 32, "a" * 32, "b" * 32
TARGET = "3f0c8d52-0c1e-4a52-9a7e-2f6d3a1b7c90"
SERVICE = Service("triorelay", "trio-relay", "1")
ERAS = ("legacy", "2026-07-28")
READ_ONLY = ("look",)
OBJECT = {"type": "object"}


class Page:
    """Stands for whatever a factory's server does, and remembers what was really executed."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.callers: list[Caller] = []
        self.began = trio.Event()
        self.go_on = trio.Event()
        self.target = TARGET
        self.padding = ""

    def factory(self, caller: Caller) -> Served:
        self.callers.append(caller)
        server: Server[Any] = Server("page", on_list_tools=self._list, on_call_tool=self._call)
        return Served(server, self.describe)

    def describe(self, name: str, arguments: dict[str, Any]) -> Facts:
        return Facts(name not in READ_ONLY, self.target)

    async def _list(
        self, ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=self.padding,
                    input_schema=OBJECT,
                    annotations=types.ToolAnnotations(read_only_hint=name in READ_ONLY),
                )
                for name in ("look", "save", "slow", "bad", "late")
            ]
        )

    async def _call(self, ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
        self.executed.append(params.name)
        if params.name == "slow":
            self.began.set()
            await self.go_on.wait()
        if params.name == "late":
            raise TimedOut("The tab did not answer in time.")
        return types.CallToolResult(
            content=[types.TextContent(text=f"{params.name} done{self.padding}")], is_error=params.name == "bad"
        )


class Desk:
    """A provider, its files, and the page behind it.

    Attributes:
        now: The clock of the write limit and of reviews.
    """

    def __init__(self, directory: Path, timeout: float | None = None, factory: ServerFactory | None = None) -> None:
        self.page = Page()
        self.store = ProviderStore(directory)
        self.audit = AuditLog(directory)
        self.now = 1_000.0
        self.provider = Provider(
            self.store,
            self.audit,
            SERVICE,
            factory or self.page.factory,
            timeout=timeout,
            clock=lambda: self.now,
        )

    def switch(self, **switches: bool) -> None:
        self.store.change(lambda policy: msgspec.structs.replace(policy, **switches))

    def lines(self) -> list[tuple[str, str, str]]:
        """The audit log, read strictly: event, tool, result."""
        if not self.audit.path.exists():
            return []
        rows = [json.loads(line) for line in self.audit.path.read_text().splitlines()]
        return [(row["event"], row["tool"], row["result"]) for row in rows]

    async def lines_become(self, count: int) -> list[tuple[str, str, str]]:
        """The audit log once it has that many lines."""
        await eventually(lambda: len(self.lines()) >= count)
        return self.lines()

    async def one_review(self) -> str:
        """The id of the only write that waits, as soon as there is one."""
        await eventually(lambda: len(self.provider.reviews()) == 1)
        return self.provider.reviews()[0].review_id

    def filed_reviews(self) -> list[str]:
        """The ids of reviews that are filed from now on: one may be over before anybody could look."""
        ids: list[str] = []
        reviews = self.provider._gate._reviews
        file = reviews.file

        def remembering(*args: Any, **options: Any) -> Review:
            review = file(*args, **options)
            ids.append(review.review_id)
            return review

        reviews.file = remembering  # type: ignore[method-assign]
        return ids

    @asynccontextmanager
    async def port(self, caller: str = HOST) -> AsyncIterator[MemoryPort]:
        """The host's end of a port that the provider serves."""
        ours, theirs = port_pair(OURS, caller)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.provider.serve, ours)
            try:
                yield theirs
            finally:
                theirs.close()
                nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def client(self, mode: str = "legacy", caller: str = HOST, **options: Any) -> AsyncIterator[Client]:
        async with self.port(caller) as port, client_on(port, mode, **options) as client:
            yield client


@asynccontextmanager
async def client_on(port: MemoryPort, mode: str = "legacy", **options: Any) -> AsyncIterator[Client]:
    """The official client over a host's end of a port."""
    async with Client(_transport(port), mode=mode, **options) as client:
        yield client


@asynccontextmanager
async def _transport(port: MemoryPort) -> AsyncIterator[tuple[Any, Any]]:
    stream = PortStream(port, deque())
    yield stream, stream


async def eventually(holds: Callable[[], bool]) -> None:
    """Return as soon as a condition holds. For what other tasks and threads bring about."""
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110  # of threads and files there is no event
            await trio.sleep(0.002)


def text_of(result: Any) -> str:
    text: str = result.content[0].text
    return text


async def refused(client: Client, tool: str) -> str:
    """Call a tool that must answer with isError; returns its text."""
    result = await client.call_tool(tool, {})
    assert result.is_error is True
    return text_of(result)


def probe_message(name: str = "Lumo", version: str = "1.0.19") -> bytes:
    client = {"id": HOST, "name": name, "version": version}
    return json.dumps({"channel": "lumo:probe", "version": 1, "id": "probe-1", "client": client}).encode()
