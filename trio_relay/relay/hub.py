"""Server mode: the process that owns the port. Sole owner of the registry and of the pending calls."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import trio
from msgspec import Raw

from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, SourceView, Target, ToolView, is_untargeted
from trio_relay.core.pending import OnProgress, PendingCalls
from trio_relay.core.registry import Registry, Source
from trio_relay.core.results import CallResult
from trio_relay.core.tooldef import ToolDef
from trio_relay.errors import NotSent, RelayError, SourceLost, SourceNotFound, TimedOut, ToolNotFound
from trio_relay.links.listener import Accepted, bind, listen, port_of
from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import single_errors
from trio_relay.links.source import Heartbeat, serve_source
from trio_relay.links.tunnel import serve_tunnel
from trio_relay.relay.changes import Bell, Followed
from trio_relay.relay.exchange import Exchange, Way, check_arguments
from trio_relay.relay.extending import Extending
from trio_relay.relay.peers import PeerClient
from trio_relay.relay.providers import HandedOver, then_cancel
from trio_relay.relay.tab import Tab
from trio_relay.relay.urls import origin_of
from trio_relay.wire import browser, ports
from trio_relay.wire.codec import encode
from trio_relay.wire.peer import ENVELOPE_BYTES, SUBPROTOCOL

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that the tools of an earlier relay server stay listed until their tabs are back: extensions return within
half a second, and a client that saw every tool go and come would list twice for nothing."""

DRAIN_S = 2.0
"""Seconds that calls of other relays have when this one leaves."""


