"""Both protocol eras: the handshake of 2024-2025 and the envelope of 2026. List, call, errors, list_changed.

The raw lane and the SDK's lane must give the same answers; what the SDK refuses, the raw lane must not serve.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.helpers import MODERN_META, FakeTab, LineClient, open_tab, text_result
from tests.surface.setting import good_tab, published, refused, response, still_fine, text_of
from trio_relay.relay.hub import Hub
from trio_relay.wire.mcp import SERVER_INFO_KEY

ERAS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
P = "io.modelcontextprotocol/"


async def begin(client: LineClient, era: str) -> bool:
    """Shake hands in the way of an era; returns whether it is the modern one."""
    client.modern = era == "2026-07-28"
    if client.modern:
        answer = await client.request("server/discover", {})
        assert answer["result"]["supportedVersions"] == [era]
        assert answer["result"]["capabilities"]["tools"]["listChanged"] is True
    else:
        answer = await client.initialize(era)
        assert answer["result"]["protocolVersion"] == era
    return client.modern


async def next_invoke(tab: FakeTab) -> dict[str, Any]:
    return await tab.expect("invoke")


# -- list, call, errors


@pytest.mark.parametrize("era", ERAS)
async def test_every_era_lists_calls_and_refuses(client: LineClient, hub: Hub, era: str) -> None:
    modern = await begin(client, era)
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await still_fine(client)
        listed = (await client.request("tools/list", {}))["result"]
        assert [tool["name"] for tool in listed["tools"]][-1] == "good"
        assert [tool["name"] for tool in listed["tools"]][:4] == [
            "webmcp_list_sources",
            "webmcp_list_tools",
            "webmcp_open_page",
            "webmcp_tool_call",
        ]
        assert (listed.get("ttlMs"), listed.get("cacheScope")) == ((0, "private") if modern else (None, None))
        assert listed.get("resultType") == ("complete" if modern else None)
        assert (SERVER_INFO_KEY in listed.get("_meta", {})) is modern
        assert "webmcp_list_tools" in await refused(client, "nope")
        assert (await client.request("no/such", {}))["error"]["code"] == -32601
        assert (await client.request("tools/call", {"name": 5}))["error"]["code"] == -32602
        assert (await client.request("tools/list", {"cursor": "stale"}))["error"]["code"] == -32602
        assert (await client.request("tools/list", {"cursor": 5}))["error"]["code"] == -32602
        result = await client.call("good")
        assert result.get("resultType") == ("complete" if modern else None)
        assert result.get("_meta") == (
            {SERVER_INFO_KEY: {"name": "trio-relay", "version": _version()}} if modern else None
        )


def _version() -> str:
    from trio_relay import __version__

    return __version__


@pytest.mark.parametrize("first", ["tools/list", "tools/call"])
async def test_a_modern_client_may_begin_without_discovery(client: LineClient, hub: Hub, first: str) -> None:
    client.modern = True
    answer = await client.request(first, {"name": "webmcp_list_sources", "arguments": {}} if "call" in first else {})
    assert answer["result"]["resultType"] == "complete"
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await still_fine(client)


async def test_a_modern_connection_may_begin_with_notifications(client: LineClient) -> None:
    await client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
    client.modern = True
    await client.ping()


# -- the envelope of a modern client


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({P + "clientCapabilities": 5}, -32602),
        ({P + "clientCapabilities": {"roots": 5}}, -32602),
        ({P + "clientInfo": {"name": "x", "version": "1", "title": 5}}, -32602),
        ({P + "clientInfo": 5}, -32602),
        ({P + "logLevel": "loud"}, -32602),
        ({P + "protocolVersion": 5}, -32602),
        ({P + "protocolVersion": "2099-01-01"}, -32022),
        ({P + "protocolVersion": "2025-11-25"}, -32022),
        ({"progressToken": 1.5}, -32602),
    ],
)
@pytest.mark.parametrize("began", [False, True])
async def test_an_envelope_the_sdk_refuses_is_refused_for_every_request(
    client: LineClient, hub: Hub, change: dict[str, Any], code: int, began: bool
) -> None:
    """The raw lane asks the SDK before it believes an envelope, so the answer is the SDK's; the session is alive."""
    if began:
        await begin(client, "2026-07-28")
        client.modern = False
    async with good_tab(hub.port) as tab:
        await published(hub)
        for _ in range(2):
            for method, params in (("tools/call", {"name": "good", "arguments": {}}), ("tools/list", {})):
                if method == "tools/list" and "progressToken" in change:
                    continue
                answer = await client.request(method, params | {"_meta": MODERN_META | change})
                assert answer["error"]["code"] == code, (method, answer)
        client.modern = True
        await still_fine(client)
        assert sum(frame["type"] == "invoke" for frame in tab.seen) == 1


