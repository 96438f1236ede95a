"""The way of one tool call of a host extension: policy, review, write limit, audit, and only then the execution.

Everything is asked anew for every call. Files are read and written in threads; a line that was begun is always
finished, whatever is cancelled meanwhile. Knows nothing of the MCP SDK.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec
import trio

from trio_relay.core.limiter import WriteLimiter, refusal_text
from trio_relay.core.policy import REASONS, Policy, Refusal, Verdict, decide
from trio_relay.core.reviews import Event, Review, Reviews, State, TooManyReviews
from trio_relay.core.text import tidy
from trio_relay.errors import NotSent, TimedOut, innermost
from trio_relay.extensions.audit import AuditLog, NotRecorded, OpenEntry, Outcome, OutcomeNotRecorded
from trio_relay.extensions.store import ProviderStore, ReviewRow, StoreProblem

logger = logging.getLogger(__name__)

MAX_SHOWN_ARGUMENTS = 2_000
"""Characters of the arguments that the person who decides is shown. They stay in memory."""
MAX_SHOWN_TOOL = 200

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a tool is at this moment.

    Attributes:
        write: Whether it counts as one that changes something; true unless its `readOnlyHint` is true.
        target: sourceId of the tab it would reach; empty where there is none.
        where: The same for a person who decides: title and origin.
    """

    write: bool = True
    target: str = ""
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """One tool call.

    Attributes:
        sender: Extension id, as the browser supplied it.
        tool: Name as the caller wrote it.
        arguments: JSON text of them.
        facts: Looks the tool up. Called right before each decision; must not wait.
    """

    sender: str
    tool: str
    arguments: bytes
    facts: Callable[[], Facts]


class Refused(NotSent):
    """The call was not executed. The message is for its caller, `why` for the audit log."""

    def __init__(self, why: Refusal, text: str | None = None) -> None:
        super().__init__(text or REASONS[why])
        self.why = why


class WaitingReview(msgspec.Struct, frozen=True):
    """A write that waits for a decision, as the person who decides sees it.

    Attributes:
        since: ISO-8601, UTC.
        arguments: JSON text, at most 2000 characters of it.
        where: Title and origin of the tab it would change; empty where there is none.
    """

    review_id: str
    sender_id: str
    tool: str
    since: str
    arguments: str
    where: str = ""


_ENDS = {
    State.DENIED: Refusal.REVIEW_DENIED,
    State.CANCELLED: Refusal.CANCELLED,
    State.TIMED_OUT: Refusal.REVIEW_TIMED_OUT,
}
_DECIDED = {
    State.CLAIMED: "was approved before, and has been executed",
    State.APPROVED: "is approved already",
    State.DENIED: "was turned down before",
    State.CANCELLED: "was cancelled by its caller and will never be executed",
    State.TIMED_OUT: "has timed out and will never be executed",
}


