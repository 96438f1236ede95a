"""The contract between a relay and the faces it shows: what a server-mode hub and a client-mode link both offer.

`surface/` and embedders program against `ToolBackend` only, so they cannot tell which of the two serves them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Protocol

from msgspec import Raw, Struct

from trio_relay.core.pending import OnProgress
from trio_relay.core.results import CallResult


class Target(Struct, frozen=True):
    """Which tab a call is meant for. With neither member, the tool's name decides.

    Attributes:
        source_id: A source's id, or else a tab id.
        tab_id: Strictly a tab id.
    """

    source_id: str | None = None
    tab_id: str | None = None


def is_untargeted(target: Target | None) -> bool:
    """Whether the name alone decides where a call goes."""
    return target is None or (target.source_id is None and target.tab_id is None)


class SourceView(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """A connected source as clients see it; times in milliseconds since 1970."""

    source_id: str
    tab_id: str
    connected_at: int
    last_seen_at: int
    tool_count: int
    origin: str | None = None
    url: str | None = None
    title: str | None = None
    icon_url: str | None = None


class ToolView(Struct, frozen=True, kw_only=True):
    """A listed tool.

    Attributes:
        name: Its public name.
        original_name: The page's own name.
        definition: JSON text of the MCP Tool, as `tools/list` shows it.
        source_ids: The sources that offer it, the one a call reaches first.
    """

    name: str
    original_name: str
    definition: bytes
    source_ids: tuple[str, ...]


class Change(Struct, frozen=True):
    """Where the visible catalogue stands. Two equal values mean that a client would see the same list.

    `names` changes with tools, their definitions and public names; `titles` with nothing but tab titles.
    """

    names: int
    titles: int


class ToolBackend(Protocol):
    """Tools of browser tabs, wherever they are connected."""

    def sources(self) -> list[SourceView]: ...

    def tools(self) -> Iterator[ToolView]: ...

    def listing(self) -> list[bytes]:
        """The catalogue: one JSON text per tab, its tools separated by commas (`{…},{…}`)."""

    def change(self) -> Change: ...

    async def wait_change(self, seen: Change) -> Change:
        """Return as soon as `change()` differs from `seen` (at once if it already does)."""

    def call(
        self,
        name: str,
        args: Raw,
        *,
        target: Target | None = None,
        on_progress: OnProgress | None = None,
    ) -> Awaitable[CallResult]:
        """Call a tool. The call is sent at once, in the order of calling; what is returned must be awaited, once.

        Args:
            name: Public name; with a `target`, the page's own name is understood too.
            args: JSON text of an object.
            on_progress: Called for every progress frame of the page, in order.

        Raises:
            RelayError: at once or from the awaiting; `may_have_run` says whether the page may have acted.
        """

    def refresh(self, origin: str) -> SourceView:
        """Reload the most recently seen tab of an origin.

        Raises:
            SourceNotFound: there is none.
            NotSent: it could not be told to.
        """

    def open_in_browser(self, url: str) -> bool:
        """Ask a connected browser extension to open a tab. False if none has announced that it can.

        Raises:
            NotSent: the one that can takes no messages.
        """

    def provider_rows(self) -> list[ProviderView]:
        """Every configured provider extension; empty where there are none."""

    def asked(self) -> None:
        """A client asks for the tools: providers in an error state are worth another look."""

    def info(self) -> dict[str, Any]:
        """Facts for people: mode, host, port, relay id."""


class RefusedView(Struct, frozen=True):
    """A tool of a provider that is not offered: its own name, and why."""

    tool: str
    reason: str


class ProviderView(Struct, frozen=True, rename="camel", kw_only=True):
    """A configured provider extension as clients see it.

    Attributes:
        namespace, name, version: As it describes itself; None while it has not.
        state: `connected`, `connecting` or `error`.
        outcome: What the user reads, the provider's own reason included.
        tool_count: How many of its tools are offered now.
    """

    extension_id: str
    namespace: str | None = None
    name: str | None = None
    version: str | None = None
    state: str
    outcome: str
    tool_count: int = 0
    refused: tuple[RefusedView, ...] = ()


class ToolProviders(Protocol):
    """Tools of provider extensions, which stand beside those of tabs."""

    def names(self) -> frozenset[str]:
        """Public names that no page tool may have: of every tool that is offered, or was when its provider could be
        used."""

    def listing(self) -> list[bytes]:
        """The catalogue: one JSON text per provider, its tools separated by commas, as `ToolBackend.listing`."""

    def tools(self) -> Iterator[ToolView]:
        """The same tools one by one; `source_ids` is empty."""

    def rows(self) -> list[ProviderView]:
        """Every configured provider, in the order of the configuration."""

    def change(self) -> Change:
        """Where the catalogue stands; `titles` never changes."""

    async def wait_change(self, seen: Change) -> Change:
        """Return as soon as `change()` differs from `seen` (at once if it already does)."""

    @property
    def rows_seen(self) -> int:
        """Counts changes of `rows()`."""

    async def wait_rows(self, seen: int) -> None:
        """Return as soon as `rows_seen` differs from `seen`."""

    def asked(self) -> None:
        """The tools are asked for: providers in an error state are probed again, at most every 5 s."""

    def call(
        self,
        name: str,
        args: Raw,
        *,
        on_progress: OnProgress | None = None,
        limit: float | None = None,
    ) -> Awaitable[CallResult]:
        """Call a tool by its public name; like `ToolBackend.call`. `limit` is another time limit in seconds: the
        shorter one counts.

        Raises:
            RelayError: at once or from the awaiting; `may_have_run` says whether the provider may have acted.
        """
