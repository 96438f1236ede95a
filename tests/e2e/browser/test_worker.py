"""The service worker is stopped, and the extension reloaded: the pages stay and are shared again by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.browser.setting import Setting, open_setting, text_of, until, wait_sources
from tests.e2e.browser.site import ECHO, HANG
from tests.e2e.browser.test_calls import begin

pytestmark = pytest.mark.chromium


ANNOUNCE = """(async () => {
  const [{id}] = await chrome.tabs.query({url: "http://*/*"});
  const {page} = await chrome.tabs.sendMessage(id, {type: "state?"}, {frameId: 0});
  const func = (page) => chrome.runtime.sendMessage({type: "page", page}).catch(() => {});
  await chrome.scripting.executeScript({target: {tabId: id}, func, args: [page]});
})()"""
"""In the worker: let the page that is open say once more that it is there."""


async def replaced(setting: Setting, known: str) -> None:
    """The only source has another socket than the known one, and its tools."""
    await wait_sources(setting.relay, lambda s: len(s) == 1 and s[0]["sourceId"] != known and s[0]["toolCount"] > 0)


async def test_a_killed_worker_comes_back_by_itself_with_its_tools(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    for _ in range(2):
        (before,) = await setting.sources()
        killed = await setting.browser.kill_worker()
        await replaced(setting, before["sourceId"])
        assert killed not in [info["targetId"] for info in await setting.browser.devtools.targets("service_worker")]
    assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
    assert await page.evaluate("window.runs") == 1


async def test_a_page_that_says_again_that_it_is_there_loses_no_call(setting: Setting) -> None:
    page = await setting.show(ECHO + HANG, "echo", "hang")
    request = await begin(setting, page)
    # As when a worker has just started: it asks all pages, and their announcements come after.
    await setting.browser.in_worker(ANNOUNCE)
    for _ in range(10):
        assert not (await setting.relay.call("echo")).get("isError")
    await page.evaluate("window.finish('kept')")
    assert text_of((await setting.relay.answer_to(request))["result"]) == "kept"


async def test_after_a_kill_each_tab_is_shared_once_and_does_not_flicker(tmp_path: Path) -> None:
    async with open_setting(tmp_path, "--log-level", "debug") as setting:
        for number in range(4):
            await setting.browser.open(setting.site.page(ECHO, f"/{number}"))
        before = await wait_sources(setting.relay, lambda found: [s["toolCount"] for s in found] == [1] * 4)
        known = {source["sourceId"] for source in before}
        await setting.browser.kill_worker()
        after = await wait_sources(
            setting.relay,
            lambda found: (
                [s["toolCount"] for s in found] == [1] * 4 and not known & {source["sourceId"] for source in found}
            ),
        )
        # Each page says that it is there, while the worker, woken by the first, has asked them all.
        for source in after:
            target = {"toolName": "echo", "sourceId": source["sourceId"]}
            for _ in range(5):
                assert not (await setting.relay.call("webmcp_tool_call", target)).get("isError")
        log = setting.relay.stderr.rpartition("closed (1001)")[2]
        assert [log.count(f"tab '{source['tabId']}': 1 tools") for source in after] == [1] * 4


async def test_a_worker_killed_in_mid_call_costs_that_call_an_answer_in_words(setting: Setting) -> None:
    page = await setting.show(HANG, "hang")
    (before,) = await setting.sources()
    request = await begin(setting, page)
    await setting.browser.kill_worker()
    result = (await setting.relay.answer_to(request))["result"]
    assert result["isError"]
    assert text_of(result)
    await until(lambda: page.evaluate("window.aborted.length === 1"))
    await replaced(setting, before["sourceId"])
    request = await begin(setting, page)
    await page.evaluate("window.finish('again')")
    assert text_of((await setting.relay.answer_to(request))["result"]) == "again"


@pytest.mark.parametrize("how", ["loaded anew", "chrome.runtime.reload"])
async def test_after_a_reload_of_the_extension_the_same_page_runs_each_call_once(setting: Setting, how: str) -> None:
    page = await setting.show(ECHO, "echo")
    await page.evaluate("window.mark = 'kept'")
    for runs in (1, 2):
        (before,) = await setting.sources()
        if how == "loaded anew":
            await setting.browser.load_extension()
        else:
            await setting.browser.in_worker("void setTimeout(() => chrome.runtime.reload(), 0)")
        await replaced(setting, before["sourceId"])
        assert text_of(await setting.relay.call("echo", {"q": runs})) == f'echo {{"q":{runs}}}'
        assert await page.evaluate("[window.runs, window.mark].join()") == f"{runs},kept"


async def test_an_extension_reloaded_in_mid_call_leaves_no_call_waiting(setting: Setting) -> None:
    page = await setting.show(HANG, "hang")
    request = await begin(setting, page)
    await setting.browser.load_extension()
    assert (await setting.relay.answer_to(request))["result"]["isError"]
    await until(lambda: page.evaluate("window.aborted.length === 1"))


async def test_pages_opened_before_the_extension_are_shared_too(setting: Setting) -> None:
    await setting.browser.devtools.command("Extensions.uninstall", id="dfmjanjmbbmleoinmjfjkbplomkiniel")
    page = await setting.browser.open(setting.site.page(ECHO))
    await setting.browser.load_extension()
    await setting.browser.set(port=setting.relay.port)
    await setting.relay.wait_tools("echo")
    assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
    assert await page.evaluate("window.runs") == 1


async def test_a_tab_behind_a_dialog_holds_up_no_other(setting: Setting) -> None:
    stuck = await setting.browser.open(setting.site.page(ECHO.replace('"echo"', '"stuck"'), "/stuck"))
    await setting.relay.wait_tools("stuck")
    await stuck.command("Page.enable")  # or dialogs close by themselves
    await stuck.evaluate("void setTimeout(() => alert('wait'), 0)")
    await setting.browser.kill_worker()
    setting.site.page(ECHO, "/free")
    await setting.browser.open(setting.site.url("/free", "localhost"))  # a process of its own
    await setting.relay.wait_tools("echo")
    await setting.browser.set(port=1)
    await setting.relay.wait_tools()
    await setting.browser.set(port=setting.relay.port)
    await setting.relay.wait_tools("echo")
    await stuck.command("Page.handleJavaScriptDialog", accept=True)
    await setting.relay.wait_tools("echo", "stuck")
