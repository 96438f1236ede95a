"""Server mode: the process that owns the port. Sole owner of the registry and of the pending calls."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import trio
from msgspec import Raw

from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, SourceView, Target, ToolView
from trio_relay.core.pending import OnProgress, PendingCall, PendingCalls
from trio_relay.core.registry import Registry, Source
from trio_relay.core.results import CallResult, check_output, parse_result
from trio_relay.core.schema import first_violation
from trio_relay.core.tooldef import ToolDef
from trio_relay.errors import InvalidArguments, NotSent, RelayError, SourceLost, SourceNotFound, TimedOut
from trio_relay.links.listener import RELAY_SUBPROTOCOL, Accepted, bind, listen, port_of
from trio_relay.links.outbox import Outbox, Ticket
from trio_relay.links.source import Heartbeat, serve_source
from trio_relay.relay.changes import Bell
from trio_relay.relay.tab import Tab
from trio_relay.wire import browser
from trio_relay.wire.codec import encode, has_infinite_number

logger = logging.getLogger(__name__)


class Hub:
    """A `ToolBackend` over the browser sockets of this process. Create it with `open_hub`."""

    def __init__(self, config: RelayConfig, port: int, heartbeat: Heartbeat) -> None:
        self.config = config
        self.port = port
        self.registry = Registry()
        self.pending = PendingCalls()
        self._heartbeat = heartbeat
        self._instance_id = str(uuid4())
        self._tabs: dict[str, Tab] = {}
        self._bell = Bell()

    def __repr__(self) -> str:
        return f"<Hub on port {self.port}: {self.registry!r}, {len(self.pending)} pending calls>"

    @staticmethod
    def now_ms() -> int:
        """Wall clock in milliseconds, for rows that people read; nothing is timed by it."""
        return time.time_ns() // 1_000_000

    # -- connections

    async def serve(self, accepted: Accepted) -> None:
        """One WebSocket, from its handshake to its end."""
        if accepted.subprotocol == RELAY_SUBPROTOCOL:
            await accepted.socket.close(1008, "this relay does not accept other relays yet")
            return
        outbox = Outbox(accepted.socket)
        tab = Tab(self, accepted.origin, accepted.remote, outbox)
        for hello in self._server_hellos(full=tab.origin_ok):
            outbox.put(hello)
        await serve_source(accepted.socket, tab, outbox, self._heartbeat)

    def _server_hellos(self, *, full: bool) -> Iterator[bytes]:
        """One greeting per service name in the field. A page that may not register tools learns no names."""
        config = self.config
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
                )
            )

    # -- what tabs report (see relay/tab.py)

    def joined(self, tab: Tab, source: Source) -> None:
        self._tabs[tab.source_id] = tab
        new = self.registry.source(tab.source_id) is None
        self.registry.join(source, self.now_ms())
        if new:
            logger.info("%s: connected (%s)", tab.label, (source.title or source.url or "untitled")[:80])
        self._bell.ring()

    def published(self, tab: Tab, tools: list[ToolDef]) -> None:
        self.registry.publish(tab.source_id, tools, self.now_ms())
        logger.debug("%s: %d tools", tab.label, len(tools))
        self._bell.ring()

    def seen(self, tab: Tab) -> None:
        if self.registry.source(tab.source_id) is not None:
            self.registry.touch(tab.source_id, self.now_ms())

    def lost(self, tab: Tab, error: SourceLost) -> None:
        """The tab's page is gone: its row and tools vanish, and whoever waits for it is told at once."""
        self.registry.remove(tab.source_id)
        self.pending.fail_source(tab.source_id, error)
        self._bell.ring()

    def left(self, tab: Tab) -> None:
        self._tabs.pop(tab.source_id, None)

    # -- ToolBackend

    def sources(self) -> list[SourceView]:
        return self.registry.sources()

    def tools(self) -> Iterator[ToolView]:
        return self.registry.tools()

    def listing(self) -> list[bytes]:
        return self.registry.listing()

    def change(self) -> Change:
        return self.registry.change()

    async def wait_change(self, seen: Change) -> Change:
        while (now := self.registry.change()) == seen:
            await self._bell.wait()
        return now

    async def call(
        self, name: str, args: Raw, *, target: Target | None = None, on_progress: OnProgress | None = None
    ) -> CallResult:
        source, tool = self.registry.resolve(name, target)
        if has_infinite_number(bytes(args)):
            raise InvalidArguments(f"The arguments of {name!r} hold a number that is too large for a web page.")
        violation = first_violation(tool.input_schema, args)
        if violation is not None:
            raise InvalidArguments(f"The arguments of {name!r} do not match its inputSchema at {violation}")
        waiting = trio.Event()
        call = self.pending.open(source.source_id, waiting.set, on_progress)
        try:
            await self._invoke(self._tabs[source.source_id].outbox, call, tool.name, args, waiting)
        finally:
            self.pending.close(call)
        if isinstance(call.outcome, RelayError):
            raise call.outcome
        assert call.outcome is not None
        return check_output(parse_result(call.outcome), tool.output_schema)

    async def _invoke(self, outbox: Outbox, call: PendingCall, tool: str, args: Raw, waiting: trio.Event) -> None:
        """Send the call and wait for its outcome; whoever stops waiting tells the page to stop working."""
        timeout = self.config.invoke_timeout
        deadline = None if timeout is None else trio.current_time() + timeout

        def frame() -> bytes:
            left = None if deadline is None else max(1, round((deadline - trio.current_time()) * 1000))
            return browser.invoke(call.call_id, tool, args, left)

        ticket = outbox.put(frame, size=memoryview(args).nbytes)
        reason = "cancelled"
        try:
            with trio.CancelScope(deadline=float("inf") if deadline is None else deadline):
                await waiting.wait()
            reason = "timeout"
        finally:
            if call.outcome is None:
                self._give_up(outbox, ticket, call, reason)
        if call.outcome is None:
            raise self._timed_out(ticket)
        if isinstance(call.outcome, SourceLost) and not ticket.sent:
            raise NotSent(f"{call.outcome} The call had not been sent, so the tool did not run.")

    def _give_up(self, outbox: Outbox, ticket: Ticket, call: PendingCall, reason: str) -> None:
        if call.source_id in self._tabs and not outbox.take_back(ticket):
            try:
                outbox.put(browser.cancel(call.call_id, reason))
            except NotSent:
                logger.debug("a tab that reads nothing was not told that call %s ended", call.call_id)

    def _timed_out(self, ticket: Ticket) -> RelayError:
        if not ticket.sent:
            return NotSent(
                f"The tab took no message for {self.config.invoke_timeout:g} s, so the call was not sent. "
                "Reload the tab and try again."
            )
        return TimedOut(
            f"Host response timeout: the page did not answer within {self.config.invoke_timeout:g} s and was told to "
            "stop; the tool may have run. Raise --invoke-timeout if it needs longer."
        )

    def refresh(self, origin: str) -> SourceView:
        for source in self.registry.newest_first():
            if origin in (_origin_of(source.origin), _origin_of(source.url)):
                self._tabs[source.source_id].outbox.put(browser.RELOAD)
                return source.view()
        raise SourceNotFound(
            f"No connected tab has the origin {origin}: call webmcp_list_sources to see which tabs are connected."
        )

    def open_in_browser(self, url: str) -> bool:
        for source in self.registry.newest_first():
            tab = self._tabs[source.source_id]
            if "open" in tab.client.features:
                tab.outbox.put(browser.open_url(url))
                return True
        return False

    def info(self) -> dict[str, Any]:
        return {"mode": "server", "host": self.config.host, "port": self.port}


def _origin_of(url: str | None) -> str | None:
    """`scheme://host[:port]` of a URL, lower case; None if it has none."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.scheme and parts.netloc else None


@asynccontextmanager
async def open_hub(config: RelayConfig, heartbeat: Heartbeat | None = None) -> AsyncIterator[Hub]:
    """Bind the port and serve browsers until the block is left; every socket is then closed with 1001.

    Raises:
        PortTaken: on entry.
    """
    listeners = await bind(config.host, config.port)
    hub = Hub(config, port_of(listeners), heartbeat or Heartbeat())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, listeners, config, hub.serve)
        logger.info("listening for browsers on %s port %d", config.host, hub.port)
        try:
            yield hub
        finally:
            nursery.cancel_scope.cancel()
