"""Frames between relays: what is read, what is refused, and that nothing we send holds a null."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from trio_relay.core.backend import SourceView
from trio_relay.wire import peer
from trio_relay.wire.codec import Malformed, clean_text, encode

CLIENT_FRAMES: list[tuple[str, object]] = [
    ('{"type":"relay/hello"}', peer.RelayHello()),
    ('{"type":"relay/hello","features":["progress"],"name":"x"}', peer.RelayHello(("progress",))),
    ('{"type":"relay/hello","maxPayload":5}', peer.RelayHello((), 5)),
    ('{"type":"relay/list-tools"}', peer.ListTools()),
    ('{"type":"relay/list-tools","cursor":null}', peer.ListTools()),
    ('{"type":"relay/invoke","callId":"c","toolName":"t"}', peer.Invoke("c", "t")),
    ('{"toolName":"t","callId":"c","nested":{"type":"relay/hello"},"type":"relay/invoke"}', peer.Invoke("c", "t")),
    ('{"type":"relay/cancel","callId":"c","reason":"cancelled"}', peer.Cancel("c")),
    ('{"type":"relay/reload","sourceId":"s"}', peer.Reload("s")),
]


@pytest.mark.parametrize(("text", "expected"), CLIENT_FRAMES)
def test_frames_of_a_client_are_read_and_unknown_members_ignored(text: str, expected: object) -> None:
    assert peer.decode_client_frame(text.encode()) == expected


def test_an_invoke_with_all_its_members_is_read() -> None:
    text = (
        '{"type":"relay/invoke","callId":"c","toolName":"t","args":{"a":1},"sourceId":"s","requestTabId":"7",'
        '"deadlineMs":1500,"future":[1]}'
    )
    frame = peer.decode_client_frame(text.encode())
    assert isinstance(frame, peer.Invoke)
    assert (frame.sourceId, frame.requestTabId, frame.deadlineMs) == ("s", "7", 1500)
    assert isinstance(frame.args, Raw)
    assert bytes(frame.args) == b'{"a":1}'


@pytest.mark.parametrize("member", ["sourceId", "requestTabId", "deadlineMs"])
def test_a_null_in_an_optional_member_of_an_invoke_is_an_absent_one(member: str) -> None:
    text = f'{{"type":"relay/invoke","callId":"c","toolName":"t","{member}":null}}'
    assert peer.decode_client_frame(text.encode()) == peer.Invoke("c", "t")


NO_FRAMES = [
    ("null", True),
    ("[]", True),
    ("7", True),
    ("{}", True),
    ('{"type":"hello","tabId":"1"}', True),
    ('{"type":"relay/result","callId":5}', True),
    ('{"type":"RELAY/HELLO"}', True),
    ("", False),
    ("{", False),
    ('{"type":"relay/list-tools"} x', False),
]


@pytest.mark.parametrize(("text", "is_json"), NO_FRAMES)
def test_anything_else_is_malformed_in_both_directions(text: str, is_json: bool) -> None:
    for decode in (peer.decode_client_frame, peer.decode_server_frame):
        with pytest.raises(Malformed) as caught:
            decode(text.encode())
        assert caught.value.is_json is is_json


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"relay/invoke","toolName":"t"}',
        '{"type":"relay/invoke","callId":"c"}',
        '{"type":"relay/invoke","callId":1,"toolName":"t"}',
        '{"type":"relay/invoke","callId":"c","toolName":null}',
        '{"type":"relay/invoke","callId":"c","toolName":"t","sourceId":4}',
        '{"type":"relay/invoke","callId":"c","toolName":"t","deadlineMs":"soon"}',
        '{"type":"relay/cancel"}',
        '{"type":"relay/reload","sourceId":null}',
        '{"type":"relay/hello","features":"progress"}',
        '{"type":"relay/tools","tools":[]}',
    ],
)
def test_what_a_client_sends_must_be_exact(text: str) -> None:
    with pytest.raises(Malformed):
        peer.decode_client_frame(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"relay/tools"}',
        '{"type":"relay/tools","tools":null}',
        '{"type":"relay/tools","tools":{}}',
        '{"type":"relay/tools","tools":[],"sources":null}',
        '{"type":"relay/tools","tools":[],"sources":[{"sourceId":"s"}]}',
        '{"type":"relay/tools","tools":[],"sources":[{"sourceId":1,"tabId":"t"}]}',
        '{"type":"relay/tools","tools":[],"toolSourceMap":{"a":"s"}}',
        '{"type":"relay/result","result":{}}',
        '{"type":"relay/progress","callId":"c"}',
        '{"type":"relay/invoke","callId":"c","toolName":"t"}',
    ],
)
def test_what_a_server_sends_must_be_exact(text: str) -> None:
    with pytest.raises(Malformed):
        peer.decode_server_frame(text.encode())


def test_a_plain_server_need_not_say_more_than_its_tools() -> None:
    frame = peer.decode_server_frame(b'{"type":"relay/tools-changed","tools":[{"name":"a","n":1e2}],"future":null}')
    assert type(frame) is peer.ToolsChanged
    assert [bytes(tool) for tool in frame.tools] == [b'{"name":"a","n":1e2}']
    assert (frame.sources, frame.toolSourceMap, frame.features, frame.originalNames) == ([], {}, (), {})
    assert frame.maxPayload is None


def test_a_row_of_a_server_is_read_with_all_its_members() -> None:
    row = {
        "sourceId": "s",
        "tabId": "t",
        "connectedAt": 1.5,
        "lastSeenAt": 2,
        "toolCount": 3,
        "origin": "https://a.example",
        "url": "https://a.example/x",
        "title": "T",
        "iconUrl": "https://a.example/i",
        "future": {},
    }
    frame = peer.decode_server_frame(json.dumps({"type": "relay/tools", "tools": [], "sources": [row]}).encode())
    assert isinstance(frame, peer.Tools)
    (source,) = frame.sources
    assert (source.source_id, source.tab_id, source.connected_at, source.last_seen_at) == ("s", "t", 1.5, 2)
    assert (source.tool_count, source.origin, source.title) == (3, "https://a.example", "T")
    assert (source.url, source.icon_url) == ("https://a.example/x", "https://a.example/i")


@pytest.mark.parametrize("version", ["1", '"2"', "1.5", "null"])
def test_a_greeting_is_read_whatever_its_version_looks_like(version: str) -> None:
    frame = peer.decode_server_frame(f'{{"type":"server-hello","service":"x","version":{version}}}'.encode())
    assert frame == peer.ServerHello("x", json.loads(version))
    assert peer.decode_server_frame(b'{"type":"server-hello"}') == peer.ServerHello()


def no_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(no_nulls, value.values()))
    return all(map(no_nulls, value)) if isinstance(value, list) else value is not None


ROW = SourceView(source_id="s", tab_id="t", connected_at=1, last_seen_at=2, tool_count=0)


def sent() -> list[bytes]:
    """Every frame we send, with as little in it as there can be."""
    return [
        peer.hello(9),
        peer.LIST_TOOLS,
        peer.invoke("c", "t", Raw(b"{}"), None),
        peer.cancel("c"),
        peer.reload("s"),
        peer.tools_frame("relay/tools", [], b"[]", {}, {}, 9),
        peer.tools_frame("relay/tools-changed", [b'{"name":"a"}'], encode([ROW]), {"a": ("s",)}, {"a": "b"}, 9),
        peer.result("c", (b'{"content":[]}',)),
        peer.progress("c", b"1", None, None),
    ]


@pytest.mark.parametrize("frame", sent())
def test_optional_members_of_what_we_send_are_absent_rather_than_null(frame: bytes) -> None:
    assert no_nulls(json.loads(frame))


def test_the_frames_of_a_client_are_what_the_protocol_says() -> None:
    assert json.loads(peer.LIST_TOOLS) == {"type": "relay/list-tools"}
    assert json.loads(peer.cancel("c")) == {"type": "relay/cancel", "callId": "c"}
    assert json.loads(peer.reload("s")) == {"type": "relay/reload", "sourceId": "s"}
    hello = json.loads(peer.hello(9))
    assert hello["maxPayload"] == 9
    assert hello["type"] == "relay/hello"
    assert set(hello["features"]) >= {"targeted-invoke", "cancel", "reload", "progress"}
    assert json.loads(peer.invoke("c", 't"', Raw(b"{}"), 1500, "s", "7")) == {
        "type": "relay/invoke",
        "callId": "c",
        "toolName": 't"',
        "args": {},
        "sourceId": "s",
        "requestTabId": "7",
        "deadlineMs": 1500,
    }


def test_the_frames_of_a_server_are_what_the_protocol_says() -> None:
    texts = [b'{"name":"a"},{"name":"b"}', b'{"name":"c"}']
    frame = peer.tools_frame("relay/tools", texts, encode([ROW]), {"a": ("s", "r")}, {"a": "A.a"}, 77)
    assert json.loads(frame) == {
        "type": "relay/tools",
        "tools": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "sources": [{"sourceId": "s", "tabId": "t", "connectedAt": 1, "lastSeenAt": 2, "toolCount": 0}],
        "toolSourceMap": {"a": ["s", "r"]},
        "features": list(peer.FEATURES),
        "originalNames": {"a": "A.a"},
        "maxPayload": 77,
    }
    assert json.loads(peer.result("c", (b"{}",))) == {"type": "relay/result", "callId": "c", "result": {}}
    assert json.loads(peer.progress("c", b"1.0", b"2", b'"m"')) == {
        "type": "relay/progress",
        "callId": "c",
        "progress": 1.0,
        "total": 2,
        "message": "m",
    }


DIGITS = '{"n":[9007199254740993,1.0,1e2,-0.0,18446744073709551617],"z":null}'


def test_arguments_and_results_keep_their_bytes_in_both_directions() -> None:
    """A29."""
    invoke = peer.decode_client_frame(peer.invoke("c", "t", Raw(DIGITS.encode()), None))
    assert isinstance(invoke, peer.Invoke)
    assert isinstance(invoke.args, Raw)
    assert bytes(invoke.args).decode() == DIGITS
    result = peer.decode_server_frame(peer.result("c", (DIGITS.encode(),)))
    assert isinstance(result, peer.Result)
    assert isinstance(result.result, Raw)
    assert bytes(result.result).decode() == DIGITS


def test_spliced_bytes_of_a_peer_are_one_line_of_valid_text() -> None:
    text = '{\r\n"type":"relay/result",\n"callId":"c","result":{"a":"\u2028 \\ud83d",\n"b":1e2}}'
    frame = peer.decode_server_frame(clean_text(text.encode()))
    assert isinstance(frame, peer.Result)
    assert isinstance(frame.result, Raw)
    line = bytes(frame.result).decode()
    assert not any(sign in line for sign in "\r\n\u2028")
    assert json.loads(line) == {"a": "\u2028 \ufffd", "b": 100.0}


def test_an_absent_result_differs_from_null() -> None:
    absent = peer.decode_server_frame(b'{"type":"relay/result","callId":"c"}')
    null = peer.decode_server_frame(b'{"type":"relay/result","callId":"c","result":null}')
    assert isinstance(absent, peer.Result)
    assert isinstance(null, peer.Result)
    assert absent.result is UNSET
    assert null.result == Raw(b"null")
