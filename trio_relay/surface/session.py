"""One MCP client on stdin and stdout: which line takes the raw lane, and which goes to the SDK.

The raw lane serves `tools/call` and `tools/list` without turning a page's bytes into objects. It takes a line
only when the line is certainly well formed and the SDK has settled the protocol era; everything else, every
doubt included, is the SDK's, which writes the canonical answer. Lines that are no valid request at all are
answered here, since the SDK is silent about them. docs/architecture.md lists what the raw lane reproduces.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import aclosing
from functools import partial
from typing import Protocol

import msgspec
import trio
from msgspec import Raw, UnsetType

from trio_relay.core.backend import ToolBackend
from trio_relay.core.results import CallResult, error_result, first_byte
from trio_relay.relay.changes import visible_changes
from trio_relay.relay.exchange import call_as_result
from trio_relay.surface.answers import Answers
from trio_relay.surface.envelopes import envelope_of, fault_of, has_envelope, meta_of
from trio_relay.surface.inflight import Call, InFlight, Key, ProgressTeller, request_key
from trio_relay.surface.lines import LineWriter, TooLong, read_lines
from trio_relay.surface.management import Tools
from trio_relay.surface.stdio import ByteStream
from trio_relay.wire import mcp
from trio_relay.wire.codec import (
    Malformed,
    Maybe,
    as_text,
    decode,
    mend_surrogates,
    one_line,
    raw_bytes,
    require_utf8,
)

logger = logging.getLogger(__name__)

DRAIN_S = 2.0
"""Seconds that calls in flight have after end of file or a signal; official clients send SIGTERM after 2 s."""

MIN_LINE_LIMIT = 16 << 20
"""Longest request line in bytes, or twice `--max-payload` if that is more (docs/decisions.md, 23)."""

CROWD = 8
"""Calls in flight from which on answers are gathered: one write for all that are ready at the same time. A single one
is written at once, which saves it two task switches."""

MAX_ENVELOPES = 64
"""Different client envelopes (name, capabilities) of one session the raw lane learns; more go to the SDK."""

NO_ARGUMENTS = Raw(b"{}")


class Sdk(Protocol):
    """What a session needs of the SDK's server (see `surface/server.py`)."""

    stamp: bytes

    async def run(self) -> None: ...

    async def feed(self, line: bytes) -> bool:
        """Hand over a line. False if the SDK's models refuse it, so that nothing would be answered."""

    async def accepts_envelope(self, meta: bytes) -> bool:
        """Whether the SDK serves modern requests that carry this `_meta`; also settles the era."""

    async def tools_changed(self) -> None: ...

    def close(self) -> None: ...


class SdkHooks(Protocol):
    """What the SDK's server tells its session."""

    async def write_line(self, line: bytes) -> None: ...

    def answered(self, request_id: bytes, *, handshake: bool, failed: bool) -> None:
        """A request of the client was answered: with the outcome of an `initialize`, with an error, or otherwise."""


