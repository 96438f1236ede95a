"""A relay inside another trio program: no stdio, no signals, no logging set-up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio
from msgspec import Raw, Struct

from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, SourceView, Target, ToolBackend
from trio_relay.core.pending import OnProgress, Progress
from trio_relay.errors import InvalidArguments
from trio_relay.relay.changes import visible_changes
from trio_relay.relay.cluster import open_cluster
from trio_relay.relay.extending import Extending


class RelayView(Struct, frozen=True, kw_only=True):
    """A snapshot of a relay; it never changes.

    Attributes:
        mode: `server`: this process owns the port; `client`: another relay does; `promoting`: nobody, for a moment.
        port: TCP port browsers connect to.
        sources: The connected tabs, in the order they came.
        tools: The MCP Tool objects on offer, under their public names.
    """

    mode: str
    port: int
    sources: tuple[SourceView, ...]
    tools: tuple[dict[str, Any], ...]


OnNumbers = Callable[[float, float | None, str | None], None]


class Relay:
    """A running relay. Create it with `open_relay`; it ends with that block."""

    def __init__(self, backend: ToolBackend) -> None:
        self.backend = backend

    def __repr__(self) -> str:
        view = self.view()
        return f"<Relay {view.mode} on port {view.port}: {len(view.sources)} sources, {len(view.tools)} tools>"

    def view(self) -> RelayView:
        """How things are now."""
        info = self.backend.info()
        return RelayView(
            mode=info["mode"],
            port=info["port"],
            sources=tuple(self.backend.sources()),
            tools=tuple(msgspec.json.decode(tool.definition) for tool in self.backend.tools()),
        )

    @property
    def port(self) -> int:
        port: int = self.backend.info()["port"]
        return port

    def watch(self) -> AsyncIterator[RelayView]:
        """Yield a snapshot at once, and one whenever the tools on offer have changed (coalesced, 16 ms)."""
        return _Views(self)

    async def call_tool(
        self,
        name: str,
        args: dict[str, Any] | None = None,
        *,
        source_id: str | None = None,
        tab_id: str | None = None,
        on_progress: OnNumbers | None = None,
    ) -> dict[str, Any]:
        """Call a page's tool. Cancelling the caller tells the page to stop.

        Args:
            name: A public name; with `source_id` or `tab_id`, the page's own name is understood too.
            args: JSON-like arguments.
            on_progress: Called with (progress, total, message) for each progress report of the page.

        Returns:
            The MCP CallToolResult: `content`, and where the page gave them `structuredContent`, `isError`, `_meta`.

        Raises:
            RelayError: `NotSent` and its subclasses when the page did nothing; `TimedOut`, `SourceLost` when it
                may have acted (`may_have_run`).
        """
        try:
            text = json.dumps(args or {}, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"The arguments of {name!r} are no JSON: {error}") from None
        target = None if source_id is None and tab_id is None else Target(source_id, tab_id)
        report = None if on_progress is None else _as_numbers(on_progress)
        result = await self.backend.call(name, Raw(text), target=target, on_progress=report)
        decoded: dict[str, Any] = msgspec.json.decode(result.json)
        return decoded


class _Views(AsyncIterator[RelayView]):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._changes: AsyncIterator[Change] | None = None

    async def __anext__(self) -> RelayView:
        if self._changes is None:
            self._changes = visible_changes(self._relay.backend, self._relay.backend.change())
            await trio.lowlevel.checkpoint()
        else:
            await anext(self._changes)
        return self._relay.view()


def _as_numbers(on_progress: OnNumbers) -> OnProgress:
    def report(progress: Progress) -> None:
        total = None if progress.total is None else float(progress.total)
        message = None if progress.message is None else msgspec.json.decode(progress.message, type=str)
        on_progress(float(progress.progress), total, message)

    return report


@asynccontextmanager
async def open_relay(config: RelayConfig | None = None, *, extending: Extending | None = None) -> AsyncIterator[Relay]:
    """Run a relay for the length of a block; port 0 in the config lets the kernel choose one.

    Args:
        extending: What is done with other extensions while this relay owns the browser; see
            `trio_relay.extensions.service.open_extensions`.

    Raises:
        PortTaken: on entry.
    """
    async with open_cluster(config or RelayConfig(), extending=extending) as cluster:
        yield Relay(cluster)


async def serve(
    config: RelayConfig | None = None, *, task_status: trio.TaskStatus[Relay] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a relay until cancelled: `relay = await nursery.start(trio_relay.serve, config)`."""
    async with open_relay(config) as relay:
        task_status.started(relay)
        await trio.sleep_forever()