async def test_an_envelope_with_a_missing_key_is_refused(client: LineClient) -> None:
    meta = {key: value for key, value in MODERN_META.items() if not key.endswith("clientCapabilities")}
    answer = await client.request("tools/call", {"name": "x", "_meta": meta})
    assert answer["error"]["code"] == -32602
    assert (await client.request("tools/call", {"name": "x"}))["error"]["code"] == -32602
    client.modern = True
    await client.ping()


async def test_an_envelope_on_a_connection_of_the_older_era_is_refused(client: LineClient) -> None:
    await client.initialize()
    answer = await client.request("tools/call", {"name": "webmcp_list_sources", "_meta": MODERN_META})
    assert answer["error"]["code"] == -32600
    assert (await client.request("tools/list", {"_meta": MODERN_META}))["error"]["code"] == -32600
    await client.ping()


async def test_more_envelopes_than_the_raw_lane_remembers_are_served_all_the_same(client: LineClient, hub: Hub) -> None:
    await begin(client, "2026-07-28")
    async with good_tab(hub.port):
        await client.wait_tools("good")
        for number in range(80):
            meta = {"_meta": {P + "clientInfo": {"name": "test", "version": str(number)}}}
            answer = await client.request("tools/call", {"name": "good", "arguments": {"n": number}, **meta})
            assert text_of(answer["result"]) == f'{{"n": {number}}}'
            assert answer["result"]["resultType"] == "complete"
        listed = (await client.request("tools/list", meta))["result"]
        assert len(listed["tools"]) == 5
        assert listed["resultType"] == "complete"
        assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")


