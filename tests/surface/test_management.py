"""The four tools of the relay itself: what they answer, what they refuse, and where a targeted call goes."""

from __future__ import annotations

import json
import webbrowser
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from tests.helpers import FakeTab, LineClient, open_tab, text_result
from tests.surface.setting import good_tab, published, refused, still_fine, text_of
from tests.surface.test_answers import Catalogue
from trio_relay.errors import RelayError
from trio_relay.relay.hub import Hub
from trio_relay.surface import management
from trio_relay.surface.management import DEFINITIONS, Tools, open_on_this_machine


async def structured(client: LineClient, name: str) -> dict[str, Any]:
    result = await client.call(name)
    assert "isError" not in result
    body: dict[str, Any] = result["structuredContent"]
    assert json.loads(text_of(result)) == body
    return body


async def test_they_are_listed_first_with_their_hints(client: LineClient) -> None:
    await client.initialize()
    tools = (await client.request("tools/list", {}))["result"]["tools"]
    assert tools == json.loads(json.dumps(DEFINITIONS))
    read_only = {tool["name"] for tool in tools if tool["annotations"]["readOnlyHint"]}
    assert read_only == {"webmcp_list_sources", "webmcp_list_tools"}


async def test_without_tabs_the_lists_are_empty(client: LineClient) -> None:
    await client.initialize()
    assert await structured(client, "webmcp_list_sources") == {"count": 0, "sources": []}
    assert await structured(client, "webmcp_list_tools") == {"count": 0, "tools": []}


async def test_sources_and_tools_are_listed_with_their_names_and_origins(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with open_tab(hub.port) as one, open_tab(hub.port) as two, open_tab(hub.port) as three:
        await one.hello("1", title="One", url="https://one.example/", origin="https://one.example", iconUrl="data:,")
        await one.offer({"name": "a b", "description": "D", "x-mine": [1]})
        await two.hello("2", title=None, url=None)
        await two.offer("a b")
        await three.hello("3")
        await published(hub, 2)
        body = await structured(client, "webmcp_list_sources")
        assert body["count"] == 3
        rows = {row["tabId"]: row for row in body["sources"]}
        assert rows["1"]["title"] == "One"
        assert rows["1"]["iconUrl"] == "data:,"
        assert rows["1"]["toolCount"] == 1
        assert "title" not in rows["2"], "absent, not null"
        assert rows["3"]["toolCount"] == 0, "a tab without tools is a source too"
        for row in rows.values():
            assert row["lastSeenAt"] >= row["connectedAt"] > 1_600_000_000_000
        body = await structured(client, "webmcp_list_tools")
        assert body["count"] == 2
        tool = next(tool for tool in body["tools"] if tool["sources"][0]["tabId"] == "1")
        assert tool["originalName"] == "a b"
        assert tool["name"] == "a_b_1"
        assert tool["x-mine"] == [1]
        assert tool["sources"][0]["sourceId"] == rows["1"]["sourceId"]
        assert tool["sources"][0]["title"] == "One"
        assert sorted(tool["name"] for tool in body["tools"]) == await _sorted_names(client)


async def _sorted_names(client: LineClient) -> list[str]:
    return sorted(await client.tool_names())


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("webmcp_open_page", {}, "url"),
        ("webmcp_open_page", {"url": 5}, "url"),
        ("webmcp_open_page", {"url": None}, "url"),
        ("webmcp_open_page", {"url": "https://a.example/", "refresh": "yes"}, "refresh"),
        ("webmcp_tool_call", {}, "toolName"),
        ("webmcp_tool_call", {"toolName": None}, "toolName"),
        ("webmcp_tool_call", {"toolName": "good", "args": []}, "args"),
        ("webmcp_tool_call", {"toolName": "good", "args": "{}"}, "args"),
        ("webmcp_tool_call", {"toolName": "good", "args": "x" * 1_100_000}, "args"),
        ("webmcp_tool_call", {"toolName": "good", "args": ["x" * 1_100_000]}, "args"),
        ("webmcp_tool_call", {"toolName": "good", "args": {"x": "x" * 1_100_000}, "sourceId": []}, "sourceId"),
        ("webmcp_tool_call", {"toolName": "good", "sourceId": 1.5}, "sourceId"),
        ("webmcp_tool_call", {"toolName": "good", "requestTabId": {}}, "requestTabId"),
        ("webmcp_tool_call", {"toolName": "webmcp_tool_call", "args": {"toolName": "good"}}, "directly"),
        ("webmcp_tool_call", {"toolName": "webmcp_list_sources"}, "directly"),
        ("webmcp_tool_call", {"toolName": "nope"}, "webmcp_list_tools"),
        ("webmcp_tool_call", {"toolName": "good", "sourceId": "nope"}, "webmcp_list_sources"),
        ("webmcp_tool_call", {"toolName": "good", "requestTabId": "nope"}, "webmcp_list_sources"),
        ("webmcp_tool_call", {"toolName": "good", "sourceId": "good-tab", "requestTabId": "x"}, "webmcp_list_sources"),
        ("webmcp_tool_call", {"toolName": "nope", "sourceId": "good-tab"}, "webmcp_list_tools"),
    ],
)
async def test_wrong_arguments_are_an_error_result_and_nothing_reaches_a_tab(
    client: LineClient, hub: Hub, name: str, args: dict[str, Any], words: str
) -> None:
    await client.initialize()
    async with good_tab(hub.port) as tab:
        await client.wait_tools("good")
        assert words in await refused(client, name, args)
        await still_fine(client)
        assert sum(frame["type"] == "invoke" for frame in tab.seen) == 1


