"""The popup and the options page in Chromium: what they say, their switches, and titles that pages made to harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.browser.setting import EXTENSION_ID, Setting, open_setting, until
from tests.e2e.browser.site import ECHO
from trio_relay.chromium.devtools import Page

pytestmark = pytest.mark.chromium

BASE = f"chrome-extension://{EXTENSION_ID}"
HARMFUL = "\u202e<img src=x onerror=\"document.title='run'\"> " + "W" * 3000


async def open_popup(setting: Setting, front: Page) -> Page:
    """The popup, with a tab that has been opened here taken for the one in front."""
    where = json.dumps({"url": (await front.evaluate("location.href")).partition("#")[0]})
    tab = await setting.browser.in_worker(f"chrome.tabs.query({where}).then(([tab]) => tab.id)")
    popup = await setting.browser.open(f"{BASE}/popup.html?tab={tab}")
    await popup.command("Emulation.setDeviceMetricsOverride", width=360, height=600, deviceScaleFactor=1, mobile=False)
    return popup


async def says(page: Page, words: str, place: str = "body") -> None:
    await until(lambda: page.evaluate(f"document.querySelector({place!r})?.innerText.includes({json.dumps(words)})"))


async def press(page: Page, place: str) -> None:
    await page.evaluate(f"document.querySelector({place!r}).click()")


async def test_the_popup_shows_the_relay_the_tab_and_follows_both_switches(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    popup = await open_popup(setting, page)
    await says(popup, f"Connected to the relay on port {setting.relay.port}", "#relay")
    await says(popup, "Shared with 1 tool", "#tab")
    await says(popup, "Shared tabs (1)")
    await press(popup, "#site")
    await says(popup, "This site is switched off", "#tab")
    await setting.relay.wait_tools()
    await press(popup, "#site")
    await says(popup, "Shared with 1 tool", "#tab")
    await press(popup, "#enabled")
    await says(popup, "Sharing is switched off", "#relay")
    await setting.relay.wait_tools()
    await press(popup, "#enabled")
    await setting.relay.wait_tools("echo")
    await says(popup, "Shared with 1 tool", "#tab")


async def test_a_harmful_title_is_only_text_and_stays_on_its_line(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    popup = await open_popup(setting, page)
    await says(popup, "Shared tabs (1)")
    await page.evaluate(f"document.title = {json.dumps(HARMFUL)}")
    await says(popup, "<img src=x", "#list")
    assert await popup.evaluate("document.querySelectorAll('#list img').length") == 0
    assert await popup.evaluate("document.title") == "trio-relay"
    assert "\u202e" not in await popup.evaluate("document.body.innerText")
    assert await popup.evaluate("document.documentElement.scrollWidth") == 360
    one_line = "document.querySelector('.tab-title').getBoundingClientRect().height < 30"
    assert await popup.evaluate(one_line)


async def test_a_shared_tab_in_the_list_is_brought_to_the_front(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    popup = await open_popup(setting, page)
    await until(lambda: page.evaluate("document.hidden"))
    await says(popup, "Shared tabs (1)")
    await press(popup, "#list button")
    await until(lambda: page.evaluate("!document.hidden"))


async def test_a_popup_outlives_the_worker(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    popup = await open_popup(setting, page)
    await says(popup, "Shared with 1 tool", "#tab")
    await setting.browser.kill_worker()
    await page.evaluate("document.title = 'after'")
    await says(popup, "after", "#list")
    await press(popup, "#site")
    await says(popup, "This site is switched off", "#tab")


async def test_a_page_with_an_open_dialog_does_not_keep_the_popup_empty(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    await page.command("Page.enable")  # else a browser without a window closes dialogs at once
    popup = await open_popup(setting, page)
    await says(popup, "Shared with 1 tool", "#tab")
    await page.evaluate("void setTimeout(() => alert('stop'), 0)")
    await says(popup, "The page has not answered yet.", "#tab")
    await popup.command("Page.reload")
    await says(popup, "The page has not answered yet.", "#tab")
    await says(popup, "Shared tabs (1)")


async def test_a_refusal_names_the_option_that_lets_the_extension_in(tmp_path: Path) -> None:
    async with open_setting(tmp_path, "--widget-origin", f"chrome-extension://{'a' * 32}") as setting:
        page = await setting.browser.open(setting.site.page(ECHO, "/"))
        popup = await open_popup(setting, page)
        await says(popup, f"The relay on port {setting.relay.port} refuses this extension", "#relay")
        await says(popup, f"--widget-origin chrome-extension://{EXTENSION_ID}", "#relay code")
        await says(popup, "The page has 1 tool. The relay refuses this extension.", "#tab")


async def test_no_relay_and_a_denied_permission_are_told_apart(setting: Setting) -> None:
    await setting.browser.set(port=1)
    page = await setting.browser.open(setting.site.page(ECHO, "/"))
    popup = await open_popup(setting, page)
    await says(popup, "Nothing answered on port 1 of this computer.", "#relay")
    await setting.browser.devtools.command(
        "Browser.setPermission", permission={"name": "loopback-network"}, setting="denied", origin=BASE
    )
    await says(popup, "set “Apps on device”", "#relay")


async def test_a_browser_without_webmcp_says_how_to_switch_it_on(tmp_path: Path) -> None:
    async with open_setting(tmp_path, webmcp=False) as setting:
        page = await setting.browser.open(setting.site.page("", "/"))
        popup = await open_popup(setting, page)
        await says(popup, "chrome://flags/#enable-webmcp-testing", "#tab")


async def test_the_options_page_stores_a_port_and_switches_sites_on_again(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    site = await page.evaluate("location.origin")
    await setting.browser.set(sitesOff=[site])
    await setting.relay.wait_tools()
    options = await setting.browser.open(f"{BASE}/options.html")
    await until(lambda: options.evaluate(f"document.querySelector('#port').value === '{setting.relay.port}'"))
    await says(options, f"--widget-origin chrome-extension://{EXTENSION_ID}", "#pin")
    await options.evaluate("{document.querySelector('#port').value = '70000'}")
    await press(options, "#port-form button")
    await says(options, "“70000” is no port.", "#port-said")
    assert await setting.browser.in_worker("chrome.storage.local.get('port')") == {"port": setting.relay.port}
    await options.evaluate("{document.querySelector('#port').value = ''}")
    await press(options, "#port-form button")
    await says(options, "ports 9333 to 9348", "#port-said")
    await until(lambda: setting.browser.in_worker("chrome.storage.local.get('port').then(({port}) => port === null)"))
    await setting.browser.set(port=setting.relay.port)
    await says(options, site, "#sites")
    await press(options, "#sites button")
    await setting.relay.wait_tools("echo")
    await says(options, "None.", "#sites-said")
