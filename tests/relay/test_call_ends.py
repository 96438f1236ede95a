"""How a call ends without an answer: the tab goes, time runs out, the caller gives up, the relay leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers import PATIENCE, FakeTab, client_frame, open_raw, open_tab
from tests.hubs import Attempt, begun, in_step, join, next_json, offer, reset, result_frame, send_json, wait_listed
from trio_relay.config import RelayConfig
from trio_relay.errors import NotSent, SourceLost, TimedOut
from trio_relay.relay.hub import Hub, open_hub
from trio_relay.relay.tab import Tab


@pytest.fixture
async def tab(hub: Hub) -> Any:
    """A tab `t1` with the tool `f`."""
    async with open_tab(hub.port) as tab:
        await offer(tab)
        yield tab


# -- losing the tab


@pytest.mark.parametrize("how", ["1000", "1001", "reset", "hang up"])
async def test_a_tab_that_goes_fails_its_calls_at_once_and_can_come_back(
    hub: Hub, nursery: trio.Nursery, how: str
) -> None:
    """C13."""
    async with open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        calls = [Attempt(nursery, hub, "f") for _ in range(3)]
        for _ in calls:
            await next_json(raw, "invoke")
        if how == "reset":
            await reset(raw)
        elif how == "hang up":
            await raw.stream.aclose()
        else:
            await raw.send(client_frame(int(how).to_bytes(2, "big"), 8))
        for call in calls:
            error = await call.error()
            assert isinstance(error, SourceLost)
            assert error.may_have_run
    await wait_listed(hub)
    assert len(hub.pending) == 0
    async with open_tab(hub.port) as back:
        await offer(back)
        call, invoke = await begun(back, hub, nursery)
        await back.answer(invoke)
        assert await call.text() == "{}"


async def test_an_answer_in_the_same_write_as_the_close_is_delivered(hub: Hub, nursery: trio.Nursery) -> None:
    async with open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        call = Attempt(nursery, hub, "f")
        invoke = await next_json(raw, "invoke")
        answer = json.dumps(result_frame(invoke["callId"])).encode()
        await raw.send(client_frame(answer) + client_frame(b"\x03\xe8", 8))
        assert await call.text() == "hi"


async def test_another_tab_of_the_same_tool_is_untouched(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    async with open_tab(hub.port) as other:
        await offer(other, "t2", "g")
        call, invoke = await begun(tab, hub, nursery)
        lost = Attempt(nursery, hub, "g")
        await other.expect("invoke")
    assert isinstance(await lost.error(), SourceLost)
    await tab.answer(invoke)
    assert await call.text() == "{}"


# -- time


async def test_a_page_that_never_answers_times_out_and_is_told(nursery: trio.Nursery) -> None:
    async with open_hub(RelayConfig(port=0, invoke_timeout=0.1)) as hub, open_tab(hub.port) as tab:
        await offer(tab)
        call, invoke = await begun(tab, hub, nursery)
        error = await call.error()
        assert isinstance(error, TimedOut)
        assert error.may_have_run
        assert "Host response timeout" in str(error)
        assert await tab.expect("cancel") == {"type": "cancel", "callId": invoke["callId"], "reason": "timeout"}
        await tab.answer(invoke)  # too late
        await in_step(tab)
        assert len(hub.pending) == 0


async def test_a_call_that_never_left_says_so(nursery: trio.Nursery) -> None:
    """The tab takes nothing: the first call blocks the way, the second was not sent."""
    async with open_hub(RelayConfig(port=0, invoke_timeout=0.3)) as hub, open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        first = Attempt(nursery, hub, "f", b'{"x":"%s"}' % (b"x" * 8_000_000))
        await wait_all_tasks_blocked(0.01)
        second = Attempt(nursery, hub, "f", b'{"n":2}')
        assert isinstance(await first.error(), TimedOut)
        error = await second.error()
        assert isinstance(error, NotSent)
        assert not error.may_have_run
        invoke = await next_json(raw, "invoke")
        assert "x" in invoke["args"]
        assert (await next_json(raw, "cancel"))["callId"] == invoke["callId"]
        await send_json(raw, {"type": "pong"})
        third = Attempt(nursery, hub, "f", b'{"n":3}')
        assert (await next_json(raw, "invoke"))["args"] == {"n": 3}  # the second never comes
        third.scope.cancel()


async def test_a_tab_lost_before_a_call_left_says_so(hub: Hub, nursery: trio.Nursery) -> None:
    async with open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        first = Attempt(nursery, hub, "f", b'{"x":"%s"}' % (b"x" * 8_000_000))
        await wait_all_tasks_blocked(0.01)
        second = Attempt(nursery, hub, "f")
        await wait_all_tasks_blocked()
        await reset(raw)
        lost, unsent = await first.error(), await second.error()
        assert isinstance(lost, SourceLost)
        assert isinstance(unsent, NotSent)
        assert (lost.may_have_run, unsent.may_have_run) == (True, False)


# -- cancellation


async def test_cancelling_a_call_that_was_sent_tells_the_page(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    call, invoke = await begun(tab, hub, nursery)
    call.scope.cancel()
    assert await tab.expect("cancel") == {"type": "cancel", "callId": invoke["callId"], "reason": "cancelled"}
    assert len(hub.pending) == 0
    await tab.answer(invoke)
    await in_step(tab)
    again, invoke = await begun(tab, hub, nursery)
    await tab.answer(invoke)
    assert await again.text() == "{}"


async def test_a_thousand_cancelled_calls_leave_nothing_behind(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    """A26."""
    calls = [Attempt(nursery, hub, "f") for _ in range(1000)]
    invoked = [(await tab.expect("invoke"))["callId"] for _ in calls]
    for call in calls:
        call.scope.cancel()
    cancelled = [(await tab.expect("cancel"))["callId"] for _ in calls]
    assert sorted(cancelled) == sorted(invoked)
    assert len(hub.pending) == 0
    for call_id in invoked:
        await tab.send(result_frame(call_id))
    await in_step(tab)
    assert "1 sources" in repr(hub)


async def test_a_call_cancelled_in_the_queue_is_taken_back_and_the_page_never_hears_of_it(
    hub: Hub, nursery: trio.Nursery
) -> None:
    async with open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        Attempt(nursery, hub, "f", b'{"x":"%s"}' % (b"x" * 8_000_000))
        await wait_all_tasks_blocked(0.01)
        queued = Attempt(nursery, hub, "f", b'{"n":2}')
        await wait_all_tasks_blocked()
        queued.scope.cancel()
        await wait_all_tasks_blocked()
        assert len(hub.pending) == 1
        last = Attempt(nursery, hub, "f", b'{"n":3}')
        seen = [await next_json(raw, "invoke"), await next_json(raw, "invoke")]
        assert seen[1]["args"] == {"n": 3}
        for invoke in seen:
            await send_json(raw, result_frame(invoke["callId"]))
        assert await last.text() == "hi"


# -- shutdown and faults of ours


async def test_shutting_down_closes_tabs_with_1001_and_fails_what_waits(nursery: trio.Nursery) -> None:
    stop, opened = trio.Event(), trio.Event()
    hubs: list[Hub] = []

    async def serve() -> None:
        async with open_hub(RelayConfig(port=0)) as hub:
            hubs.append(hub)
            opened.set()
            await stop.wait()

    nursery.start_soon(serve)
    await opened.wait()
    hub = hubs[0]
    async with open_tab(hub.port) as tab, open_tab(hub.port) as silent:
        await offer(tab)
        call, _ = await begun(tab, hub, nursery)
        stop.set()
        assert (await tab.closed()).code == 1001
        assert (await silent.closed()).code == 1001
        assert isinstance(await call.error(), SourceLost)
        assert len(hub.pending) == 0


async def test_an_exception_in_a_handler_costs_that_connection_only(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(self: Tab, result: object) -> None:
        raise RuntimeError("a fault\nof ours")

    call, _ = await begun(tab, hub, nursery)
    async with open_tab(hub.port) as other:
        await offer(other, "t2", "g")
        with monkeypatch.context() as patch:
            patch.setattr(Tab, "progress", explode)
            await tab.send({"type": "progress", "callId": "x", "progress": 1})
            error = await call.error()
        assert isinstance(error, SourceLost)
        await tab.closed()
        await wait_listed(hub, "g")
        with trio.fail_after(PATIENCE):
            while not (errors := [r.message for r in caplog.records if r.levelname == "ERROR"]):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert len(errors) == 1
        assert errors[0].endswith("connection ended by RuntimeError: a fault")
        again = Attempt(nursery, hub, "g")
        await other.answer(await other.expect("invoke"))
        assert await again.text() == "{}"
