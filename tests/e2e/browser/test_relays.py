"""Relays that go and come: killed and restarted, taken over by another, found in the range, refusing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio

from tests.e2e.browser.setting import Browser, open_browser, open_relay, open_setting, text_of, until
from tests.e2e.browser.site import ECHO, HANG, Site, open_site
from tests.e2e.setting import port_is_free
from tests.helpers import PATIENCE, free_port

pytestmark = pytest.mark.chromium

RANGE = range(9333, 9349)
FOUND_WITHIN_S = 5.0
BACK_WITHIN_S = 2.5
"""The extension tries once after 425 to 575 ms; its next look would be after 10 s."""


async def test_a_relay_killed_and_started_again_has_the_tab_back(tmp_path: Path) -> None:
    port = free_port()
    async with open_site() as site, open_browser(port) as browser:
        page = await browser.open(site.page(ECHO))
        for run in (1, 2):
            async with open_relay(tmp_path, port=port) as relay:
                if run == 2:
                    await browser.in_worker("sharing_look = chrome.storage.local.set({sitesOff: []})")
                await relay.wait_tools("echo")
                assert text_of(await relay.call("echo", {"q": run})) == f'echo {{"q":{run}}}'
                relay.process.kill()
                await relay.wait()
        assert await page.evaluate("window.runs") == 2
