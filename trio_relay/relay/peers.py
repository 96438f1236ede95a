"""A relay client as the hub sees it: the server half of `webmcp-relay.v1`, one nursery per client."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import trio
from msgspec import Raw, UnsetType

from trio_relay.config import MAX_INVOKE_TIMEOUT_MS
from trio_relay.core.backend import SourceView, Target
from trio_relay.core.pending import Progress
from trio_relay.core.results import CallResult, error_result, first_byte
from trio_relay.errors import InvalidArguments, NotSent, RelayError
from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import Closed, Socket
from trio_relay.relay.changes import COALESCE_S
from trio_relay.relay.exchange import call_as_result
from trio_relay.wire import peer
from trio_relay.wire.codec import Malformed, encode, find_call_id

if TYPE_CHECKING:
    from trio_relay.relay.hub import Hub

logger = logging.getLogger(__name__)

SECOND_LIST_S = 0.25
"""After the first `relay/tools`, when the same list goes out again: the reference client loses what comes right behind
the first one, and lists nothing until it hears more (17 of 40 joins)."""

NO_ARGUMENTS = Raw(b"{}")


class PeerClient:
    """Serves one relay client until its socket closes."""

    def __init__(self, hub: Hub, socket: Socket, remote: str) -> None:
        self._hub = hub
        self._socket = socket
        self._remote = remote
        self._outbox = Outbox(socket)
        self._features: frozenset[str] = frozenset()
        self._calls: dict[str, trio.CancelScope] = {}
        self._listed = trio.Event()
        self._stayed = False
        self._accepted = hub.config.max_payload + peer.ENVELOPE_BYTES  # by us
        self._limit = min(self._accepted, peer.PLAIN_FRAME)  # of what the client accepts

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._outbox.run)
                nursery.start_soon(self._push)
                self._socket.attach(self._message)
                await self._socket.ended.wait()
                raise self._socket.why_closed()
        except* Closed as group:
            if self._stayed:
                logger.info("the other relay left (%s: %s)", self._remote, group.exceptions[0])
        finally:
            self._socket.detach()

    def _message(self, data: bytes) -> None:
        try:
            frame = peer.decode_client_frame(data)
        except Malformed as error:
            logger.debug("relay client %s: a frame cannot be read: %s", self._remote, error)
            call_id = find_call_id(data)
            if call_id is not None:  # an invoke is always answered
                refusal = error_result(f"The relay that owns the browser cannot read the call: {error}.")
                self._put(peer.result(call_id, refusal.pieces))
            return
        match frame:
            case peer.RelayHello():
                self._features = frozenset(frame.features)
                if frame.maxPayload is not None:
                    self._limit = frame.maxPayload
            case peer.ListTools():
                self._hub.asked()
                self._put(self._tools("relay/tools"))
                self._listed.set()
            case peer.Invoke():
                # Sent and registered before its task runs: the next frame may be another call, or cancel this one.
                outcome = call_as_result(lambda: self._call(frame))
                self._calls[frame.callId] = scope = trio.CancelScope()
                self._nursery.start_soon(self._answer, frame.callId, outcome, scope)
            case peer.Cancel():
                if frame.callId in self._calls:
                    self._calls[frame.callId].cancel()
            case peer.Admin():
                self._nursery.start_soon(self._administer, frame)
            case peer.Reload():
                try:
                    self._hub.reload(frame.sourceId)
                except NotSent as error:
                    logger.debug("relay client %s: a reload is not passed on: %s", self._remote, error)

    def _call(self, frame: peer.Invoke) -> Awaitable[CallResult]:
        """Send a call on, in the order of the frames."""
        kind = first_byte(frame.args)
        if kind not in (b"", b"{", b"n"):
            raise InvalidArguments("The arguments of a tool must be an object.")
        args = frame.args if kind == b"{" and not isinstance(frame.args, UnsetType) else NO_ARGUMENTS
        target = Target(frame.sourceId, frame.requestTabId)
        limit = (
            None if frame.deadlineMs is None else min(max(0.001, frame.deadlineMs / 1000), MAX_INVOKE_TIMEOUT_MS / 1000)
        )

        def report(progress: Progress) -> None:
            if "progress" in self._features:
                self._put(peer.progress(frame.callId, progress.progress, progress.total, progress.message))

        return self._hub.call(frame.toolName, args, target=target, on_progress=report, limit=limit)

    async def _answer(self, call_id: str, outcome: Awaitable[CallResult], scope: trio.CancelScope) -> None:
        result: CallResult | None = None
        with scope:
            result = await outcome
        if self._calls.get(call_id) is scope:
            del self._calls[call_id]
        if result is None:
            return  # cancelled: no answer follows
        answer = peer.result(call_id, result.pieces)
        if len(answer) > self._limit:
            refusal = error_result(
                f"The result has {len(answer)} bytes, and one that goes through another relay may have {self._limit}. "
                "Ask the page for less, or in parts."
            )
            answer = peer.result(call_id, refusal.pieces)
        self._put(answer)

    async def _administer(self, frame: peer.Admin) -> None:
        """A command of a person. The socket may be anybody's on this machine; the token is what is judged."""
        extending = self._hub.extending
        args = b"null" if isinstance(frame.args, UnsetType) else bytes(frame.args)
        try:
            if extending is None:
                raise NotSent(
                    "This relay does nothing with extensions: start it with --provider or --serve-extensions."
                )
            answer = peer.admin_result(frame.requestId, await extending.administer(frame.token, frame.ask, args))
        except RelayError as error:
            answer = peer.admin_error(frame.requestId, str(error))
        self._put(answer)

    async def _push(self) -> None:
        """Tell the client each new state of the catalogue, once it has asked for the first."""
        await self._listed.wait()
        await trio.sleep(SECOND_LIST_S)
        self._stayed = True  # a relay that only looked around is gone by now
        logger.info("another relay joined (%s)", self._remote)
        while True:
            # A client that does not read gets the latest list when it does, not every one in between.
            await self._outbox.flushed()
            seen = self._hub.registry.rows
            self._put(self._tools("relay/tools-changed"))
            await self._hub.wait_rows(seen)
            await trio.sleep(COALESCE_S)

    def _put(self, message: bytes) -> None:
        try:
            self._outbox.put(message)
        except NotSent:
            logger.warning("the other relay (%s) does not read; its connection is closed", self._remote)
            self._socket.ended.set()

    @property
    def _longest_list(self) -> int:
        return min(peer.MAX_TOOLS_FRAME, self._limit - 1_000)

    def _tools(self, kind: str) -> bytes:
        """The catalogue; beyond the limit of a frame the least recently seen sources are left out."""
        listing = self._hub.listing()
        sources, originals = self._hub.registry.owners()
        rows: list[SourceView] = self._hub.sources()
        frame = peer.tools_frame(kind, listing, encode(rows), sources, originals, self._accepted, self._providers())
        if len(frame) <= self._longest_list:
            return frame
        return self._shortened(kind, rows)

    def _providers(self) -> tuple[bytes, list[str]] | None:
        rows = self._hub.provider_rows()
        return (encode(rows), [tool.name for tool in self._hub.providers.tools()]) if rows else None

    def _shortened(self, kind: str, rows: list[SourceView]) -> bytes:
        by_source: dict[str, list[tuple[str, str, bytes]]] = {}
        for tool in self._hub.registry.tools():
            entry = (tool.name, tool.original_name, tool.definition)
            for source_id in tool.source_ids[:1]:
                by_source.setdefault(source_id, []).append(entry)
        provided, providers = self._hub.providers.listing(), self._providers()
        size, kept = sum(map(len, provided)), list[SourceView]()
        if providers is not None:
            size += len(providers[0]) + sum(len(name) + 3 for name in providers[1])
        if size > self._longest_list:
            logger.warning("the tools of providers are too large for another relay: they are left out")
            provided, size = [], 0
            providers = None if providers is None else (providers[0], [])
        for row in sorted(rows, key=lambda row: -row.last_seen_at):
            mine = by_source.get(row.source_id, [])
            size += len(encode(row)) + sum(len(text) + 2 * len(name) + len(own) + 100 for name, own, text in mine)
            if size > self._longest_list:
                break
            kept.append(row)
        logger.warning(
            "the catalogue is too large for another relay: %d of %d sources are left out",
            len(rows) - len(kept),
            len(rows),
        )
        entries = [(row.source_id, entry) for row in kept for entry in by_source.get(row.source_id, [])]
        return peer.tools_frame(
            kind,
            [*provided, *(text for _, (_, _, text) in entries)],
            encode(kept),
            {name: (source_id,) for source_id, (name, _, _) in entries},
            {name: own for _, (name, own, _) in entries},
            self._accepted,
            providers,
        )
