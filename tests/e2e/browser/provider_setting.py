"""The relay as a host of the fixture provider, an extension built on the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.e2e.browser.fixture_extension import FixtureExtension, bundled, load_fixture
from tests.e2e.browser.setting import LOOK_EVERY_S, Browser, open_browser, open_relay
from tests.helpers import PATIENCE, RelayProcess, free_port
from trio_relay.chromium.devtools import Page

SERVICE = {"namespace": "notes", "name": "Notes", "version": "1.2.3"}
STATUS = {"enabled": True, "authorized": True, "ready": True}
TOOLS = ("list_items", "add_item", "fail", "big", "slow")
PUBLIC = tuple(f"notes_{tool}" for tool in TOOLS)


def answer(**status: Any) -> dict[str, Any]:
    """A response to a probe that passes, but for these members of its status."""
    return {"ok": True, "service": SERVICE, "status": STATUS | status}


class ProviderExtension:
    """The fixture provider. What it says and has seen is in its storage, so it outlives its worker."""

    def __init__(self, extension: FixtureExtension, page: Page) -> None:
        self.id = extension.id
        self.extension = extension
        self.page = page  # its storage is reached from here without waking its worker

    async def set(self, **stored: Any) -> None:
        await self.page.evaluate(f"chrome.storage.local.set({json.dumps(stored)})")

    async def _get(self, name: str) -> list[Any]:
        found: list[Any] = await self.page.evaluate(
            f"chrome.storage.local.get({name!r}).then((all) => all[{name!r}] ?? [])"
        )
        return found

    async def log(self) -> list[Any]:
        """Probes, handshakes and calls of `slow`, in the order in which they came."""
        return await self._get("log")

    async def handshakes(self) -> list[str]:
        return [entry for entry in await self.log() if entry in ("server/discover", "initialize")]

    async def probes(self) -> list[dict[str, Any]]:
        return [entry for entry in await self.log() if isinstance(entry, dict)]

    async def items(self) -> list[str]:
        return await self._get("items")

    async def logged(self, entry: str, times: int = 1) -> None:
        """Return once this has happened so often."""
        with trio.fail_after(PATIENCE):
            while (await self.log()).count(entry) < times:  # noqa: ASYNC110  (another process is asked)
                await trio.sleep(LOOK_EVERY_S)

    async def in_worker(self, expression: str) -> Any:
        worker = await self.extension.worker()
        try:
            with trio.fail_after(PATIENCE):
                return await worker.evaluate(expression)
        finally:
            await self.extension.detach(worker)


async def load_provider(browser: Browser, folder: Path, sdk: str = "v2") -> ProviderExtension:
    extension = await load_fixture(browser, folder, bundled(f"provider-{sdk}"), "storage")
    return ProviderExtension(extension, await extension.page())


class HostStage:
    """The relay as a host: browser, provider extension, relay."""

    def __init__(self, browser: Browser, provider: ProviderExtension, home: Path, port: int) -> None:
        self.browser = browser
        self.provider = provider
        self.home = home
        self.port = port
        self.relay: RelayProcess

    @asynccontextmanager
    async def open_relay(self, *options: str) -> AsyncIterator[RelayProcess]:
        """A relay that uses the provider. The browser looks for it at once."""
        options = ("--provider", self.provider.id, *options)
        async with open_relay(self.home, *options, port=self.port) as relay:
            await self.look()
            yield relay

    async def look(self) -> None:
        """Our extension looks for the relay now, instead of at its next alarm."""
        popup = await self.browser.popup()
        await self.browser.status(popup)
        await popup.close()

    async def load_provider(self) -> None:
        """Install the provider again, from the same folder."""
        await self.browser.devtools.command("Extensions.loadUnpacked", path=str(self.home / "provider"))

    async def row(self, outcome: str | None = None) -> dict[str, Any]:
        return await row_of(self.relay, outcome)

    async def probe_again(self, answer: object) -> None:
        """The provider answers so from now on, and is asked at once."""
        await self.provider.set(answer=answer)
        await self.browser_comes_anew()

    async def browser_comes_anew(self) -> None:
        """Our extension connects again, so the relay asks what it has."""
        await self.browser.set(enabled=False)
        await self.browser.set(enabled=True)


async def row_of(relay: RelayProcess, outcome: str | None = None) -> dict[str, Any]:
    """The only provider's row, once its outcome is this one (else as it is)."""
    seen: dict[str, Any] = {}
    try:
        with trio.fail_after(PATIENCE):
            while True:
                (seen,) = (await relay.call("webmcp_list_sources"))["structuredContent"]["providers"]
                if outcome in (None, seen["outcome"]):
                    return seen
                await trio.sleep(LOOK_EVERY_S)
    except trio.TooSlowError:
        raise AssertionError(f"not {outcome!r}: {seen}") from None


@asynccontextmanager
async def open_host_stage(folder: Path, *options: str, sdk: str = "v2", **stored: Any) -> AsyncIterator[HostStage]:
    """A relay that uses the provider extension; `stored` is what that has in its storage."""
    port = free_port()
    async with open_browser(port) as browser:
        provider = await load_provider(browser, folder / "provider", sdk)
        if stored:
            await provider.set(**stored)
        stage = HostStage(browser, provider, folder, port)
        async with stage.open_relay(*options) as stage.relay:
            yield stage
