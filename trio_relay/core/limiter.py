"""How many writes a caller may make: 30 in any 60 seconds. Time comes in as an argument.

A window holds its beginning and not its end: a write at 0 s counts until just before 60 s.
"""

from __future__ import annotations

import math
from collections import deque

MAX_WRITES = 30
WINDOW_S = 60.0
"""Numbers of the protocol: calls per caller, and seconds."""


class WriteLimiter:
    """A sliding window per caller.

    `now` is in seconds of a monotonic clock. A clock that goes back, against its promise, is taken to stand still: it
    never makes room. One that is not finite raises `ValueError`.
    """

    def __init__(self) -> None:
        self._writes: dict[str, deque[float]] = {}
        self._now = -math.inf

    def __repr__(self) -> str:
        return f"<WriteLimiter: {sum(map(len, self._writes.values()))} writes of {len(self._writes)} callers>"

    def wait_s(self, caller: str, now: float) -> float:
        """Seconds until this caller may write again; 0.0 when it may now. Nothing is counted."""
        now = self._advance(now)
        writes = self._writes.get(caller)
        return 0.0 if writes is None or len(writes) < MAX_WRITES else writes[0] + WINDOW_S - now

    def take(self, caller: str, now: float) -> float:
        """Count one write, to be called right before it is executed.

        Returns:
            0.0 when it may be executed. Else the seconds until the next one may, and nothing is counted.
        """
        wait = self.wait_s(caller, now)
        if wait <= 0.0:
            self._writes.setdefault(caller, deque()).append(self._now)
            return 0.0
        return wait

    def _advance(self, now: float) -> float:
        """Go to `now`, and forget what no window can hold any more, of every caller."""
        if not math.isfinite(now):
            raise ValueError("the clock must be finite")
        self._now = max(self._now, now)
        for caller, writes in list(self._writes.items()):
            # The same sum as in `wait_s`, so that rounding can never leave a full window with no time to wait.
            while writes and writes[0] + WINDOW_S <= self._now:
                writes.popleft()
            if not writes:
                del self._writes[caller]
        return self._now


def refusal_text(wait_s: float) -> str:
    """What a caller over the limit reads: when to try again, in whole seconds, rounded up."""
    seconds = max(1, math.ceil(round(wait_s, 6)))  # a sum of floats can be a hair above 60
    unit = "second" if seconds == 1 else "seconds"
    return (
        f"Too many calls that change something: {MAX_WRITES} per {WINDOW_S:.0f} seconds are allowed. "
        f"This one was not executed. Try again in {seconds} {unit}."
    )
