"""A relay inside another trio program, through the public names only."""

from __future__ import annotations

import pytest
import trio

import trio_relay
from tests.helpers import FakeTab, open_tab, text_result
from trio_relay import RelayConfig


async def test_watch_shows_tools_as_they_come_and_a_call_reaches_the_named_tab(nursery: trio.Nursery) -> None:
    async with trio_relay.open_relay(RelayConfig(port=0)) as relay:
        views = relay.watch()
        assert (await anext(views)).tools == ()
        async with open_tab(relay.port) as one, open_tab(relay.port) as two:
            for tab, tab_id in ((one, "41"), (two, "42")):
                await tab.hello(tab_id)
                await tab.offer("search")
            nursery.start_soon(one.serve, lambda invoke: text_result("from 41"))
            nursery.start_soon(two.serve, lambda invoke: text_result("from 42"))
            with trio.fail_after(5):
                while len((view := await anext(views)).tools) < 2:
                    pass
            assert sorted(tool["name"] for tool in view.tools) == ["search_41", "search_42"]
            assert {source.tab_id for source in view.sources} == {"41", "42"}
            result = await relay.call_tool("search", {"q": "x"}, tab_id="42")
            assert result == text_result("from 42")
            nursery.cancel_scope.cancel()


async def test_progress_reaches_the_embedder_as_numbers(nursery: trio.Nursery) -> None:
    relay = await nursery.start(trio_relay.serve, RelayConfig(port=0))
    heard: list[tuple[float, float | None, str | None]] = []
    async with open_tab(relay.port) as tab:
        await tab.hello()
        await tab.offer("slow")
        with trio.fail_after(5):
            async for view in relay.watch():
                if view.tools:
                    break

        async def page() -> None:
            invoke = await tab.expect("invoke")
            await tab.send(
                {"type": "progress", "callId": invoke["callId"], "progress": 1, "total": 2, "message": "half"}
            )
            await tab.answer(invoke)

        nursery.start_soon(page)
        await relay.call_tool("slow", on_progress=lambda *numbers: heard.append(numbers))
    assert heard == [(1.0, 2.0, "half")]
    nursery.cancel_scope.cancel()


async def test_an_unknown_tool_and_arguments_that_are_no_json_are_named_errors() -> None:
    async with trio_relay.open_relay(RelayConfig(port=0)) as relay:
        with pytest.raises(trio_relay.ToolNotFound) as caught:
            await relay.call_tool("nothing")
        assert not caught.value.may_have_run
        with pytest.raises(trio_relay.InvalidArguments):
            await relay.call_tool("nothing", {"x": float("nan")})


async def test_cancelling_the_caller_tells_the_page_to_stop(nursery: trio.Nursery) -> None:
    async with trio_relay.open_relay(RelayConfig(port=0)) as relay, open_tab(relay.port) as tab:
        await tab.hello()
        await tab.offer("slow")
        with trio.fail_after(5):
            async for view in relay.watch():
                if view.tools:
                    break
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_after_invoke, tab, scope)
            await relay.call_tool("slow")
        assert scope.cancelled_caught
        assert (await tab.expect("cancel"))["reason"] == "cancelled"


async def _cancel_after_invoke(tab: FakeTab, scope: trio.CancelScope) -> None:
    await tab.expect("invoke")
    scope.cancel()
