"""Provider extensions as a relay sees them that does not talk to them itself: none, or those of another relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio
from msgspec import Raw

from trio_relay.core.backend import Change, ProviderView, ToolView
from trio_relay.core.pending import OnProgress
from trio_relay.core.results import CallResult
from trio_relay.errors import ToolNotFound

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