class Hub(Followed):
    """A `ToolBackend` over the browser sockets of this process. Create it with `open_hub`."""

    def __init__(
        self,
        config: RelayConfig,
        port: int,
        heartbeat: Heartbeat,
        kept: Followed | None,
        grace_until: float,
        extending: Extending | None = None,
    ) -> None:
        self.config = config
        self.port = port
        super().__init__(
            Registry() if kept is None else kept.registry, None if extending is None else extending.providers
        )
        self._handed_over = None if kept is None else HandedOver(self.providers, kept.providers)
        self.providers = self._handed_over or self.providers
        self.registry.keep_all()
        self._grace_until = grace_until
        self._call_ended = Bell()
        self.pending = PendingCalls()
        self._heartbeat = heartbeat
        self.extending = extending
        self._reserved: frozenset[str] = frozenset()
        self._instance_id = str(uuid4())
        self._tabs: dict[str, Tab] = {}

    def __repr__(self) -> str:
        return f"<Hub on port {self.port}: {self.registry!r}, {len(self.pending)} pending calls>"

    @staticmethod
    def now_ms() -> int:
        """Wall clock in milliseconds, for rows that people read; nothing is timed by it."""
        return time.time_ns() // 1_000_000

    # -- connections

    async def serve(self, accepted: Accepted) -> None:
        """One WebSocket, from its handshake to its end."""
        if accepted.subprotocol == SUBPROTOCOL:
            accepted.socket.frames.max_message = self.config.max_payload + ENVELOPE_BYTES
            await PeerClient(self, accepted.socket, accepted.remote).run()
            return
        if accepted.subprotocol == ports.SUBPROTOCOL:
            extension = self.config.bridge_of(accepted.origin)
            assert extension is not None  # the listener lets no others through
            handler = None if self.extending is None else self.extending.serve
            await serve_tunnel(accepted, extension, handler, self.config.max_payload, self._heartbeat)
            return
        outbox = Outbox(accepted.socket)
        tab = Tab(self, accepted.origin, accepted.remote, outbox)
        for hello in self._server_hellos(accepted, full=tab.origin_ok):
            outbox.put(hello)
        await serve_source(accepted.socket, tab, outbox, self._heartbeat)

    def _server_hellos(self, accepted: Accepted, *, full: bool) -> Iterator[bytes]:
        """One greeting per service name in the field. A page that may not register tools learns no names."""
        config = self.config
        bridges = self.extending is not None and config.bridge_of(accepted.origin) is not None
        for service in browser.SERVICE_NAMES:
            yield encode(
                browser.ServerHello(
                    service=service,
                    version=browser.PROTOCOL_VERSION,
                    host=config.host,
                    instanceId=self._instance_id,
                    port=self.port,
                    relayId=(config.relay_id or self._instance_id) if full else self._instance_id,
                    maxPayload=config.max_payload,
                    label=config.label if full else None,
                    workspace=config.workspace if full else None,
                    ports=bridges and service == browser.SERVICE_NAMES[0],
                )
            )

    # -- what tabs report (see relay/tab.py)

    def joined(self, tab: Tab, source: Source) -> None:
        self._tabs[tab.source_id] = tab
        new = self.registry.source(tab.source_id) is None
        self.registry.join(source, self.now_ms())
        if new:
            tab.say_connected(f"connected ({(source.title or source.url or 'untitled')[:80]})")
        self.bell.ring()

    def published(self, tab: Tab, tools: list[ToolDef]) -> None:
        self.registry.publish(tab.source_id, tools, self.now_ms())
        logger.debug("%s: %d tools", tab.label, len(tools))
        self.bell.ring()

    def seen(self, tab: Tab) -> None:
        if self.registry.source(tab.source_id) is not None:
            self.registry.touch(tab.source_id, self.now_ms())

    def lost(self, tab: Tab, error: SourceLost) -> None:
        """The tab's page is gone: its row and tools vanish, and whoever waits for it is told at once."""
        self.registry.remove(tab.source_id)
        self.pending.fail_source(tab.source_id, error)
        self.bell.ring()

    def left(self, tab: Tab) -> None:
        self._tabs.pop(tab.source_id, None)

    # -- ToolBackend

    def tools(self) -> Iterator[ToolView]:
        self._reserve()
        return super().tools()

    def listing(self) -> list[bytes]:
        self._reserve()
        return super().listing()

    def change(self) -> Change:
        self._reserve()
        return super().change()

    def _reserve(self) -> None:
        """Take the names of provider tools from tabs before anybody can see a name twice.

        Names, not changes, are looked at: a provider in an error state may come under another namespace, and lists
        nothing then.
        """
        names = self.providers.names()
        if names != self._reserved:
            self._reserved = names
            self.registry.reserve(names)

    async def wait_rows(self, seen: int) -> None:
        """Return as soon as anything has changed that another relay would list, since `registry.rows` was `seen`."""
        while self.registry.rows == seen:
            await self.bell.wait()

    def call(
        self,
        name: str,
        args: Raw,
        *,
        target: Target | None = None,
        on_progress: OnProgress | None = None,
        limit: float | None = None,
    ) -> Awaitable[CallResult]:
        """See `ToolBackend.call`. `limit` is another caller's time limit in seconds; the shorter one counts."""
        own = self.config.invoke_timeout
        timeout = own if limit is None else limit if own is None else min(own, limit)
        if is_untargeted(target) and name in self.providers.names():
            return self.providers.call(name, args, on_progress=on_progress, limit=timeout)
        source, tool = self.registry.resolve(name, target)
        if source.kept:
            return self._call_when_back(name, args, target, on_progress, timeout)
        return self._send(name, source, tool, args, on_progress, timeout)

    async def _call_when_back(
        self, name: str, args: Raw, target: Target | None, on_progress: OnProgress | None, timeout: float | None
    ) -> CallResult:
        begun = trio.current_time()
        source, tool = await self._present(name, target, begun + (float("inf") if timeout is None else timeout))
        left = None if timeout is None else timeout - (trio.current_time() - begun)
        return await self._send(name, source, tool, args, on_progress, left, timeout)

    def _send(
        self,
        name: str,
        source: Source,
        tool: ToolDef,
        args: Raw,
        on_progress: OnProgress | None,
        left: float | None,
        timeout: float | None = None,
    ) -> Exchange:
        """Send a call that has `left` seconds, of `timeout` if waiting took some."""
        check_arguments(name, tool, args)
        way = Way(
            source_id=source.source_id,
            outbox=lambda: tab.outbox if (tab := self._tabs.get(source.source_id)) is not None else None,
            frame=lambda call_id, left: browser.invoke(call_id, tool.name, args, left),
            cancel=browser.cancel,
        )
        return Exchange(
            self.pending,
            way,
            tool,
            args,
            timeout=left,
            patience=0,
            timed_out=lambda sent: _timed_out(sent, timeout or left),
            on_progress=on_progress,
            ended=self._call_ended.ring,
        )

    async def _present(self, name: str, target: Target | None, until: float) -> tuple[Source, ToolDef]:
        """Where a call goes; one to a kept tool waits for its tab until the grace time or its own time ends."""
        found = self.registry.resolve(name, target)
        with trio.move_on_at(min(self._grace_until, until)):
            while found[0].kept:
                await self.bell.wait()
                found = self.registry.resolve(name, target)
        if found[0].kept:
            raise NotSent(
                f"The relay that owned the browser is gone, and the tab of {name!r} has not come back yet, so the call "
                "was not sent. Reload the tab, or try again."
            )
        return found

    def _connected(self) -> list[Source]:
        """Sources with a socket here, the most recently seen first; kept ones have none."""
        return [source for source in self.registry.newest_first() if source.source_id in self._tabs]

    def refresh(self, origin: str) -> SourceView:
        for source in self._connected():
            if origin in (origin_of(source.origin), origin_of(source.url)):
                self._tabs[source.source_id].outbox.put(browser.RELOAD)
                return source.view()
        raise SourceNotFound(
            f"No connected tab has the origin {origin}: call webmcp_list_sources to see which tabs are connected."
        )

    def reload(self, source_id: str) -> None:
        """Reload the tab of a source, if it is connected."""
        tab = self._tabs.get(source_id)
        if tab is not None:
            tab.outbox.put(browser.RELOAD)

    def open_in_browser(self, url: str) -> bool:
        for source in self._connected():
            tab = self._tabs[source.source_id]
            if "open" in tab.client.features:
                tab.outbox.put(browser.open_url(url))
                return True
        return False

    def info(self) -> dict[str, Any]:
        return {"mode": "server", "host": self.config.host, "port": self.port}

    async def drain(self) -> None:
        """Let calls in flight finish, for at most `DRAIN_S`."""
        with trio.move_on_after(DRAIN_S):
            while len(self.pending):
                await self._call_ended.wait()

    async def follow_providers(self) -> None:
        """Keep names of provider tools from tabs, and tell of their changes as of those of tabs."""
        providers = self.providers
        while True:
            seen, rows = providers.change(), providers.rows_seen
            self._reserve()
            self.registry.rows += 1
            self.bell.ring()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(then_cancel, partial(providers.wait_change, seen), nursery.cancel_scope)
                nursery.start_soon(then_cancel, partial(providers.wait_rows, rows), nursery.cancel_scope)

    async def end_grace(self) -> None:
        """Forget what did not come back in time."""
        await trio.sleep_until(max(trio.current_time(), self._grace_until))
        lost = self.registry.drop_kept()
        if lost:
            logger.info("%d tabs of the earlier relay did not come back", lost)
        if self._handed_over is not None:
            self._handed_over.drop()
        self.bell.ring()