class Gate:
    """All calls of all callers pass here.

    Args:
        timeout: Seconds a write waits for a decision at most; None for as long as its caller does.
        clock: Monotonic, in seconds; None for trio's.
    """

    def __init__(
        self,
        store: ProviderStore,
        audit: AuditLog,
        *,
        timeout: float | None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._audit = audit
        self._timeout = timeout
        self._now = clock or trio.current_time
        self._limiter = WriteLimiter()
        self._reviews = Reviews()
        self._showing = trio.Lock()
        # One at a time: the log has one lock, and threads that poll for it would keep each other from it.
        self._one_writer = trio.CapacityLimiter(1)

    def __repr__(self) -> str:
        return f"<Gate: {self._reviews!r}, {self._limiter!r}>"

    async def policy(self) -> Policy:
        """The policy of this moment."""
        return await trio.to_thread.run_sync(self._store.policy)

    async def call(
        self, asked: Asked, execute: Callable[[], Awaitable[_Result]], failed: Callable[[_Result], bool]
    ) -> _Result:
        """Execute a call if it may be, at most once.

        Args:
            execute: Does it. What it raises goes on to the caller of this method.
            failed: Whether a result says that the tool failed.

        Raises:
            Refused: it was not executed.
            NotRecorded: it was not executed, as the audit log cannot be written.
            OutcomeNotRecorded: it was executed.
        """
        policy = await self.policy()
        facts = asked.facts()
        verdict = decide(policy, asked.sender, write=facts.write)
        if not facts.write:
            if isinstance(verdict, Refusal):
                raise Refused(verdict)
            await trio.lowlevel.checkpoint_if_cancelled()  # a thread that ends does not tell
            return await execute()  # nothing waits between the decision and this
        try:
            await self._admit(asked, facts, verdict)
            entry = await self._in_thread(
                partial(self._audit.intent, asked.tool, asked.sender, facts.target, asked.arguments)
            )
        except Refused as refused:
            raise await self._record_refusal(asked, facts, refused) from None
        except trio.Cancelled:
            await self._record_refusal(asked, facts, Refused(Refusal.CANCELLED))
            raise
        return await self._execute(entry, partial(_require_same_target, asked, facts), execute, failed)

    async def _admit(self, asked: Asked, facts: Facts, verdict: Verdict) -> None:
        """Return when a write may be executed now; it is counted then. Raises `Refused`."""
        if verdict == "review":
            await self._review(asked, facts)
        elif isinstance(verdict, Refusal):
            raise Refused(verdict)
        wait = self._limiter.take(asked.sender, self._now())
        if wait > 0.0:
            raise Refused(Refusal.RATE_LIMITED, refusal_text(wait))

    async def _review(self, asked: Asked, facts: Facts) -> None:
        """Return when a person has approved, and nothing has changed that would forbid it. Raises `Refused`."""
        woken = trio.Event()
        try:
            review = self._reviews.file(
                asked.sender,
                tidy(asked.tool, MAX_SHOWN_TOOL),
                None if self._timeout is None else self._now() + self._timeout,
                woken.set,
                arguments=tidy(asked.arguments.decode(errors="replace"), MAX_SHOWN_ARGUMENTS),
                since=datetime.now(UTC).isoformat(timespec="seconds"),
                where=facts.where,
            )
        except TooManyReviews:
            raise Refused(Refusal.REVIEW_FULL) from None
        try:
            await self._show()
            with trio.move_on_after(float("inf") if self._timeout is None else self._timeout):
                await woken.wait()
            if not woken.is_set():
                self._reviews.step(review.review_id, Event.TIME_OUT, self._now())
            if review.state is State.APPROVED:
                await self._check_again(asked, facts)
            if not self._reviews.claim(review, self._now()):
                raise Refused(_ENDS[review.state])
        finally:
            self._reviews.step(review.review_id, Event.CANCEL, self._now())
            with trio.CancelScope(shield=True):
                await self._show()

    async def _check_again(self, asked: Asked, before: Facts) -> None:
        """Switches and tabs may have changed while the call waited."""
        policy = await self.policy()
        verdict = decide(policy, asked.sender, write=True)
        if isinstance(verdict, Refusal):
            raise Refused(verdict)
        _require_same_target(asked, before)

    async def _execute(
        self,
        entry: OpenEntry,
        check: Callable[[], None],
        execute: Callable[[], Awaitable[_Result]],
        failed: Callable[[_Result], bool],
    ) -> _Result:
        try:
            # Cancelled while the line was written? An execution may begin without a pause that would notice.
            await trio.lowlevel.checkpoint_if_cancelled()
            check()  # the disk may have taken its time
            result = await execute()
        except BaseException as error:
            try:
                await self._close(entry, _outcome_of(error))
            except OutcomeNotRecorded as problem:
                logger.error("%s", problem)
            raise
        await self._close(entry, Outcome.TOOL_ERROR if failed(result) else Outcome.OK)
        return result

    async def _close(self, entry: OpenEntry, outcome: Outcome) -> None:
        with trio.CancelScope(shield=True):
            await self._in_thread(partial(entry.outcome, outcome))

    async def _record_refusal(self, asked: Asked, facts: Facts, refused: Refused) -> Refused:
        """Record it. Returns what the caller is told, which also says so if that was not possible."""
        record = partial(self._audit.refused, asked.tool, asked.sender, facts.target, asked.arguments, refused.why)
        try:
            with trio.CancelScope(shield=True):
                await self._in_thread(record)
        except NotRecorded as problem:
            logger.error("%s", problem)
            return Refused(refused.why, f"{refused} {problem}")
        return refused

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        # Not abandoned when cancelled: once begun, it is waited for, and its result is not lost.
        return await trio.to_thread.run_sync(work, limiter=self._one_writer)

    # -- reviews

    def reviews(self) -> list[WaitingReview]:
        """What waits for a decision, oldest first."""
        return [_row(review) for review in self._reviews.waiting()]

    def decide(self, review_id: str, *, approve: bool) -> str:
        """Decide about a write that waits. Returns what came of it, in words."""
        done = self._reviews.step(review_id, Event.APPROVE if approve else Event.DENY, self._now())
        if done:
            return f"{review_id} is approved." if approve else f"{review_id} is turned down."
        state = self._reviews.state_of(review_id)
        if state is None:
            return f"There is no review {tidy(review_id, 40)!r}."
        return f"{review_id} {_DECIDED.get(state, 'cannot be decided now')}."

    def end_reviews(self) -> None:
        """Cancel whatever waits: nothing is executed that is approved from now on."""
        self._reviews.end_all()

    async def _show(self) -> None:
        """Tell other processes what waits. That it cannot be told changes nothing about the call."""
        async with self._showing:
            rows = tuple(ReviewRow(row.review_id, row.sender_id, row.tool, row.since) for row in self.reviews())
            try:
                await trio.to_thread.run_sync(self._store.show_reviews, rows)
            except StoreProblem as problem:
                logger.warning("%s", problem)


def _require_same_target(asked: Asked, before: Facts) -> None:
    """Raise `Refused` if the call would not reach the tab any more that was decided about, and recorded."""
    if asked.facts().target != before.target:
        raise Refused(
            Refusal.CANCELLED,
            "While the call waited, its tool came to belong to another tab, or the tab was reloaded. It was not "
            "executed: call again.",
        )


def _row(review: Review) -> WaitingReview:
    return WaitingReview(review.review_id, review.sender_id, review.tool, review.since, review.arguments, review.where)


def _outcome_of(error: BaseException) -> Outcome:
    cause = innermost(error)
    if isinstance(cause, (trio.Cancelled, Refused)):
        return Outcome.CANCELLED
    return Outcome.TIMED_OUT if isinstance(cause, TimedOut) else Outcome.FAILED
