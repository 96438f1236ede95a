"""Waking those who follow the catalogue: level-triggered, coalesced, silent when nobody could see a difference."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import trio

from trio_relay.core.backend import Change, ToolBackend

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


async def visible_changes(backend: ToolBackend, seen: Change) -> AsyncGenerator[Change, None]:
    """Yield each state of the catalogue that differs from the one yielded before (first: from `seen`).

    A burst within `COALESCE_S` is one change; one that ends where it began is none.
    """
    titles_told = -TITLE_S
    while True:
        await backend.wait_change(seen)
        await trio.sleep(COALESCE_S)
        now = backend.change()
        if now.names == seen.names:
            if now.titles == seen.titles:
                continue
            until = titles_told + TITLE_S
            while now.names == seen.names and trio.current_time() < until:
                with trio.move_on_at(until):
                    now = await backend.wait_change(now)
            now = backend.change()
            if now == seen:
                continue
            if now.names == seen.names:
                titles_told = trio.current_time()
        seen = now
        yield seen
