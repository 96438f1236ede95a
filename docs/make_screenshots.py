"""Makes the README's pictures of the extension's popup: `python docs/make_screenshots.py [--folder DIR] [--scale N]`.

Starts Chromium without a window, relays, and pages with WebMCP tools on loopback; writes PNG files. Needs the package
installed with its dependencies (`pip install -e .`), a Chromium or Chrome (`--browser PROGRAM`), and the ports 8000 and
9333 to 9348 free: one picture shows that nothing was found on them.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import trio

from trio_relay.chromium.devtools import DevTools, DevToolsError, Page
from trio_relay.chromium.launch import open_chromium

HERE = Path(__file__).parent
EXTENSION = HERE.parent / "trio_relay" / "browser"
WIDTH = 360
PATIENCE = 30.0
PORT = 9333
NOT_FOUND = ("No relay found", "The page has 3 tools")
REFUSED = ("refuses this extension", "The page has 3 tools", "None. Tabs")
CONNECTED = ("Connected to the relay", "Shared with 3 tools", "Shared tabs (3)", "2 tools", "no tools")
OTHER_ORIGIN = "chrome-extension://" + "a" * 32

SITE_PORT = 8000
PAGES = {
    "shop": ("Garden shop: seeds, tools and pots for balconies of all sizes", ["search", "add_to_cart", "show_cart"]),
    "calendar": ("Calendar: week 23", ["list_events", "add_event"]),
    "notes": ("Notes", []),
}
"""Pages by the first part of their host, `shop.localhost`; browsers take all of those for this machine."""

PAGE = """<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><script>
for (const name of {tools}) document.modelContext.registerTool({{
  name, description: name, inputSchema: {{type: "object"}}, execute: async () => "done" }});
</script>"""


@dataclass
class Studio:
    """What a picture is taken with."""

    devtools: DevTools
    extension: str
    folder: Path
    scale: float


class Site(BaseHTTPRequestHandler):
    """The pages with tools."""

    def do_GET(self) -> None:
        name = self.headers.get("Host", "").partition(".")[0]
        if self.path != "/" or name not in PAGES:
            self.send_error(404)
            return
        title, tools = PAGES[name]
        body = PAGE.format(title=title, tools=json.dumps(tools)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@asynccontextmanager
async def relay(*options: str) -> AsyncIterator[None]:
    """A relay process; its stdin stays open, as a client's would."""
    command = [sys.executable, "-m", "trio_relay", "--port", str(PORT), *options]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE.parent
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def until(page: Page, expression: str) -> None:
    """Wait until an expression is true in the page. Its first document may still be on the way."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                if await page.evaluate(expression):
                    return
            except DevToolsError as error:
                if "gone" in str(error):
                    raise
            await trio.sleep(0.05)


async def take(studio: Studio, name: str, *, words: tuple[str, ...], front: Page, dark: bool = False) -> None:
    """Open the popup with `front` as the tab in front, wait for `words`, and take its picture."""
    popup = await studio.devtools.open_page("about:blank")
    media = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
    await popup.command("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in media.items()])
    await popup.command(
        "Emulation.setDeviceMetricsOverride", width=WIDTH, height=600, deviceScaleFactor=studio.scale, mobile=False
    )
    address = f"chrome-extension://{studio.extension}/popup.html?tab={await tab_id(studio, front)}"
    await popup.command("Page.navigate", url=address)
    shown = (
        f"{json.dumps(words)}.every((words) => document.body?.innerText.includes(words)) && document.body.offsetHeight"
    )
    with trio.fail_after(PATIENCE):
        while True:
            await until(popup, shown)
            height = await popup.evaluate("document.body.offsetHeight")
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            shot = await popup.command("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            if await popup.evaluate(shown) == height:
                break  # else it changed meanwhile
    assert await popup.evaluate("document.documentElement.scrollWidth") <= WIDTH  # nothing hangs over the edge
    (studio.folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    await popup.close()


async def tab_id(studio: Studio, page: Page) -> int:
    """Chrome's id of a tab; only extensions know it."""
    address = json.dumps(await page.evaluate("location.href"))
    found: int = await (await worker(studio)).evaluate(f"chrome.tabs.query({{url: {address}}}).then(([tab]) => tab.id)")
    return found


async def worker(studio: Studio) -> Page:
    """The extension's service worker."""
    with trio.fail_after(PATIENCE):
        while True:
            for target in await studio.devtools.targets("service_worker"):
                if studio.extension in target["url"]:
                    return await studio.devtools.attach(target["targetId"])
            await trio.sleep(0.05)


async def open_tabs(studio: Studio) -> list[Page]:
    pages = [await studio.devtools.open_page(f"http://{name}.localhost:{SITE_PORT}/") for name in PAGES]
    for page in pages:
        await until(page, "document.readyState === 'complete' && location.protocol === 'http:'")
    return pages


async def take_all(studio: Studio) -> None:
    shop, *_ = await open_tabs(studio)
    await take(studio, "popup-not-found", words=NOT_FOUND, front=shop)
    async with relay("--label", "Claude Desktop", "--workspace", "garden"):
        await take(studio, "popup-connected", words=CONNECTED, front=shop)
        await take(studio, "popup-connected-dark", words=CONNECTED, front=shop, dark=True)
    async with relay("--widget-origin", OTHER_ORIGIN):
        await take(studio, "popup-refused", words=REFUSED, front=shop, dark=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the README's pictures of the extension's popup.")
    parser.add_argument("--browser", default="chromium", help="the program to start (default: chromium)")
    parser.add_argument("--folder", type=Path, default=HERE / "images", help="where the pictures go")
    parser.add_argument("--scale", type=float, default=1.5, help="device pixels per CSS pixel (default: 1.5)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", SITE_PORT), Site)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        async with open_chromium(options.browser, headless=True) as devtools:
            loaded = await devtools.command("Extensions.loadUnpacked", path=str(EXTENSION))
            await take_all(Studio(devtools, loaded["id"], options.folder, options.scale))
    finally:
        server.shutdown()


if __name__ == "__main__":
    trio.run(main)