class Session:
    """Serves one client until end of file, `stop()`, or until nobody reads stdout."""

    def __init__(self, backend: ToolBackend, stdin: ByteStream, writer: LineWriter, max_payload: int) -> None:
        self.tools = Tools(backend)
        self.answers = Answers(backend)
        self._backend = backend
        self._stdin = stdin
        self._writer = writer
        self._line_limit = max(MIN_LINE_LIMIT, 2 * max_payload)
        self._reading = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._flight = InFlight()
        self._progress = ProgressTeller(writer)
        self._era: str | None = None
        self._initializing: Key | None = None
        self._initialize_settled = trio.Event()
        self._legacy_ready = False
        self._initialized = False
        self._listed = False
        self._untold = False
        self._envelopes: set[tuple[bytes | None, ...]] = set()

    @property
    def modern(self) -> bool:
        """Whether this client speaks the protocol of 2026-07-28 or later."""
        return self._era == "modern"

    def stop(self) -> None:
        """Read no more requests; what is in flight may finish."""
        self._reading.cancel()

    def hang_up(self) -> None:
        """End now: there is nobody to answer."""
        self._scope.cancel()

    async def run(self, sdk: Sdk) -> None:
        with self._scope:
            try:
                await self._run(sdk)
            except* trio.BrokenResourceError:
                # Whichever task noticed first: it is the same end for all of them.
                logger.info("nobody reads our stdout")

    async def _run(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self.answers.stamp = sdk.stamp
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_writer)
            nursery.start_soon(sdk.run)
            nursery.start_soon(self._progress.run_reports)
            nursery.start_soon(self._progress.run_keep_alive)
            nursery.start_soon(self._announce)
            self._nursery = nursery
            with self._reading:
                await self._read()
            logger.debug("no more requests; %d in flight", len(self._flight))
            await self._drain()
            nursery.cancel_scope.cancel()

    async def _run_writer(self) -> None:
        await self._writer.run()
        raise trio.BrokenResourceError

    async def _drain(self) -> None:
        """Let calls finish for `DRAIN_S`; whoever still waits is told, so that no request stays unanswered."""
        with trio.move_on_after(DRAIN_S):
            await self._flight.wait_idle()
        for call in self._flight.calls():
            call.scope.cancel()
        with trio.move_on_after(0.5):
            await self._flight.wait_idle()
            await self._writer.flushed()
            self._sdk.close()
            # The SDK ends its subscriptions with a last answer each.
            await trio.sleep(0.01)

    # -- requests

    async def _read(self) -> None:
        async with aclosing(read_lines(self._stdin, self._line_limit)) as lines:
            async for line in lines:
                if isinstance(line, TooLong):
                    message = f"a message may have {self._line_limit} bytes; this one has more and was dropped"
                    await self._error(b"null", mcp.INVALID_REQUEST, message)
                elif not line.isspace() and line:
                    await self._take(line)
                await self._writer.wait_room()

    async def _take(self, line: bytes) -> None:
        if self._take_plain_call(line):
            return
        try:
            await self._take_apart(line)
        except Malformed as error:
            code = mcp.INVALID_REQUEST if error.is_json else mcp.PARSE_ERROR
            request_id = mcp.find_request_id(line) if error.too_deep else b"null"
            await self._error(request_id, code, f"{error}"[:300])

    async def _take_apart(self, line: bytes) -> None:
        """Serve any line. Raises `Malformed`, before anything was done, for one that cannot be read."""
        envelope = decode(mcp.ENVELOPE, line)
        method = as_text(envelope.method)
        has_id = not isinstance(envelope.id, UnsetType)
        request_id = one_line(bytes(envelope.id)) if has_id else b"null"  # type: ignore[arg-type]
        key = request_key(request_id) if has_id else None
        if envelope.method is msgspec.UNSET and (envelope.result, envelope.error) != (msgspec.UNSET, msgspec.UNSET):
            return  # an answer; we never ask
        if as_text(envelope.jsonrpc) != "2.0" or method is None or (has_id and key is None):
            shown = request_id if key is not None else b"null"
            await self._error(shown, mcp.INVALID_REQUEST, "not a JSON-RPC 2.0 request: " + fault_of(envelope, has_id))
        elif key is None:
            await self._notification(method, envelope, line)
        else:
            await self._request(method, key, request_id, envelope, line)

    async def _request(self, method: str, key: Key, request_id: bytes, envelope: mcp.Envelope, line: bytes) -> None:
        if first_byte(envelope.params) not in (b"", b"{", b"n"):
            await self._error(request_id, mcp.INVALID_PARAMS, "params must be an object")
            return
        # Whatever is odd here, and the first request of a session, takes this longer way.
        if method in ("tools/call", "tools/list") and first_byte(envelope.params) != b"n":
            params = decode(
                mcp.CALL_PARAMS, b"{}" if isinstance(envelope.params, UnsetType) else bytes(envelope.params)
            )
            meta = meta_of(params)
            if meta is not None and await self._settled(params, meta):
                if method == "tools/list" and first_byte(params.cursor) in (b"", b'"'):
                    await self._list(request_id, as_text(params.cursor))
                    return
                if method == "tools/call" and (call := self._call_of(key, params, meta)) is not None:
                    name = as_text(params.name)
                    assert name is not None
                    self._start_call(call, request_id, name, params.arguments)
                    return
        await self._to_sdk(method, key, request_id, envelope, line)

    async def _to_sdk(self, method: str, key: Key, request_id: bytes, envelope: mcp.Envelope, line: bytes) -> None:
        if self._era is None:
            self._era = "modern" if method != "initialize" and has_envelope(envelope) else "legacy"
        counted = method != "subscriptions/listen"  # answered when the session ends
        if counted:
            self._flight.add_other(key)
        if method == "initialize":
            self._initializing, self._initialize_settled = key, trio.Event()
        if not await self._sdk.feed(line) and not await self._sdk.feed(mend_surrogates(line)):
            if counted:
                self._flight.remove_other(key)
            await self._error(request_id, mcp.INVALID_REQUEST, "not a valid MCP request")
        elif method == "initialize":
            # The SDK handles it inline; what a client pipelines after it must see the outcome.
            await self._initialize_settled.wait()

    async def _notification(self, method: str, envelope: mcp.Envelope, line: bytes) -> None:
        if method == "notifications/cancelled" and first_byte(envelope.params) == b"{":
            params = decode(mcp.CANCELLED_PARAMS, bytes(envelope.params))  # type: ignore[arg-type]
            key = None if isinstance(params.requestId, UnsetType) else request_key(bytes(params.requestId))
            if key is not None and key != self._initializing:
                self._flight.cancel(key)
        if not await self._sdk.feed(line):
            logger.debug("a notification the SDK's models refuse: %s", method[:60])
        if method == "notifications/initialized":
            self._initialized = True
            if self._untold:
                self._untold = False
                await self._writer.write(mcp.LIST_CHANGED_LINE)

    # -- SdkHooks

    async def write_line(self, line: bytes) -> None:
        await self._writer.write(line)

    def answered(self, request_id: bytes, *, handshake: bool, failed: bool) -> None:
        key = request_key(request_id)
        if key is None:
            return
        self._flight.remove_other(key)
        self._legacy_ready = self._legacy_ready or handshake
        # Another request may have the id of an `initialize`: its answer settles nothing.
        if key == self._initializing and (handshake or failed):
            self._initializing = None
            self._initialize_settled.set()

    # -- the raw lane

    def _take_plain_call(self, line: bytes) -> bool:
        """Serve a call about which nothing is odd. False, with nothing done, for every other line."""
        try:
            require_utf8(line)
            plain = mcp.PLAIN_CALL.decode(line)
        except (ValueError, RecursionError):  # msgspec's errors and ours are ValueErrors
            return False
        params, request_id = plain.params, one_line(bytes(plain.id))
        meta = mcp.Meta() if isinstance(params.meta, UnsetType) else params.meta
        key = request_key(request_id)
        if key is None or not self._knows(meta):
            return False
        call = _new_call(key, params.arguments, meta)
        if call is None:
            return False
        self._start_call(call, request_id, params.name, params.arguments)
        return True

    def _knows(self, meta: mcp.Meta) -> bool:
        """Whether the SDK has settled the era of this request already, and accepted what its client says of itself."""
        if isinstance(meta.protocolVersion, UnsetType):
            return self._era == "legacy" and self._legacy_ready
        return self._era == "modern" and envelope_of(meta) in self._envelopes

    async def _settled(self, params: mcp.CallParams, meta: mcp.Meta) -> bool:
        """Whether the SDK would serve this request; a new envelope of a modern client is shown to it."""
        if self._knows(meta):
            return True
        if isinstance(meta.protocolVersion, UnsetType) or self._era == "legacy":
            return False
        if len(self._envelopes) >= MAX_ENVELOPES or isinstance(params.meta, UnsetType):
            return False
        self._era = "modern"
        if not await self._sdk.accepts_envelope(bytes(params.meta)):
            return False
        self._envelopes.add(envelope_of(meta))
        return True

    def _call_of(self, key: Key, params: mcp.CallParams, meta: mcp.Meta) -> Call | None:
        """The call, if nothing about it is doubtful."""
        if first_byte(params.name) != b'"':
            return None
        if any(not isinstance(odd, UnsetType) for odd in (params.task, params.inputResponses, params.requestState)):
            return None
        return _new_call(key, params.arguments, meta)

    async def _list(self, request_id: bytes, cursor: str | None) -> None:
        self._listed, self._untold = True, False
        page = self.answers.page(cursor)
        if page is None:
            message = "this cursor belongs to a list that has changed since: list again without a cursor"
            await self._error(request_id, mcp.INVALID_PARAMS, message)
        else:
            await self._writer.write(self.answers.list_line(request_id, page, modern=self.modern))

    def _start_call(self, call: Call, request_id: bytes, name: str, arguments: Maybe) -> None:
        """Send a call, and leave its answer to a task of its own.

        Sent before that task runs: calls of one read reach the tab in their order, and the next line may cancel this
        one, or be the last.
        """
        self._flight.add(call)
        args = arguments if not isinstance(arguments, UnsetType) and first_byte(arguments) == b"{" else NO_ARGUMENTS
        report = partial(self._progress.report, call)
        outcome = call_as_result(lambda: self.tools.call(name, args, report))
        self._nursery.start_soon(self._serve_call, call, request_id, outcome)

    async def _serve_call(self, call: Call, request_id: bytes, outcome: Awaitable[CallResult]) -> None:
        result: CallResult | None = None
        try:
            with call.scope:
                self._progress.start(call)
                result = await outcome
                if call.told_anything:
                    await self._progress.settle(call)
            if not call.cancelled:
                # Our own cancelling of a call that did not end in time is an answer too.
                result = result or error_result("The relay is leaving; the tool may have run.")
                line = self.answers.call_line(request_id, result, modern=self.modern)
                call.answered = True  # what follows in the queue comes after the answer
                if len(self._flight) < CROWD:
                    await self._writer.write(line, wanted=call.may_be_answered)
                else:
                    self._writer.post(line, wanted=call.may_be_answered)
        finally:
            call.answered = True
            self._flight.remove(call)

    async def _error(self, request_id: bytes, code: int, message: str) -> None:
        await self._writer.write(mcp.error_line(request_id, code, message))

    # -- list_changed

    async def _announce(self) -> None:
        """Tell the client, in the way of its era, that the list is another one."""
        async for _ in visible_changes(self._backend, self._backend.change()):
            if self._era == "modern":
                await self._sdk.tools_changed()
            elif self._initialized:
                await self._writer.write(mcp.LIST_CHANGED_LINE)
            else:
                self._untold = self._listed  # by a client that lists before it is allowed to hear


def _new_call(key: Key, arguments: Maybe, meta: mcp.Meta) -> Call | None:
    """A call whose arguments and progress token are what MCP allows; None is for the SDK to refuse."""
    token = raw_bytes(meta.progressToken)
    if first_byte(arguments) not in (b"", b"{", b"n") or (token is not None and request_key(token) is None):
        return None
    return Call(key, token)
