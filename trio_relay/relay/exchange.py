"""One call over one socket: sent, waited for, given up. The same for a tab and for another relay."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import trio
from msgspec import Raw

from trio_relay.core.pending import OnProgress, PendingCalls
from trio_relay.core.results import CallResult, check_output, error_result, parse_result
from trio_relay.core.schema import first_violation
from trio_relay.core.tooldef import ToolDef
from trio_relay.errors import InvalidArguments, NotSent, RelayError, SourceLost
from trio_relay.links.outbox import Outbox
from trio_relay.wire.codec import has_infinite_number

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How calls go to one socket.

    Attributes:
        source_id: Whose answers count.
        outbox: Of the socket, or None once it is gone.
        frame: The message, made when its turn comes: gets the call id and the milliseconds left (None: no limit).
        cancel: The message that tells the other end to stop, from call id and reason; None if it would not
            understand.
    """

    source_id: str
    outbox: Callable[[], Outbox | None]
    frame: Callable[[str, int | None], bytes]
    cancel: Callable[[str, str], bytes | None]


def check_arguments(name: str, tool: ToolDef, args: Raw) -> None:
    """Raise `InvalidArguments` for what the tool's page could not take."""
    if has_infinite_number(bytes(args)):
        raise InvalidArguments(f"The arguments of {name!r} hold a number that is too large for a web page.")
    violation = first_violation(tool.input_schema, args)
    if violation is not None:
        raise InvalidArguments(f"The arguments of {name!r} do not match its inputSchema at {violation}")


def call_as_result(call: Callable[[], Awaitable[CallResult]]) -> Awaitable[CallResult]:
    """Make a call; whatever becomes of it, awaiting the outcome gives a result: errors become error results."""
    try:
        return _as_result(call())
    except RelayError as error:
        return _as_result(error)


async def _as_result(outcome: Awaitable[CallResult] | RelayError) -> CallResult:
    try:
        if isinstance(outcome, RelayError):
            raise outcome
        return await outcome
    except RelayError as error:
        return error_result(str(error))


class Exchange:
    """A call that has been sent, to be awaited once for its answer.

    Sending happens here and now, so calls reach the other end in the order they are made, without a task switch.
    Whoever stops waiting, for whatever reason, tells the other end to stop.

    Args:
        timeout: Seconds the other end is told it has; None for no limit.
        patience: Seconds more that we wait ourselves.
        timed_out: The error when they are over, given whether the call had been sent.
        ended: Called when the call is over, however it ended.

    Raises:
        NotSent: the other end is gone, or takes nothing. Awaiting raises any `RelayError`.
    """

    def __init__(
        self,
        pending: PendingCalls,
        way: Way,
        tool: ToolDef,
        args: Raw,
        *,
        timeout: float | None,
        patience: float,
        timed_out: Callable[[bool], RelayError],
        on_progress: OnProgress | None,
        ended: Callable[[], None],
    ) -> None:
        outbox = way.outbox()
        if outbox is None:
            raise NotSent("The connection to the browser has just gone, so the call was not sent; try again.")
        self._pending = pending
        self._way = way
        self._tool = tool
        self._timed_out = timed_out
        self._ended = ended
        self._end = None if timeout is None else trio.current_time() + timeout
        self._patience = patience
        self._waiting = trio.Event()
        self._call = pending.open(way.source_id, self._waiting.set, on_progress)
        try:
            self._ticket = outbox.put(self._frame, size=memoryview(args).nbytes)
        except NotSent:
            self._close()
            raise

    def _frame(self) -> bytes:
        left = None if self._end is None else max(1, round((self._end - trio.current_time()) * 1000))
        return self._way.frame(self._call.call_id, left)

    def _close(self) -> None:
        self._pending.close(self._call)
        self._ended()

    def __await__(self) -> Generator[Any, None, CallResult]:
        return self._outcome().__await__()

    async def _outcome(self) -> CallResult:
        call = self._call
        reason = "cancelled"
        try:
            with trio.CancelScope(deadline=float("inf") if self._end is None else self._end + self._patience):
                await self._waiting.wait()
            reason = "timeout"
        finally:
            if call.outcome is None:
                self._give_up(reason)
            self._close()
        if call.outcome is None:
            raise self._timed_out(self._ticket.sent)
        if isinstance(call.outcome, SourceLost) and not self._ticket.sent:
            raise NotSent(
                "The tab went away before the call was sent, so the tool did not run. Call webmcp_list_tools."
            )
        if isinstance(call.outcome, RelayError):
            raise call.outcome
        return check_output(parse_result(call.outcome), self._tool.output_schema)

    def _give_up(self, reason: str) -> None:
        outbox = self._way.outbox()
        if outbox is None or outbox.take_back(self._ticket):
            return
        message = self._way.cancel(self._call.call_id, reason)
        try:
            if message is not None:
                outbox.put(message)
        except NotSent:
            logger.debug("the other end reads nothing; it was not told that call %s ended", self._call.call_id)
