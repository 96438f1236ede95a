"""The person's switches: one site, everything, and the port."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.e2e.browser.setting import Setting, open_relay, text_of, until, wait_sources
from tests.e2e.browser.site import ECHO, HANG
from tests.e2e.browser.test_calls import begin
from tests.helpers import PATIENCE, free_port

pytestmark = pytest.mark.chromium


@pytest.mark.parametrize("switch", ["site", "everything"])
async def test_what_is_switched_off_is_gone_at_once_and_comes_back(setting: Setting, switch: str) -> None:
    page = await setting.show(HANG, "hang")
    hanging = await begin(setting, page)
    origin = setting.site.url("")
    await setting.browser.set(**({"sitesOff": [origin]} if switch == "site" else {"enabled": False}))
    result = (await setting.relay.answer_to(hanging))["result"]
    assert result["isError"]
    assert "switched off" in text_of(result)
    await until(lambda: page.evaluate("window.aborted.length === 1"))
    await wait_sources(setting.relay, lambda found: found == [])
    await page.command("Page.reload")
    await setting.browser.open(setting.site.page(ECHO, "/also-off"))
    assert await setting.sources() == []
    await setting.browser.set(sitesOff=[], enabled=True)
    await setting.relay.wait_tools("hang", "echo")


async def test_another_site_stays_when_one_is_switched_off(setting: Setting) -> None:
    await setting.show(HANG, "hang", name="/off")
    setting.site.page(ECHO, "/on")
    await setting.browser.open(setting.site.url("/on", "localhost"))
    await setting.relay.wait_tools("echo", "hang")
    (kept,) = [source for source in await setting.sources() if "localhost" in source["url"]]
    await setting.browser.set(sitesOff=[setting.site.url("")])
    await setting.relay.wait_tools("echo")
    (source,) = await setting.sources()
    assert source["sourceId"] == kept["sourceId"]


async def test_a_tab_that_goes_to_a_site_that_is_off_is_no_source_there(setting: Setting) -> None:
    setting.site.page(ECHO, "/off")
    await setting.browser.set(sitesOff=[setting.site.url("", "localhost")])
    page = await setting.show(HANG, "hang")
    await page.command("Page.navigate", url=setting.site.url("/off", "localhost"))
    await wait_sources(setting.relay, lambda found: found == [])
    await page.command("Page.navigate", url=setting.site.url("/"))
    await setting.relay.wait_tools("hang")


async def test_another_port_leaves_one_relay_for_the_other(setting: Setting, tmp_path: Path) -> None:
    await setting.show(ECHO, "echo")
    async with open_relay(tmp_path / "other", port=free_port()) as other:
        await setting.browser.set(port=other.port)
        await other.wait_tools("echo")
        await wait_sources(setting.relay, lambda found: found == [])
        assert text_of(await other.call("echo", {"q": 1})) == 'echo {"q":1}'
        await setting.browser.set(port=1)
        await setting.browser.set(port=setting.relay.port)
        await setting.relay.wait_tools("echo")
        assert await other.tool_names() == []


async def test_a_port_changed_in_the_middle_of_a_search_counts_at_once(setting: Setting) -> None:
    await setting.show(ECHO, "echo")
    (stranger,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with stranger:
        await setting.browser.set(port=stranger.socket.getsockname()[1])
        with trio.fail_after(PATIENCE):
            knock = await stranger.accept()  # the search has begun, and gets no answer
        async with knock:
            await setting.browser.set(port=setting.relay.port)
            await wait_sources(setting.relay, lambda found: [source["toolCount"] for source in found] == [1])
            assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
