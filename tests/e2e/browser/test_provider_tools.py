"""Tools of a provider extension, built on the official SDK, in the relay's catalogue: lists, calls, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.browser.provider_setting import PUBLIC, TOOLS, HostStage, ProviderExtension, answer, open_host_stage
from tests.e2e.browser.serving_setting import load_host, provider_command
from tests.e2e.browser.setting import EXTENSION_ID, text_of
from tests.e2e.test_cluster import wait_mode
from tests.helpers import PATIENCE, RelayProcess

pytestmark = [pytest.mark.chromium, pytest.mark.npm]

HANDSHAKES = {"v1": ["server/discover", "initialize"], "v2": ["server/discover"]}
both_sdks = pytest.mark.parametrize("sdk", ["v1", "v2"])


@both_sdks
async def test_tools_are_called_fail_tell_progress_and_are_cancelled(sdk: str, tmp_path: Path) -> None:
    async with open_host_stage(tmp_path, sdk=sdk) as stage:
        relay, provider = stage.relay, stage.provider
        await relay.wait_tools(*PUBLIC)
        listed = (await relay.request("tools/list", {}))["result"]["tools"]
        (definition,) = [tool for tool in listed if tool["name"] == "notes_list_items"]
        assert definition["description"] == "[Extension Notes] All items"
        assert definition["annotations"]["readOnlyHint"] is True
        assert text_of(await relay.call("notes_add_item", {"text": "Milch & Käse"})) == "added Milch & Käse"
        assert text_of(await relay.call("notes_list_items")) == '["Milch & Käse"]'
        failed = await relay.call("notes_fail")
        assert (failed["isError"], text_of(failed)) == (True, "the shelf is full")
        assert (await relay.call("notes_add_item", {"text": 1}))["isError"]
        assert await provider.items() == ["Milch & Käse"]
        # 3 MB each way
        assert len(text_of(await relay.call("notes_big", {"size": 3_000_000}))) == 1_500_000
        assert text_of(await relay.call("notes_add_item", {"text": "x" * 3_000_000})) == "added " + "x" * 3_000_000
        await tell_progress(relay, provider)
        await cancel_it(relay, provider)
        # a switch of the provider holds for the next call
        await provider.set(answer=answer(enabled=False))
        refused = await relay.call("notes_add_item", {"text": "late"})
        assert (refused["isError"], text_of(refused)) == (True, "Agent access is turned off.")
        await provider.set(answer=answer())
        assert text_of(await relay.call("notes_add_item", {"text": "later"})) == "added later"
        assert await provider.handshakes() == HANDSHAKES[sdk]  # one port served all of this


async def tell_progress(relay: RelayProcess, provider: ProviderExtension) -> None:
    """Call `slow`, let it end, and see the progress that it told."""
    meta = {"_meta": {"progressToken": "mine"}}
    request = await relay.send_request("tools/call", {"name": "notes_slow", "arguments": {}} | meta)
    await provider.logged("slow began")
    await provider.in_worker("finish()")
    seen: list[dict[str, Any]] = []
    with trio.fail_after(PATIENCE):
        while (message := await relay.message()).get("id") != request:
            if message["method"] == "notifications/progress":
                seen.append(message["params"])
    assert text_of(message["result"]) == "finished"
    assert seen == [{"progressToken": "mine", "progress": n, "total": 3, "message": f"step {n}"} for n in (1, 2, 3)]


async def cancel_it(relay: RelayProcess, provider: ProviderExtension) -> None:
    """Call `slow` once more and cancel it."""
    request = await relay.send_request("tools/call", {"name": "notes_slow", "arguments": {}})
    await provider.logged("slow began", 2)
    params = {"requestId": request, "reason": "enough"}
    await relay.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    await provider.logged("slow aborted")


async def test_many_calls_at_once_leave_in_their_order_and_are_all_answered(tmp_path: Path) -> None:
    async with open_host_stage(tmp_path) as stage:
        await stage.relay.wait_tools(*PUBLIC)
        await stage.provider.extension.kill_worker()  # they all wait for one reconnect
        items = [f"item {number}" for number in range(50)]
        requests = {
            await stage.relay.send_request("tools/call", {"name": "notes_add_item", "arguments": {"text": item}}): item
            for item in items
        }
        while requests:
            message = await stage.relay.message()
            if "id" in message:
                assert text_of(message["result"]) == f"added {requests.pop(message['id'])}"
        assert await stage.provider.items() == items
        assert await stage.provider.handshakes() == HANDSHAKES["v2"] * 2


async def test_what_is_beyond_a_limit_is_refused_with_its_reason_and_the_rest_stays(tmp_path: Path) -> None:
    more = [f"t{number}" for number in range(65 - len(TOOLS))]
    async with open_host_stage(tmp_path, "--max-payload", "1000000", tools=["n" * 41, *more]) as stage:
        row = await stage.row("Connected: 64 tools, 2 refused.")
        assert (row["state"], row["toolCount"]) == ("connected", 64)
        long, late = row["refused"]
        assert long["tool"] == "n" * 41
        assert "40" in long["reason"]
        assert late["tool"] == more[-1]
        assert "64" in late["reason"]
        assert await stage.relay.tool_names() == [*PUBLIC, *(f"notes_{name}" for name in more[:-1])]
        result = await stage.relay.call("notes_big", {"size": 1_100_000})
        assert result["isError"]
        assert "may have run" in text_of(result)
        assert "larger than the relay takes (1000000 bytes)" in text_of(result)
        assert len(text_of(await stage.relay.call("notes_big", {"size": 900_000}))) == 450_000
        assert text_of(await stage.relay.call("notes_t3")) == "t3 ran"


@both_sdks
async def test_a_provider_that_has_another_tool_says_so_and_the_client_is_told(sdk: str, tmp_path: Path) -> None:
    async with open_host_stage(tmp_path, sdk=sdk) as stage:
        await stage.row("Connected: 5 tools.")
        await told_of_changes(stage, 1)  # of all of them
        await stage.provider.in_worker("addTool('remove_item')")
        await told_of_changes(stage, 2)
        assert await stage.relay.tool_names() == [*PUBLIC, "notes_remove_item"]
        assert text_of(await stage.relay.call("notes_remove_item")) == "remove_item ran"
        assert await stage.provider.handshakes() == HANDSHAKES[sdk]


async def told_of_changes(stage: HostStage, times: int) -> None:
    """Return once the client has been told so often that the list has changed."""
    with trio.fail_after(PATIENCE):
        while b"".join(stage.relay.lines).count(b'"notifications/tools/list_changed"') < times:
            await stage.relay.message()


async def test_a_relay_that_is_a_client_has_the_tools_of_providers_and_takes_over_with_them(
    tmp_path: Path,
) -> None:
    async with open_host_stage(tmp_path) as stage, stage.open_relay() as client:
        await client.wait_tools(*PUBLIC)
        assert text_of(await client.call("notes_add_item", {"text": "bread"})) == "added bread"
        assert (await client.call("notes_fail"))["isError"]
        await tell_progress(client, stage.provider)
        await cancel_it(client, stage.provider)
        listed = (await client.call("webmcp_list_sources"))["structuredContent"]
        assert listed["providers"] == [await stage.row("Connected: 5 tools.")]
        stage.relay.process.kill()
        await stage.relay.wait()
        await wait_mode(client, "server")
        await client.wait_tools(*PUBLIC)
        assert text_of(await client.call("notes_list_items")) == '["bread"]'


async def test_tools_of_a_provider_are_not_served_on_to_a_host(tmp_path: Path) -> None:
    async with open_host_stage(tmp_path, "--serve-extensions") as stage:
        await stage.relay.wait_tools(*PUBLIC)
        host = await load_host(stage.browser, tmp_path / "host")
        for words in (("enable",), ("writes", "on"), ("allow", host.id)):
            await provider_command(tmp_path, *words)
        assert "result" in await host.run("connect", EXTENSION_ID)
        listed = (await host.run("listTools"))["result"]["tools"]
        assert [tool["name"] for tool in listed if not tool["name"].startswith("webmcp_")] == []
        through = {"toolName": "notes_add_item", "args": {"text": "milk"}}
        for refused in (await host.call("webmcp_tool_call", **through), await host.call("notes_add_item", text="milk")):
            assert refused["isError"]
            assert "notes_add_item" in text_of(refused)
        assert (await host.call("webmcp_list_tools"))["structuredContent"]["tools"] == []
        assert await stage.provider.items() == []
        assert text_of(await stage.relay.call("webmcp_tool_call", through)) == "added milk"  # the user's own client
