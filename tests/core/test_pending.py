"""The table of pending calls: settled once, only by their own source, and empty when everybody has gone."""

from __future__ import annotations

import pytest
from msgspec import UNSET, Raw

from trio_relay.core.pending import MAX_MESSAGE_CHARS, PendingCall, PendingCalls, Progress, read_progress
from trio_relay.errors import RelayError, SourceLost


class Caller:
    """Counts how often it was woken."""

    def __init__(self) -> None:
        self.woken = 0
        self.progress: list[Progress] = []

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def pending() -> PendingCalls:
    return PendingCalls()


@pytest.fixture
def caller() -> Caller:
    return Caller()


@pytest.fixture
def call(pending: PendingCalls, caller: Caller) -> PendingCall:
    return pending.open("s1", caller.wake, caller.progress.append)


@pytest.mark.parametrize("outcome", [Raw(b"{}"), Raw(b"null"), UNSET, RelayError("x")])
def test_a_call_is_settled_once(
    pending: PendingCalls, caller: Caller, call: PendingCall, outcome: Raw | RelayError
) -> None:
    assert pending.settle("s1", call.call_id, outcome)
    assert call.outcome is outcome
    assert not pending.settle("s1", call.call_id, Raw(b"[]"))
    assert call.outcome is outcome
    assert caller.woken == 1


def test_only_its_own_source_can_settle_it(pending: PendingCalls, caller: Caller, call: PendingCall) -> None:
    assert not pending.settle("s2", call.call_id, Raw(b"{}"))
    assert not pending.settle("", call.call_id, Raw(b"{}"))
    assert not pending.progress("s2", call.call_id, Progress(b"1"))
    assert call.outcome is None
    assert (caller.woken, caller.progress) == (0, [])
    other = pending.open("s2", caller.wake)
    assert not pending.settle("s2", call.call_id, Raw(b"{}"))
    assert other.outcome is None


@pytest.mark.parametrize("call_id", ["", "0", "__proto__", "1"])
def test_an_unknown_call_is_nobodys(pending: PendingCalls, caller: Caller, call: PendingCall, call_id: str) -> None:
    assert not pending.settle("s1", call_id, Raw(b"{}"))
    assert not pending.progress("s1", call_id, Progress(b"1"))
    assert caller.woken == 0


def test_a_late_answer_finds_nothing(pending: PendingCalls, caller: Caller, call: PendingCall) -> None:
    pending.close(call)
    assert not pending.settle("s1", call.call_id, Raw(b"{}"))
    assert not pending.progress("s1", call.call_id, Progress(b"1"))
    assert call.outcome is None
    assert (caller.woken, len(pending)) == (0, 0)
    pending.close(call)


def test_progress_reaches_the_caller_until_the_call_is_settled(
    pending: PendingCalls, caller: Caller, call: PendingCall
) -> None:
    steps = [Progress(b"1"), Progress(b"2", b"3", b'"m"')]
    assert all(pending.progress("s1", call.call_id, step) for step in steps)
    pending.settle("s1", call.call_id, Raw(b"{}"))
    assert not pending.progress("s1", call.call_id, Progress(b"3"))
    assert caller.progress == steps
    deaf = pending.open("s1", caller.wake)
    assert pending.progress("s1", deaf.call_id, Progress(b"1"))


def test_a_lost_source_fails_all_its_calls_and_no_others(pending: PendingCalls) -> None:
    callers = [Caller() for _ in range(4)]
    mine = [pending.open("s1", caller.wake) for caller in callers[:3]]
    other = pending.open("s2", callers[3].wake)
    pending.settle("s1", mine[0].call_id, Raw(b"{}"))
    lost = SourceLost("gone")
    pending.fail_source("s1", lost)
    assert [call.outcome for call in mine[1:]] == [lost, lost]
    assert mine[0].outcome == Raw(b"{}")
    assert other.outcome is None
    assert [caller.woken for caller in callers] == [1, 1, 1, 0]
    assert pending.fail_source("unknown", lost) == 0


def test_a_caller_may_leave_while_it_is_told(pending: PendingCalls) -> None:
    calls: list[PendingCall] = []

    def leave() -> None:
        for call in calls:
            pending.close(call)

    calls += [pending.open("s1", leave) for _ in range(5)]
    pending.fail_source("s1", SourceLost("gone"))
    assert len(pending) == 0


def test_the_table_is_empty_when_everybody_has_gone(pending: PendingCalls, caller: Caller) -> None:
    """A26."""
    calls = [pending.open(f"s{number % 7}", caller.wake) for number in range(1000)]
    assert len(pending) == 1000
    assert len({call.call_id for call in calls}) == 1000
    for call in calls[::2]:
        pending.settle(call.source_id, call.call_id, Raw(b"{}"))
    for call in calls:
        pending.close(call)
    assert len(pending) == 0
    assert pending._by_source == {}


def test_another_process_uses_other_call_ids(caller: Caller) -> None:
    first, second = (PendingCalls().open("s", caller.wake).call_id for _ in range(2))
    assert first != second


def test_a_long_progress_message_is_cut_and_an_endless_number_is_none() -> None:
    progress = read_progress(Raw(b"1.50"), Raw(b"9" * 100_000), Raw(b'"' + b"x" * 1_000_000 + b'"'))
    assert progress == Progress(b"1.50", None, b'"' + b"x" * MAX_MESSAGE_CHARS + b'"')
    assert read_progress(Raw(b"1" * 100_000), UNSET, UNSET) is None
