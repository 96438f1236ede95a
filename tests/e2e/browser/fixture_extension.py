"""Extensions made for a test: plain JavaScript in a folder of its own, or one of fixtures/ with the SDK in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.e2e import npm
from tests.e2e.browser.setting import EXTENSION_ID, Browser, until
from trio_relay.chromium.devtools import Page

ECHO_WORKER = """
chrome.runtime.onMessageExternal.addListener((message, sender, answer) => {
  if (message === "ignore") return;
  if (message === "never") return true;
  answer({echo: message, sender: sender.id});
});
chrome.runtime.onConnectExternal.addListener((port) => {
  port.onMessage.addListener((message) => {
    if (message === "close") port.disconnect();
    else port.postMessage({echo: message, sender: port.sender.id, name: port.name});
  });
});
"""
"""Answers probes, echoes on ports."""


FIXTURES = Path(__file__).parent / "fixtures"


@cache
def bundled(name: str) -> str:
    """One of the fixtures with the official SDK in it, as the script of a service worker."""
    return npm.bundle(FIXTURES / f"{name}.js")


class FixtureExtension:
    """One that is loaded."""

    def __init__(self, browser: Browser, extension_id: str) -> None:
        self.id = extension_id
        self._browser = browser

    async def page(self) -> Page:
        """A page of it, in which `chrome.runtime` is the extension's."""
        page = await self._browser.devtools.open_page(f"chrome-extension://{self.id}/manifest.json")
        await until(lambda: page.evaluate("globalThis.chrome?.runtime?.connect !== undefined"))
        return page

    async def _worker(self) -> str | None:
        workers = await self._browser.devtools.targets("service_worker")
        return next((info["targetId"] for info in workers if self.id in info["url"]), None)

    async def worker(self) -> Page:
        """Its service worker, which runs. Chrome stops none that is attached to, unless it is killed."""
        return await self._browser.devtools.attach(await until(self._worker))

    async def detach(self, worker: Page) -> None:
        await self._browser.devtools.command("Target.detachFromTarget", targetId=worker.target)

    async def kill_worker(self) -> None:
        """Stop its service worker, as Chrome does when it is idle."""
        target = await until(self._worker)
        await self._browser.devtools.command("Target.closeTarget", targetId=target)
        await until(lambda: self._is_gone(target))

    async def _is_gone(self, target: str) -> bool:
        return await self._worker() != target

    async def uninstall(self) -> None:
        await self._browser.devtools.command("Extensions.uninstall", id=self.id)


async def load_fixture(
    browser: Browser, folder: Path, worker: str = ECHO_WORKER, *permissions: str
) -> FixtureExtension:
    """Write an extension with this service worker into a folder, and load it."""
    _write(folder, worker, permissions)
    loaded = await browser.devtools.command("Extensions.loadUnpacked", path=str(folder))
    return FixtureExtension(browser, loaded["id"])


def _write(folder: Path, worker: str, permissions: Sequence[str]) -> None:
    folder.mkdir()
    manifest = {
        "manifest_version": 3,
        "name": folder.name,
        "version": "1",
        "permissions": permissions,
        "host_permissions": ["http://*/*"],
        "background": {"service_worker": "worker.js"},
        "externally_connectable": {"ids": ["*"]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "worker.js").write_text(worker)


SEND = f"""(message) => Promise.race([
  chrome.runtime.sendMessage({EXTENSION_ID!r}, message),
  new Promise((resolve) => setTimeout(resolve, 1500, "timeout")),
]).then((response) => response === undefined ? "undefined" : response, (error) => "rejected: " + error.message)"""
"""In a page of a fixture: probe our extension, as hosts do."""

CONNECT = f"""(name, ...messages) => {{
  const port = chrome.runtime.connect({EXTENSION_ID!r}, {{name}});
  Object.assign(window, {{port, heard: [], gone: false}});
  port.onMessage.addListener((message) => heard.push(message));
  port.onDisconnect.addListener(() => {{ void chrome.runtime.lastError; gone = true; }});
  for (const message of messages) port.postMessage(message);
}}"""
"""In a page of a fixture: open a port to our extension."""
