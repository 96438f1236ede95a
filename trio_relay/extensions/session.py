"""One port of a provider and the SDK's client session over it, from the handshake to the end of the port.

Importing this module takes half a second (it pulls in the SDK), so `host.py` does it in a thread, when a provider is
there to talk to.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import mcp_types as types
import trio
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Raw

from trio_relay._version import __version__
from trio_relay.core.port import Port
from trio_relay.core.tooldef import MAX_DEFINITION_BYTES
from trio_relay.errors import CallFailed, innermost
from trio_relay.extensions.calls import ProviderCall, Slot
from trio_relay.extensions.catalogue import Offered, read_tools
from trio_relay.extensions.transport import PortStreams, carrying, raw_tools
from trio_relay.relay.changes import Bell
from trio_relay.wire.codec import Malformed

logger = logging.getLogger(__name__)

HANDSHAKE_S = 20.0
"""Seconds until a provider has answered `initialize`. The SDK asks `server/discover` first and waits 10 s of them."""

LIST_S = 10.0
"""Seconds for all pages of a list of tools."""

LISTEN_S = 2.0
"""Seconds a provider has to confirm that it will tell of changes, before its tools are listed anyway."""

REFRESH_S = 1.0
"""Tools are listed again at most this often, however often a provider says that they have changed."""

MAX_PAGES = 64


async def _no_progress(progress: float, total: float | None, message: str | None) -> None:
    pass


def _words(error: BaseException) -> str:
    if isinstance(error, MCPError):
        return f"{error.error.message[:500]} (code {error.error.code})"
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {LIST_S:g} s"
    return f"{type(error).__name__}: {str(error)[:200]}"


class Session:
    """See the module. Run it once; everything else may be called from any task.

    Args:
        legacy: Whether to begin with `initialize`, without asking for the modern era first.
        on_tools: Gets the tools whenever they have been listed.
        on_unsent: Gets a call that did not leave before the port was closed, and the reason of that.

    Attributes:
        ready: Set once calls can be made, and when the session has ended.
        listed: Set once listing the tools has worked or failed, and when the session has ended.
        list_problem: Why the tools could not be listed the last time, in words.
        problem: Why it ended, in words; None while it has not.
        legacy: Whether the provider speaks the era of `initialize`, once it is known.
    """

    def __init__(
        self,
        port: Port,
        *,
        legacy: bool,
        on_tools: Callable[[Offered], None],
        on_unsent: Callable[[ProviderCall, str], None],
    ) -> None:
        self._port = port
        self._on_tools = on_tools
        self._on_unsent = on_unsent
        self._streams = PortStreams(port)
        self._waiting: deque[ProviderCall] = deque()
        self._running: dict[ProviderCall, None] = {}  # in the order of the calls
        self._bell = Bell()
        self._changed = False
        self._scope = trio.CancelScope()
        self.legacy = legacy
        self.ready = trio.Event()
        self.listed = trio.Event()
        self.list_problem: str | None = None
        self.problem: str | None = None

    def submit(self, calls: Iterable[ProviderCall]) -> None:
        """Make calls, in this order. Only while there is no `problem`."""
        self._waiting.extend(calls)
        self._bell.ring()

    def withdraw(self, call: ProviderCall) -> None:
        """The caller of a call has gone."""
        if call in self._waiting:
            self._waiting.remove(call)

    def close(self, reason: str) -> None:
        """End it at once; calls fail with this reason."""
        self._end(reason)
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the port until it is closed. Never raises for anything the provider does."""
        problem = "the session ended"
        try:
            with self._scope:
                problem = await self._serve()
        except Exception as error:
            cause = innermost(error)
            problem = _words(cause)
            if not isinstance(cause, MCPError):
                logger.debug("%s: the MCP session failed", self._port.extension_id, exc_info=error)
            if self._streams.closed.is_set():
                problem = self._streams.reason
        finally:
            self._end(problem)

    async def _serve(self) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._streams.run)
            with trio.move_on_after(HANDSHAKE_S) as patience:
                async with self._client() as client:
                    patience.deadline = float("inf")
                    self.legacy = client.session.protocol_version not in MODERN_PROTOCOL_VERSIONS
                    self.ready.set()
                    async with trio.open_nursery() as inner:
                        inner.start_soon(self._make_calls, client)
                        inner.start_soon(self._follow_tools, client)
                        await self._streams.closed.wait()
                        inner.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            return f"the provider did not complete the MCP handshake within {HANDSHAKE_S:g} s"
        return self._streams.reason

    def _client(self) -> Client:
        return Client(
            self._transport(),
            mode="legacy" if self.legacy else "auto",
            client_info=types.Implementation(name="trio-relay", version=__version__),
            message_handler=self._on_message,
            cache=None,
        )

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[PortStreams, PortStreams]]:
        yield self._streams, self._streams

    def _end(self, problem: str) -> None:
        if self.problem is not None:
            return
        self.problem = problem
        self._port.close()
        calls = (*self._running, *self._waiting)
        self._running.clear()
        self._waiting.clear()
        for call in calls:
            self._lose(call, problem)
        self.ready.set()
        self.listed.set()

    def _lose(self, call: ProviderCall, reason: str) -> None:
        if call.is_settled or call.slot.begun or call.slot.given_up:
            call.lost(reason)
        else:
            self._on_unsent(call, reason)

    # -- calls

    async def _make_calls(self, client: Client) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                while not self._waiting:
                    await self._bell.wait()
                call = self._waiting.popleft()
                self._running[call] = None
                # Returns when the request is in the queue of the port, so requests leave in the order of the calls.
                await nursery.start(self._make_call, client, call)

    async def _make_call(
        self, client: Client, call: ProviderCall, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        slot = call.slot
        slot.queued = task_status.started
        try:
            with call.scope:
                request = types.CallToolRequest(params=types.CallToolRequestParams(name=call.tool.name, arguments={}))
                with carrying(slot):
                    await client.session.send_request(
                        request,
                        types.CallToolResult,
                        # Progress goes past the SDK; this makes it ask for some.
                        progress_callback=None if slot.on_progress is None else _no_progress,
                    )
                if slot.result is not None:
                    call.answered(slot.result)
        except MCPError as error:
            if not self._streams.closed.is_set():
                call.settle(CallFailed(f"The provider {call.provider} refused the call: {_words(error)}"))
        except Exception as error:
            logger.debug("%s: a call failed in the SDK", self._port.extension_id, exc_info=error)
            call.settle(CallFailed(f"The provider {call.provider} gave no usable answer; the tool may have run."))
        finally:
            slot.tell_queued()
            self._streams.forget(slot)
            # One that did not leave is left to `_end`, which knows the order of all of them.
            if call.is_settled or slot.begun or slot.given_up:
                self._running.pop(call, None)
                call.lost(self._streams.reason)

    # -- tools

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._tools_changed()

    def _tools_changed(self) -> None:
        self._changed = True
        self._bell.ring()

    async def _follow_tools(self, client: Client) -> None:
        async with trio.open_nursery() as nursery:
            if not self.legacy:
                confirmed = trio.Event()
                nursery.start_soon(self._listen, client, confirmed)
                with trio.move_on_after(LISTEN_S):
                    await confirmed.wait()
            while True:
                self._changed = False
                await self._list(client)
                await trio.sleep(REFRESH_S)
                while not self._changed:
                    await self._bell.wait()

    async def _listen(self, client: Client, confirmed: trio.Event) -> None:
        """Have the provider tell of changes, as the modern era wants it; what it tells comes to `_on_message`."""
        try:
            async with client.listen(tools_list_changed=True) as changes:
                late = self.listed.is_set()
                confirmed.set()
                if late:
                    self._tools_changed()
                async for _ in changes:
                    pass
        except Exception as error:
            logger.debug("%s does not tell of changes: %s", self._port.extension_id, innermost(error))
        finally:
            confirmed.set()

    async def _list(self, client: Client) -> None:
        """List the tools; what was known before stays if that is not possible."""
        try:
            with trio.fail_after(LIST_S):
                offered = read_tools(await self._pages(client))
        except (MCPError, Malformed, trio.TooSlowError, ValueError) as error:
            self.list_problem = "its tools could not be listed: " + _words(error)
            logger.info("%s: %s", self._port.extension_id, self.list_problem)
        else:
            self.list_problem = None
            self._on_tools(offered)
        self.listed.set()

    async def _pages(self, client: Client) -> list[list[Raw]]:
        pages: list[list[Raw]] = []
        params: types.PaginatedRequestParams | None = None
        seen: set[str] = set()
        size = 0
        while len(pages) < MAX_PAGES:
            slot = Slot()
            with carrying(slot):
                page = await client.session.list_tools(params=params)
            pages.append(raw_tools(slot.result or b""))
            size += len(slot.result or b"")
            cursor = page.next_cursor
            if cursor is None or cursor in seen or size > 2 * MAX_DEFINITION_BYTES:
                break
            seen.add(cursor)
            params = types.PaginatedRequestParams(cursor=cursor)
        return pages
