"""What a provider's tools live through: workers that are stopped, extensions that go, relays that come back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.e2e.browser.fixture_extension import load_fixture
from tests.e2e.browser.provider_setting import PUBLIC, answer, open_host_stage, row_of
from tests.e2e.browser.serving_setting import load_host
from tests.e2e.browser.setting import EXTENSION_ID, text_of
from tests.e2e.browser.test_provider_tools import HANDSHAKES, both_sdks
from tests.helpers import PATIENCE

pytestmark = [pytest.mark.chromium, pytest.mark.npm]

AGAIN = {"v1": ["initialize"], "v2": ["server/discover"]}
"""The handshake of a provider whose era is known."""


@both_sdks
async def test_a_stopped_worker_takes_no_tools_along_and_the_next_call_shakes_hands_anew(
    sdk: str, tmp_path: Path
) -> None:
    async with open_host_stage(tmp_path, "--log-level", "debug", sdk=sdk) as stage:
        relay, provider = stage.relay, stage.provider
        another = await load_host(stage.browser, tmp_path / "host")
        await relay.wait_tools(*PUBLIC)
        expected = list(HANDSHAKES[sdk])
        for number in range(2):
            await provider.extension.kill_worker()
            with trio.fail_after(PATIENCE):
                while relay.stderr.count("the port is closed") <= number:
                    await relay.ping()
            if number == 0:
                await another.run("probe", provider.id)  # a worker that somebody else woke is not connected to either
            row = await stage.row()
            assert (row["state"], row["toolCount"]) == ("connected", len(PUBLIC))
            assert await relay.tool_names() == list(PUBLIC)
            assert await provider.handshakes() == expected, "nobody connects before a call"
            assert text_of(await relay.call("notes_add_item", {"text": f"item {number}"})) == f"added item {number}"
            expected += AGAIN[sdk]
            assert await provider.handshakes() == expected
        assert await provider.items() == ["item 0", "item 1"]
        assert [probe["sender"] for probe in await provider.probes()] == [EXTENSION_ID, another.id]


async def test_a_worker_stopped_in_mid_call_costs_that_call_only_whosever_it_is(tmp_path: Path) -> None:
    async with open_host_stage(tmp_path) as stage:
        await stage.relay.wait_tools(*PUBLIC)
        for number, kill in enumerate((stage.provider.extension.kill_worker, stage.browser.kill_worker), 1):
            request = await stage.relay.send_request("tools/call", {"name": "notes_slow", "arguments": {}})
            await stage.provider.logged("slow began", number)
            await kill()
            result = (await stage.relay.answer_to(request))["result"]
            assert result["isError"]
            assert "may have run" in text_of(result)
            assert await stage.relay.tool_names() == list(PUBLIC)
            await stage.look()
            assert text_of(await stage.relay.call("notes_add_item", {"text": "milk"})) == "added milk"
            assert (await stage.provider.log()).count("slow began") == number  # it is not tried again
        assert await stage.provider.items() == ["milk"] * 2


async def test_a_provider_that_goes_is_told_at_the_next_call_and_is_found_when_it_is_back(tmp_path: Path) -> None:
    async with open_host_stage(tmp_path) as stage:
        provider = stage.provider
        manager = await (await load_fixture(stage.browser, tmp_path / "manager", "", "management")).page()

        async def enable(on: bool) -> None:
            await manager.evaluate(f"chrome.management.setEnabled({provider.id!r}, {json.dumps(on)})")

        ways: tuple[tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]], ...] = (
            (partial(enable, False), partial(enable, True)),
            (provider.extension.uninstall, stage.load_provider),
        )
        for leave, come_back in ways:
            await stage.relay.wait_tools(*PUBLIC)
            await leave()
            result = await stage.relay.call("notes_list_items")
            assert result["isError"]
            assert "did not run" in text_of(result)
            row = await stage.row("Extension not installed, or no agent endpoint.")
            assert (row["state"], row["toolCount"], row["name"]) == ("error", 0, "Notes")
            assert await stage.relay.tool_names() == []
            await come_back()
            await stage.browser_comes_anew()
        await stage.relay.wait_tools(*PUBLIC)


async def test_a_relay_that_comes_back_probes_and_has_the_tools_and_so_a_provider_turned_off_is_told(
    tmp_path: Path,
) -> None:
    async with open_host_stage(tmp_path) as stage:
        await stage.relay.wait_tools(*PUBLIC)
        stage.relay.process.kill()
        await stage.relay.wait()
        async with stage.open_relay() as again:
            await again.wait_tools(*PUBLIC)
            assert text_of(await again.call("notes_add_item", {"text": "milk"})) == "added milk"
            assert len(await stage.provider.probes()) == 2
            await stage.provider.set(answer=answer(enabled=False))
            await stage.provider.extension.kill_worker()
            assert (await again.call("notes_list_items"))["isError"]
            await row_of(again, "Agent access is turned off in the provider.")
