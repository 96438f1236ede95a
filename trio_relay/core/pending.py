"""Calls that wait for a tab's answer, and nothing else about them.

A call is settled at most once, only by the source it was sent to, and never after its caller has gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from trio_relay.errors import RelayError
from trio_relay.wire.codec import Maybe, as_number, as_text, encode, one_line, raw_bytes
from trio_relay.wire.mcp import PlainResult

MAX_MESSAGE_CHARS = 10_000
"""How much of the message of a progress frame is told. Thousands may wait for a client that does not read, and a line
above 10 MiB would end its session."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One `progress` frame of a page. The members are JSON texts, as the page wrote them."""

    progress: bytes
    total: bytes | None = None
    message: bytes | None = None


def read_progress(value: Maybe, total: Maybe, message: Maybe) -> Progress | None:
    """The members of a progress frame, whoever sent it. None without a usable value; odd optional ones are left out."""
    number, text = as_number(value), as_text(message)
    if number is None:
        return None
    told = raw_bytes(message) if text is not None else None
    if text is not None and len(text) > MAX_MESSAGE_CHARS:
        told = one_line(encode(text[:MAX_MESSAGE_CHARS]))
    return Progress(number, as_number(total), told)


OnProgress = Callable[[Progress], None]

Outcome = Maybe | PlainResult | RelayError
"""The result of the page, as `core.results.parse_result` takes it, or what went wrong instead."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call on its way. `wake` is called when it is settled; `outcome` is then set."""

    call_id: str
    source_id: str
    wake: Callable[[], None]
    on_progress: OnProgress | None = None
    outcome: Outcome | None = field(default=None)


class PendingCalls:
    """The table of pending calls, by source.

    Call ids carry a random prefix: a browser that still works on a call of an earlier relay process cannot
    answer one of ours by accident.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._numbers = count(1)
        self._by_source: dict[str, dict[str, PendingCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_source.values()))

    def open(self, source_id: str, wake: Callable[[], None], on_progress: OnProgress | None = None) -> PendingCall:
        call = PendingCall(f"{self._prefix}-{next(self._numbers)}", source_id, wake, on_progress)
        self._by_source.setdefault(source_id, {})[call.call_id] = call
        return call

    def close(self, call: PendingCall) -> None:
        """The caller no longer waits; a later answer finds nothing."""
        calls = self._by_source.get(call.source_id, {})
        calls.pop(call.call_id, None)
        if not calls:
            self._by_source.pop(call.source_id, None)

    def settle(self, source_id: str, call_id: str, outcome: Outcome) -> bool:
        """Hand an outcome to the waiting call. False if this source has no such call (late, or not its own)."""
        call = self._by_source.get(source_id, {}).get(call_id)
        if call is None or call.outcome is not None:
            return False
        call.outcome = outcome
        call.wake()
        return True

    def progress(self, source_id: str, call_id: str, progress: Progress) -> bool:
        """Hand progress to the caller. False if nobody waits for this call of this source."""
        call = self._by_source.get(source_id, {}).get(call_id)
        if call is None or call.outcome is not None:
            return False
        if call.on_progress is not None:
            call.on_progress(progress)
        return True

    def fail_source(self, source_id: str, error: RelayError) -> int:
        """Fail every call that waits for this source, at once. Returns how many there were."""
        calls = list(self._by_source.get(source_id, {}).values())
        for call in calls:
            self.settle(source_id, call.call_id, error)
        return len(calls)