# -- both lanes


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_both_lanes_give_the_same_answers(client: LineClient, hub: Hub, era: str) -> None:
    """Plain (raw, quick), with an unknown member (raw, general way), with `task` (the SDK's)."""
    await begin(client, era)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    results: list[object] = [
        text_result("hi"),
        {"content": [], "structuredContent": {"a": 1}},
        {"content": [{"type": "text", "text": "bad"}], "isError": True},
        text_result("m") | {"_meta": {"mine": 1}},
        text_result("m") | {"_meta": {SERVER_INFO_KEY: {"name": "page", "version": "9"}}},
        text_result("m") | {"_meta": {SERVER_INFO_KEY: None}},
        {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
        {"content": [{"type": "resource_link", "uri": "https://a.example/", "name": "a"}]},
        {"content": [{"type": "surprise", "x": 1}]},
        None,
        "text",
        {"structuredContent": {"a": 2}},
    ]
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer({"name": "t", "inputSchema": schema}, {"name": "o", "outputSchema": schema})
        await client.wait_tools("t", "o")
        for name, args, result in [
            *(("t", {"a": 1}, result) for result in results),
            ("t", {"a": "no"}, None),
            ("nope", {}, None),
            ("o", {}, text_result("no structuredContent")),
            ("o", {}, {"content": [], "structuredContent": {"a": "no"}}),
            ("o", {}, {"content": [], "structuredContent": {"a": 1}}),
        ]:
            answers: list[Any] = []
            for extra in ({}, {"unknown": {"x": 1}}, {"task": {"ttl": 1000}}):
                number = await client.send_request("tools/call", {"name": name, "arguments": args, **extra})
                if name != "nope" and args != {"a": "no"}:
                    invoke = await next_invoke(tab)
                    assert invoke["args"] == args
                    await tab.send({"type": "result", "callId": invoke["callId"], "result": result})
                answers.append((await client.answer_to(number))["result"])
            assert answers[0] == answers[1] == answers[2], (name, args, result)
        await client.ping()


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_call_on_the_sdk_lane_is_cancelled_like_any_other(client: LineClient, hub: Hub, era: str) -> None:
    await begin(client, era)
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("t")
        await client.wait_tools("t")
        number = await client.send_request("tools/call", {"name": "t", "arguments": {}, "task": {"ttl": 1000}})
        invoke = await next_invoke(tab)
        params = {"requestId": number, **({"_meta": MODERN_META} if client.modern else {})}
        await client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert (await tab.expect("cancel"))["callId"] == invoke["callId"]
        assert len(hub.pending) == 0
        await client.ping()


# -- what tools and results carry


@pytest.mark.parametrize("era", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_unknown_members_of_tools_and_results_arrive_intact(client: LineClient, hub: Hub, era: str) -> None:
    await begin(client, era)
    rest = {
        "title": "Title",
        "inputSchema": {"type": "object", "properties": {"a": {"x-mine": [1]}}, "$comment": "kept", "x": None},
        "outputSchema": {"type": "object", "x-mine": 1},
        "annotations": {"readOnlyHint": True, "x-hint": "kept"},
        "icons": [{"src": "https://a.example/i.png", "mimeType": "image/png", "sizes": ["any"]}],
        "_meta": {"mine": {"deep": [None, 1.5]}},
        "x-unknown": {"a": [None]},
    }
    answered = {
        "content": [{"type": "text", "text": "hi", "_meta": {"b": 1}, "x": 2}],
        "structuredContent": {"a": None},
        "_meta": {"mine": [1, None]},
        "x-unknown": {"a": None},
    }
    async with open_tab(hub.port) as tab:
        await tab.hello("t1", title="T")
        await tab.offer({"name": "t", "description": "D", **rest})
        await client.wait_tools("t")
        tool = (await client.request("tools/list", {}))["result"]["tools"][-1]
        assert tool == {"name": "t", "description": "[WebMCP t1 • T] D", **rest}
        number = await client.send_request("tools/call", {"name": "t", "arguments": {}})
        await tab.answer(await next_invoke(tab), answered)
        result = (await client.answer_to(number))["result"]
        if client.modern:
            assert result.pop("resultType") == "complete"
            assert result["_meta"].pop(SERVER_INFO_KEY)["name"] == "trio-relay"
        assert result == answered


# -- list_changed


async def listen(client: LineClient, era: str) -> dict[str, Any]:
    """Subscribe to list changes; returns the notification to expect."""
    if not await begin(client, era):
        await client.ping()  # the SDK has seen `initialized`
        return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    await client.write(
        {
            "jsonrpc": "2.0",
            "id": "listen-1",
            "method": "subscriptions/listen",
            "params": {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META},
        }
    )
    ack = await client.message()
    assert ack["method"] == "notifications/subscriptions/acknowledged"
    meta = {P + "subscriptionId": "listen-1"}
    return {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}}


def notifications(client: LineClient) -> list[dict[str, Any]]:
    messages = [json.loads(line) for line in client.lines]
    return [m for m in messages if m.get("method") == "notifications/tools/list_changed"]


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_burst_of_changes_is_told_once(client: LineClient, hub: Hub, era: str) -> None:
    expected = await listen(client, era)
    async with open_tab(hub.port) as tab:
        await tab.hello()
        for count in range(1, 11):
            await tab.offer(*(f"t{number}" for number in range(count)))
        assert await client.message() == expected
        await client.wait_tools(*(f"t{number}" for number in range(10)))
        told = len(notifications(client))
        # The same tools again, a pong and a result nobody waits for: no change that a client can see.
        await tab.offer(*(f"t{number}" for number in range(10)))
        await tab.send({"type": "pong"})
        await tab.send({"type": "result", "callId": "x", "result": {}})
        await tab.offer("last", kind="tools/changed")
        await client.wait_tools("last")
        while len(notifications(client)) == told:
            await client.message()
        await tab.offer("last", kind="tools/changed")
        await trio.sleep(0.1)  # more than the 16 ms in which a notification would have been sent
        await client.ping()
        assert len(notifications(client)) == told + 1
        assert told <= 2, "ten frames may fall into two windows of 16 ms on a busy machine, not into ten"


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_closed_tab_is_told_and_its_tools_are_gone(client: LineClient, hub: Hub, era: str) -> None:
    async with good_tab(hub.port):
        await published(hub)
        expected = await listen(client, era)
        async with good_tab(hub.port, "other", "other"):
            await _told_until(client, expected, ["good", "other"])
        await _told_until(client, expected, ["good"])


async def _told_until(client: LineClient, expected: object, names: list[str]) -> None:
    """Listen until a notification leads to this list; one may still tell of the change before."""
    told = False
    while True:
        while not told:
            told = await client.message() == expected
        told = False
        asked = await client.send_request("tools/list", {})
        # The next change may be told before this list arrives.
        while (message := await client.message()).get("id") != asked:
            told = told or message == expected
        if sorted(tool["name"] for tool in message["result"]["tools"] if tool["name"][:7] != "webmcp_") == names:
            return


async def test_a_modern_client_that_does_not_listen_is_told_nothing(client: LineClient, hub: Hub) -> None:
    await begin(client, "2026-07-28")
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await trio.sleep(0.1)
        await still_fine(client)
        assert notifications(client) == []


async def test_nothing_is_told_before_the_handshake_is_complete(client: LineClient, hub: Hub) -> None:
    async with good_tab(hub.port):
        await published(hub)
        await trio.sleep(0.1)
        assert (await client.request("ping"))["result"] == {}
        assert notifications(client) == []


async def test_the_end_of_input_ends_a_subscription_with_an_answer(client: LineClient) -> None:
    await listen(client, "2026-07-28")
    await client.close_stdin()
    answer = await response(client)
    assert answer["id"] == "listen-1"
    assert "result" in answer


async def test_an_initialize_with_the_id_of_another_request_is_settled_by_its_own_answer(client: LineClient) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    await client.write("\n".join(map(json.dumps, lines)).encode())
    answers = [await client.message() for _ in range(3)]
    assert [answer["id"] for answer in answers] == [1, 1, 2]
    assert "tools" in answers[2]["result"]
