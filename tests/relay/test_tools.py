"""What tabs offer over the wire and what the hub lists: one bad tool costs itself, names reach who they say."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers import FakeTab, open_tab
from tests.hubs import Attempt, in_step, listed, wait_listed, wait_sources
from trio_relay.core.backend import Change, Target
from trio_relay.errors import ToolNotFound
from trio_relay.relay.changes import visible_changes
from trio_relay.relay.hub import Hub

VALID_NAME = re.compile(r"[A-Za-z0-9_]{1,128}\Z")


@pytest.fixture
async def tab(hub: Hub, nursery: trio.Nursery) -> Any:
    async with open_tab(hub.port) as tab:
        await tab.hello()
        yield tab
        nursery.cancel_scope.cancel()


async def offer(hub: Hub, tab: FakeTab, *tools: object) -> dict[str, dict[str, Any]]:
    """Offer tools and return what is listed once the relay has dealt with them."""
    await tab.offer(*tools)
    await in_step(tab)
    return listed(hub)


# -- definitions


@pytest.mark.parametrize(
    "schema",
    [
        *({}, None, {"properties": {}}, {"type": None}, {"properties": []}, {"required": {}}, {"required": True}),
        *({"type": ["object", "null"]}, {"anyOf": [{"type": "object"}]}, True, '{"type":"object"}', " {} "),
        {"properties": {"a": {"type": "string", "required": True}}},
    ],
)
async def test_a_schema_that_can_be_saved_is_listed_as_an_object(hub: Hub, tab: FakeTab, schema: object) -> None:
    """B01, B03, B04, B07."""
    tools = await offer(hub, tab, "before", {"name": "f", "inputSchema": schema}, "after")
    assert list(tools) == ["before", "f", "after"]
    listed_schema = tools["f"]["inputSchema"]
    assert listed_schema["type"] == "object"
    assert isinstance(listed_schema.get("properties", {}), dict)
    assert isinstance(listed_schema.get("required", []), list)


async def test_a_missing_schema_is_an_empty_object(hub: Hub, tab: FakeTab) -> None:
    """B01."""
    assert (await offer(hub, tab, "f"))["f"]["inputSchema"] == {"type": "object", "properties": {}}


NO_SCHEMAS: list[object] = ["", "not json", {"type": "string"}, 5, [], False]
NO_NAMES: list[object] = ["", None, 5, [], "a" * 1025]


@pytest.mark.parametrize(
    "tool",
    [
        *({"name": "f", "inputSchema": schema} for schema in NO_SCHEMAS),
        *({"name": name} for name in NO_NAMES),
        *({}, None, 5, [], [["name", "f"]], True, {"name": "f", "execution": {"taskSupport": "required"}}),
    ],
)
async def test_a_tool_that_cannot_be_saved_costs_itself_only(
    hub: Hub, tab: FakeTab, tool: object, caplog: pytest.LogCaptureFixture
) -> None:
    """B03, B04, B07, B10: and a log line says which and why."""
    frame = {"type": "tools/list", "tools": [{"name": "before"}, tool, {"name": "after"}]}
    await tab.send(frame)
    await tab.send(frame)
    await in_step(tab)
    assert list(listed(hub)) == ["before", "after"]
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1  # said once, though the list came twice
    assert "tool 1 is left out" in warnings[0]


async def test_members_known_and_unknown_are_kept_and_nulls_left_out(hub: Hub, tab: FakeTab) -> None:
    """B08, B09."""
    kept = {
        "title": "T",
        "icons": [{"src": "data:,x", "mimeType": "image/png", "sizes": ["48x48"]}],
        "_meta": {"a": {"b": None}},
        "outputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        "annotations": {"readOnlyHint": True, "futureHint": 7},
        "x-unknown": {"deep": [1, 2.50, None]},
    }
    nulls = dict.fromkeys(("title", "icons", "_meta", "outputSchema", "annotations", "execution", "description"))
    tools = await offer(hub, tab, {"name": "f", **kept}, {"name": "g", **nulls})
    listed_f = {key: value for key, value in tools["f"].items() if key in kept}
    assert listed_f == kept
    assert set(tools["g"]) == {"name", "description", "inputSchema"}


async def test_every_listed_name_is_valid_and_unique_and_reaches_the_pages_own(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery
) -> None:
    """B10."""
    names = [
        "a" * 129,
        "a.b",
        "a/b",
        "a b",
        "\u200b",
        "😀",
        "搜索",
        "__proto__",
        "constructor",
        "-",
        "_",
        "webmcp_tool_call",
    ]
    await offer(hub, tab, *names)
    tools = {view.name: view.original_name for view in hub.tools()}
    assert sorted(tools.values()) == sorted(names)
    assert "webmcp_tool_call" not in tools
    for public, own in tools.items():
        assert VALID_NAME.match(public)
        call = Attempt(nursery, hub, public)
        invoke = await tab.expect("invoke")
        assert invoke["toolName"] == own
        await tab.answer(invoke)
        await call.result()


async def test_a_name_twice_in_one_list_is_the_first_and_one_warning(
    hub: Hub, tab: FakeTab, caplog: pytest.LogCaptureFixture
) -> None:
    """B12."""
    twice = [{"name": "f", "title": "first"}, {"name": "f", "title": "second"}, {"name": "f", "title": "third"}]
    for _ in range(3):
        tools = await offer(hub, tab, *twice)
        assert tools["f"]["title"] == "first"
    assert len([r for r in caplog.records if "defined twice" in r.message]) == 1


async def test_half_an_emoji_costs_only_itself(hub: Hub, tab: FakeTab) -> None:
    """C01: in a description, a title, a key, a name."""
    await tab.send(
        b'{"type":"tools/list","tools":[{"name":"f","description":"x\\ud83d y","title":"\\ude00",'
        b'"_meta":{"k\\ud83d":1}},{"name":"g\\ud83d"}]}'
    )
    await in_step(tab)
    tools = listed(hub)
    assert tools["f"]["description"].endswith("x\ufffd y")
    assert tools["f"]["title"] == "\ufffd"
    assert tools["f"]["_meta"] == {"k\ufffd": 1}
    assert [view.original_name for view in hub.tools()] == ["f", "g\ufffd"]


async def test_half_an_emoji_in_a_tabs_title_is_mended(hub: Hub, tab: FakeTab) -> None:
    """C01."""
    await tab.send(b'{"type":"hello","tabId":"t1","title":"x\\ud83d y"}')
    await tab.expect("hello/accepted")
    assert hub.sources()[0].title == "x\ufffd y"
    assert "[WebMCP t1 • x\ufffd y]" in (await offer(hub, tab, "f"))["f"]["description"]


# -- caps


async def test_512_tools_of_a_tab_are_listed_and_no_more(
    hub: Hub, tab: FakeTab, caplog: pytest.LogCaptureFixture
) -> None:
    tools = await offer(hub, tab, *(f"f{n}" for n in range(512)))
    assert len(tools) == 512
    tools = await offer(hub, tab, *(f"f{n}" for n in range(600)))
    assert list(tools) == [f"f{n}" for n in range(512)]
    assert any("more than 512 tools" in r.message for r in caplog.records)


async def test_2_mib_of_definitions_are_taken_and_no_more(hub: Hub, tab: FakeTab) -> None:
    """What is above is ignored as a whole: the earlier list stays."""

    def tools_text(size: int) -> str:
        frame = '[{"name":"f","description":"%s"}]'
        return frame % ("x" * (size - len(frame) + 2))

    fits, above = tools_text(2 << 20), tools_text((2 << 20) + 1)
    assert len(fits) == 2 << 20
    await tab.send(b'{"type":"tools/list","tools":%s}' % fits.encode())
    await in_step(tab)
    assert list(listed(hub)) == ["f"]
    await tab.send(b'{"type":"tools/list","tools":%s}' % above.replace('"f"', '"g"').encode())
    await in_step(tab)
    assert list(listed(hub)) == ["f"]


@pytest.mark.parametrize("tools", ["null", "{}", "5", '"x"', "true"])
async def test_a_list_that_is_no_list_changes_nothing(hub: Hub, tab: FakeTab, tools: str) -> None:
    assert list(await offer(hub, tab, "f")) == ["f"]
    await tab.send(b'{"type":"tools/changed","tools":%s}' % tools.encode())
    await in_step(tab)
    assert list(listed(hub)) == ["f"]


# -- over time


async def test_hello_then_an_empty_list_then_a_tool_is_one_visible_change(hub: Hub, nursery: trio.Nursery) -> None:
    """B21."""
    heard: list[Change] = []
    told = trio.Event()

    async def follow() -> None:
        async for change in visible_changes(hub, hub.change()):
            heard.append(change)
            told.set()

    nursery.start_soon(follow)
    await wait_all_tasks_blocked()
    async with open_tab(hub.port) as tab:
        counts = []
        await tab.hello()
        counts.append(hub.sources()[0].tool_count)
        for tools in ([], ["f"]):
            await offer(hub, tab, *tools)
            counts.append(hub.sources()[0].tool_count)
        assert counts == [0, 0, 1]
        with trio.fail_after(5):
            await told.wait()
        await offer(hub, tab, "f")  # the same again
        await wait_all_tasks_blocked(0.05)
        assert len(heard) == 1
        nursery.cancel_scope.cancel()


async def test_a_tab_that_comes_back_with_a_hello_only_has_no_tools_yet(hub: Hub) -> None:
    """B27: 0, then 1; never the tools of its previous socket."""
    async with open_tab(hub.port) as before:
        await before.hello("t1")
        await offer(hub, before, "old")
    await wait_listed(hub)
    async with open_tab(hub.port) as after:
        await after.hello("t1")
        assert [source.tool_count for source in hub.sources()] == [0]
        assert listed(hub) == {}
        assert list(await offer(hub, after, "new")) == ["new"]
        assert [source.tool_count for source in hub.sources()] == [1]


async def test_calls_reach_the_live_tab_after_one_came_back_with_the_same_tools(
    hub: Hub, nursery: trio.Nursery
) -> None:
    """B20."""
    async with open_tab(hub.port) as before:
        await before.hello("t1")
        await offer(hub, before, "f")
    await wait_listed(hub)
    async with open_tab(hub.port) as after:
        await after.hello("t1")
        await offer(hub, after, "f")
        call = Attempt(nursery, hub, "f", b'{"n":2}')
        await after.answer(await after.expect("invoke"))
        assert await call.text() == '{"n": 2}'


async def test_two_tabs_with_the_same_tool_have_a_name_each_and_the_old_name_stays_with_its_tab(
    hub: Hub, nursery: trio.Nursery
) -> None:
    """B20."""
    async with open_tab(hub.port) as one, open_tab(hub.port) as two:
        await one.hello("1111")
        await offer(hub, one, "f")
        assert list(listed(hub)) == ["f"]
        await two.hello("2222")
        await offer(hub, two, "f")
        assert sorted(listed(hub)) == ["f_1111", "f_2222"]
        nursery.start_soon(one.serve, lambda invoke: {"content": [{"type": "text", "text": "one"}]})
        nursery.start_soon(two.serve, lambda invoke: {"content": [{"type": "text", "text": "two"}]})
        assert await Attempt(nursery, hub, "f_1111").text() == "one"
        assert await Attempt(nursery, hub, "f_2222").text() == "two"
        assert await Attempt(nursery, hub, "f").text() == "one"
        assert await Attempt(nursery, hub, "f", target=Target(tab_id="2222")).text() == "two"
        nursery.cancel_scope.cancel()


async def test_of_two_sockets_with_one_tab_id_the_most_recently_seen_serves(hub: Hub, nursery: trio.Nursery) -> None:
    async with open_tab(hub.port) as one, open_tab(hub.port) as two:
        for tab in (one, two):
            await tab.hello("t1")
            await offer(hub, tab, "f")
        assert list(listed(hub)) == ["f"]
        assert len(hub.sources()) == 2
        call = Attempt(nursery, hub, "f")
        await two.answer(await two.expect("invoke"))
        await call.result()
        await offer(hub, one, "f")
        call = Attempt(nursery, hub, "f")
        await one.answer(await one.expect("invoke"))
        await call.result()
        await one.socket.close(1000)
        await wait_sources(hub, 1)
        call = Attempt(nursery, hub, "f")
        await two.answer(await two.expect("invoke"))
        await call.result()


async def test_an_empty_list_takes_the_tools_away_and_lets_a_call_finish(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery
) -> None:
    """C13."""
    await offer(hub, tab, "f")
    call = Attempt(nursery, hub, "f", b'{"n":1}')
    invoke = await tab.expect("invoke")
    await tab.offer(kind="tools/changed")
    await in_step(tab)
    assert listed(hub) == {}
    assert not call.done.is_set()
    assert isinstance(await Attempt(nursery, hub, "f").error(), ToolNotFound)
    await tab.answer(invoke)
    assert await call.text() == '{"n": 1}'
