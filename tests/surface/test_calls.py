"""Calls on their way: in parallel, cancelled, timed out, with progress, with arguments and results of any kind."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.helpers import FakeTab, LineClient, open_tab, text_result
from tests.surface.setting import good_tab, published, refused, response, still_fine, text_of
from tests.surface.test_stdio import Gate
from trio_relay.config import RelayConfig
from trio_relay.links.source import Heartbeat
from trio_relay.relay.hub import Hub, open_hub
from trio_relay.surface.lines import LineWriter
from trio_relay.surface.server import SdkServer
from trio_relay.surface.session import Session


@asynccontextmanager
async def setting(**config: Any) -> AsyncIterator[tuple[Hub, LineClient]]:
    """A hub with its own settings and a client that has shaken hands."""
    async with open_hub(RelayConfig(port=0, **config)) as hub, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        session = Session(hub, theirs, LineWriter(theirs), hub.config.max_payload)
        nursery.start_soon(session.run, SdkServer(session))
        client = LineClient(ours.send_stream, ours.receive_stream)
        await client.initialize()
        yield hub, client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def tab_of(hub: Hub, client: LineClient, *tools: object, tab_id: str = "t1") -> AsyncIterator[FakeTab]:
    async with open_tab(hub.port) as tab:
        await tab.hello(tab_id)
        await tab.offer(*tools)
        names = [tool["name"] if isinstance(tool, dict) else tool for tool in tools]
        while not set(names) <= set(await client.tool_names()):
            pass
        yield tab


async def cancel(client: LineClient, request_id: object, **params: object) -> None:
    await client.write(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id, **params}}
    )


# -- many at once


async def test_calls_written_together_reach_the_tab_in_their_order(client: LineClient, hub: Hub) -> None:
    """An agent that clicks, then types, in one turn."""
    await client.initialize()
    async with tab_of(hub, client, "step") as tab:
        calls = [
            {"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "step", "arguments": {"n": n}}}
            for n in range(30)
        ]
        await client.write("\n".join(map(json.dumps, calls)).encode())
        assert [(await tab.expect("invoke"))["args"]["n"] for _ in range(30)] == list(range(30))


@pytest.mark.parametrize("seed", [1, 2])
async def test_fifty_parallel_calls_over_three_tabs_answered_in_random_order_each_get_their_own(
    client: LineClient, hub: Hub, seed: int
) -> None:
    """A13: every reply has its own nonce."""
    dice = random.Random(seed)
    await client.initialize()
    async with (
        tab_of(hub, client, "a", tab_id="1") as one,
        tab_of(hub, client, "b", tab_id="2") as two,
        tab_of(hub, client, "c", tab_id="3") as three,
    ):
        tabs = {"a": one, "b": two, "c": three}
        sent: dict[int, tuple[str, str]] = {}
        for _ in range(50):
            name, nonce = dice.choice("abc"), f"{dice.getrandbits(64):x}"
            sent[await client.send_request("tools/call", {"name": name, "arguments": {"nonce": nonce}})] = (name, nonce)
        invokes: list[tuple[FakeTab, dict[str, Any]]] = []
        for name, tab in tabs.items():
            for _ in range(sum(wanted == name for wanted, _ in sent.values())):
                invoke = await tab.expect("invoke")
                assert invoke["toolName"] == name
                invokes.append((tab, invoke))
        dice.shuffle(invokes)
        for tab, invoke in invokes:
            await tab.answer(invoke)
        for _ in range(50):
            answer = await response(client)
            _, nonce = sent.pop(answer["id"])
            assert json.loads(text_of(answer["result"])) == {"nonce": nonce}
        assert len(hub.pending) == 0


async def test_a_thousand_cancelled_calls_leave_nothing_behind(
    client: LineClient, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    """A26: pending tables empty, `cancel` with the same callId, late results only a debug line."""
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "slow") as tab:
        numbers = [
            await client.send_request("tools/call", {"name": "slow", "arguments": {"n": n}}) for n in range(1000)
        ]
        called = [(await tab.expect("invoke"))["callId"] for _ in numbers]
        assert len(hub.pending) == 1000
        for number in numbers:
            await cancel(client, number)
        cancelled = [await tab.expect("cancel") for _ in numbers]
        assert sorted(frame["callId"] for frame in cancelled) == sorted(called)
        assert len(hub.pending) == 0
        caplog.set_level(logging.DEBUG, "trio_relay")
        caplog.clear()
        for call_id in called[:100]:
            await tab.send({"type": "result", "callId": call_id, "result": text_result("late")})
            await tab.send({"type": "progress", "callId": call_id, "progress": 1})
        await still_fine(client)
        late = [record for record in caplog.records if "nobody waits" in record.getMessage()]
        assert len(late) >= 100
        assert all(record.levelno == logging.DEBUG for record in late)
        assert not any(json.loads(line).get("id") in numbers for line in client.lines)


# -- cancellation


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("given", "cancelled"), [("2", 2), (2, "2"), (2, "02"), ("a", "a"), ("", ""), (0, 0), (-1, "-1")]
)
async def test_a_cancelled_call_is_stopped_in_the_tab_and_never_answered(
    client: LineClient, hub: Hub, modern: bool, given: object, cancelled: object
) -> None:
    """The ids "2", 2 and "02" are one id."""
    client.modern = modern
    if not modern:
        await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "slow") as tab:
        from tests.helpers import MODERN_META

        meta = {"_meta": MODERN_META} if modern else {}
        params = {"name": "slow", "arguments": {}} | meta
        await client.write({"jsonrpc": "2.0", "id": given, "method": "tools/call", "params": params})
        invoke = await tab.expect("invoke")
        await cancel(client, cancelled, reason="the user changed their mind", **meta)
        frame = await tab.expect("cancel")
        assert frame["callId"] == invoke["callId"]
        assert frame["reason"] == "cancelled"
        assert len(hub.pending) == 0
        await tab.answer(invoke)
        await still_fine(client)
        assert not any(json.loads(line).get("id") == given for line in client.lines if b'"id"' in line)


async def test_a_call_cancelled_in_the_same_read_is_never_answered(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "slow") as tab:
        call = {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "slow"}}
        stop = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
        await client.write(json.dumps(call).encode() + b"\n" + json.dumps(stop).encode())
        await still_fine(client)
        assert len(hub.pending) == 0
        kinds = [frame["type"] for frame in tab.seen]
        await tab.offer()
        assert kinds.count("invoke") == kinds.count("cancel")
        assert not any(json.loads(line).get("id") == "x" for line in client.lines)


async def test_a_cancel_for_nothing_does_nothing(client: LineClient, hub: Hub) -> None:
    """Unknown, finished, before its request, without an id, of initialize, and nonsense."""
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "t") as tab:
        unknown: list[object] = [77, "x", None, True, 1.5, [], {"a": 1}, 1001]
        for request_id in unknown:
            await cancel(client, request_id)
        await client.write({"jsonrpc": "2.0", "method": "notifications/cancelled"})
        await client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": []})
        await client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}})
        await client.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e999}}')
        await client.write(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":' + b"9" * 5000 + b"}}"
        )
        params = {"name": "t", "arguments": {"n": 2}}
        await client.write({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params})
        await tab.answer(await tab.expect("invoke"))
        assert text_of((await client.answer_to(77))["result"]) == '{"n": 2}'
        await cancel(client, 77)
        await still_fine(client)


async def test_two_calls_with_one_id_are_both_answered_and_a_cancel_ends_the_newest(
    client: LineClient, hub: Hub
) -> None:
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "t") as tab:
        for number in (1, 2, 3):
            params = {"name": "t", "arguments": {"n": number}}
            await client.write({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
        invokes = {invoke["args"]["n"]: invoke for invoke in [await tab.expect("invoke") for _ in range(3)]}
        await cancel(client, 5)
        assert (await tab.expect("cancel"))["callId"] == invokes[3]["callId"]
        await tab.answer(invokes[1])
        await tab.answer(invokes[2])
        answers = [await client.answer_to(5), await client.answer_to(5)]
        assert sorted(text_of(answer["result"]) for answer in answers) == ['{"n": 1}', '{"n": 2}']
        await still_fine(client)


# -- timeouts


async def test_a_call_that_times_out_is_an_error_result_and_the_page_is_told() -> None:
    async with setting(invoke_timeout=0.05) as (hub, client), good_tab(hub.port), tab_of(hub, client, "slow") as tab:
        number = await client.send_request("tools/call", {"name": "slow", "arguments": {}})
        invoke = await tab.expect("invoke")
        assert 1 <= invoke["deadlineMs"] <= 50
        assert (await tab.expect("cancel")) == {"type": "cancel", "callId": invoke["callId"], "reason": "timeout"}
        result = (await client.answer_to(number))["result"]
        assert result["isError"] is True
        assert "--invoke-timeout" in text_of(result)
        await tab.answer(invoke)
        await still_fine(client)


async def test_without_a_timeout_no_deadline_is_sent() -> None:
    async with setting(invoke_timeout=None) as (hub, client), tab_of(hub, client, "t") as tab:
        number = await client.send_request("tools/call", {"name": "t", "arguments": {}})
        invoke = await tab.expect("invoke")
        assert "deadlineMs" not in invoke
        await tab.answer(invoke)
        await client.answer_to(number)


async def test_another_tab_cannot_answer_or_report_progress_of_a_call(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with tab_of(hub, client, "t") as tab, tab_of(hub, client, "u", tab_id="t2") as other:
        number = await client.send_request("tools/call", {"name": "t", "_meta": {"progressToken": 1}})
        invoke = await tab.expect("invoke")
        await other.send({"type": "progress", "callId": invoke["callId"], "progress": 1})
        await other.answer(invoke, text_result("forged"))
        await other.offer("u2")
        while "u2" not in await client.tool_names():
            pass
        await tab.answer(invoke, text_result("true"))
        assert text_of((await client.answer_to(number))["result"]) == "true"
        assert not any(b"notifications/progress" in line for line in client.lines)


# -- schemas


async def test_arguments_that_violate_the_schema_never_reach_the_tab(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
        },
        "required": ["list"],
    }
    async with good_tab(hub.port), tab_of(hub, client, {"name": "t", "inputSchema": schema}) as tab:
        for args, path in (({"list": [{"n": 1}, {"n": "x"}]}, "list[1].n"), ({}, "list"), ({"list": 5}, "list")):
            assert path in await refused(client, "t", args)
            via = {"toolName": "t", "args": args}
            assert path in await refused(client, "webmcp_tool_call", via)
            assert path in await refused(client, "t", args, task={"ttl": 1})
        await still_fine(client)
        number = await client.send_request("tools/call", {"name": "t", "arguments": {"list": []}})
        await tab.answer(await tab.expect("invoke"))
        await client.answer_to(number)
        assert sum(frame["type"] == "invoke" for frame in tab.seen) == 1


async def test_a_result_that_violates_the_output_schema_becomes_an_error_result(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "t", "outputSchema": schema}
    async with good_tab(hub.port), tab_of(hub, client, tool) as tab:
        for body, words in (
            (text_result("only text"), "structuredContent"),
            ({"content": [], "structuredContent": {"n": "x"}}, "n"),
            ({"content": [], "structuredContent": {}}, "n"),
            ({"content": [], "structuredContent": {"n": 1}}, None),
            (text_result("failed") | {"isError": True}, None),
        ):
            number = await client.send_request("tools/call", {"name": "t", "arguments": {}})
            await tab.answer(await tab.expect("invoke"), body)
            result = (await client.answer_to(number))["result"]
            if words is None:
                assert result == body
            else:
                assert result["isError"] is True
                assert words in text_of(result)
        await still_fine(client)


async def test_a_client_that_does_not_read_holds_no_tab_up(nursery: trio.Nursery) -> None:
    """A19, in memory: pings go on, a new tab is accepted at once, no source is dropped, the bytes are complete."""
    text = "x" * 5_000_000
    async with open_hub(RelayConfig(port=0), Heartbeat(interval=0.02, limit=2)) as hub:
        gate = Gate()
        gate.open.set()
        ours, theirs = trio.testing.memory_stream_pair()
        session = Session(hub, theirs, LineWriter(gate), hub.config.max_payload)
        nursery.start_soon(session.run, SdkServer(session))
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await LineClient(ours, ours).write({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        async with good_tab(hub.port) as good, open_tab(hub.port) as tab:
            await tab.hello("t1")
            await tab.offer("big")
            await published(hub, 2)
            gate.open = trio.Event()
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "big"}}
            await LineClient(ours, ours).write(call)
            await tab.answer(await tab.expect("invoke"), text_result(text))
            nursery.start_soon(tab.serve)
            good.seen.clear()
            with trio.fail_after(10):
                while sum(frame["type"] == "ping" for frame in good.seen) < 20:  # noqa: ASYNC110
                    await trio.sleep(0.02)
            async with open_tab(hub.port) as new:
                await new.hello("new")
            assert len(hub.sources()) >= 2
            gate.open.set()
            with trio.fail_after(10):
                while not gate.data.endswith(b"\n") or b'"id":2' not in gate.data:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            lines = [json.loads(line) for line in bytes(gate.data).splitlines()]
            answers = {line["id"]: line["result"] for line in lines if "id" in line}
            assert text_of(answers[2]) == text
        nursery.cancel_scope.cancel()


async def test_a_tab_that_goes_away_fails_its_calls_at_once(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with good_tab(hub.port):
        async with tab_of(hub, client, "t") as tab:
            numbers = [await client.send_request("tools/call", {"name": "t", "arguments": {}}) for _ in range(3)]
            for _ in numbers:
                await tab.expect("invoke")
        answers = [await response(client) for _ in numbers]
        assert sorted(answer["id"] for answer in answers) == numbers
        for result in (answer["result"] for answer in answers):
            assert result["isError"] is True
            assert "may have run" in text_of(result)
        await still_fine(client)
