"""Lines of a client, right and wrong: each gets its answer, and none of them costs the session anything.

The real session and the real SDK over memory streams, a hub with a real WebSocket for the tabs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers import MODERN_META, LineClient, open_tab, text_result
from tests.surface.setting import (
    CLIENT,
    HEAD,
    good_tab,
    initialize_raw,
    published,
    refused,
    response,
    still_fine,
    text_of,
)
from trio_relay.relay.hub import Hub

CALL = HEAD + b'"id":1,"method":"tools/call","params":{"name":"good","arguments":%s}}'

NO_REQUESTS = [
    # A05
    (CALL % b'{"a":"x\xff\xfe"}', -32700),
    (b"\xff", -32700),
    (HEAD + b'"id":1,"method":"tools/call","params":{"name":"good","arguments":{"\xed\xa0\xbd":1}}}', -32700),
    # A07
    (b"null", -32600),
    (b"42", -32600),
    (b'"x"', -32600),
    (b"true", -32600),
    (b"[]", -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    (b"{}", -32600),
    (b'{"id":1,"method":"ping","jsonrpc":"1.0"}', -32600),
    # A08
    (b"{oops", -32700),
    (b'{"jsonrpc":"2.0"', -32700),
    (b"\xef\xbb\xbf" + HEAD + b'"id":1,"method":"ping"}', -32700),
    # A10
    (CALL % b'{"a":NaN}', -32700),
    (CALL % b'{"a":-Infinity}', -32700),
    (CALL % b'{"a":Infinity}', -32700),
    (CALL % b'{"a":"raw\ttab"}', -32700),
    (CALL % b'{"a":01}', -32700),
    # A11
    (HEAD + b'"id":null,"method":"ping"}', -32600),
    (HEAD + b'"id":true,"method":"ping"}', -32600),
    (HEAD + b'"id":1.5,"method":"ping"}', -32600),
    (HEAD + b'"id":1.0,"method":"ping"}', -32600),
    (HEAD + b'"id":[1],"method":"ping"}', -32600),
    (HEAD + b'"id":{},"method":"tools/list"}', -32600),
    (HEAD + b'"id":1e999,"method":"ping"}', -32600),
    # and more of the kind
    (HEAD + b'"id":1,"method":5}', -32600),
    (HEAD + b'"id":1}', -32600),
    (HEAD + b'"id":' + b"9" * 5000 + b',"method":"ping"}', -32600),
    (CALL.replace(b'"id":1', b'"id":' + b"9" * 5000) % b"{}", -32600),
    (b"[" * 100_000, -32600),
    (HEAD + b'"id":1,"method":"ping","params":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, -32600),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}', -32700),
]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_line_that_is_no_request_gets_one_error_and_the_session_goes_on(
    client: LineClient, hub: Hub, modern: bool
) -> None:
    """A05, A07, A08, A10, A11: −32700 or −32600, never silence, nothing reaches a tab."""
    client.modern = modern
    if not modern:
        await client.initialize()
    async with good_tab(hub.port) as tab:
        await client.wait_tools("good")
        for line, code in NO_REQUESTS:
            await client.write(line)
            answer = await response(client)
            assert answer["error"]["code"] == code, (line[:200], answer)
            assert answer.get("id") in (None, 1), (line[:200], answer)
            await client.ping()
        await still_fine(client)
        invokes = [frame for frame in tab.seen if frame["type"] == "invoke"]
        assert [frame["args"] for frame in invokes] == [{"n": 1}]


async def test_the_first_line_of_a_session_may_be_nonsense(client: LineClient, hub: Hub) -> None:
    """A07, A08: before any handshake, too."""
    for line, code in NO_REQUESTS:
        await client.write(line)
        assert (await response(client))["error"]["code"] == code, line[:200]
    await client.initialize()
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await still_fine(client)


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (b"null", -32602),
        (b"[]", -32602),
        (b"{}", -32602),
        (b'{"arguments":{}}', -32602),
        (b'{"name":null}', -32602),
        (b'{"name":5,"arguments":{}}', -32602),
        (b'{"name":"good","arguments":[]}', -32602),
        (b'{"name":"good","arguments":"{}"}', -32602),
        (b'{"name":"good","arguments":5}', -32602),
        (b'{"name":"good","_meta":5}', -32602),
        (b'{"name":"good","_meta":{"progressToken":1.5}}', -32602),
        (b'{"name":"good","_meta":{"progressToken":' + b"9" * 5000 + b"}}", -32600),
    ],
)
async def test_a_call_with_wrong_params_is_refused_with_its_id(
    client: LineClient, hub: Hub, params: bytes, code: int
) -> None:
    """A08, A27: params null, a list, no name; arguments a list or a string: −32602, no frame to the tab."""
    await client.initialize()
    async with good_tab(hub.port) as tab:
        await client.wait_tools("good")
        await client.write(HEAD + b'"id":"c","method":"tools/call","params":' + params + b"}")
        assert (await client.answer_to("c"))["error"]["code"] == code
        await still_fine(client)
        assert sum(frame["type"] == "invoke" for frame in tab.seen) == 1


async def test_an_unknown_method_is_refused_and_an_unknown_notification_is_ignored(client: LineClient) -> None:
    """A08."""
    await client.initialize()
    assert (await client.request("no/such"))["error"]["code"] == -32601
    assert (await client.request("resources/list", {}))["error"]["code"] == -32601
    await client.write({"jsonrpc": "2.0", "method": "notifications/no-such", "params": {"a": 1}})
    await client.write({"jsonrpc": "2.0", "id": 5, "result": {}})  # nobody asked
    await client.write({"jsonrpc": "2.0", "id": 5, "error": {"code": 1, "message": "x"}})
    await client.ping()


async def test_line_ends_of_every_kind_and_blank_lines_are_understood(client: LineClient, hub: Hub) -> None:
    """A04: CRLF, blank lines, lines of spaces; our own lines end in LF (`message` checks that)."""
    await client.initialize()
    async with good_tab(hub.port):
        await client.wait_tools("good")
        for blank in (b"", b"\r", b"    ", b"\t \r", b"\x0b"):
            await client.write(blank)
        await client.write(HEAD + b'"id":"a","method":"ping"}\r')
        assert (await client.answer_to("a"))["result"] == {}
        await client.write(b"  " + (CALL % b"{}") + b"  \r")
        assert text_of((await client.answer_to(1))["result"]) == "{}"
        assert all(line.count(b"\r") == 0 for line in client.lines)


async def test_line_separators_of_unicode_are_no_line_ends(client: LineClient, hub: Hub) -> None:
    """A01, A02: raw in an argument they arrive unchanged; on stdout U+2028/2029 are escaped, the value is the same."""
    nasty = "a\u2028b\u2029c\u0085d"
    await client.initialize()
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("t")
        await client.wait_tools("t")
        for lane in ({}, {"unknown": 1}):
            request = {"name": "t", "arguments": {nasty: nasty}, **lane}
            number = await client.send_request("tools/call", request)
            invoke = await tab.expect("invoke")
            assert invoke["args"] == {nasty: nasty}
            await tab.answer(invoke, text_result(nasty) | {"structuredContent": {nasty: nasty}})
            answer = await client.answer_to(number)
            assert answer["result"]["content"][0]["text"] == nasty
            assert answer["result"]["structuredContent"] == {nasty: nasty}
            line = client.lines[-1]
            assert "\u2028".encode() not in line
            assert "\u2029".encode() not in line
            assert b"\\u2028" in line
            assert len(line.decode().splitlines()) == 1 + line.decode().count("\u0085")


async def test_a_number_too_large_for_a_page_is_refused(client: LineClient, hub: Hub) -> None:
    """A10: `1e999` is grammar, but JavaScript reads it as Infinity."""
    await client.initialize()
    async with good_tab(hub.port) as tab:
        await client.wait_tools("good")
        for number in (b"1e999", b"-1E+999", b"[1e400]", b"1" + b"0" * 400):
            await client.write(CALL % (b'{"a":' + number + b"}"))
            answer = await client.answer_to(1)
            assert answer["result"]["isError"] is True, number
            await client.write(
                HEAD + b'"id":1,"method":"tools/call","params":{"name":"webmcp_tool_call","arguments":'
                b'{"toolName":"good","args":{"a":' + number + b"}}}}"
            )
            assert (await client.answer_to(1))["result"]["isError"] is True, number
        await still_fine(client)
        assert sum(frame["type"] == "invoke" for frame in tab.seen) == 1


IDS = [b'""', b"0", b'"0"', b"9007199254740993", b"-1", b"1180591620717411303424", b'"\\u0041"', b'"\xf0\x9f\x98\x80"']


@pytest.mark.parametrize("modern", [False, True])
async def test_ids_come_back_with_their_type_and_digits(client: LineClient, hub: Hub, modern: bool) -> None:
    """A11: through the raw lane (call, list) and through the SDK."""
    client.modern = modern
    if not modern:
        await client.initialize()
    async with good_tab(hub.port):
        await client.wait_tools("good")
        meta = {"_meta": _modern_meta()} if modern else {}
        for request_id in IDS:
            value = json.loads(request_id)
            for method, params in (
                ("tools/call", {"name": "good", "arguments": {}}),
                ("tools/list", {}),
                ("server/discover" if modern else "ping", {}),
                ("no/such", {}),
                ("tools/call", {"name": 5}),
            ):
                body = json.dumps(params | meta).encode()
                await client.write(
                    HEAD + b'"id":' + request_id + b',"method":"' + method.encode() + b'","params":' + body + b"}"
                )
                answer = await response(client)
                assert (answer["id"], type(answer["id"])) == (value, type(value)), (request_id, method)
                if method == "tools/list":
                    assert b'"id":' + request_id + b"," in client.lines[-1]
        await still_fine(client)


def _modern_meta() -> dict[str, Any]:
    from tests.helpers import MODERN_META

    return MODERN_META


@pytest.mark.parametrize("given", [b"", b',"arguments":null', b',"arguments":{}'])
async def test_missing_arguments_reach_the_page_as_an_empty_object(client: LineClient, hub: Hub, given: bytes) -> None:
    """A27."""
    await client.initialize()
    async with good_tab(hub.port) as tab:
        await client.wait_tools("good")
        await client.write(HEAD + b'"id":1,"method":"tools/call","params":{"name":"good"' + given + b"}}")
        assert text_of((await client.answer_to(1))["result"]) == "{}"
        assert tab.seen[-1]["args"] == {}


async def test_digits_of_numbers_stay_on_every_hop(client: LineClient, hub: Hub) -> None:
    """A29: 64-bit integers, 1.0, 1e2, -0.0 in arguments and in results."""
    digits = b'{"id":9007199254740993,"a":1.0,"b":1e2,"c":-0.0,"d":18446744073709551615,"e":0.10,"f":1E+2,"g":null}'
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    await client.initialize()
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer({"name": "t", "inputSchema": schema, "outputSchema": schema})
        await client.wait_tools("t")
        ways = [
            b'{"name":"t","arguments":' + digits + b"}",
            b'{"name":"t","x":1,"arguments":' + digits + b"}",
            b'{"name":"webmcp_tool_call","arguments":{"toolName":"t","args":' + digits + b"}}",
        ]
        for params in ways:
            await client.write(HEAD + b'"id":1,"method":"tools/call","params":' + params + b"}")
            while b'"invoke"' not in (frame := await tab.socket.receive()):
                pass
            assert digits in frame
            call_id = json.loads(frame)["callId"].encode()
            await tab.send(
                b'{"type":"result","callId":"'
                + call_id
                + b'","result":{"content":[],"structuredContent":'
                + digits
                + b"}}"
            )
            await client.answer_to(1)
            assert digits in client.lines[-1]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_known_protocol_version_is_echoed(client: LineClient, version: str) -> None:
    """A14."""
    answer = await client.initialize(version)
    assert answer["result"]["protocolVersion"] == version
    assert answer["result"]["capabilities"]["tools"]["listChanged"] is True
    assert answer["result"]["serverInfo"]["name"] == "trio-relay"
    await client.ping()


async def test_an_unknown_protocol_version_is_answered_with_a_supported_one(client: LineClient) -> None:
    """A14."""
    answer = await client.initialize("2099-01-01")
    assert answer["result"]["protocolVersion"] in ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
    await client.ping()


@pytest.mark.parametrize("version", [{}, {"protocolVersion": 7}, {"protocolVersion": None}])
async def test_a_wrong_initialize_is_refused_and_a_right_one_may_follow(
    client: LineClient, hub: Hub, version: dict[str, Any]
) -> None:
    """A14: −32602, the session is alive."""
    assert (await initialize_raw(client, **CLIENT, **version))["error"]["code"] == -32602
    await client.ping()
    assert "result" in await client.initialize()
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await still_fine(client)


async def test_tools_are_listed_after_initialize_without_initialized(client: LineClient, hub: Hub) -> None:
    """A15: pipelined, as clients do that do not wait for anything."""
    async with good_tab(hub.port):
        await published(hub)
        init = {"jsonrpc": "2.0", "id": "i", "method": "initialize"}
        await client.write(
            json.dumps(init | {"params": CLIENT | {"protocolVersion": "2025-11-25"}}).encode()
            + b"\n"
            + HEAD
            + b'"id":"l","method":"tools/list"}\n'
            + HEAD
            + b'"id":"c","method":"tools/call","params":{"name":"good"}}'
        )
        assert "result" in await client.answer_to("i")
        assert len((await client.answer_to("l"))["result"]["tools"]) == 5
        assert text_of((await client.answer_to("c"))["result"]) == "{}"


async def test_tools_before_initialize_are_an_error(client: LineClient, hub: Hub) -> None:
    """A15."""
    assert "error" in await client.request("tools/list", {})
    assert "error" in await client.request("tools/list")
    assert "error" in await client.request("tools/call", {"name": "webmcp_list_sources"})
    await client.ping()
    await client.initialize()
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await still_fine(client)


async def test_initialize_twice_leaves_the_session_alive(client: LineClient, hub: Hub) -> None:
    """A15."""
    await client.initialize()
    again = await client.request("initialize", CLIENT | {"protocolVersion": "2025-06-18"})
    assert ("result" in again) != ("error" in again)
    async with good_tab(hub.port):
        await client.wait_tools("good")
        await still_fine(client)


async def test_an_unknown_tool_is_an_error_result_that_says_where_to_look(client: LineClient) -> None:
    await client.initialize()
    assert "webmcp_list_tools" in await refused(client, "no_such_tool")
    assert "webmcp_list_tools" in await refused(client, "")
    assert "webmcp_list_tools" in await refused(client, "x" * 5000)


async def test_a_modern_line_that_nests_as_deeply_as_can_just_be_read_costs_the_session_nothing(
    client: LineClient, hub: Hub
) -> None:
    """Each step into a line is taken with less room on the stack than the one before."""
    client.modern = True
    async with good_tab(hub.port):
        await published(hub)
        for depth in range(850, 1000):
            meta = json.dumps(MODERN_META).encode()[:-1] + b',"io.modelcontextprotocol/logLevel":%s}'
            meta %= b"[" * depth + b"]" * depth
            await client.write(HEAD + b'"id":1,"method":"tools/call","params":{"name":"good","_meta":%s}}' % meta)
            assert (await response(client))["id"] in (1, None)
        await still_fine(client)


async def test_no_line_of_ours_holds_a_line_separator_of_unicode(client: LineClient, hub: Hub) -> None:
    """A02 for what is not a result: ids, progress tokens, rows of sources, names in errors."""
    nasty = "a\u2028b\u2029"
    await client.initialize()
    async with open_tab(hub.port) as tab:
        await tab.hello(nasty, title=nasty, url="https://a.example/" + nasty)
        await tab.offer({"name": "t", "title": nasty, "description": nasty, nasty: nasty})
        await client.wait_tools("t")
        for method, params in (
            ("ping", {}),
            ("tools/list", {}),
            (nasty, {}),
            ("tools/call", {"name": "webmcp_list_sources"}),
            ("tools/call", {"name": "webmcp_list_tools"}),
            ("tools/call", {"name": "webmcp_tool_call", "arguments": {"toolName": nasty}}),
            ("tools/call", {"name": "webmcp_open_page", "arguments": {"url": nasty}}),
            ("tools/call", {"name": nasty}),
            ("tools/call", {"name": "t", "arguments": [], nasty: nasty}),
        ):
            await client.write({"jsonrpc": "2.0", "id": nasty, "method": method, "params": params})
            answer = await client.answer_to(nasty)
            assert answer["id"] == nasty
            if params.get("name") == "webmcp_list_sources":
                assert answer["result"]["structuredContent"]["sources"][0]["tabId"] == nasty
        request = {"name": "t", "_meta": {"progressToken": nasty}}
        number = await client.send_request("tools/call", request)
        invoke = await tab.expect("invoke")
        await tab.send({"type": "progress", "callId": invoke["callId"], "progress": 1, "message": nasty})
        await tab.answer(invoke, text_result(nasty))
        await client.answer_to(number)
    for line in client.lines:
        assert len(line.decode().splitlines()) == 1, line
