"""The way of one write: switches, the write limit, reviews (D01, D02), and the audit log read afterwards (D03)."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client

from tests.extensions.setting import ERAS, HOST, OTHER, PATIENCE, TARGET, Desk, eventually, refused, text_of
from trio_relay.core.limiter import MAX_WRITES, WINDOW_S
from trio_relay.core.policy import REASONS, Refusal
from trio_relay.core.reviews import MAX_WAITING_PER_CALLER
from trio_relay.extensions.audit import NotRecorded, OpenEntry, Outcome, OutcomeNotRecorded
from trio_relay.extensions.gate import Asked, Facts


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return opened(tmp_path)


def opened(directory: Path, timeout: float | None = None, *, review: bool = False) -> Desk:
    desk = Desk(directory / "provider", timeout)
    desk.switch(enabled=True, writes=True, review=review)
    desk.store.allow(HOST)
    return desk


@asynccontextmanager
async def calling(client: Client, tool: str = "save", **arguments: Any) -> AsyncIterator[list[Any]]:
    """A call in the background. What is yielded holds its result after the block."""
    results: list[Any] = []

    async def call() -> None:
        results.append(await client.call_tool(tool, arguments))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            yield results


EXECUTED = [("intent", "save", "started"), ("outcome", "save", "ok")]


# -- switches, and what is recorded


@pytest.mark.parametrize("era", ERAS)
async def test_with_writes_off_reads_go_on_and_writes_are_refused_and_recorded(desk: Desk, era: str) -> None:
    desk.switch(writes=False)
    async with desk.client(era) as client:
        assert text_of(await client.call_tool("look", {})) == "look done"
        assert await refused(client, "save") == REASONS[Refusal.WRITES_OFF]
        desk.switch(writes=True)
        assert text_of(await client.call_tool("save", {})) == "save done"
    assert desk.page.executed == ["look", "save"]
    assert desk.lines() == [("refused", "save", "writes-off"), *EXECUTED]


async def test_a_read_leaves_no_line(desk: Desk) -> None:
    async with desk.client() as client:
        await client.call_tool("look", {})
    assert desk.lines() == []


@pytest.mark.parametrize(("tool", "outcome"), [("save", "ok"), ("bad", "error"), ("late", "timed-out")])
async def test_the_outcome_is_recorded_and_a_failure_is_a_result(desk: Desk, tool: str, outcome: str) -> None:
    async with desk.client() as client:
        result = await client.call_tool(tool, {})
        assert result.is_error is (tool != "save")
    assert desk.lines() == [("intent", tool, "started"), ("outcome", tool, outcome)]


async def test_a_line_tells_who_and_where_and_no_argument(desk: Desk) -> None:
    async with desk.client() as client:
        await client.call_tool("save", {"script": "hunter2"})
    text = desk.audit.path.read_text()
    assert "hunter2" not in text
    for line in text.splitlines():
        row = json.loads(line)
        assert (row["sender"], row["target"]) == (HOST, TARGET)


@pytest.mark.parametrize("era", ERAS)
async def test_a_write_that_cannot_be_recorded_is_not_executed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    def full(*_: object) -> OpenEntry:
        raise NotRecorded("The audit log cannot be written (disk full), so the call was not executed.")

    monkeypatch.setattr(desk.audit, "intent", full)
    async with desk.client(era) as client:
        assert "disk full" in await refused(client, "save")
    assert desk.page.executed == []


async def test_a_refusal_that_cannot_be_recorded_says_so(desk: Desk) -> None:
    desk.switch(writes=False)
    (desk.store.directory / "audit.jsonl").mkdir()
    async with desk.client() as client:
        text = await refused(client, "save")
    assert text.startswith(REASONS[Refusal.WRITES_OFF])
    assert "audit log cannot be written" in text


async def test_an_outcome_that_cannot_be_recorded_is_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(entry: OpenEntry, result: Outcome) -> None:
        raise OutcomeNotRecorded("The call was executed, but the audit log cannot say how it ended: disk full.")

    monkeypatch.setattr(OpenEntry, "outcome", full)
    async with desk.client() as client:
        assert "was executed" in await refused(client, "save")
    assert desk.page.executed == ["save"]


async def test_a_port_that_dies_in_the_middle_of_a_call_leaves_an_outcome(desk: Desk) -> None:
    with trio.fail_after(PATIENCE):
        async with desk.port() as port:
            await port.send(
                b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
                b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}'
            )
            await port.receive()
            await port.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            await port.send(b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}')
            await desk.page.began.wait()
            port.close("gone")
            assert await desk.lines_become(2) == [("intent", "slow", "started"), ("outcome", "slow", "cancelled")]


async def test_a_write_that_is_cancelled_while_its_line_is_written_is_not_executed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    write = desk.audit.intent

    def slow(*args: Any) -> OpenEntry:
        writing.set()
        assert go_on.wait(PATIENCE)
        return write(*args)

    monkeypatch.setattr(desk.audit, "intent", slow)
    gate, executed = desk.provider._gate, []

    async def execute() -> None:
        executed.append("at once, before any pause")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            asked = Asked(HOST, "save", b"{}", lambda: Facts(True, TARGET))
            nursery.start_soon(gate.call, asked, execute, lambda result: False)
            await eventually(writing.is_set)
            nursery.cancel_scope.cancel()
            go_on.set()
    assert executed == []
    assert desk.lines() == [("intent", "save", "started"), ("outcome", "save", "cancelled")]


# -- the write limit


async def test_of_31_writes_at_once_one_is_told_when_to_try_again(desk: Desk) -> None:
    texts: list[str] = []
    desk.store.allow(OTHER)

    async def write(client: Client) -> None:
        texts.append(text_of(await client.call_tool("save", {})))

    with trio.fail_after(PATIENCE):
        async with desk.client() as client, desk.client(caller=OTHER) as other:
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_WRITES + 1):
                    nursery.start_soon(write, client)
            (told,) = [text for text in texts if text != "save done"]
            assert "Try again in 60 seconds" in told
            assert text_of(await client.call_tool("look", {})) == "look done"
            assert text_of(await other.call_tool("save", {})) == "save done"
            desk.now += WINDOW_S - 0.5
            assert "Try again in 1 second." in await refused(client, "save")
            desk.now += 0.5
            assert text_of(await client.call_tool("save", {})) == "save done"
    results = [result for *_, result in desk.lines()]
    assert results.count("rate-limited") == 2
    assert results.count("ok") == results.count("started") == MAX_WRITES + 2


async def test_what_is_refused_does_not_count(desk: Desk) -> None:
    desk.switch(writes=False)
    async with desk.client() as client:
        for _ in range(MAX_WRITES):
            await refused(client, "save")
        desk.switch(writes=True)
        assert text_of(await client.call_tool("save", {})) == "save done"


# -- reviews


@pytest.mark.parametrize("era", ERAS)
async def test_a_write_waits_and_is_executed_once_when_it_is_approved(tmp_path: Path, era: str) -> None:
    desk = opened(tmp_path, review=True)
    async with desk.client(era) as client:
        assert text_of(await client.call_tool("look", {})) == "look done"
        async with calling(client, name="Ada") as results:
            review_id = await desk.one_review()
            (row,) = desk.provider.reviews()
            assert (row.sender_id, row.tool, row.arguments) == (HOST, "save", '{"name":"Ada"}')
            await eventually(lambda: [row.review_id for row in desk.store.reviews()] == [review_id])
            assert desk.page.executed == ["look"]
            assert desk.provider.decide_review(review_id, True) == f"{review_id} is approved."
        assert text_of(results[0]) == "save done"
        assert "executed" in desk.provider.decide_review(review_id, True)
    assert desk.page.executed == ["look", "save"]
    assert desk.lines() == EXECUTED
    assert desk.store.reviews() == ()
    assert "Ada" not in (desk.store.directory / "reviews.json").read_text()


async def test_a_write_that_is_turned_down_is_not_executed(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    async with desk.client() as client, calling(client) as results:
        review_id = await desk.one_review()
        assert desk.provider.decide_review(review_id, False) == f"{review_id} is turned down."
    assert text_of(results[0]) == REASONS[Refusal.REVIEW_DENIED]
    assert "turned down before" in desk.provider.decide_review(review_id, True)
    assert desk.page.executed == []
    assert desk.lines() == [("refused", "save", "review-denied")]


async def test_d01_one_that_timed_out_is_never_executed_however_often_it_is_approved(tmp_path: Path) -> None:
    desk = opened(tmp_path, timeout=0.05, review=True)
    filed = desk.filed_reviews()
    async with desk.client() as client:
        async with calling(client) as results:
            pass
        (review_id,) = filed
        assert text_of(results[0]) == REASONS[Refusal.REVIEW_TIMED_OUT]
        for _ in range(2):
            assert "never be executed" in desk.provider.decide_review(review_id, True)
        assert desk.provider.reviews() == []
        await client.list_tools()
    assert desk.page.executed == []
    assert desk.lines() == [("refused", "save", "review-timed-out")]


async def test_d01_one_that_was_cancelled_is_never_executed_however_often_it_is_approved(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    with trio.fail_after(PATIENCE):
        async with desk.client() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "save", {})
                review_id = await desk.one_review()
                nursery.cancel_scope.cancel()
            assert await desk.lines_become(1) == [("refused", "save", "cancelled")]
            for _ in range(2):
                assert "never be executed" in desk.provider.decide_review(review_id, True)
            await client.list_tools()
    assert desk.page.executed == []
    assert desk.lines() == [("refused", "save", "cancelled")]


async def test_d01_one_whose_port_has_gone_is_never_executed(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    with trio.fail_after(PATIENCE):
        async with desk.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "save", {})
            review_id = await desk.one_review()
            nursery.cancel_scope.cancel()
    assert "never be executed" in desk.provider.decide_review(review_id, True)
    assert desk.lines() == [("refused", "save", "cancelled")]


async def test_an_approval_after_the_deadline_is_too_late_even_if_no_timer_has_run(tmp_path: Path) -> None:
    desk = opened(tmp_path, timeout=3_600.0, review=True)
    async with desk.client() as client, calling(client) as results:
        review_id = await desk.one_review()
        desk.now += 3_600.0
        assert "timed out" in desk.provider.decide_review(review_id, True)
    assert text_of(results[0]) == REASONS[Refusal.REVIEW_TIMED_OUT]
    assert desk.lines() == [("refused", "save", "review-timed-out")]


@pytest.mark.parametrize(
    ("switches", "why"),
    [({"enabled": False}, Refusal.ENDPOINT_OFF), ({"writes": False}, Refusal.WRITES_OFF)],
)
async def test_an_approved_write_still_meets_the_policy_of_that_moment(
    tmp_path: Path, switches: dict[str, bool], why: Refusal
) -> None:
    desk = opened(tmp_path, review=True)
    async with desk.client() as client, calling(client) as results:
        review_id = await desk.one_review()
        desk.switch(**switches)
        desk.provider.decide_review(review_id, True)
    assert text_of(results[0]) == REASONS[why]
    assert desk.page.executed == []
    assert desk.lines() == [("refused", "save", why.value)]


async def test_an_approved_write_is_not_executed_in_another_tab_than_the_one_it_was_filed_for(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    async with desk.client() as client, calling(client) as results:
        review_id = await desk.one_review()
        desk.page.target = "another tab"
        desk.provider.decide_review(review_id, True)
    assert "call again" in text_of(results[0])
    assert desk.lines() == [("refused", "save", "cancelled")]


async def test_a_write_is_not_executed_in_another_tab_than_the_one_that_was_recorded(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    intent = desk.audit.intent

    def slow(*args: Any) -> OpenEntry:
        entry = intent(*args)
        desk.page.target = "another tab"  # while the disk took its time
        return entry

    monkeypatch.setattr(desk.audit, "intent", slow)
    async with desk.client() as client:
        assert "call again" in await refused(client, "save")
    assert desk.page.executed == []
    assert desk.lines() == [("intent", "save", "started"), ("outcome", "save", "cancelled")]


async def test_when_the_relay_stops_deciding_nothing_that_waits_is_executed(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    async with desk.client() as client, calling(client) as results:
        await desk.one_review()
        desk.provider.end_reviews()
    assert text_of(results[0]) == REASONS[Refusal.CANCELLED]
    assert desk.page.executed == []


async def test_one_caller_cannot_let_more_writes_wait_than_it_may_make(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    with trio.fail_after(PATIENCE):
        async with desk.client() as client, trio.open_nursery() as nursery:
            for _ in range(MAX_WAITING_PER_CALLER):
                nursery.start_soon(client.call_tool, "save", {})
            await eventually(lambda: len(desk.provider.reviews()) == MAX_WAITING_PER_CALLER)
            assert await refused(client, "save") == REASONS[Refusal.REVIEW_FULL]
            nursery.cancel_scope.cancel()


async def test_deciding_about_nothing_says_so(desk: Desk) -> None:
    assert desk.provider.decide_review("no\nsuch", True) == "There is no review 'no such'."


async def test_reviews_that_cannot_be_shown_to_other_processes_still_work(tmp_path: Path) -> None:
    desk = opened(tmp_path, review=True)
    (desk.store.directory / "reviews.json").mkdir()
    async with desk.client() as client, calling(client) as results:
        desk.provider.decide_review(await desk.one_review(), True)
    assert text_of(results[0]) == "save done"
