"""Beside the npm relay, `@mcp-b/webmcp-local-relay` 2.2.0: it as server, and as client; its death and ours."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e import npm
from tests.e2e.test_cluster import TAKEOVER_S, mode_of, relay_on, wait_mode
from tests.helpers import FakeTab, RelayProcess, free_port, open_tab, text_result, wait_for_port

pytestmark = pytest.mark.npm


@asynccontextmanager
async def npm_relay(port: int, home: Path) -> AsyncIterator[RelayProcess]:
    """An npm relay and its MCP client, which has shaken hands."""
    process = await trio.lowlevel.open_process(
        [npm.node(), str(npm.HERE / "relay.mjs"), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    relay = RelayProcess(process, port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.drain_stderr)
        try:
            await relay.initialize("2025-06-18")
            await wait_for_port(port)
            yield relay
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            nursery.cancel_scope.cancel()


async def show(tab: FakeTab, tab_id: str, *tools: str) -> None:
    """Say hello and offer tools, as an old widget does: the npm relay accepts no hello in words."""
    where = {"url": "https://a.example/", "origin": "https://a.example"}
    await tab.send({"type": "hello", "tabId": tab_id, "title": tab_id, **where})
    await tab.offer(*tools)


async def page(tab: FakeTab) -> None:
    def reply(invoke: dict[str, Any]) -> dict[str, Any]:
        return text_result("broken") | {"isError": True} if invoke["toolName"] == "fail" else text_result("done")

    await tab.serve(reply)


async def test_we_join_an_npm_relay_and_use_its_tabs(tmp_path: Path, nursery: trio.Nursery) -> None:
    port = free_port()
    async with npm_relay(port, tmp_path), relay_on(port, tmp_path) as ours, open_tab(port) as tab:
        assert await mode_of(ours) == "client"
        await show(tab, "aa11", "work", "fail")
        nursery.start_soon(page, tab)
        await ours.wait_tools("work", "fail")
        assert (await ours.call("work"))["content"] == text_result("done")["content"]
        failed = await ours.call("fail")
        assert failed["isError"]
        assert failed["content"] == text_result("broken")["content"]
        (source,) = (await ours.call("webmcp_list_sources"))["structuredContent"]["sources"]
        assert (source["tabId"], source["toolCount"]) == ("aa11", 2)
        target = {"toolName": "work", "requestTabId": "aa11"}
        assert (await ours.call("webmcp_tool_call", target))["content"] == text_result("done")["content"]
        refresh = await ours.call("webmcp_open_page", {"url": "https://a.example/", "refresh": True})
        assert refresh["isError"]
        assert "cannot be asked to reload" in refresh["content"][0]["text"]
        nursery.cancel_scope.cancel()


async def test_a_targeted_call_an_npm_relay_cannot_honour_is_refused(tmp_path: Path, nursery: trio.Nursery) -> None:
    port = free_port()
    async with (
        npm_relay(port, tmp_path),
        relay_on(port, tmp_path) as ours,
        open_tab(port) as one,
        open_tab(port) as two,
    ):
        # Two sockets of one tab id share a name there, and only the last one seen is reached by it.
        for tab in (one, two):
            await show(tab, "same", "work")
            nursery.start_soon(page, tab)
        with trio.fail_after(5):
            while True:
                sources = (await ours.call("webmcp_list_sources"))["structuredContent"]["sources"]
                if len(sources) == 2 and all(source["toolCount"] for source in sources):
                    break
        (name,) = await ours.tool_names()
        answer = await ours.call("webmcp_tool_call", {"toolName": name, "sourceId": sources[0]["sourceId"]})
        assert answer["isError"]
        assert "cannot be told which tab" in answer["content"][0]["text"]
        nursery.cancel_scope.cancel()


async def test_we_take_over_from_a_killed_npm_relay(tmp_path: Path, nursery: trio.Nursery) -> None:
    port = free_port()
    async with npm_relay(port, tmp_path) as theirs, relay_on(port, tmp_path) as ours:
        async with open_tab(port) as tab:
            await show(tab, "aa11", "work")
            await ours.wait_tools("work")
            request_id = await ours.send_request("tools/call", {"name": "work"})
            await tab.expect("invoke")
            theirs.process.kill()
            killed = trio.current_time()
            assert (await ours.answer_to(request_id))["result"]["isError"]
        await wait_mode(ours, "server")
        assert trio.current_time() - killed < TAKEOVER_S
        async with open_tab(port) as tab:
            await tab.hello("aa11")
            await tab.offer("work")
            nursery.start_soon(page, tab)
            assert await ours.call("work") == text_result("done")
            nursery.cancel_scope.cancel()


async def test_an_npm_relay_joins_us_and_uses_our_tabs_and_takes_over_when_we_die(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    port = free_port()
    async with relay_on(port, tmp_path) as ours, open_tab(port) as tab:
        await tab.hello("aa11")
        await tab.offer("work", "fail")
        nursery.start_soon(page, tab)
        await ours.wait_tools("work", "fail")
        async with npm_relay(port, tmp_path) as theirs:
            await ours.logged("another relay joined")
            with trio.fail_after(10):
                while not {"work", "fail"} <= set(await theirs.tool_names()):  # noqa: ASYNC110  (a process is asked)
                    await trio.sleep(0.02)
            assert (await theirs.call("work"))["content"] == text_result("done")["content"]
            assert (await theirs.call("fail"))["isError"]
            assert await mode_of(ours) == "server"
            ours.process.kill()
            await ours.process.wait()
            await wait_for_port(port)
            async with relay_on(port, tmp_path) as again:
                await wait_mode(again, "client")
                async with open_tab(port) as back:
                    await show(back, "aa11", "work")
                    nursery.start_soon(page, back)
                    await again.wait_tools("work")
                    assert (await again.call("work"))["content"] == text_result("done")["content"]
                    nursery.cancel_scope.cancel()
