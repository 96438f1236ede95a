"""Progress of a page on its way to the client: forwarded before the answer, and never without a token or after the end.

The keep-alive has a clock of its own in test_inflight.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.helpers import LineClient
from tests.surface.setting import good_tab, still_fine
from tests.surface.test_calls import cancel, tab_of
from tests.surface.test_stdio import Gate
from trio_relay.relay.hub import Hub
from trio_relay.surface import inflight
from trio_relay.surface.lines import LineWriter
from trio_relay.surface.server import SdkServer
from trio_relay.surface.session import Session


@pytest.mark.parametrize("token", [7, "seven", 0, "", 2**60, "a\u2028"])
async def test_progress_of_a_page_is_forwarded_before_the_answer(client: LineClient, hub: Hub, token: object) -> None:
    """Increasing values only, verbatim, with total and message; the token is echoed as it came."""
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "t") as tab:
        number = await client.send_request(
            "tools/call", {"name": "t", "arguments": {}, "_meta": {"progressToken": token}}
        )
        invoke = await tab.expect("invoke")
        call_id = invoke["callId"].encode()
        for members in (
            b'"progress":1,"total":3,"message":"one \\u2028"',
            b'"progress":1',
            b'"progress":0.5',
            b'"progress":1.50,"total":1e999,"message":5',
            b'"progress":"2"',
            b'"progress":null',
            b'"progress":1e999',
            b'"progress":-1e999',
            b'"progress":' + b"9" * 400,
            b'"progress":9007199254740993',
        ):
            await tab.send(b'{"type":"progress","callId":"' + call_id + b'",' + members + b"}")
        await tab.answer(invoke)
        await client.answer_to(number)
        told = [line for line in client.lines if b"notifications/progress" in line]
        params = [json.loads(line)["params"] for line in told]
        assert params == [
            {"progressToken": token, "progress": 1, "total": 3, "message": "one \u2028"},
            {"progressToken": token, "progress": 1.5},
            {"progressToken": token, "progress": 9007199254740993},
        ]
        assert b'"progress":1.50' in told[1]
        await tab.send(b'{"type":"progress","callId":"' + call_id + b'","progress":9e18}')
        await still_fine(client)
        assert sum(b"notifications/progress" in line for line in client.lines) == 3, "none after the answer"


@pytest.mark.parametrize("meta", [{}, {"_meta": {}}, {"_meta": None}])
async def test_without_a_token_there_is_no_progress(client: LineClient, hub: Hub, meta: dict[str, Any]) -> None:
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "t") as tab:
        number = await client.send_request("tools/call", {"name": "t", "arguments": {}, **meta})
        invoke = await tab.expect("invoke")
        await tab.send({"type": "progress", "callId": invoke["callId"], "progress": 1})
        await tab.answer(invoke)
        await client.answer_to(number)
        await still_fine(client)
        assert not any(b"notifications/progress" in line for line in client.lines)


async def test_there_is_no_progress_after_a_cancel(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with good_tab(hub.port), tab_of(hub, client, "t") as tab:
        number = await client.send_request("tools/call", {"name": "t", "_meta": {"progressToken": 1}})
        invoke = await tab.expect("invoke")
        await cancel(client, number)
        await tab.expect("cancel")
        await tab.send({"type": "progress", "callId": invoke["callId"], "progress": 1})
        await still_fine(client)
        assert not any(b"notifications/progress" in line for line in client.lines)


async def test_progress_through_webmcp_tool_call_is_forwarded_too(client: LineClient, hub: Hub) -> None:
    await client.initialize()
    async with tab_of(hub, client, "t") as tab:
        params = {"name": "webmcp_tool_call", "arguments": {"toolName": "t"}, "_meta": {"progressToken": "p"}}
        number = await client.send_request("tools/call", params)
        invoke = await tab.expect("invoke")
        await tab.send({"type": "progress", "callId": invoke["callId"], "progress": 1})
        await tab.answer(invoke)
        await client.answer_to(number)
        assert sum(b"notifications/progress" in line for line in client.lines) == 1


async def test_a_call_that_is_done_is_told_no_progress_while_its_answer_waits(
    hub: Hub, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read for longer than the keep-alive: the answer is the last it hears of the call."""
    monkeypatch.setattr(inflight, "KEEP_ALIVE_S", 0.02)
    gate = Gate()
    gate.open.set()
    ours, theirs = trio.testing.memory_stream_pair()
    session = Session(hub, theirs, LineWriter(gate), hub.config.max_payload)
    nursery.start_soon(session.run, SdkServer(session))
    client = LineClient(ours, ours)
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await client.write({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    await trio.testing.wait_all_tasks_blocked(0.01)
    gate.open = trio.Event()
    await client.write({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    call = {"name": "webmcp_list_sources", "_meta": {"progressToken": 1}}
    await client.write({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call})
    await trio.sleep(0.1)  # five times the keep-alive
    gate.open.set()
    await trio.testing.wait_all_tasks_blocked(0.05)
    messages = [json.loads(line) for line in bytes(gate.data).splitlines()]
    assert [message.get("id") for message in messages] == [1, 2, 3]
    nursery.cancel_scope.cancel()
