"""Provider extensions as a relay sees them that does not talk to them itself: none, those of another relay, or those
that a lost relay listed and that are not back yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import trio
from msgspec import Raw

from trio_relay.core.backend import Change, ProviderView, ToolProviders, ToolView
from trio_relay.core.pending import OnProgress
from trio_relay.core.results import CallResult
from trio_relay.errors import NotSent, ToolNotFound

Call = Callable[[str, Raw, OnProgress | None], Awaitable[CallResult]]


class MirroredProviders:
    """Providers of another relay, as it lists them. Implements `ToolProviders`; it never changes.

    Args:
        tools: The definitions of their tools, by public name.
        call: Calls one of them over there.
    """

    def __init__(
        self, rows: Sequence[ProviderView] = (), tools: dict[str, bytes] | None = None, call: Call | None = None
    ) -> None:
        self._rows = list(rows)
        self._tools = tools or {}
        self._call = call
        self._change = Change(hash(b",".join(self._tools.values())), 0)  # the fingerprint that the other relay has
        self.rows_seen = 0

    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def listing(self) -> list[bytes]:
        return [b",".join(self._tools.values())] if self._tools else []

    def tools(self) -> Iterator[ToolView]:
        for name, definition in self._tools.items():
            yield ToolView(name=name, original_name=name, definition=definition, source_ids=())

    def rows(self) -> list[ProviderView]:
        return self._rows

    def change(self) -> Change:
        return self._change

    async def wait_change(self, seen: Change) -> Change:
        if self.change() == seen:
            await trio.sleep_forever()
        return self.change()

    async def wait_rows(self, seen: int) -> None:
        if self.rows_seen == seen:
            await trio.sleep_forever()

    def asked(self) -> None:
        """The relay that has them decides when to look again."""

    def call(
        self, name: str, args: Raw, *, on_progress: OnProgress | None = None, limit: float | None = None
    ) -> Awaitable[CallResult]:
        if self._call is None or name not in self._tools:
            raise ToolNotFound(f"No provider extension offers {name!r}: call webmcp_list_tools to see what is there.")
        return self._call(name, args, on_progress)


class NoProviders(MirroredProviders):
    """What a relay without provider extensions has."""


class HandedOver:
    """The providers of a relay that has just taken over, and for a while the tools that the lost relay listed.

    A browser finds the new relay within a second; until then these tools stay listed, and a call to one waits. They go
    when all providers are back that both relays have, and at the latest with `drop`. Implements `ToolProviders`.

    Args:
        own: What this relay has.
        lost: What the lost relay listed.
    """

    def __init__(self, own: ToolProviders, lost: ToolProviders) -> None:
        self._own = own
        self._both = {row.extension_id for row in lost.rows()} & {row.extension_id for row in own.rows()}
        self._lost = {tool.name: tool for tool in lost.tools()}
        self._over = trio.Event()

    def drop(self) -> None:
        """The grace time is over."""
        self._over.set()

    def _missing(self) -> dict[str, ToolView]:
        rows = (row for row in self._own.rows() if row.extension_id in self._both)
        if self._over.is_set() or all(row.state == "connected" for row in rows):
            return {}
        here = self._own.names()
        return {name: tool for name, tool in self._lost.items() if name not in here}

    async def _own_moves(self) -> None:
        """Return when something may have changed."""
        own = self._own
        waits: list[Callable[[], Awaitable[Any]]] = [
            partial(own.wait_change, own.change()),
            partial(own.wait_rows, own.rows_seen),
        ]
        if not self._over.is_set():
            waits.append(self._over.wait)
        async with trio.open_nursery() as nursery:
            for wait in waits:
                nursery.start_soon(then_cancel, wait, nursery.cancel_scope)

    def names(self) -> frozenset[str]:
        return self._own.names() | self._missing().keys()

    def listing(self) -> list[bytes]:
        return [*self._own.listing(), *(tool.definition for tool in self._missing().values())]

    def tools(self) -> Iterator[ToolView]:
        return chain(self._own.tools(), self._missing().values())

    def rows(self) -> list[ProviderView]:
        return self._own.rows()

    def change(self) -> Change:
        return Change(hash(b",".join(self.listing())), 0) if self._missing() else self._own.change()

    async def wait_change(self, seen: Change) -> Change:
        while (now := self.change()) == seen:
            await self._own_moves()
        return now

    @property
    def rows_seen(self) -> int:
        return self._own.rows_seen

    async def wait_rows(self, seen: int) -> None:
        await self._own.wait_rows(seen)

    def asked(self) -> None:
        self._own.asked()

    def call(
        self, name: str, args: Raw, *, on_progress: OnProgress | None = None, limit: float | None = None
    ) -> Awaitable[CallResult]:
        if name in self._missing():
            return self._call_when_back(name, args, on_progress, limit)
        return self._own.call(name, args, on_progress=on_progress, limit=limit)

    async def _call_when_back(
        self, name: str, args: Raw, on_progress: OnProgress | None, limit: float | None
    ) -> CallResult:
        begun = trio.current_time()
        with trio.move_on_after(float("inf") if limit is None else limit) as scope:
            while name in self._missing():
                await self._own_moves()
        if scope.cancelled_caught:
            raise NotSent(
                f"The relay that owned the browser is gone, and the provider of {name!r} has not come back yet, so the "
                "call was not sent. Try again."
            )
        left = None if limit is None else limit - (trio.current_time() - begun)
        return await self._own.call(name, args, on_progress=on_progress, limit=left)


async def then_cancel(wait: Callable[[], Awaitable[Any]], scope: trio.CancelScope) -> None:
    """Of several that wait, the first one ends the others."""
    await wait()
    scope.cancel()
