"""D01: what waits for a decision is executed at most once, and never after it was cancelled or timed out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.core.reviews import (
    KEPT,
    MAX_WAITING_PER_CALLER,
    STEPS,
    Event,
    Review,
    Reviews,
    State,
    TooManyReviews,
)

CALLER, OTHER = "a" * 32, "b" * 32


def filed(reviews: Reviews, deadline: float | None = 10.0, caller: str = CALLER) -> Review:
    return reviews.file(caller, "save", deadline, lambda: None)


LEGAL = {
    ("waiting", "approve", "approved"),
    ("waiting", "deny", "denied"),
    ("waiting", "cancel", "cancelled"),
    ("waiting", "time-out", "timed-out"),
    ("approved", "claim", "claimed"),
    ("approved", "deny", "denied"),
    ("approved", "cancel", "cancelled"),
    ("approved", "time-out", "timed-out"),
}


def test_the_table_has_these_steps_and_no_others() -> None:
    assert {(a.value, e.value, b.value) for (a, e), b in STEPS.items()} == LEGAL


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_a_step_that_is_not_in_the_table_changes_nothing(state: State, event: Event) -> None:
    reviews = Reviews()
    review = filed(reviews)
    review.state = state
    assert reviews.step(review.review_id, event, 0.0) is ((state, event) in STEPS)
    assert review.state is STEPS.get((state, event), state)


@pytest.mark.parametrize("end", [Event.CANCEL, Event.TIME_OUT, Event.DENY])
def test_what_has_ended_and_is_approved_twice_afterwards_is_never_executed(end: Event) -> None:
    reviews = Reviews()
    review = filed(reviews)
    assert reviews.step(review.review_id, end, 1.0)
    assert [reviews.step(review.review_id, Event.APPROVE, 2.0) for _ in range(2)] == [False, False]
    assert not reviews.claim(review, 3.0)


def test_an_approval_after_the_deadline_comes_too_late_even_if_no_timer_has_run() -> None:
    reviews = Reviews()
    late, slow = filed(reviews), filed(reviews)
    assert not reviews.step(late.review_id, Event.APPROVE, 10.0)
    assert reviews.step(slow.review_id, Event.APPROVE, 9.9)
    assert not reviews.claim(slow, 10.0)
    assert late.state is slow.state is State.TIMED_OUT


def test_approving_twice_is_one_execution() -> None:
    reviews = Reviews()
    review = filed(reviews, None)
    assert reviews.step(review.review_id, Event.APPROVE, 1.0)
    assert not reviews.step(review.review_id, Event.APPROVE, 1.0)
    assert reviews.claim(review, 2.0)
    assert not reviews.step(review.review_id, Event.APPROVE, 3.0)
    assert not reviews.claim(review, 1e9)


def test_an_unknown_id_is_no_step() -> None:
    reviews = Reviews()
    assert not reviews.step("nobody", Event.APPROVE, 0.0)
    assert reviews.state_of("nobody") is None


def test_whoever_waits_is_woken_at_each_change_and_only_then() -> None:
    woken: list[str] = []
    reviews = Reviews()
    review = reviews.file(CALLER, "save", None, lambda: woken.append("!"))
    reviews.step(review.review_id, Event.CLAIM, 0.0)
    assert woken == []
    reviews.step(review.review_id, Event.APPROVE, 0.0)
    reviews.step(review.review_id, Event.APPROVE, 0.0)
    assert woken == ["!"]


def test_one_caller_cannot_fill_the_queue_of_another() -> None:
    reviews = Reviews()
    mine = [filed(reviews) for _ in range(MAX_WAITING_PER_CALLER)]
    with pytest.raises(TooManyReviews):
        filed(reviews)
    filed(reviews, caller=OTHER)
    reviews.step(mine[0].review_id, Event.DENY, 0.0)
    filed(reviews)
    assert repr(reviews) == "<Reviews: 31 waiting>"


def test_when_the_relay_leaves_everything_open_is_cancelled() -> None:
    reviews = Reviews()
    waiting, approved, claimed = filed(reviews), filed(reviews), filed(reviews)
    for review in (approved, claimed):
        reviews.step(review.review_id, Event.APPROVE, 0.0)
    assert reviews.claim(claimed, 0.0)
    reviews.end_all()
    assert [review.state for review in (waiting, approved, claimed)] == [
        State.CANCELLED,
        State.CANCELLED,
        State.CLAIMED,
    ]
    assert reviews.waiting() == []


def test_old_decisions_are_forgotten_and_what_waits_is_not() -> None:
    reviews = Reviews()
    first = filed(reviews)
    done = [filed(reviews) for _ in range(1)]
    for _ in range(2 * KEPT):
        done.append(filed(reviews))
        reviews.step(done[-1].review_id, Event.CANCEL, 0.0)
    reviews.step(done[0].review_id, Event.DENY, 0.0)
    assert reviews.state_of(done[0].review_id) is State.DENIED  # decided last, though filed early
    assert reviews.state_of(done[1].review_id) is None
    assert reviews.waiting() == [first]
    assert not reviews.claim(done[1], 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(Event), st.floats(0.0, 5.0)), max_size=40),
    st.lists(st.none() | st.floats(0.0, 60.0), min_size=3, max_size=3),
)
def test_in_any_order_of_events_an_execution_was_approved_in_time_and_is_the_only_one(
    events: list[tuple[int, Event, float]], deadlines: list[float | None]
) -> None:
    reviews = Reviews()
    mine = [filed(reviews, deadline) for deadline in deadlines]
    now = 0.0
    told: list[list[tuple[Event, float]]] = [[], [], []]
    for which, event, delta in events:
        now += delta
        done = reviews.step(mine[which].review_id, event, now)
        if event is Event.CLAIM and done:
            before = [earlier for earlier, _ in told[which]]
            deadline = deadlines[which]
            assert deadline is None or now < deadline
            assert Event.APPROVE in before
            assert not {Event.DENY, Event.CANCEL, Event.TIME_OUT} & set(before)
            assert mine[which].state is State.CLAIMED
            claims = [at for at, (earlier, _) in enumerate(told[which]) if earlier is Event.CLAIM]
            assert all(Event.APPROVE not in before[:at] for at in claims)  # an earlier claim had come too early
        told[which].append((event, now))
