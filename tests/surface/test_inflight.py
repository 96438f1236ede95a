"""Keep-alive and page progress on a clock of our own: when, how often, in which order, and when no more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_relay.core.pending import Progress
from trio_relay.surface.inflight import (
    KEEP_ALIVE_S,
    MAX_WAITING_PROGRESS,
    PROGRESS_GAP_S,
    Call,
    InFlight,
    ProgressTeller,
    request_key,
)
from trio_relay.surface.lines import LineWriter


class Told:
    """What came out, with the time."""

    def __init__(self) -> None:
        self.start = trio.current_time()
        self.writer = LineWriter(self)
        self.teller = ProgressTeller(self.writer)
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self.gate: trio.Event | None = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        for line in bytes(data).splitlines():
            self.lines.append((trio.current_time() - self.start, json.loads(line)))

    async def aclose(self) -> None: ...

    def params(self, token: object) -> list[tuple[float, object]]:
        return [
            (round(at, 3), message["params"]["progress"])
            for at, message in self.lines
            if message.get("params", {}).get("progressToken") == token
        ]


@asynccontextmanager
async def telling() -> AsyncIterator[Told]:
    told = Told()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.writer.run)
        nursery.start_soon(told.teller.run_reports)
        nursery.start_soon(told.teller.run_keep_alive)
        yield told
        nursery.cancel_scope.cancel()


async def test_a_silent_page_is_covered_every_ten_seconds_counting_up(autojump_clock: MockClock) -> None:
    assert KEEP_ALIVE_S == 10
    async with telling() as told:
        told.teller.start(Call(1, b'"a"'))
        await trio.sleep(4)
        told.teller.start(Call(2, b"7"))
        told.teller.start(Call(3, None))
        await trio.sleep(31)
    assert told.params("a") == [(10, 1), (20, 2), (30, 3)]
    assert told.params(7) == [(14, 1), (24, 2), (34, 3)]
    assert len(told.lines) == 6, "a call without a token is told nothing"
    assert told.lines[0][1] == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": "a", "progress": 1, "message": "still waiting for the page"},
    }


@pytest.mark.parametrize("end", ["answered", "cancelled"])
async def test_there_is_no_keep_alive_after_the_end_of_a_call(autojump_clock: MockClock, end: str) -> None:
    async with telling() as told:
        call = Call(1, b"1")
        told.teller.start(call)
        await trio.sleep(15)
        if end == "answered":
            call.answered = True
        else:
            call.cancel()
        await trio.sleep(100)
    assert told.params(1) == [(10, 1)]


async def test_progress_of_the_page_takes_the_place_of_the_keep_alive(autojump_clock: MockClock) -> None:
    async with telling() as told:
        call = Call(1, b"1")
        told.teller.start(call)
        await trio.sleep(12)
        for value in (b"0.5", b"0.25", b"0.5", b"2.50", b"2"):
            told.teller.report(call, Progress(value, b"3", b'"m"'))
        await trio.sleep(100)
    # The page's first value may lie below ours; only its own have to increase.
    assert [value for _, value in told.params(1)] == [1, 0.5, 2.5]


async def test_page_progress_without_a_token_is_told_to_nobody(autojump_clock: MockClock) -> None:
    async with telling() as told:
        call = Call(1, None)
        told.teller.start(call)
        told.teller.report(call, Progress(b"1"))
        await told.teller.settle(call)
        await trio.sleep(100)
    assert told.lines == []


async def test_the_answer_waits_for_the_progress_and_a_moment_more(autojump_clock: MockClock) -> None:
    """The TypeScript client loses progress that comes in one read with the answer."""
    async with telling() as told:
        told.gate = trio.Event()
        call = Call(1, b"1")
        told.teller.start(call)
        for value in range(1, 6):
            told.teller.report(call, Progress(b"%d" % value))
        settled = trio.Event()

        async def settle() -> None:
            await told.teller.settle(call)
            settled.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle)
            await trio.sleep(5)
            assert not settled.is_set()
            told.gate.set()
        assert [value for _, value in told.params(1)] == [1, 2, 3, 4, 5]
        assert trio.current_time() - told.start >= 5 + PROGRESS_GAP_S


async def test_cancelling_drops_the_progress_that_waits(autojump_clock: MockClock) -> None:
    async with telling() as told:
        told.gate = trio.Event()
        call = Call(1, b"1")
        for value in range(1, 6):
            told.teller.report(call, Progress(b"%d" % value))
        await trio.testing.wait_all_tasks_blocked()
        call.cancel()
        told.gate.set()
        await trio.sleep(20)
    assert told.params(1) in ([], [(0, 1)]), "at most what was being written"


async def test_a_keep_alive_queued_behind_the_answer_is_dropped(autojump_clock: MockClock) -> None:
    """A client that does not read for a while gets the answer, and no progress after it."""
    async with telling() as told:
        told.gate = trio.Event()
        call = Call(1, b"1")
        told.teller.start(call)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.writer.write, b'{"other":1}\n')
            await trio.testing.wait_all_tasks_blocked()
            call.answered = True  # what Session does before it writes
            nursery.start_soon(told.writer.write, b'{"answer":1}\n', call.may_be_answered)
            await trio.sleep(35)
            told.gate.set()
    assert [message for _, message in told.lines] == [{"other": 1}, {"answer": 1}]


async def test_a_page_that_floods_a_client_that_does_not_read_is_bounded(autojump_clock: MockClock) -> None:
    async with telling() as told:
        told.gate = trio.Event()
        call = Call(1, b"1")
        for value in range(1, MAX_WAITING_PROGRESS + 1_000):
            told.teller.report(call, Progress(b"%d" % value))
        assert len(call.waiting) == MAX_WAITING_PROGRESS
        told.gate.set()
        await told.teller.settle(call)
    assert len(told.lines) == MAX_WAITING_PROGRESS


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"2", 2),
        (b'"2"', 2),
        (b'"02"', 2),
        (b'"-2"', -2),
        (b'"+2"', "+2"),
        (b'" 2"', " 2"),
        (b'""', ""),
        (b'"a"', "a"),
        ('"\u0662"'.encode(), "\u0662"),
        (b"9007199254740993", 9007199254740993),
        (b"1.0", None),
        (b"1e2", None),
        (b"null", None),
        (b"true", None),
        (b"[1]", None),
        (b"{}", None),
        (b"1e999", None),
        (b"9" * 5000, None),
    ],
)
def test_ids_are_matched_as_the_sdk_matches_them(text: bytes, key: object) -> None:
    assert request_key(text) == key


async def test_the_table_is_idle_when_all_kinds_of_requests_are_done() -> None:
    flight = InFlight()
    await flight.wait_idle()
    first, second = Call("a", None), Call("a", None)
    flight.add(first)
    flight.add(second)
    flight.add_other("x")
    flight.add_other("x")
    assert len(flight) == 4
    flight.cancel("a")
    assert (first.cancelled, second.cancelled) == (False, True)
    flight.cancel("unknown")
    flight.remove(second)
    flight.remove(first)
    flight.remove_other("x")
    flight.remove_other("unknown")
    assert len(flight) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flight.wait_idle)
        await trio.testing.wait_all_tasks_blocked()
        flight.cancel("x")
    assert len(flight) == 0
    assert flight.calls() == []
