"""The official Python client in all its modes, under trio, drives a real relay process.

What this client cannot read it drops without a word, and the call hangs; so part of this is about odd results.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
import trio
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.e2e import npm
from tests.helpers import FakeTab, free_port, open_tab, text_result
from trio_relay.surface.answers import MAX_DEPTH as MAX_LINE_DEPTH

PATIENCE = 20.0
MODES = ["auto", "legacy", "2026-07-28"]
each_mode = pytest.mark.parametrize("mode", MODES)


class Pair:
    """A client, the tab it talks to, and what it heard without asking."""

    def __init__(self, client: Client, tab: FakeTab, heard: trio.MemoryReceiveChannel[object]) -> None:
        self.client = client
        self.tab = tab
        self.heard = heard

    async def tools(self) -> dict[str, types.Tool]:
        """The listed page tools by name."""
        listed = (await self.client.list_tools()).tools
        return {tool.name: tool for tool in listed if not tool.name.startswith("webmcp_")}

    async def wait_tools(self, *names: str) -> None:
        with trio.fail_after(PATIENCE):
            while sorted(await self.tools()) != sorted(names):  # noqa: ASYNC110  (a list is asked for)
                await trio.sleep(0.01)

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> types.CallToolResult:
        with trio.fail_after(PATIENCE):
            return await self.client.call_tool(name, arguments or {}, **options)


@asynccontextmanager
async def open_pair(mode: str, *tools: object, listed: tuple[str, ...] | None = None) -> AsyncIterator[Pair]:
    """A client that started a relay, and a tab with these tools; `listed` are their names as the client sees them."""
    port = free_port()
    command = npm.relay_command(port, "--log-level", "error")
    send, receive = trio.open_memory_channel[object](1000)
    parameters = StdioServerParameters(command=command[0], args=command[1:], cwd=npm.ROOT)

    async def hear(message: object) -> None:
        await send.send(message)

    async with Client(stdio_client(parameters), mode=mode, message_handler=hear) as client:
        await client.list_tools()  # a pinned client has said nothing yet, so the relay may still be starting
        async with open_tab(port) as tab:
            await tab.hello()
            await tab.offer(*tools)
            pair = Pair(client, tab, receive)
            names = [str(tool["name"] if isinstance(tool, dict) else tool) for tool in tools]
            await pair.wait_tools(*(listed or names))
            yield pair


def text_of(result: types.CallToolResult) -> str:
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text


@each_mode
async def test_tools_are_listed_called_and_refused(mode: str, nursery: trio.Nursery) -> None:
    schema = {"type": "object", "properties": {"搜索": {"type": "string"}}, "required": ["搜索"]}

    def reply(invoke: dict[str, Any]) -> object:
        return text_result(f"got {invoke['args']['搜索']}") | {"isError": invoke["args"]["搜索"] == "bad"}

    async with open_pair(mode, {"name": "find", "title": "Über", "inputSchema": schema}) as pair:
        nursery.start_soon(pair.tab.serve, reply)
        tool = (await pair.tools())["find"]
        assert (tool.title, tool.input_schema) == ("Über", schema)
        for text in ("漢字 é 😀", "a\u2028b\u2029c\u0085d\u0000", "x" * 1_000_000, "é😀" * 200_000):
            result = await pair.call("find", {"搜索": text})
            assert (text_of(result), result.is_error) == (f"got {text}", False)
        assert (await pair.call("find", {"搜索": "bad"})).is_error
        refused = await pair.call("find", {"搜索": 1})
        assert refused.is_error
        assert "at 搜索:" in text_of(refused)
        assert (await pair.call("nowhere")).is_error
        assert sum(frame["type"] == "invoke" for frame in pair.tab.seen) == 5


@each_mode
async def test_fifty_parallel_calls_each_get_their_own_answer(mode: str) -> None:
    """A13: answered in another order than asked."""
    answers: dict[int, str] = {}

    async with open_pair(mode, "echo") as pair, trio.open_nursery() as nursery:

        async def ask(nonce: int) -> None:
            answers[nonce] = text_of(await pair.call("echo", {"nonce": nonce}))

        for nonce in range(50):
            nursery.start_soon(ask, nonce)
        invokes = [await pair.tab.expect("invoke") for _ in range(50)]
        for invoke in sorted(invokes, key=lambda invoke: (invoke["args"]["nonce"] * 37) % 50):
            await pair.tab.answer(invoke)
    assert answers == {nonce: json.dumps({"nonce": nonce}) for nonce in range(50)}


@each_mode
async def test_progress_of_the_page_arrives_in_order(mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with open_pair(mode, "slow") as pair, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: pair.call("slow", progress_callback=listen))
        invoke = await pair.tab.expect("invoke")
        for step in range(1, 21):
            frame = {
                "type": "progress",
                "callId": invoke["callId"],
                "progress": step,
                "total": 20,
                "message": f"s{step}",
            }
            await pair.tab.send(frame)
        await pair.tab.answer(invoke)
    # The client runs each callback in a task of its own, in any order.
    assert sorted(heard) == [(step, 20, f"s{step}") for step in range(1, 21)]


@each_mode
async def test_a_timeout_of_the_client_cancels_the_call_in_the_page(mode: str) -> None:
    async with open_pair(mode, "slow") as pair:
        async with trio.open_nursery() as nursery:

            async def time_out() -> None:
                with pytest.raises(MCPError, match="timed out"):
                    await pair.call("slow", read_timeout_seconds=0.3)

            nursery.start_soon(time_out)
            invoke = await pair.tab.expect("invoke")
            assert (await pair.tab.expect("cancel"))["callId"] == invoke["callId"]
        await pair.tab.answer(invoke)  # too late: nobody may hear of it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.tab.serve)
            assert text_of(await pair.call("slow", {"again": 1})) == '{"again": 1}'
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mode", ["auto", "2026-07-28"])
async def test_a_listening_client_hears_that_the_list_has_changed(mode: str) -> None:
    async with open_pair(mode, "one") as pair:
        with trio.fail_after(PATIENCE):
            async with pair.client.listen(tools_list_changed=True) as events:
                await pair.tab.offer("one", "two", kind="tools/changed")
                await anext(events)
                assert sorted(await pair.tools()) == ["one", "two"]
                await pair.tab.send({"type": "source/disconnected"})
                await anext(events)
                assert await pair.tools() == {}


async def test_a_client_of_the_older_era_is_notified_that_the_list_has_changed() -> None:
    async with open_pair("legacy", "one") as pair:
        with trio.fail_after(PATIENCE):
            await pair.heard.receive()  # of the tools the pair was opened with
            await pair.tab.offer("one", "two", kind="tools/changed")
            assert isinstance(await pair.heard.receive(), types.ToolListChangedNotification)
            assert sorted(await pair.tools()) == ["one", "two"]


OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@each_mode
async def test_structured_content_is_held_to_the_output_schema(mode: str, nursery: trio.Nursery) -> None:
    """This client raises, and the answer is lost, where the relay would let a mismatch pass."""
    results: dict[str, dict[str, Any]] = {
        "good": {"content": [], "structuredContent": {"n": 9007199254740993}},
        "alone": {"structuredContent": {"n": 2}},
        "wrong": {"content": [], "structuredContent": {"n": "x"}},
        "missing": {"content": [{"type": "text", "text": "1"}]},
        "null": {"content": [], "structuredContent": None},
        "array": {"content": [], "structuredContent": [1]},
        "failed": {"content": [{"type": "text", "text": "no"}], "isError": True},
    }
    async with open_pair(mode, {"name": "count", "outputSchema": OUTPUT}) as pair:
        nursery.start_soon(pair.tab.serve, lambda invoke: results[invoke["args"]["which"]])
        assert (await pair.tools())["count"].output_schema == OUTPUT
        for which in results:
            result = await pair.call("count", {"which": which})
            assert result.is_error is (which not in ("good", "alone")), which
            if not result.is_error:
                assert result.structured_content == results[which]["structuredContent"]


def nested(levels: int) -> str:
    """JSON of a CallToolResult that is nested in so many levels."""
    return '{"content":[],"structuredContent":{"v":' + "[" * (levels - 2) + "1" + "]" * (levels - 2) + "}}"


@each_mode
async def test_no_result_makes_the_client_wait_for_ever(mode: str) -> None:
    """C01, C04 and deep nesting: a line this client cannot parse (more than 200 levels) would be dropped silently."""
    hideous = {
        '{"content":[{"type":"text","text":"x\\ud83d y"}],"\\ud83d":1}': "x\ufffd y",
        '{"content":[{"type":"hologram","beam":1}]}': '{"type":"hologram","beam":1}',
        '{"content":[],"_meta":"x"}': None,
        nested(MAX_LINE_DEPTH - 1): None,
    }
    refused = [nested(depth) for depth in (MAX_LINE_DEPTH, MAX_LINE_DEPTH + 1, 250, 900, 5_000)]
    refused += ["null", '"hi"', "42", "[]", "{}", '{"content":"hi"}', '{"content":[null]}']
    async with open_pair(mode, "odd") as pair:

        async def get(result: str) -> types.CallToolResult:
            found: list[types.CallToolResult] = []

            async def ask() -> None:
                found.append(await pair.call("odd", read_timeout_seconds=10))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                call_id = (await pair.tab.expect("invoke"))["callId"]
                await pair.tab.send(f'{{"type":"result","callId":"{call_id}","result":{result}}}'.encode())
            return found[0]

        for answer, text in hideous.items():
            result = await get(answer)
            assert not result.is_error, answer[:80]
            if text is not None:
                assert text_of(result) == text
        for answer in refused:
            assert (await get(answer)).is_error, answer[:80]


@each_mode
async def test_a_tool_nested_too_deeply_costs_only_itself(mode: str) -> None:
    """One such definition would make this client drop the whole list, and wait."""
    deep: dict[str, Any] = {}
    for _ in range(198):
        deep = {"properties": {"a": deep}}
    by_text = {"name": "by_text", "inputSchema": json.dumps({"type": "object"} | deep)}
    deeper = {"name": "deep", "inputSchema": {"type": "object"} | deep}
    async with open_pair(mode, deeper, "good", by_text, listed=("good",)) as pair:
        sources = await pair.call("webmcp_list_tools")
        assert (sources.structured_content or {})["count"] == 1
