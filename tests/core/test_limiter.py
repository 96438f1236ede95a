"""D02: never more than 30 writes of a caller in any 60 seconds, whatever the clock does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.core.limiter import MAX_WRITES, WINDOW_S, WriteLimiter, refusal_text


def taken(limiter: WriteLimiter, caller: str, now: float, times: int) -> int:
    """How many of some writes at one moment may be executed."""
    return sum(limiter.take(caller, now) == 0.0 for _ in range(times))


def test_thirty_at_59_s_leave_nothing_at_61_s() -> None:
    limiter = WriteLimiter()
    assert taken(limiter, "a", 59.0, 30) == 30
    assert taken(limiter, "a", 61.0, 30) == 0
    assert limiter.wait_s("a", 61.0) == 58.0
    assert taken(limiter, "a", 118.999, 1) == 0
    assert taken(limiter, "a", 119.0, 31) == 30


def test_of_31_in_parallel_one_is_told_to_wait_a_minute() -> None:
    limiter = WriteLimiter()
    waits = [limiter.take("a", 1_000.0) for _ in range(31)]
    assert waits == [0.0] * 30 + [60.0]


def test_each_caller_has_its_own_window() -> None:
    limiter = WriteLimiter()
    assert taken(limiter, "a", 0.0, 31) == 30
    assert taken(limiter, "b", 0.0, 31) == 30


def test_a_refused_write_does_not_count() -> None:
    limiter = WriteLimiter()
    taken(limiter, "a", 0.0, 1_000)
    assert taken(limiter, "a", 60.0, 31) == 30


def test_looking_counts_nothing() -> None:
    limiter = WriteLimiter()
    assert [limiter.wait_s("a", 0.0) for _ in range(100)] == [0.0] * 100
    assert taken(limiter, "a", 0.0, 31) == 30


def test_a_clock_that_goes_back_makes_no_room() -> None:
    limiter = WriteLimiter()
    assert taken(limiter, "a", 3_600.0, 30) == 30
    assert limiter.take("a", 0.0) == 60.0
    assert limiter.take("a", 3_659.0) == 1.0
    assert limiter.take("a", 3_660.0) == 0.0


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_a_clock_that_is_not_finite_is_a_mistake(now: float) -> None:
    limiter = WriteLimiter()
    taken(limiter, "a", 0.0, 30)
    with pytest.raises(ValueError, match="finite"):
        limiter.take("a", now)
    assert limiter.take("a", 1.0) == 59.0


def test_callers_who_are_quiet_are_forgotten() -> None:
    limiter = WriteLimiter()
    for number in range(100):
        limiter.take(f"caller {number}", 0.0)
    limiter.take("last", 60.0)
    assert repr(limiter) == "<WriteLimiter: 1 writes of 1 callers>"


@pytest.mark.parametrize(
    ("wait", "words"),
    [(0.001, "in 1 second."), (1.0, "in 1 second."), (1.001, "in 2 seconds."), (60.0 + 1e-10, "in 60 sec")],
)
def test_the_caller_reads_when_to_try_again_never_too_early(wait: float, words: str) -> None:
    assert words in refusal_text(wait)
    assert "was not executed" in refusal_text(wait)


STEPS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.0, 29.9, 59.9, 60.0, -3_600.0]) | st.floats(-100, 100),
        st.integers(1, 40),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_limiter_agrees_with_a_count_of_everything(steps: list[tuple[str, float, int]]) -> None:
    limiter = WriteLimiter()
    clock, latest = 1_000.0, -math.inf
    history: dict[str, list[float]] = {"a": [], "b": []}
    for caller, delta, times in steps:
        clock += delta
        latest = max(latest, clock)
        for _ in range(times):
            recent = [at for at in history[caller] if at + WINDOW_S > latest]
            wait = limiter.take(caller, clock)
            assert (wait == 0.0) is (len(recent) < MAX_WRITES)
            if wait == 0.0:
                history[caller].append(latest)
            else:
                assert 0.0 < wait <= WINDOW_S + 1e-9
                assert wait == recent[-MAX_WRITES] + WINDOW_S - latest
    for times_of in history.values():
        for first, later in zip(times_of, times_of[MAX_WRITES:], strict=False):
            assert later >= first + WINDOW_S
