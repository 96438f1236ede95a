"""Waking those who follow the catalogue: level-triggered, coalesced, silent when nobody could see a difference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain

import trio

from trio_relay.core.backend import Change, ProviderView, SourceView, ToolBackend, ToolProviders, ToolView
from trio_relay.core.registry import Registry
from trio_relay.relay.providers import NoProviders

COALESCE_S = 0.016
"""Changes within one frame of a display are one change; a page that registers ten tools does so in one burst."""

TITLE_S = 1.0
"""A change of titles alone is told at most this often: pages that count in their title would never stop."""


class Bell:
    """Rings for every waiter at once; whoever comes later waits for the next ring."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


class Followed:
    """The half of a `ToolBackend` that shows the tools of tabs (a registry), and beside them those of provider
    extensions; whoever changes either rings the bell."""

    def __init__(self, registry: Registry, providers: ToolProviders | None = None) -> None:
        self.registry = registry
        self.providers: ToolProviders = NoProviders() if providers is None else providers
        self.bell = Bell()

    def sources(self) -> list[SourceView]:
        return self.registry.sources()

    def tools(self) -> Iterator[ToolView]:
        return chain(self.providers.tools(), self.registry.tools())

    def listing(self) -> list[bytes]:
        return [*self.providers.listing(), *self.registry.listing()]

    def provider_rows(self) -> list[ProviderView]:
        return self.providers.rows()

    def asked(self) -> None:
        self.providers.asked()

    def change(self) -> Change:
        tabs, others = self.registry.change(), self.providers.change()
        return Change(hash((tabs.names, others.names)) if others.names else tabs.names, tabs.titles)

    async def wait_change(self, seen: Change) -> Change:
        while (now := self.change()) == seen:
            await self.bell.wait()
        return now


def visible_changes(backend: ToolBackend, seen: Change) -> AsyncIterator[Change]:
    """Yield each state of the catalogue that differs from the one yielded before (first: from `seen`).

    A burst within `COALESCE_S` is one change; one that ends where it began is none.
    """
    return _VisibleChanges(backend, seen)


class _VisibleChanges(AsyncIterator[Change]):
    """An object rather than a generator: whoever stops iterating leaves nothing behind to be closed."""

    def __init__(self, backend: ToolBackend, seen: Change) -> None:
        self._backend = backend
        self._seen = seen
        self._titles_told = -TITLE_S

    async def __anext__(self) -> Change:
        while True:
            await self._backend.wait_change(self._seen)
            await trio.sleep(COALESCE_S)
            now = self._backend.change()
            if now.names == self._seen.names and now.titles != self._seen.titles:
                now = await self._await_title_time(now)
            if now == self._seen:
                continue
            if now.names == self._seen.names:
                self._titles_told = trio.current_time()
            self._seen = now
            return now

    async def _await_title_time(self, now: Change) -> Change:
        """Let titles change until they may be told again, or until something else changes."""
        until = self._titles_told + TITLE_S
        while now.names == self._seen.names and trio.current_time() < until:
            with trio.move_on_at(until):
                now = await self._backend.wait_change(now)
        return self._backend.change()
