"""Who may not: web pages that speak to the relay themselves, and an extension that the relay was not told of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.browser.setting import Setting, open_setting, until
from tests.e2e.browser.site import ECHO

pytestmark = pytest.mark.chromium

SPEAK = """new Promise((told) => {
  const seen = [];
  const socket = new WebSocket("ws://127.0.0.1:%d/", %s);
  socket.onopen = () => %s.forEach((frame) => socket.send(JSON.stringify(frame)));
  socket.onmessage = ({data}) => seen.push(JSON.parse(data).type);
  socket.onclose = ({code}) => told({code, seen});
})"""
HELLO = {
    "type": "hello",
    "tabId": "evil",
    "origin": "https://bank.example",
    "url": "https://bank.example/",
    "title": "t",
}
OFFER = {"type": "tools/list", "tools": [{"name": "evil", "inputSchema": {"type": "object"}}]}


async def test_a_web_page_that_says_hello_itself_is_refused(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    words = SPEAK % (setting.relay.port, json.dumps(["webmcp.v1"]), json.dumps([HELLO, OFFER]))
    answer = await page.evaluate(words)
    assert answer["code"] == 1008
    assert answer["seen"][-1] == "hello/rejected"
    assert "hello/accepted" not in answer["seen"]
    assert await setting.relay.tool_names() == ["echo"]
    assert len(await setting.sources()) == 1


async def test_a_web_page_cannot_join_as_a_relay_and_call_tools(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    invoke = {"type": "relay/invoke", "callId": "c1", "toolName": "echo", "args": {}}
    frames = [{"type": "relay/hello"}, {"type": "relay/list"}, invoke]
    answer = await page.evaluate(SPEAK % (setting.relay.port, json.dumps(["webmcp-relay.v1"]), json.dumps(frames)))
    assert answer == {"code": 1008, "seen": []}
    assert await page.evaluate("window.runs") == 0


async def test_an_extension_that_is_not_allowed_says_so_and_does_not_come_back_at_once(tmp_path: Path) -> None:
    other = "chrome-extension://" + "a" * 32
    async with open_setting(tmp_path, "--widget-origin", other, "--log-level", "debug") as setting:
        await setting.browser.open(setting.site.page(ECHO))
        await setting.relay.logged("is not in --widget-origin; refused")
        popup = await setting.browser.popup()

        async def refused() -> object:
            return (await setting.browser.status(popup))["refusal"]

        assert "widget-origin" in str(await until(refused)).lower()
        asked = setting.relay.stderr.count("is not in --widget-origin")
        await popup.close()
        assert await setting.relay.tool_names() == []
        # The next try comes with something that happens: a page, a popup, the alarm.
        another = await setting.browser.open(setting.site.page(ECHO, "/another"))
        await until(lambda: _refused_more_than(setting, asked))
        assert setting.relay.stderr.count("is not in --widget-origin") <= asked + 4
        assert await another.evaluate("window.runs") == 0


async def _refused_more_than(setting: Setting, count: int) -> bool:
    return setting.relay.stderr.count("is not in --widget-origin") > count
