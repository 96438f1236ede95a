"""Client mode: the tools of a browser that another relay owns, behind the same `ToolBackend`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import trio
from msgspec import Raw

from trio_relay.config import RelayConfig
from trio_relay.core.backend import ProviderView, SourceView, Target, is_untargeted
from trio_relay.core.pending import OnProgress, PendingCalls, read_progress
from trio_relay.core.registry import Registry, Source, source_prefix
from trio_relay.core.results import CallResult
from trio_relay.core.tooldef import ToolDef, ToolRefused, parse_tool
from trio_relay.errors import NotSent, RelayError, ResultRefused, SourceLost, SourceNotFound, TimedOut
from trio_relay.links.peer import PeerLink
from trio_relay.links.socket import Closed
from trio_relay.relay.changes import Followed
from trio_relay.relay.exchange import Exchange, Way, check_arguments
from trio_relay.relay.providers import MirroredProviders
from trio_relay.relay.urls import origin_of
from trio_relay.wire import peer
from trio_relay.wire.codec import Malformed, decode, find_call_id, raw_bytes

logger = logging.getLogger(__name__)

LATER_S = 2.0
"""Seconds we wait longer than the relay server: it must give up first, since only it can tell the page to stop."""

LINK = "relay server"

ASK_AGAIN_S = 5.0
"""Seconds between reminders that somebody wants the tools of a provider in an error state."""


class Remote(Followed):
    """A `ToolBackend` over a link to another relay. Lives as long as the link."""

    def __init__(self, config: RelayConfig, link: PeerLink) -> None:
        self.config = config
        self.pending = PendingCalls()
        super().__init__(Registry())
        self._link = link
        self._features: frozenset[str] = frozenset()
        self._source_map: dict[str, list[str]] = {}
        self._parsed: dict[bytes, ToolDef | None] = {}  # what the last snapshot had, by its bytes
        self._limit = min(config.max_payload, peer.PLAIN_FRAME)
        self._server_names: dict[tuple[str, str], str] = {}  # (the page's own name, tab id) -> the server's name
        self._retired: dict[tuple[str, str], str] = {}  # the same, for names it listed before
        self._provider_tools: dict[str, ToolDef] = {}
        self._asked = -ASK_AGAIN_S
        self._lost = False
        self._mirror(link.first)

    def __repr__(self) -> str:
        return f"<Remote of port {self._link.port}: {self.registry!r}>"

    async def run(self) -> Closed:
        """Follow the server until the link is lost; every pending call then fails at once."""
        closed = Closed(1001, "leaving", ours=True)
        try:
            closed = await self._link.run(self._frame, self._unreadable)
        finally:
            self._lost = True
            error = SourceLost(
                f"The relay that owns the browser went away before the answer came ({closed}). The tool may have run: "
                "look at what it did before you try again."
            )
            self.pending.fail_source(LINK, error)
        return closed

    # -- what the server says

    def _frame(self, frame: peer.ServerFrame) -> None:
        match frame:
            case peer.Tools():
                self._mirror(frame)
                self.bell.ring()
            case peer.Result() | peer.PlainAnswer():
                if not self.pending.settle(LINK, frame.callId, frame.result):
                    logger.debug("a result of the relay server nobody waits for")
            case peer.Progress():
                progress = read_progress(frame.progress, frame.total, frame.message)
                if progress is not None:
                    self.pending.progress(LINK, frame.callId, progress)
            case peer.ServerHello() | peer.AdminResult():
                pass

    def _unreadable(self, data: bytes, why: str) -> None:
        """A frame that cannot be read still says, most of the time, which call it was meant to answer."""
        logger.debug("a frame of the relay server cannot be read: %s", why)
        call_id = find_call_id(data)
        if call_id is not None:
            self.pending.settle(LINK, call_id, ResultRefused(f"The answer cannot be read: {why[:200]}."))

    def _mirror(self, snapshot: peer.Tools) -> None:
        """Build the registry the snapshot describes. The same list gives the same fingerprints as before."""
        self._features = frozenset(snapshot.features) or self._features
        self._source_map = snapshot.toolSourceMap
        self._limit = snapshot.maxPayload or self._limit
        tools = self._parse(snapshot.tools)
        mirror = Registry()
        names: dict[tuple[str, str], str] = {}
        rows = {row.source_id: row for row in snapshot.sources}
        by_source: dict[str, dict[str, ToolDef]] = {source_id: {} for source_id in rows}
        titles = {source_id: source_prefix(row.tab_id, row.title) for source_id, row in rows.items()}
        provided, unlisted = _provided(snapshot), dict(tools)
        definitions: dict[str, bytes] = {}
        for name, text in self._texts(snapshot.tools):
            if name in provided[1]:
                definitions.setdefault(name, text)
        for name in definitions:
            del unlisted[name]
        for public, tool in unlisted.items():
            owners = [source_id for source_id in snapshot.toolSourceMap.get(public, ()) if source_id in by_source]
            for source_id in owners or [_UNKNOWN]:
                prefix = titles.get(source_id, "")
                description = tool.description
                if description.startswith(prefix.rstrip(" ")):
                    description = description[len(prefix) :]
                own = snapshot.originalNames.get(public, public)
                names.setdefault((own, rows[source_id].tab_id if source_id in rows else source_id), public)
                by_source.setdefault(source_id, {})[public] = msgspec.structs.replace(
                    tool, name=own, description=description
                )
        # Least recently seen first: what is mirrored later counts as seen later.
        for row in sorted(rows.values(), key=lambda row: row.last_seen_at):
            mirror.mirror(_source(row), by_source.pop(row.source_id))
        for source_id, unowned in by_source.items():
            mirror.mirror(Source(source_id, source_id, 0, 0), unowned)
        for (own, tab_id), before in self._retired_by(names).items():
            mirror.mirror_retired(own, tab_id, before)
        self.registry = mirror
        self._server_names = names
        self._provider_tools = {name: tools[name] for name in definitions}
        self.providers = MirroredProviders(provided[0], definitions, self._call_provider)

    def _retired_by(self, names: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
        """Names the server listed before for tools it lists under others now; it still understands them."""
        for key, public in self._server_names.items():
            if key in names and names[key] != public:
                self._retired.setdefault(key, public)
        self._retired = {key: public for key, public in self._retired.items() if key in names}
        return self._retired

    def _texts(self, raws: list[Raw]) -> Iterator[tuple[str, bytes]]:
        """The definitions that can be used, as the server wrote them."""
        for text in map(bytes, raws):
            tool = self._parsed.get(text)
            if tool is not None:
                yield tool.name, text

    def _parse(self, raws: list[Raw]) -> dict[str, ToolDef]:
        """Tools by public name. What has not changed since the last snapshot is not parsed again."""
        parsed: dict[bytes, ToolDef | None] = {}
        tools: dict[str, ToolDef] = {}
        for raw in raws:
            text = bytes(raw)
            if text in self._parsed:
                tool = self._parsed[text]
            else:
                try:
                    tool = parse_tool(text)
                except ToolRefused as refused:
                    logger.warning("a tool of the relay server is left out: %s", refused)
                    tool = None
            parsed[text] = tool
            if tool is not None:
                tools.setdefault(tool.name, tool)
        self._parsed = parsed
        return tools

    # -- ToolBackend

    def sources(self) -> list[SourceView]:
        return [source for source in self.registry.sources() if source.source_id != _UNKNOWN]

    def call(
        self, name: str, args: Raw, *, target: Target | None = None, on_progress: OnProgress | None = None
    ) -> Awaitable[CallResult]:
        if is_untargeted(target) and name in self._provider_tools:
            return self._call_provider(name, args, on_progress)
        source, tool = self.registry.resolve(name, target)
        check_arguments(name, tool, args)
        public = self._server_names[tool.name, source.tab_id]
        return self._send(public, tool, args, self._honoured(public, source, target), on_progress)

    def _call_provider(self, name: str, args: Raw, on_progress: OnProgress | None) -> Exchange:
        tool = self._provider_tools[name]
        check_arguments(name, tool, args)
        return self._send(name, tool, args, None, on_progress)

    def _send(
        self, public: str, tool: ToolDef, args: Raw, target: Target | None, on_progress: OnProgress | None
    ) -> Exchange:
        size, limit = memoryview(args).nbytes + len(public) + 1_000, self._limit
        if size > limit:
            raise NotSent(
                f"The call has {size} bytes, and one that goes through another relay may have {limit}. Send less."
            )
        source_id, tab_id = (None, None) if target is None else (target.source_id, target.tab_id)
        told = "targeted-invoke" in self._features
        way = Way(
            source_id=LINK,
            outbox=lambda: None if self._lost else self._link.outbox,
            frame=lambda call_id, left: peer.invoke(call_id, public, args, left if told else None, source_id, tab_id),
            cancel=lambda call_id, reason: peer.cancel(call_id) if "cancel" in self._features else None,
        )
        return Exchange(
            self.pending,
            way,
            tool,
            args,
            timeout=self.config.invoke_timeout,
            patience=LATER_S,
            timed_out=self._timed_out,
            on_progress=on_progress,
            ended=_nothing,
        )

    def _timed_out(self, sent: bool) -> RelayError:
        timeout = self.config.invoke_timeout
        if not sent:
            return NotSent(f"The relay that owns the browser took no message for {timeout:g} s; the call was not sent.")
        return TimedOut(
            f"Host response timeout: the relay that owns the browser did not answer within {timeout:g} s; the tool "
            "may have run. Raise --invoke-timeout if it needs longer."
        )

    def _honoured(self, public: str, source: Source, target: Target | None) -> Target | None:
        """The target to send along; None where the name alone reaches it.

        Raises:
            NotSent: the server cannot be told, and would perhaps call another tab.
        """
        if target is None or (target.source_id is None and target.tab_id is None):
            return None
        if "targeted-invoke" in self._features:
            return Target(source.source_id, target.tab_id)
        if self._source_map.get(public) == [source.source_id]:
            return None
        raise NotSent(
            f"The relay that owns the browser cannot be told which tab is meant, and {public!r} may reach another one. "
            "Call the tool by its name without a target, or close the other tab."
        )

    def asked(self) -> None:
        """The server looks again at providers it cannot use, if it is told that somebody wants them."""
        now = trio.current_time()
        if now >= self._asked + ASK_AGAIN_S and any(row.state == "error" for row in self.provider_rows()):
            self._asked = now
            with suppress(NotSent):
                self._link.outbox.put(peer.LIST_TOOLS)

    def refresh(self, origin: str) -> SourceView:
        if "reload" not in self._features:
            raise NotSent("The relay that owns the browser cannot be asked to reload a tab. Reload it by hand.")
        for source in self.registry.newest_first():
            if origin in (origin_of(source.origin), origin_of(source.url)):
                self._link.outbox.put(peer.reload(source.source_id))
                return source.view()
        raise SourceNotFound(
            f"No connected tab has the origin {origin}: call webmcp_list_sources to see which tabs are connected."
        )

    def open_in_browser(self, url: str) -> bool:
        return False

    def info(self) -> dict[str, Any]:
        return {"mode": "client", "host": self.config.host, "port": self._link.port}


_rows = msgspec.json.Decoder(list[ProviderView])
_names = msgspec.json.Decoder(list[str])


def _provided(snapshot: peer.Tools) -> tuple[list[ProviderView], frozenset[str]]:
    """The rows of providers, and the names of their tools; nothing if the server's are not of our shape."""
    try:
        rows = decode(_rows, raw_bytes(snapshot.providers) or b"[]")
        names = decode(_names, raw_bytes(snapshot.providerTools) or b"[]")
        return rows, frozenset(names)
    except Malformed:
        return [], frozenset()


def _nothing() -> None:
    """Nobody waits for the end of these calls but their callers."""


_UNKNOWN = "unknown"
"""Stands for the source of a tool whose relay does not say where it is from."""


def _source(row: peer.SourceInfo) -> Source:
    return Source(
        source_id=row.source_id,
        tab_id=row.tab_id,
        connected_at=int(row.connected_at),
        last_seen_at=int(row.last_seen_at),
        origin=row.origin,
        url=row.url,
        title=row.title,
        icon_url=row.icon_url,
    )