# -- webmcp_tool_call


async def test_a_targeted_call_goes_to_the_named_source_or_tab(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with good_tab(hub.port, "7", "t"), good_tab(hub.port, "8", "t"):
        await published(hub, 2)
        sources = (await structured(client, "webmcp_list_sources"))["sources"]
        ids = {row["tabId"]: row["sourceId"] for row in sources}

        def answered_last() -> str:
            """A result frame makes its tab the most recently seen one."""
            return hub.registry.newest_first()[0].tab_id

        for target, tab_id in [
            ({"sourceId": ids["7"]}, "7"),
            ({"sourceId": ids["8"]}, "8"),
            ({"sourceId": "7"}, "7"),
            ({"sourceId": 8}, "8"),
            ({"requestTabId": 7}, "7"),
            ({"requestTabId": "8"}, "8"),
            ({"sourceId": ids["7"], "requestTabId": "7"}, "7"),
        ]:
            for name in ("t", "t_7", "t_8"):
                args = {"toolName": name, "args": {"n": 5}, **target}
                assert json.loads(text_of(await client.call("webmcp_tool_call", args))) == {"n": 5}
                assert answered_last() == tab_id, (target, name)


async def test_a_targeted_call_has_default_arguments_and_hands_its_result_on(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("t")
        await client.wait_tools("t")
        number = await client.send_request("tools/call", {"name": "webmcp_tool_call", "arguments": {"toolName": "t"}})
        invoke = await tab.expect("invoke")
        assert invoke["args"] == {}
        body = text_result("hi") | {"_meta": {"a": 1}, "x": None, "isError": True}
        await tab.answer(invoke, body)
        assert (await client.answer_to(number))["result"] == body


# -- webmcp_open_page


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://a.example/",
        "data:text/html,x",
        "chrome://settings",
        "about:blank",
        "//a.example/",
        "a.example",
        "/etc/passwd",
        "",
        "http://",
        "https:///path",
        "https://:80/",
        "https:a.example",
        "http://[::1",
        "https://a.example/\n--flag",
        "https://a.example/\u0000",
        "https://a.example/\u0007x",
        "https://a.example/a b",
        " https://a.example/",
        "java\nscript:alert(1)",
        "-https://a.example/",
    ],
)
@pytest.mark.parametrize("refresh", [False, True])
async def test_urls_that_are_no_web_page_are_refused(url: str, refresh: bool) -> None:
    opened: list[str] = []

    async def opener(url: str) -> str | None:
        opened.append(url)
        return None

    args = Raw(json.dumps({"url": url, "refresh": refresh}).encode())
    with pytest.raises(RelayError, match="http or https"):
        await Tools(Catalogue(), opener).call("webmcp_open_page", args)
    assert opened == []


