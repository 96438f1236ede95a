"""Relays that go and come: killed and started again, taken over by another, found in the range among strangers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
import trio

from tests.e2e.browser.setting import Browser, open_browser, open_relay, open_setting, text_of, until, wait_sources
from tests.e2e.browser.site import ECHO, HANG, open_site
from tests.e2e.setting import port_is_free
from tests.helpers import RelayProcess, free_port
from trio_relay.chromium.devtools import Page

pytestmark = pytest.mark.chromium

RANGE = range(9333, 9349)
NEXT_LOOK_S = 14.0
"""The extension tries once after 425 to 575 ms; its next look is 10 s later."""


async def listed(relay: RelayProcess) -> bool:
    return await relay.tool_names() == ["echo"]


async def test_a_relay_killed_and_started_again_has_the_tab_back_by_itself(tmp_path: Path) -> None:
    port = free_port()
    async with open_site() as site, open_browser(port) as browser:
        async with open_relay(tmp_path, port=port) as relay:
            page = await browser.open(site.page(ECHO))
            await relay.wait_tools("echo")
            relay.process.kill()
            await relay.wait()
        popup = await browser.popup()
        await until(lambda: _says_no_relay(browser, popup))
        await popup.close()
        async with open_relay(tmp_path, port=port) as relay:
            await until(lambda: listed(relay), NEXT_LOOK_S)
            assert text_of(await relay.call("echo", {"q": 2})) == 'echo {"q":2}'
        assert await page.evaluate("window.runs") == 1


async def _says_no_relay(browser: Browser, popup: Page) -> bool:
    return (await browser.status(popup))["relay"] is None


async def test_a_popup_that_opens_looks_for_the_relay_at_once(tmp_path: Path) -> None:
    port = free_port()
    async with open_site() as site, open_browser(port) as browser:
        await browser.open(site.page(ECHO))
        popup = await browser.popup()
        await until(lambda: _says_no_relay(browser, popup))
        async with open_relay(tmp_path, port=port) as relay:
            await browser.status(popup)
            await relay.wait_tools("echo")
            status = await browser.status(popup)
            assert status["relay"]["port"] == port
            assert [(tab["tools"], tab["connected"]) for tab in status["tabs"]] == [(1, True)]


async def test_when_the_server_dies_the_client_takes_over_and_the_tab_follows(tmp_path: Path) -> None:
    async with (
        open_setting(tmp_path) as setting,
        open_relay(tmp_path, port=setting.relay.port) as heir,
    ):
        page = await setting.show(ECHO + HANG, "echo", "hang")
        await heir.wait_tools("echo", "hang")
        assert text_of(await heir.call("echo", {"q": "through both"})) == 'echo {"q":"through both"}'
        runs = await page.evaluate("window.started ?? 0")
        hanging = await heir.send_request("tools/call", {"name": "hang", "arguments": {}})
        await until(lambda: page.evaluate(f"window.started === {runs + 1}"))
        setting.relay.process.kill()
        result = (await heir.answer_to(hanging))["result"]
        assert result["isError"]
        assert text_of(result)
        await until(lambda: page.evaluate("window.aborted.length === 1"))
        # The tools stay listed over the hand-over; a call waits for the tab.
        with trio.fail_after(5):
            assert text_of(await heir.call("echo", {"q": "heir"})) == 'echo {"q":"heir"}'
        await wait_sources(heir, lambda found: len(found) == 1 and found[0]["toolCount"] == 2)
        assert await page.evaluate("window.runs") == 2


@contextmanager
def silent_listener(port: int) -> Iterator[None]:
    """Takes connections and says nothing."""
    with closing(socket.create_server(("127.0.0.1", port), backlog=16)):
        yield


@contextmanager
def http_server(port: int) -> Iterator[None]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", port), Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@asynccontextmanager
async def open_range_relay(home: Path) -> AsyncIterator[RelayProcess]:
    """A relay that chooses its port itself."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "trio_relay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"HOME": str(home)},
    )
    relay = RelayProcess(process, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.drain_stderr)
        try:
            await relay.initialize()
            await relay.logged("listening for browsers")
            yield relay
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()


async def test_a_relay_in_the_range_is_found_behind_strangers(tmp_path: Path) -> None:
    free = [port for port in RANGE if port_is_free(port)]
    assert len(free) >= 3, "the range is full"
    silent, http, ours = free[:3]
    with silent_listener(silent), http_server(http):
        # It was there before the browser; one that comes later is found by the next look.
        async with open_site() as site, open_range_relay(tmp_path) as relay, open_browser(None) as browser:
            assert f"port {ours}" in relay.stderr
            await browser.open(site.page(ECHO))
            with trio.fail_after(5):
                await relay.wait_tools("echo")
            assert text_of(await relay.call("echo", {"q": 1})) == 'echo {"q":1}'


async def test_a_relay_that_came_later_is_found_by_the_next_page(tmp_path: Path) -> None:
    (port, *_) = [port for port in RANGE if port_is_free(port)]
    async with open_site() as site, open_browser(None) as browser:
        page = await browser.open(site.page(ECHO))
        popup = await browser.popup()
        await until(lambda: _says_no_relay(browser, popup))
        async with open_relay(tmp_path, port=port) as relay:
            await page.command("Page.reload")
            with trio.fail_after(5):  # not only at the next look of its own
                await relay.wait_tools("echo")
