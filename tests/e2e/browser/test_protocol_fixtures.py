"""The fixtures of the extension protocol against each other: host and provider talk without a relay between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser.provider_setting import TOOLS, answer, load_provider
from tests.e2e.browser.serving_setting import load_host
from tests.e2e.browser.setting import open_browser

pytestmark = [pytest.mark.chromium, pytest.mark.npm]


HANDSHAKES = {"v1": ["server/discover", "initialize"], "v2": ["server/discover"]}


async def test_the_fixtures_understand_each_other(tmp_path: Path) -> None:
    async with open_browser(1) as browser:
        host = await load_host(browser, tmp_path / "host")
        for sdk, handshakes in HANDSHAKES.items():
            provider = await load_provider(browser, tmp_path / f"provider-{sdk}", sdk)
            assert await host.run("probe", provider.id) == answer()
            (seen,) = await provider.probes()
            assert seen["sender"] == host.id
            connected: dict[str, Any] = (await host.run("connect", provider.id))["result"]
            assert connected["instructions"] == "Notes of a test."
            listed = (await host.run("listTools"))["result"]["tools"]
            assert tuple(tool["name"] for tool in listed) == TOOLS
            assert (await host.call("add_item", text="milk"))["content"] == [{"type": "text", "text": "added milk"}]
            assert await provider.items() == ["milk"]
            assert (await host.call("fail"))["isError"]
            assert await provider.handshakes() == handshakes
            await provider.extension.kill_worker()
            await host.until("closed")
