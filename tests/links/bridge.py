"""The other end of a tunnel, for tests: a bridge made of raw frames, a hub, and a handler that keeps its tunnels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.helpers import PATIENCE, FakeTab, open_tab
from tests.hubs import in_step
from trio_relay.config import OWN_EXTENSION, RelayConfig
from trio_relay.core.backend import ToolBackend, ToolProviders
from trio_relay.core.port import Port, PortClosed, Unanswered
from trio_relay.errors import NotSent
from trio_relay.links.source import Heartbeat
from trio_relay.links.tunnel import BridgeHandler, OnPort, OnProbe, Tunnel
from trio_relay.relay.hub import Hub, open_hub
from trio_relay.relay.providers import NoProviders

OWN_ORIGIN = f"chrome-extension://{OWN_EXTENSION}"
PORTS = "trio-relay-ports.v1"
OTHER = "abcdefghijklmnopabcdefghijklmnop"


class Handler:
    """Accepts every tunnel with the same callbacks, and stays."""

    def __init__(self, on_probe: OnProbe | None = None, on_port: OnPort | None = None) -> None:
        self._on_probe = on_probe
        self._on_port = on_port
        self._send, self._receive = trio.open_memory_channel[Tunnel](10)
        self.left = trio.Event()

    async def __call__(self, tunnel: Tunnel) -> None:
        tunnel.accept(self._on_probe, self._on_port)
        self._send.send_nowait(tunnel)
        try:
            await trio.sleep_forever()
        finally:
            self.left.set()

    async def next(self) -> Tunnel:
        with trio.fail_after(PATIENCE):
            return await self._receive.receive()


class Extends:
    """Implements `Extending` with nothing but a handler of tunnels."""

    def __init__(self, handler: BridgeHandler) -> None:
        self._handler = handler
        self.providers: ToolProviders = NoProviders()

    async def serve(self, tunnel: Tunnel) -> None:
        await self._handler(tunnel)

    def owns(self, tabs: ToolBackend, host: str, port: int) -> None:
        """Nothing depends on it here."""

    def owns_no_longer(self) -> None:
        """Nothing depends on it here."""

    async def administer(self, token: str, ask: str, args: bytes) -> bytes:
        raise NotSent("not here")


class Bridge(FakeTab):
    """A bridge that says what it is told."""

    async def greet(self, **members: object) -> dict[str, Any]:
        """Say hello; returns the answer."""
        await self.send({"type": "hello", "browserId": "profile", "version": 1} | members)
        return await self.frame()

    async def in_step(self) -> None:
        """Return once the relay has dealt with all that was sent before."""
        await in_step(self)


@asynccontextmanager
async def open_bridge(port: int, origin: str | None = OWN_ORIGIN) -> AsyncIterator[Bridge]:
    """Connect a bridge. It has said nothing yet."""
    async with open_tab(port, origin=origin, subprotocols=(PORTS,)) as tab:
        yield Bridge(tab.socket)


class Link:
    """Both ends of an accepted tunnel, and tasks that wait on it."""

    def __init__(self, hub: Hub, bridge: Bridge, tunnel: Tunnel, handler: Handler, nursery: trio.Nursery) -> None:
        self.hub = hub
        self.bridge = bridge
        self.tunnel = tunnel
        self.handler = handler
        self.nursery = nursery

    async def open(self, name: str = "lumo:mcp") -> tuple[Port, str]:
        """A port that the relay opens; returns it with its id."""
        opening = Outcome(self.nursery, lambda: self.tunnel.open_port(OTHER, name))
        port_id = (await self.bridge.expect("port/open"))["portId"]
        await self.bridge.send({"type": "port/opened", "portId": port_id})
        return await opening.value(), port_id

    async def say(self, port_id: str, message: object) -> None:
        await self.bridge.send({"type": "port/message", "portId": port_id, "message": message})


class Outcome:
    """Something awaited in the background: what it returned, or how it failed."""

    def __init__(self, nursery: trio.Nursery, wait: Callable[[], Awaitable[Any]]) -> None:
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self._value: Any = None
        self._error: PortClosed | Unanswered | None = None
        nursery.start_soon(self._run, wait)

    async def _run(self, wait: Callable[[], Awaitable[Any]]) -> None:
        with self.scope:
            try:
                self._value = await wait()
            except (PortClosed, Unanswered) as error:
                self._error = error
        self.done.set()

    async def value(self) -> Any:
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        assert self._error is None, self._error
        return self._value

    async def closed(self) -> str:
        """The reason of a `PortClosed`."""
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        assert isinstance(self._error, PortClosed), (self._value, self._error)
        return self._error.reason

    async def unanswered(self) -> Unanswered:
        with trio.fail_after(PATIENCE):
            await self.done.wait()
        assert isinstance(self._error, Unanswered), (self._value, self._error)
        return self._error


@asynccontextmanager
async def open_link(
    on_probe: OnProbe | None = None,
    on_port: OnPort | None = None,
    heartbeat: Heartbeat | None = None,
    **config: Any,
) -> AsyncIterator[Link]:
    """A hub, a bridge that was accepted, and the tunnel between them."""
    handler = Handler(on_probe, on_port)
    async with (
        open_hub(RelayConfig(port=0, **config), heartbeat, Extends(handler)) as hub,
        open_bridge(hub.port) as bridge,
        trio.open_nursery() as nursery,
    ):
        answer = await bridge.greet()
        assert answer["type"] == "hello/accepted", answer
        yield Link(hub, bridge, await handler.next(), handler, nursery)
        nursery.cancel_scope.cancel()