class TabTools(Followed):
    """A `ToolBackend` of the same hub without the tools of provider extensions: what may be served on to others."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub.registry)
        self._hub = hub
        self.bell = hub.bell

    def call(
        self, name: str, args: Raw, *, target: Target | None = None, on_progress: OnProgress | None = None
    ) -> Awaitable[CallResult]:
        if is_untargeted(target) and name in self._hub.providers.names():
            raise ToolNotFound(f"{name!r} belongs to another extension, and is not passed on.")
        return self._hub.call(name, args, target=target, on_progress=on_progress)

    def refresh(self, origin: str) -> SourceView:
        return self._hub.refresh(origin)

    def open_in_browser(self, url: str) -> bool:
        return self._hub.open_in_browser(url)

    def info(self) -> dict[str, Any]:
        return self._hub.info()


def _timed_out(sent: bool, timeout: float | None) -> RelayError:
    """The error of a call whose time limit, in seconds, is over (only a call with a limit gets here)."""
    seconds = f"{timeout:g} s" if timeout is not None else "too long"
    if not sent:
        return NotSent(
            f"The tab took no message for {seconds}, so the call was not sent. Reload the tab and try again."
        )
    return TimedOut(
        f"Host response timeout: the page did not answer within {seconds} and was told to stop; the tool may have "
        "run. Raise --invoke-timeout if it needs longer."
    )


@asynccontextmanager
async def serve_hub(
    listeners: list[trio.SocketListener],
    config: RelayConfig,
    heartbeat: Heartbeat | None = None,
    kept: Followed | None = None,
    grace_until: float = 0,
    extending: Extending | None = None,
) -> AsyncIterator[Hub]:
    """Serve browsers on bound listeners until the block is left; every socket is then closed with 1001.

    Args:
        kept: What an earlier relay server listed, expected back until the trio time `grace_until`.
        extending: What is done with browsers that carry ports of extensions; without it they are told that there is
            nothing here for them.
    """
    hub = Hub(config, port_of(listeners), heartbeat or Heartbeat(), kept, grace_until, extending)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, listeners, config, hub.serve)
        nursery.start_soon(hub.end_grace)
        if extending is not None:
            nursery.start_soon(hub.follow_providers)
            extending.owns(TabTools(hub), config.host, hub.port)
        logger.info("listening for browsers on %s port %d", config.host, hub.port)
        try:
            yield hub
        finally:
            if extending is not None:
                extending.owns_no_longer()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_hub(
    config: RelayConfig, heartbeat: Heartbeat | None = None, extending: Extending | None = None
) -> AsyncIterator[Hub]:
    """Bind the port and serve browsers: a relay alone, for embedders and tests.

    Raises:
        PortTaken: on entry.
    """
    with single_errors():
        listeners = await bind(config.host, config.port)
        async with serve_hub(listeners, config, heartbeat, extending=extending) as hub:
            yield hub
