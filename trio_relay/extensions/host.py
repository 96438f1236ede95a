"""The host side of the extension protocol: provider extensions, found through browsers, and their tools.

Nothing here imports the MCP SDK until a provider is there to talk to.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Awaitable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio
from msgspec import Raw

from trio_relay.config import DEFAULT_INVOKE_TIMEOUT_MS
from trio_relay.core.backend import Change, ProviderView, ToolView
from trio_relay.core.extension_id import require_extension_id
from trio_relay.core.naming import MANAGEMENT_TOOLS
from trio_relay.core.pending import OnProgress
from trio_relay.core.port import Carrier
from trio_relay.core.probe import State, connected_outcome
from trio_relay.core.results import CallResult
from trio_relay.errors import ToolNotFound
from trio_relay.extensions.catalogue import Catalogue, Shelf
from trio_relay.extensions.configured import Browser, Provider
from trio_relay.relay.changes import Bell
from trio_relay.relay.exchange import check_arguments

if TYPE_CHECKING:
    from trio_relay.extensions.session import Session

logger = logging.getLogger(__name__)


class Providers:
    """The configured provider extensions. Implements `core.backend.ToolProviders`. `run` must be running.

    Args:
        ids: Extension ids, the one that wins a name first; repeated ones count once.
        client_id: Id of our own extension, which probes tell; `attach` may say another for its browser.
        taken: Public names that no provider's tool gets.
        invoke_timeout: Seconds a call may take, a reconnect included; None for no limit.

    Raises:
        ConfigError: something is no extension id.
    """

    def __init__(
        self,
        ids: Iterable[str],
        *,
        client_id: str,
        taken: Collection[str] = MANAGEMENT_TOOLS,
        invoke_timeout: float | None = DEFAULT_INVOKE_TIMEOUT_MS / 1000,
    ) -> None:
        self.browsers: list[Browser] = []
        self._client_id = require_extension_id(client_id)
        self._taken = frozenset(taken)
        self._invoke_timeout = invoke_timeout
        self._providers = {own: Provider(own, self) for own in dict.fromkeys(map(require_extension_id, ids))}
        self._catalogue = self._known = Catalogue()
        self._rows = self._make_rows()
        self._rows_seen = 0
        self._bell = Bell()
        self._session_class: type[Session] | None = None
        self._loading = trio.Lock()

    def __repr__(self) -> str:
        return f"<Providers: {len(self._providers)} in {len(self.browsers)} browsers>"

    async def run(self) -> None:
        """Probe, connect and serve until cancelled; every port is then closed and every call has failed."""
        async with trio.open_nursery() as nursery:
            for provider in self._providers.values():
                nursery.start_soon(provider.run)

    @contextmanager
    def attach(self, carrier: Carrier, *, client_id: str | None = None) -> Iterator[None]:
        """A browser is there while the block runs. Of several, the one attached first is asked first.

        Args:
            client_id: Id of our own extension in this browser.

        Raises:
            ConfigError: it is no extension id.
        """
        browser = Browser(carrier, self._client_id if client_id is None else require_extension_id(client_id))
        self.browsers.append(browser)
        for provider in self._providers.values():
            provider.browser_came()
        try:
            yield
        finally:
            self.browsers.remove(browser)
            for provider in self._providers.values():
                provider.browser_went(browser)

    # -- what providers need

    async def session_class(self) -> type[Session]:
        async with self._loading:
            if self._session_class is None:
                self._session_class = await _load_session_class()
            return self._session_class

    def changed(self) -> None:
        """Something of a provider is another: build the catalogue and the rows anew."""
        providers = list(self._providers.values())
        self._catalogue = Catalogue(_shelves(providers, connected=True), self._taken)
        self._known = Catalogue(_shelves(providers, connected=False), self._taken)
        rows = self._make_rows()
        if rows != self._rows:
            self._rows = rows
            self._rows_seen += 1
        self._bell.ring()

    def _make_rows(self) -> list[ProviderView]:
        return [self._row(provider) for provider in self._providers.values()]

    def _row(self, provider: Provider) -> ProviderView:
        service, outcome = provider.service, provider.outcome
        tools = self._catalogue.count(provider.extension_id)
        refused = self._catalogue.refused(provider.extension_id)
        if provider.state is State.CONNECTED:
            outcome = connected_outcome(tools, len(refused))
        return ProviderView(
            extension_id=provider.extension_id,
            namespace=None if service is None else service.namespace[:64],
            name=None if service is None else service.name,
            version=None if service is None else service.version,
            state=provider.state.value,
            outcome=outcome,
            tool_count=tools,
            refused=refused,
        )

    # -- ToolProviders

    def names(self) -> frozenset[str]:
        return self._known.names() | self._catalogue.names()

    def listing(self) -> list[bytes]:
        return self._catalogue.listing()

    def tools(self) -> Iterator[ToolView]:
        return self._catalogue.tools()

    def rows(self) -> list[ProviderView]:
        return list(self._rows)

    def change(self) -> Change:
        return Change(self._catalogue.print, 0)

    async def wait_change(self, seen: Change) -> Change:
        while (now := self.change()) == seen:
            await self._bell.wait()
        return now

    @property
    def rows_seen(self) -> int:
        return self._rows_seen

    async def wait_rows(self, seen: int) -> None:
        while self._rows_seen == seen:
            await self._bell.wait()

    def asked(self) -> None:
        for provider in self._providers.values():
            provider.asked()

    def call(
        self, name: str, args: Raw, *, on_progress: OnProgress | None = None, limit: float | None = None
    ) -> Awaitable[CallResult]:
        found = self._catalogue.find(name)
        if found is None:
            raise self._not_found(name)
        extension_id, tool = found
        check_arguments(name, tool, args)
        limits = [seconds for seconds in (self._invoke_timeout, limit) if seconds is not None]
        return self._providers[extension_id].call(tool, args, min(limits, default=None), on_progress)

    def _not_found(self, name: str) -> ToolNotFound:
        known = self._known.find(name)
        if known is None:
            return ToolNotFound(
                f"No provider extension offers a tool {name!r}: list the tools to see what is there now."
            )
        provider = self._providers[known[0]]
        provider.asked()
        return ToolNotFound(f"The provider {provider.name} of {name!r} cannot be used now: {provider.outcome}")


def _shelves(providers: list[Provider], *, connected: bool) -> list[Shelf]:
    """What providers show: those that are connected, or all that ever were."""
    return [
        Shelf(provider.extension_id, provider.service.namespace, provider.service.name, provider.offered)
        for provider in providers
        if provider.service is not None and (provider.state is State.CONNECTED or not connected)
    ]


async def _load_session_class() -> type[Session]:
    """Import it in a thread: the SDK takes half a second, and tabs are served meanwhile."""
    name = "trio_relay.extensions.session"
    loaded: type[Session] | None = getattr(sys.modules.get(name), "Session", None)
    if loaded is None:
        module: Any = await trio.to_thread.run_sync(importlib.import_module, name, abandon_on_cancel=True)
        loaded = module.Session
    return loaded
