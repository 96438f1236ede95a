"""One call over one socket: sent, waited for, given up. The same for a tab and for another relay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio
from msgspec import Raw

from trio_relay.core.pending import OnProgress, PendingCall, PendingCalls
from trio_relay.core.results import CallResult, check_output, parse_result
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


async def exchange(
    pending: PendingCalls,
    way: Way,
    tool: ToolDef,
    args: Raw,
    *,
    timeout: float | None,
    patience: float,
    timed_out: Callable[[bool], RelayError],
    on_progress: OnProgress | None,
) -> CallResult:
    """Send a call and wait for its answer. Whoever stops waiting, for whatever reason, tells the other end to stop.

    Args:
        timeout: Seconds the other end is told it has; None for no limit.
        patience: Seconds more that we wait ourselves.
        timed_out: The error when they are over, given whether the call had been sent.

    Raises:
        RelayError: no answer, and why.
    """
    waiting = trio.Event()
    call = pending.open(way.source_id, waiting.set, on_progress)
    try:
        sent = await _wait(call, way, memoryview(args).nbytes, waiting, timeout, patience)
    finally:
        pending.close(call)
    if call.outcome is None:
        raise timed_out(sent)
    if isinstance(call.outcome, SourceLost) and not sent:
        raise NotSent(f"{call.outcome} The call had not been sent, so the tool did not run.")
    if isinstance(call.outcome, RelayError):
        raise call.outcome
    return check_output(parse_result(call.outcome), tool.output_schema)


async def _wait(
    call: PendingCall, way: Way, size: int, waiting: trio.Event, timeout: float | None, patience: float
) -> bool:
    """Returns, after an answer or in vain, whether the call was sent."""
    end = None if timeout is None else trio.current_time() + timeout

    def frame() -> bytes:
        left = None if end is None else max(1, round((end - trio.current_time()) * 1000))
        return way.frame(call.call_id, left)

    outbox = way.outbox()
    if outbox is None:
        raise NotSent("The connection to the browser has just gone, so the call was not sent; try again.")
    ticket = outbox.put(frame, size=size)
    reason = "cancelled"
    try:
        with trio.CancelScope(deadline=float("inf") if end is None else end + patience):
            await waiting.wait()
        reason = "timeout"
    finally:
        outbox = way.outbox()
        if call.outcome is None and outbox is not None and not outbox.take_back(ticket):
            message = way.cancel(call.call_id, reason)
            try:
                if message is not None:
                    outbox.put(message)
            except NotSent:
                logger.debug("the other end reads nothing; it was not told that call %s ended", call.call_id)
    return ticket.sent
