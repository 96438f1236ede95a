"""A real Chromium with the extension, a web server for its pages, and relays: all between the client and the page."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

import trio_relay
from tests.e2e.browser.site import Site, open_site
from tests.helpers import PATIENCE, RelayProcess, free_port, open_relay_process
from trio_relay.chromium.devtools import DevTools, DevToolsError, Page
from trio_relay.chromium.launch import open_chromium

PROGRAM = "chromium"
EXTENSION = Path(trio_relay.__file__).parent / "browser"
EXTENSION_ID = "dfmjanjmbbmleoinmjfjkbplomkiniel"
LOOK_EVERY_S = 0.02


def chromium_is_missing() -> bool:
    return shutil.which(PROGRAM) is None


async def until(says: Callable[[], Awaitable[Any]], patience: float = PATIENCE) -> Any:
    """Ask (an async function) until the answer is true, and return it."""
    with trio.fail_after(patience):
        while not (answer := await says()):  # noqa: ASYNC110  (another process is asked)
            await trio.sleep(LOOK_EVERY_S)
    return answer


class Browser:
    """The running browser, with the extension in it."""

    def __init__(self, devtools: DevTools) -> None:
        self.devtools = devtools

    async def load_extension(self) -> None:
        """Load it from its folder, or load it anew (all of its parts start again)."""
        await self.devtools.command("Extensions.loadUnpacked", path=str(EXTENSION))

    async def open(self, url: str) -> Page:
        """A new tab, once its page has loaded."""
        page = await self.devtools.open_page(url)
        await until(lambda: self._loaded(page, url))
        return page

    async def _loaded(self, page: Page, url: str) -> bool:
        try:
            where: str = await page.evaluate("location.href + ' ' + document.readyState")
        except DevToolsError:  # between two documents
            return False
        return where == f"{url} complete"

    async def _worker(self) -> str | None:
        workers = await self.devtools.targets("service_worker")
        return next((info["targetId"] for info in workers if EXTENSION_ID in info["url"]), None)

    async def in_worker(self, expression: str) -> Any:
        """Evaluate in the service worker that runs now."""
        worker = await self.devtools.attach(await until(self._worker))
        try:
            await until(lambda: worker.evaluate("globalThis.chrome?.storage !== undefined"))  # it may just be starting
            with trio.fail_after(PATIENCE):
                return await worker.evaluate(expression)
        finally:
            # A worker with a session stays longer than it would.
            await self.devtools.command("Target.detachFromTarget", targetId=worker.target)

    async def kill_worker(self) -> str:
        """Stop the service worker as Chrome does when it is idle; returns the target that was killed."""
        target: str = await until(self._worker)
        await self.devtools.command("Target.closeTarget", targetId=target)
        await until(lambda: self._is_gone(target))
        return target

    async def _is_gone(self, target: str) -> bool:
        return all(info["targetId"] != target for info in await self.devtools.targets())

    async def set(self, **settings: Any) -> None:
        """Change settings of the extension, as its pages do."""
        await self.in_worker(f"chrome.storage.local.set({json.dumps(settings)})")

    async def popup(self) -> Page:
        """A page of the extension."""
        page = await self.devtools.open_page(f"chrome-extension://{EXTENSION_ID}/manifest.json")
        await until(lambda: page.evaluate("globalThis.chrome?.runtime?.connect !== undefined"))
        return page

    async def status(self, popup: Page) -> dict[str, Any]:
        """What the popup is told when it opens."""
        answer: dict[str, Any] = await popup.evaluate(
            """new Promise((told) => {
                const port = chrome.runtime.connect({name: "popup"});
                port.onMessage.addListener((status) => { port.disconnect(); told(status); });
            })"""
        )
        return answer


class Setting:
    """Everything a test here needs."""

    def __init__(self, browser: Browser, site: Site, relay: RelayProcess) -> None:
        self.browser = browser
        self.site = site
        self.relay = relay

    async def show(self, script: str, *tools: str, name: str = "/") -> Page:
        """Open a page with this script, and return when exactly these tools are listed."""
        page = await self.browser.open(self.site.page(script, name))
        await self.relay.wait_tools(*tools)
        return page

    async def sources(self) -> list[dict[str, Any]]:
        return await sources_of(self.relay)


async def sources_of(relay: RelayProcess) -> list[dict[str, Any]]:
    """What `webmcp_list_sources` says."""
    listed = (await relay.call("webmcp_list_sources"))["structuredContent"]
    sources: list[dict[str, Any]] = listed["sources"]
    return sources


async def wait_sources(relay: RelayProcess, fits: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The sources, once they are as they should be."""

    with trio.fail_after(PATIENCE):
        while not fits(sources := await sources_of(relay)):  # noqa: ASYNC110  (another process is asked)
            await trio.sleep(LOOK_EVERY_S)
    return sources


@asynccontextmanager
async def _profile() -> AsyncIterator[Path]:
    """A profile in developer mode, as a person has who loads this extension: else it may not reload itself."""
    with tempfile.TemporaryDirectory(prefix="trio-relay-", ignore_cleanup_errors=True) as folder:
        preferences = Path(folder) / "Default" / "Preferences"
        preferences.parent.mkdir()
        preferences.write_text(json.dumps({"extensions": {"ui": {"developer_mode": True}}}))
        yield Path(folder)


NO_PAGE_CACHE = "--disable-features=BackForwardCache"
"""Chromium 156 dies (the browser itself, in one of ten navigations or so) when a page with an extension's port open
goes into this cache; never in 24 runs without it. The last --disable-features counts, so not with WebMCP off."""


@asynccontextmanager
async def open_browser(port: int | None, *, webmcp: bool = True, page_cache: bool = False) -> AsyncIterator[Browser]:
    """Chromium with the extension, which looks for a relay at this port only (None: in the range)."""
    flags = () if page_cache else (NO_PAGE_CACHE,)
    async with (
        _profile() as profile,
        open_chromium(PROGRAM, *flags, headless=True, webmcp=webmcp, profile=profile) as devtools,
    ):
        browser = Browser(devtools)
        await browser.load_extension()
        if port is not None:
            await browser.set(port=port)
        yield browser


@asynccontextmanager
async def open_relay(home: Path, *options: str, port: int | None = None) -> AsyncIterator[RelayProcess]:
    """A relay whose client has shaken hands."""
    async with open_relay_process(*options, port=port, env={"HOME": str(home)}) as relay:
        await relay.initialize()
        yield relay


@asynccontextmanager
async def open_setting(
    home: Path, *options: str, webmcp: bool = True, page_cache: bool = False
) -> AsyncIterator[Setting]:
    """A relay with these options, the browser and a site."""
    port = free_port()
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(open_relay(home, *options, port=port))
        site = await stack.enter_async_context(open_site())
        browser = await stack.enter_async_context(open_browser(port, webmcp=webmcp, page_cache=page_cache))
        yield Setting(browser, site, relay)


def text_of(result: dict[str, Any]) -> str:
    """The only block of a result, which is text."""
    (block,) = result["content"]
    assert block["type"] == "text"
    text: str = block["text"]
    return text
