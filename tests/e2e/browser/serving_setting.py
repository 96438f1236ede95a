"""The relay as a provider for the fixture host, an extension built on the official SDK."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.e2e.browser.fixture_extension import FixtureExtension, bundled, load_fixture
from tests.e2e.browser.setting import EXTENSION_ID, LOOK_EVERY_S, Browser, Setting, open_browser, open_relay
from tests.e2e.browser.site import open_site
from tests.helpers import PATIENCE, free_port
from trio_relay.chromium.devtools import Page
from trio_relay.core.policy import Policy
from trio_relay.extensions.store import ProviderStore


class HostExtension:
    """The fixture host. Its worker is attached to, so it stays until it is killed."""

    def __init__(self, extension: FixtureExtension, worker: Page) -> None:
        self.id = extension.id
        self.extension = extension
        self._worker = worker

    async def run(self, function: str, *args: object) -> Any:
        """One of the functions of `host` in fixtures/host.js."""
        with trio.fail_after(PATIENCE):
            return await self._worker.evaluate(f"host.{function}({', '.join(map(json.dumps, args))})")

    async def call(self, name: str, **args: object) -> dict[str, Any]:
        """Call a tool; returns the CallToolResult."""
        outcome = await self.run("callTool", name, args)
        assert "result" in outcome, outcome
        result: dict[str, Any] = outcome["result"]
        return result

    async def outcome(self, key: str) -> dict[str, Any]:
        """How a call ended that was begun under this key."""
        ended: dict[str, Any] = await self.until("outcome", key)
        return ended

    async def until(self, function: str, *args: object) -> Any:
        with trio.fail_after(PATIENCE):
            while not (found := await self.run(function, *args)):  # noqa: ASYNC110  (another process is asked)
                await trio.sleep(LOOK_EVERY_S)
        return found


async def load_host(browser: Browser, folder: Path) -> HostExtension:
    extension = await load_fixture(browser, folder, bundled("host"))
    worker = await extension.worker()
    with trio.fail_after(PATIENCE):
        while not await worker.evaluate("globalThis.host !== undefined"):  # noqa: ASYNC110  (it may just be starting)
            await trio.sleep(LOOK_EVERY_S)
    return HostExtension(extension, worker)


class ProviderStage(Setting):
    """The relay as a provider: browser, a page with tools, host extension, relay, and the commands of its user."""

    store: ProviderStore
    host: HostExtension

    async def provider(self, *words: str) -> str:
        return await provider_command(self.store.directory.parent.parent, *words)

    # -- what the host extension does

    async def probe(self) -> Any:
        return await self.host.run("probe", EXTENSION_ID)

    async def probe_is(self, said: str) -> bool:
        answer = await self.probe()
        return isinstance(answer, dict) and "status" in answer and probe_status(answer) == said

    async def connect(self, mode: str = "auto") -> dict[str, Any]:
        """A new session; `{result}`, or `{error}` if there is none."""
        outcome: dict[str, Any] = await self.host.run("connect", EXTENSION_ID, mode)
        return outcome

    async def tool_names(self) -> list[str]:
        return [tool["name"] for tool in (await self.host.run("listTools"))["result"]["tools"]]

    # -- what the user does

    def allow(self, *, writes: bool = False, review: bool = False) -> None:
        """Let the host call, as the commands would, each for itself."""
        self.store.change(lambda policy: Policy(True, writes, review, (self.host.id,)))

    async def review(self, *, after: str | None = None) -> str:
        """The id of the only write that waits, once there is one; `after` is what a killed relay left in the file."""
        with trio.fail_after(PATIENCE):
            while len(ids := [row.review_id for row in self.store.reviews()]) != 1 or ids == [after]:  # noqa: ASYNC110
                await trio.sleep(LOOK_EVERY_S)
        return ids[0]

    # -- what is written about it

    def audit(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        path = self.store.directory / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def audited(self, result: str, times: int = 1) -> None:
        """Return once so many lines have this result."""
        with trio.fail_after(PATIENCE):
            while [line["result"] for line in self.audit()].count(result) < times:  # noqa: ASYNC110
                await trio.sleep(LOOK_EVERY_S)


async def provider_command(home: Path, *words: str) -> str:
    """`trio-relay provider …`; returns what it prints."""
    command = [sys.executable, "-m", "trio_relay", "provider", *words]
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, env=os.environ | {"HOME": str(home)}
        )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode()


def probe_status(answer: dict[str, Any]) -> str:
    """What the status in a response says, in a word or two."""
    assert answer["ok"] is True, answer
    match answer["status"]:
        case {"enabled": False}:
            return "off"
        case {"authorized": True, "ready": True}:
            return "authorized"
        case {"authorized": False, "pendingApproval": True}:
            return "pending"
        case {"authorized": False}:
            return "not allowed"
    return str(answer["status"])


@asynccontextmanager
async def open_provider_stage(folder: Path, *options: str, serve: bool = True) -> AsyncIterator[ProviderStage]:
    """A relay that serves host extensions (unless not `serve`), and one of those."""
    port = free_port()
    if serve:
        options = ("--serve-extensions", *options)
    async with (
        open_relay(folder, *options, port=port) as relay,
        open_site() as site,
        open_browser(port) as browser,
    ):
        stage = ProviderStage(browser, site, relay)
        stage.store = ProviderStore(folder / ".webmcp" / "provider")
        stage.host = await load_host(browser, folder / "host")
        yield stage
