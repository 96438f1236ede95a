"""Upstream's own browser client: `embed.js` and `widget.html` of the npm relay, without our extension."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import npm
from tests.e2e.browser.setting import PROGRAM, Browser, open_relay, text_of
from tests.e2e.browser.site import GLOBAL, open_site
from tests.helpers import free_port
from trio_relay.chromium.launch import open_chromium

pytestmark = [pytest.mark.chromium, pytest.mark.npm]

ANSWER = """
window.runs = 0;
document.modelContext.registerTool({
  name: "answer",
  description: "Says what it is told",
  inputSchema: {type: "object"},
  async execute({q}) { window.runs += 1; return {content: [{type: "text", text: q}]}; },
});
"""


async def test_a_page_with_upstreams_widget_is_listed_and_called(tmp_path: Path) -> None:
    port = free_port()
    async with open_site() as site:
        files = npm.NODE_MODULES / "@mcp-b" / "webmcp-local-relay" / "dist" / "browser"
        for name in ("embed.js", "widget.js"):
            site.put(f"/{name}", (files / name).read_bytes(), "text/javascript; charset=utf-8")
        site.put("/widget.html", (files / "widget.html").read_bytes())
        site.put("/polyfill.js", (npm.NODE_MODULES / GLOBAL).read_bytes(), "text/javascript; charset=utf-8")
        embed = f'<script src="/embed.js" data-relay-host="127.0.0.1" data-relay-port="{port}"></script>'
        body = f'<title>W</title><script src="/polyfill.js"></script><script>{ANSWER}</script><body>{embed}'
        url = site.put("/", f"<!doctype html>{body}")
        async with (
            open_relay(tmp_path, "--widget-origin", site.url(""), port=port) as relay,
            open_chromium(PROGRAM, headless=True, webmcp=False) as devtools,
        ):
            page = await Browser(devtools).open(url)
            await relay.wait_tools("answer")
            assert text_of(await relay.call("answer", {"q": "é"})) == "é"
            assert await page.evaluate("window.runs") == 1
