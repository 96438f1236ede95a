"""Provider extensions for the tests of a relay, without any extension: tools by name, calls that the test ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from msgspec import Raw

from tests.links.bridge import Extends
from tests.relay.ends import RawPeer
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, ProviderView, RefusedView, ToolBackend, ToolView
from trio_relay.core.pending import OnProgress, Progress
from trio_relay.core.results import CallResult
from trio_relay.errors import NotSent, TimedOut, ToolNotFound
from trio_relay.links.tunnel import Tunnel
from trio_relay.relay.changes import Bell
from trio_relay.relay.hub import Hub, open_hub

PROVIDER = "b" * 32


def definition(name: str, **members: object) -> bytes:
    """With members that are unknown, and an explicit null."""
    tool = {
        "name": name,
        "description": "[Extension Notes] d",
        "inputSchema": {"type": "object"},
        "x-own": [1.50, None],
    }
    return json.dumps(tool | members).encode()


def row(state: str = "connected", count: int = 0) -> ProviderView:
    return ProviderView(
        extension_id=PROVIDER,
        namespace="notes",
        name="Notes",
        version="1",
        state=state,
        outcome="as the test says",
        tool_count=count,
        refused=(RefusedView("x" * 41, "too long"),),
    )


class FakeProviders:
    """Implements `ToolProviders`. A tool that is not in `waiting` echoes its arguments.

    Attributes:
        calls: Name, arguments and time limit of every call.
        times_asked: How often the tools were asked for.
        waiting: Tools whose calls wait for `go_on`, after they have reported progress.
        cancelled: Names of calls whose caller went away.
    """

    def __init__(self, *names: str) -> None:
        self._tools = {name: definition(name) for name in names}
        self._rows = [row(count=len(names))]
        self._known = frozenset(names)
        self._rows_seen = 0
        self._bell = Bell()
        self.calls: list[tuple[str, str, float | None]] = []
        self.times_asked = 0
        self.waiting: set[str] = set()
        self.began = trio.Event()
        self.go_on = trio.Event()
        self.cancelled: list[str] = []

    def offer(self, *names: str, **members: object) -> None:
        """These are the tools now."""
        self._tools = {name: definition(name, **members) for name in names}
        self._known |= self._tools.keys()
        self.show(row(count=len(names)))

    def rename(self, *names: str) -> None:
        """Names that are reserved, whatever is listed."""
        self._known = frozenset(names)
        self.show(row("error"))

    def show(self, *rows: ProviderView) -> None:
        self._rows = list(rows)
        self._rows_seen += 1
        self._bell.ring()

    # -- ToolProviders

    def names(self) -> frozenset[str]:
        return self._known

    def listing(self) -> list[bytes]:
        return [b",".join(self._tools.values())] if self._tools else []

    def tools(self) -> Iterator[ToolView]:
        for name, text in self._tools.items():
            yield ToolView(name=name, original_name=name.removeprefix("notes_"), definition=text, source_ids=())

    def rows(self) -> list[ProviderView]:
        return self._rows

    def change(self) -> Change:
        return Change(hash(b",".join(self._tools.values())), 0)

    async def wait_change(self, seen: Change) -> Change:
        while self.change() == seen:
            await self._bell.wait()
        return self.change()

    @property
    def rows_seen(self) -> int:
        return self._rows_seen

    async def wait_rows(self, seen: int) -> None:
        while self._rows_seen == seen:
            await self._bell.wait()

    def asked(self) -> None:
        self.times_asked += 1

    async def call(
        self, name: str, args: Raw, *, on_progress: OnProgress | None = None, limit: float | None = None
    ) -> CallResult:
        if name not in self._tools:
            raise ToolNotFound("The provider Notes cannot be used now.")
        self.calls.append((name, bytes(args).decode(), limit))
        if name in self.waiting:
            await self._wait(name, on_progress, limit)
        block = json.dumps({"type": "text", "text": bytes(args).decode()}).encode()
        return CallResult((b'{"content":[', block, b"]}"))

    async def _wait(self, name: str, on_progress: OnProgress | None, limit: float | None) -> None:
        if on_progress is not None:
            on_progress(Progress(b"1.50", b"3", b'"half"'))
        self.began.set()
        try:
            with trio.fail_after(float("inf") if limit is None else limit):
                await self.go_on.wait()
        except trio.TooSlowError:
            raise TimedOut("The provider did not answer.") from None
        except trio.Cancelled:
            self.cancelled.append(name)
            raise


class Extending(Extends):
    """Implements `Extending` with such providers; browsers are of no use to it.

    Attributes:
        tabs: What it was given when its process came to own the browser; None while it does not.
    """

    def __init__(self, providers: FakeProviders) -> None:
        super().__init__(_nothing)
        self.fake = self.providers = providers
        self.tabs: ToolBackend | None = None
        self.asked: list[tuple[str, str, bytes]] = []

    def owns(self, tabs: ToolBackend, host: str, port: int) -> None:
        self.tabs = tabs

    def owns_no_longer(self) -> None:
        self.tabs = None

    @property
    def owning(self) -> bool:
        return self.tabs is not None

    async def administer(self, token: str, ask: str, args: bytes) -> bytes:
        self.asked.append((token, ask, args))
        if token != "right":
            raise NotSent("not you")
        return b'{"all":"right"}'


async def _nothing(tunnel: Tunnel) -> None:
    tunnel.accept()


@asynccontextmanager
async def providing(*names: str, **config: Any) -> AsyncIterator[tuple[Hub, FakeProviders]]:
    """A hub with a provider that offers these tools."""
    fake = FakeProviders(*names)
    async with open_hub(RelayConfig(port=0, **config), extending=Extending(fake)) as hub:
        yield hub, fake


async def admin(peer: RawPeer, **members: object) -> dict[str, object]:
    await peer.send({"type": "relay/admin", "requestId": "1", "token": "right", "ask": "x"} | members)
    return await peer.expect("relay/admin-result")
