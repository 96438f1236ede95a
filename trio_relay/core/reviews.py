"""Writes that wait for a person's decision: a table of steps, and the one right to execute.

waiting ─approve─▶ approved ─claim─▶ claimed
   └── deny, cancel, time out ──┴─▶ denied, cancelled, timed out

Only `claim` allows an execution, and it succeeds once. Nothing leads out of the other ends, so a call that was
cancelled or timed out is never executed afterwards, whatever is approved later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

MAX_WAITING_PER_CALLER = 30
"""More would only be refused by the write limiter later."""

KEPT = 100
"""Decided reviews that can still be asked about."""


class State(Enum):
    WAITING = "waiting"
    APPROVED = "approved"
    CLAIMED = "claimed"  # handed out for execution, once
    DENIED = "denied"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"


class Event(Enum):
    APPROVE = "approve"
    DENY = "deny"
    CANCEL = "cancel"
    TIME_OUT = "time-out"
    CLAIM = "claim"


STEPS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.APPROVE): State.APPROVED,
    (State.APPROVED, Event.CLAIM): State.CLAIMED,
    **{
        (before, event): after
        for before in (State.WAITING, State.APPROVED)
        for event, after in (
            (Event.DENY, State.DENIED),
            (Event.CANCEL, State.CANCELLED),
            (Event.TIME_OUT, State.TIMED_OUT),
        )
    },
}
"""Any other step changes nothing."""

OPEN = (State.WAITING, State.APPROVED)


@dataclass(slots=True, eq=False)
class Review:
    """One write that waits.

    Attributes:
        deadline: On the clock of `Reviews`; None waits for ever. From then on it has timed out.
        arguments: For the person who decides; JSON text, cut by whoever files it. Never written to a file.
        since: ISO-8601, UTC; for display.
        where: What it would change, for display.
        wake: Called at every change of `state`.
    """

    review_id: str
    sender_id: str
    tool: str
    deadline: float | None
    wake: Callable[[], None]
    arguments: str = ""
    since: str = ""
    where: str = ""
    state: State = field(default=State.WAITING)


class TooManyReviews(Exception):
    """This caller has as many calls waiting as it may."""


class Reviews:
    """All reviews of a relay. `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._reviews: dict[str, Review] = {}

    def __repr__(self) -> str:
        return f"<Reviews: {len(self.waiting())} waiting>"

    def file(
        self,
        sender_id: str,
        tool: str,
        deadline: float | None,
        wake: Callable[[], None],
        *,
        arguments: str = "",
        since: str = "",
        where: str = "",
    ) -> Review:
        """Let a write wait. Raises `TooManyReviews`."""
        mine = [review for review in self._reviews.values() if review.sender_id == sender_id and review.state in OPEN]
        if len(mine) >= MAX_WAITING_PER_CALLER:
            raise TooManyReviews(sender_id)
        review = Review(secrets.token_hex(6), sender_id, tool, deadline, wake, arguments, since, where)
        self._reviews[review.review_id] = review
        return review

    def step(self, review_id: str, event: Event, now: float) -> bool:
        """Take a step. Whatever comes at or after the deadline, the review has timed out first.

        Returns:
            Whether the step was taken. False for an unknown id and for a step the table does not have.
        """
        review = self._reviews.get(review_id)
        if review is None:
            return False
        if review.deadline is not None and now >= review.deadline and event is not Event.TIME_OUT:
            self._take(review, Event.TIME_OUT)
        return self._take(review, event)

    def claim(self, review: Review, now: float) -> bool:
        """Whether the write may be executed, right now and only this time."""
        return self.step(review.review_id, Event.CLAIM, now)

    def end_all(self) -> None:
        """Cancel whatever is open: the relay leaves, or another one takes over."""
        for review in list(self._reviews.values()):
            self._take(review, Event.CANCEL)

    def state_of(self, review_id: str) -> State | None:
        """None for an id that is unknown, or decided so long ago that it is forgotten."""
        review = self._reviews.get(review_id)
        return None if review is None else review.state

    def waiting(self) -> list[Review]:
        """What a person can decide about, oldest first."""
        return [review for review in self._reviews.values() if review.state is State.WAITING]

    def _take(self, review: Review, event: Event) -> bool:
        after = STEPS.get((review.state, event))
        if after is None:
            return False
        review.state = after
        if after not in OPEN:
            self._reviews[review.review_id] = self._reviews.pop(review.review_id)  # in the order of their ends
            self._forget()
        review.wake()
        return True

    def _forget(self) -> None:
        # Ids are random and never used again, so that a forgotten one can only ever be unknown.
        done = [review_id for review_id, review in self._reviews.items() if review.state not in OPEN]
        for review_id in done[:-KEPT]:
            del self._reviews[review_id]
