"""Tools of providers beside those of tabs, in the relay that owns the browser: names, lists, calls, changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import memory_stream_pair

from tests.helpers import LineClient, open_tab
from tests.hubs import Attempt, in_step, listed, offer, wait_listed
from tests.relay.ends import EMPTY, eventually, text
from tests.relay.providing import Extending, FakeProviders, definition, providing, row
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Target
from trio_relay.core.pending import Progress
from trio_relay.errors import RelayError, SourceNotFound, TimedOut, ToolNotFound
from trio_relay.relay.hub import Hub, TabTools, open_hub
from trio_relay.surface.lines import LineWriter
from trio_relay.surface.server import SdkServer
from trio_relay.surface.session import Session


@asynccontextmanager
async def open_client(hub: Hub) -> AsyncIterator[LineClient]:
    """An MCP client of a hub, after its handshake."""
    ours, theirs = memory_stream_pair()
    session = Session(hub, theirs, LineWriter(theirs), hub.config.max_payload)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run, SdkServer(session))
        client = LineClient(ours.send_stream, ours.receive_stream)
        await client.initialize()
        yield client
        nursery.cancel_scope.cancel()


# -- lists


async def test_they_stand_before_the_tools_of_tabs_with_their_definitions_as_they_are() -> None:
    async with providing("notes_read", "notes_write") as (hub, _), open_tab(hub.port) as tab:
        await offer(tab, "t1", "search")
        await wait_listed(hub, "notes_read", "notes_write", "search")
        assert hub.listing()[0] == definition("notes_read") + b"," + definition("notes_write")
        assert [(tool.name, tool.source_ids) for tool in hub.tools()][:2] == [("notes_read", ()), ("notes_write", ())]
        assert hub.provider_rows() == [row(count=2)]
        assert [source.tool_count for source in hub.sources()] == [1], "they belong to no tab"


async def test_a_client_sees_them_in_its_list_and_their_rows_among_the_sources() -> None:
    async with providing("notes_read") as (hub, _), open_client(hub) as client:
        assert await client.tool_names() == ["notes_read"]
        tools = (await client.request("tools/list", {}))["result"]["tools"]
        assert json.loads(definition("notes_read")) in tools, "unknown members and nulls in them stay"
        body = (await client.call("webmcp_list_sources"))["structuredContent"]
        assert body["count"] == 0
        assert body["providers"] == [
            {
                "extensionId": "b" * 32,
                "namespace": "notes",
                "name": "Notes",
                "version": "1",
                "state": "connected",
                "outcome": "as the test says",
                "toolCount": 1,
                "refused": [{"tool": "x" * 41, "reason": "too long"}],
            }
        ]
        (tool,) = (await client.call("webmcp_list_tools"))["structuredContent"]["tools"]
        assert (tool["name"], tool["originalName"], tool["sources"]) == ("notes_read", "read", [])


async def test_whoever_asks_for_tools_asks_the_providers_too() -> None:
    async with providing() as (hub, fake), open_client(hub) as client:
        for number, ask in enumerate(("tools/list", "webmcp_list_sources", "webmcp_list_tools"), 1):
            before = fake.times_asked
            if ask == "tools/list":
                await client.request(ask, {})
            else:
                await client.call(ask)
            assert fake.times_asked == before + 1, (number, ask)


# -- names


async def test_a_page_never_gets_the_name_of_a_providers_tool() -> None:
    async with providing("notes_read") as (hub, fake), open_tab(hub.port) as tab:
        await offer(tab, "t1", "notes_read")
        await wait_listed(hub, "notes_read", "notes_read_2")
        assert await text(hub, "notes_read", Raw(b'{"n":1}')) == '{"n":1}'
        assert fake.calls == [("notes_read", '{"n":1}', 65.0)]


async def test_a_page_loses_a_name_as_soon_as_a_provider_has_it() -> None:
    async with providing() as (hub, fake), open_tab(hub.port) as tab, trio.open_nursery() as nursery:
        await offer(tab, "t1", "notes_read")
        await wait_listed(hub, "notes_read")
        fake.offer("notes_read")
        await wait_listed(hub, "notes_read", "notes_read_t1")
        await text(hub, "notes_read")
        assert len(fake.calls) == 1
        call = Attempt(nursery, hub, "notes_read_t1")
        await tab.answer(await tab.expect("invoke"))
        await call.result()
        assert len(fake.calls) == 1


async def test_names_of_a_provider_that_lists_nothing_stay_reserved() -> None:
    async with providing("notes_read") as (hub, fake), open_tab(hub.port) as tab:
        fake.offer()
        await wait_listed(hub)
        await offer(tab, "t1", "notes_read")
        assert list(listed(hub)) == ["notes_read_2"]
        with pytest.raises(ToolNotFound, match="provider Notes cannot be used"):
            await text(hub, "notes_read")


async def test_names_that_change_while_nothing_is_listed_are_reserved_too() -> None:
    """A provider in an error state may come back under another namespace."""
    async with providing() as (hub, fake), open_tab(hub.port) as tab:
        await offer(tab, "t1", "memo_read")
        await wait_listed(hub, "memo_read")
        fake.rename("memo_read")
        await wait_listed(hub, "memo_read_t1")


# -- changes


async def test_one_change_is_one_list_changed() -> None:
    async with providing("notes_read") as (hub, fake), open_client(hub) as client:
        await client.tool_names()
        fake.offer("notes_read", "notes_write")
        message = await client.message()
        assert message["method"] == "notifications/tools/list_changed"
        assert await client.tool_names() == ["notes_read", "notes_write"]
        fake.show(row("connected", 2), row("error"))  # rows are no change of the tools
        fake.offer("notes_read", title="Another")
        assert (await client.message())["method"] == "notifications/tools/list_changed"
        assert await client.tool_names() == ["notes_read"]
        await client.ping()
        assert sum(b"list_changed" in line for line in client.lines) == 2


async def test_a_change_of_rows_wakes_other_relays_and_no_client() -> None:
    async with providing("notes_read") as (hub, fake):
        await eventually(lambda: hub.registry.rows)
        before, rows = hub.change(), hub.registry.rows
        fake.show(row("error"))
        with trio.fail_after(5):
            await hub.wait_rows(rows)
        assert hub.change() == before


async def test_without_tools_of_providers_the_fingerprint_is_that_of_the_tabs() -> None:
    async with providing() as (hub, fake), open_tab(hub.port) as tab:
        await offer(tab)
        bare = hub.registry.change()
        assert hub.change() == bare
        fake.offer("notes_read")
        with trio.fail_after(5):
            assert await hub.wait_change(bare) != bare
        fake.offer()
        assert hub.change() == bare


# -- calls


async def test_the_shorter_time_limit_counts() -> None:
    async with providing("notes_read", invoke_timeout=20) as (hub, fake):
        for limit in (None, 3.0, 30.0):
            await hub.call("notes_read", EMPTY, limit=limit)
        assert [limit for _, _, limit in fake.calls] == [20, 3.0, 20]


async def test_a_call_can_report_run_out_of_time_and_be_cancelled() -> None:
    async with providing("notes_read") as (hub, fake), trio.open_nursery() as nursery:
        fake.waiting.add("notes_read")
        heard: list[Progress] = []
        with pytest.raises(TimedOut) as caught:
            await hub.call("notes_read", EMPTY, on_progress=heard.append, limit=0.05)
        assert caught.value.may_have_run
        assert heard == [Progress(b"1.50", b"3", b'"half"')]
        fake.began = trio.Event()
        call = Attempt(nursery, hub, "notes_read")
        await fake.began.wait()
        call.scope.cancel()
        await call.done.wait()
        assert fake.cancelled == ["notes_read"]


async def test_the_indirect_call_reaches_it_without_a_target_and_not_with_one() -> None:
    async with providing("notes_read") as (hub, fake), open_client(hub) as client, open_tab(hub.port) as tab:
        await offer(tab, "t1", "search")
        result = await client.call("webmcp_tool_call", {"toolName": "notes_read", "args": {"n": 1}})
        assert json.loads(result["content"][0]["text"]) == {"n": 1}
        for target in ({"sourceId": "t1"}, {"requestTabId": "t1"}, {"requestTabId": "b" * 32}):
            refused = await client.call("webmcp_tool_call", {"toolName": "notes_read", **target})
            assert refused["isError"] is True
        assert len(fake.calls) == 1
        with pytest.raises(SourceNotFound):
            hub.call("notes_read", EMPTY, target=Target("nowhere"))


async def test_with_a_target_the_page_of_the_same_name_is_meant() -> None:
    async with providing("read") as (hub, fake), open_tab(hub.port) as tab, trio.open_nursery() as nursery:
        await offer(tab, "t1", "read")
        call = Attempt(nursery, hub, "read", target=Target("t1"))
        await tab.answer(await tab.expect("invoke"))
        await call.result()
        assert fake.calls == []


# -- what is served on


async def test_what_is_served_on_has_no_tool_of_another_extension() -> None:
    async with providing("notes_read") as (hub, fake), open_tab(hub.port) as tab, trio.open_nursery() as nursery:
        await offer(tab, "t1", "search", "notes_read")
        extending: Any = hub.extending
        tabs = extending.tabs
        assert isinstance(tabs, TabTools)
        assert [tool.name for tool in tabs.tools()] == ["search", "notes_read_2"]
        assert b"Extension Notes" not in b"".join(tabs.listing())
        assert tabs.provider_rows() == []
        tabs.asked()
        assert fake.times_asked == 0
        before = tabs.change()
        fake.offer("notes_read", "notes_write")
        await wait_listed(hub, "notes_read", "notes_write", "search", "notes_read_2")
        assert tabs.change() == before
        with pytest.raises(ToolNotFound, match="not passed on"):
            tabs.call("notes_read", EMPTY)
        with pytest.raises(RelayError):
            tabs.call("notes_read", EMPTY, target=Target("nowhere"))
        assert fake.calls == []
        nursery.start_soon(text, tabs, "notes_read_2")
        await tab.answer(await tab.expect("invoke"))
        with trio.fail_after(5):
            await tab.offer("search")
            await in_step(tab)
            assert await tabs.wait_change(before) != before


async def test_it_is_told_when_the_browser_is_its_own_and_when_no_longer() -> None:
    extending = Extending(FakeProviders())
    async with open_hub(RelayConfig(port=0), extending=extending):
        assert extending.tabs is not None
    assert extending.tabs is None