@pytest.mark.parametrize(
    "url", ["https://a.example/x?y=z#w", "http://localhost:3000", "HTTPS://A.example/", "http://[::1]:8080/"]
)
async def test_web_pages_are_opened_by_the_system(url: str) -> None:
    opened: list[str] = []

    async def opener(url: str) -> str | None:
        opened.append(url)
        return None

    result = await Tools(Catalogue(), opener).call("webmcp_open_page", Raw(json.dumps({"url": url}).encode()))
    assert opened == [url]
    assert url in bytes(result.json).decode()
    assert not result.is_error


async def test_a_page_that_cannot_be_opened_says_why() -> None:
    async def opener(url: str) -> str | None:
        return "there is no browser"

    with pytest.raises(RelayError, match=r"there is no browser"):
        await Tools(Catalogue(), opener).call("webmcp_open_page", Raw(b'{"url":"https://a.example/"}'))


@pytest.mark.skipif("sys.platform != 'linux'")
async def test_without_a_display_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", _never)
    problem = await open_on_this_machine("https://a.example/")
    assert problem is not None
    assert "DISPLAY" in problem


def _never(url: str) -> bool:
    raise AssertionError(url)


@pytest.mark.parametrize("found", [True, False])
async def test_with_a_display_the_system_is_asked(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    asked: list[str] = []

    def open_url(url: str) -> bool:
        asked.append(url)
        return found

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", open_url)
    problem = await open_on_this_machine("https://a.example/")
    assert (problem is None) is found
    assert asked == ["https://a.example/"]


async def test_an_opener_that_hangs_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    import threading

    release = threading.Event()

    def hang(url: str) -> bool:
        return release.wait(10)

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", hang)
    monkeypatch.setattr(management, "OPENER_S", 0)
    try:
        assert await open_on_this_machine("https://a.example/") is not None
    finally:
        release.set()


@pytest.mark.parametrize(
    "url", ["https://a.example/other", "https://A.EXAMPLE/", "https://a.example:443/", "https://user@a.example/"]
)
async def test_refresh_reloads_the_newest_tab_of_the_origin(client: LineClient, hub: Hub, url: str) -> None:
    await client.initialize()
    async with open_tab(hub.port) as older, open_tab(hub.port) as newer, good_tab(hub.port) as other:
        await _page(older, "1", "https://a.example/1")
        await _page(newer, "2", "https://a.example/2")
        await client.wait_tools("t_1", "t_2", "good")
        result = await client.call("webmcp_open_page", {"url": url, "refresh": True})
        assert "isError" not in result, result
        assert await newer.expect("reload") == {"type": "reload"}
        await still_fine(client)
        assert not any(frame["type"] == "reload" for frame in [*older.seen, *other.seen])


async def _page(tab: FakeTab, tab_id: str, url: str) -> None:
    await tab.hello(tab_id, url=url, origin="https://a.example")
    await tab.offer("t")


@pytest.mark.parametrize("url", ["http://a.example/", "https://a.example:8443/", "https://b.example/"])
async def test_refresh_of_an_origin_nobody_has_is_an_error(client: LineClient, hub: Hub, url: str) -> None:
    await client.initialize()
    async with open_tab(hub.port) as tab:
        await _page(tab, "1", "https://a.example/1")
        await client.wait_tools("t")
        assert "webmcp_list_sources" in await refused(client, "webmcp_open_page", {"url": url, "refresh": True})


async def test_a_browser_that_can_open_pages_is_asked_to(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with open_tab(hub.port) as able, good_tab(hub.port) as other:
        await able.hello("1", client={"name": "ours", "version": "1", "features": ["open", "else"]})
        await able.offer("t")
        await client.wait_tools("t", "good")
        result = await client.call("webmcp_open_page", {"url": "https://a.example/x"})
        assert "isError" not in result
        assert await able.expect("open") == {"type": "open", "url": "https://a.example/x"}
        await still_fine(client)
        assert not any(frame["type"] == "open" for frame in other.seen)
