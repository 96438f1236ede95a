"""Several tabs, and what a tab does in its life: reload, navigation, back and forward, closing, changes of title."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.browser.setting import Setting, open_setting, text_of, until, wait_sources
from tests.e2e.browser.site import ECHO, HANG
from tests.e2e.browser.test_calls import begin
from trio_relay.chromium.devtools import Page

pytestmark = pytest.mark.chromium

WHERE = """document.modelContext.registerTool({
  name: "where", description: "Says where it is", inputSchema: {type: "object"},
  async execute() { return location.pathname; },
});"""


async def two_tabs(setting: Setting) -> dict[str, tuple[str, Page]]:
    """path → (tabId, page) of two tabs with the same tool."""
    one = await setting.show(WHERE, "where", name="/one")
    two = await setting.browser.open(setting.site.page(WHERE, "/two"))
    sources = await wait_sources(setting.relay, lambda found: [s["toolCount"] for s in found] == [1, 1])
    ids = {source["url"].rpartition("/")[2]: source["tabId"] for source in sources}
    return {"/one": (ids["one"], one), "/two": (ids["two"], two)}


async def test_two_tabs_with_one_tool_have_names_of_four_digits_and_are_reached_each(setting: Setting) -> None:
    tabs = await two_tabs(setting)
    names = {path: f"where_{tab_id[:4]}" for path, (tab_id, _) in tabs.items()}
    assert len(set(names.values())) == 2
    await setting.relay.wait_tools(*names.values())
    for path, (tab_id, _) in tabs.items():
        assert text_of(await setting.relay.call(names[path])) == path
        target = {"toolName": "where", "requestTabId": tab_id}
        assert text_of(await setting.relay.call("webmcp_tool_call", target)) == path


async def test_tab_ids_stay_over_reload_worker_kill_and_extension_reload(setting: Setting) -> None:
    tabs = await two_tabs(setting)
    names = [f"where_{tab_id[:4]}" for tab_id, _ in tabs.values()]

    async def same_again(before: set[str]) -> set[str]:
        """Both are back with new sockets, and are called by the same names."""
        sources = await wait_sources(
            setting.relay,
            lambda s: len(s) == 2 and all(x["toolCount"] for x in s) and not {x["sourceId"] for x in s} & before,
        )
        assert {source["tabId"] for source in sources} == {tab_id for tab_id, _ in tabs.values()}
        await setting.relay.wait_tools(*names)
        for name, path in zip(names, tabs, strict=True):
            assert text_of(await setting.relay.call(name)) == path
        return {source["sourceId"] for source in sources}

    known = await same_again(set())
    await setting.browser.kill_worker()
    known = await same_again(known)
    await setting.browser.load_extension()
    await same_again(known)
    _, page = tabs["/one"]
    await page.command("Page.reload")
    await until(lambda: page.evaluate("performance.getEntriesByType('navigation')[0]?.type === 'reload'"))

    async def answers() -> bool:
        """A call that comes before the old page's end is known fails, as it should."""
        return text_of(await setting.relay.call(names[0])) == "/one"

    await until(answers)
    await setting.relay.wait_tools(*names)


async def test_the_client_opens_a_page_and_reloads_it(setting: Setting) -> None:
    await setting.show(ECHO, "echo", name="/first")
    url = setting.site.page(WHERE, "/opened")
    opened = await setting.relay.call("webmcp_open_page", {"url": url})
    assert not opened.get("isError"), opened
    await setting.relay.wait_tools("echo", "where")
    pages = await setting.browser.devtools.targets("page")
    page = await setting.browser.devtools.attach(next(info["targetId"] for info in pages if info["url"] == url))
    await page.evaluate("window.before = true")
    setting.site.page(WHERE.replace('"where"', '"renewed"'), "/opened")
    reloaded = await setting.relay.call("webmcp_open_page", {"url": url, "refresh": True})
    assert not reloaded.get("isError"), reloaded
    await setting.relay.wait_tools("echo", "renewed")
    assert await page.evaluate("window.before") is None


@pytest.mark.parametrize("how", ["Page.reload", "Page.navigate"])
async def test_a_navigation_answers_the_call_that_runs_at_once_and_says_so(setting: Setting, how: str) -> None:
    page = await setting.show(HANG, "hang")
    request = await begin(setting, page)
    where = {"url": setting.site.page(ECHO, "/next")} if how == "Page.navigate" else {}
    await page.command(how, **where)
    result = (await setting.relay.answer_to(request))["result"]
    assert result["isError"]
    assert "navigation or reload" in text_of(result)
    assert "may have done its work" in text_of(result)
    await setting.relay.wait_tools("echo" if where else "hang")


async def test_a_tab_closed_in_mid_call_answers_and_is_gone(setting: Setting) -> None:
    page = await setting.show(HANG, "hang")
    request = await begin(setting, page)
    await page.close()
    result = (await setting.relay.answer_to(request))["result"]
    assert result["isError"]
    assert "may have done its work" in text_of(result)
    await wait_sources(setting.relay, lambda found: found == [])
    assert await setting.relay.tool_names() == []


async def test_a_page_of_another_origin_takes_the_place_of_the_first(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo", name="/one")
    (first,) = await setting.sources()
    setting.site.page(WHERE, "/two")
    await page.command("Page.navigate", url=setting.site.url("/two", "localhost"))
    await setting.relay.wait_tools("where")
    (second,) = await setting.sources()
    assert second["url"] == setting.site.url("/two", "localhost")
    assert second["tabId"] == first["tabId"]
    assert text_of(await setting.relay.call("where")) == "/two"


async def test_a_page_that_speaks_up_before_it_is_the_tabs_page_is_asked_again(setting: Setting) -> None:
    """Under load the first port leads to the page that is just going, which refuses it."""
    page = await setting.show(ECHO, "echo", name="/one")
    await setting.browser.in_worker("""
        const connect = chrome.tabs.connect;
        self.missed = 0;
        chrome.tabs.connect = (tab, about) => {
          if (self.missed++ === 1) chrome.tabs.connect = connect;
          return connect(tab, {...about, name: "the page before"});
        };
    """)
    await page.command("Page.navigate", url=setting.site.page(WHERE, "/two"))
    await setting.relay.wait_tools("where")
    assert text_of(await setting.relay.call("where")) == "/two"
    assert await setting.browser.in_worker("self.missed") == 2


async def test_a_page_from_the_back_forward_cache_works_again(tmp_path: Path) -> None:
    async with open_setting(tmp_path, page_cache=True) as setting:
        page = await setting.show(ECHO, "echo", name="/one")
        await page.evaluate("window.mark = 'kept'")
        await page.command("Page.navigate", url=setting.site.page(WHERE, "/two"))
        await setting.relay.wait_tools("where")
        await page.evaluate("history.back()")
        await setting.relay.wait_tools("echo")
        assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
        assert await page.evaluate("window.mark") == "kept", "it did come from the cache"
        await page.evaluate("history.forward()")
        await setting.relay.wait_tools("where")
        assert text_of(await setting.relay.call("where")) == "/two"


async def test_a_new_title_and_address_of_the_same_page_reach_the_list(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo", name="/app")
    (before,) = await setting.sources()
    await page.evaluate("history.pushState({}, '', '/app/view'); document.title = 'Another title';")
    url = setting.site.url("/app/view")
    (after,) = await wait_sources(setting.relay, lambda s: (s[0]["title"], s[0]["url"]) == ("Another title", url))
    assert after["sourceId"] == before["sourceId"]
    assert await setting.relay.tool_names() == ["echo"]
