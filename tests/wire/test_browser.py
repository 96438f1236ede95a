"""Frames of browsers: what is read, what is refused, and what an `invoke` looks like byte for byte."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET, Raw

from trio_relay.wire import browser
from trio_relay.wire.codec import Malformed, clean_text, encode


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"type":"hello","tabId":"1"}', browser.Hello),
        ('{"tabId":"1","nested":{"type":"pong"},"type":"hello"}', browser.Hello),
        ('{"type":"hello","tabId":41,"title":null,"client":5,"future":[1]}', browser.Hello),
        ('{"type":"hello"}', browser.Hello),
        ('{"type":"tools/list","tools":[]}', browser.ToolsList),
        ('{"type":"tools/changed","tools":null}', browser.ToolsChanged),
        ('{"type":"result","callId":"c"}', browser.Result),
        ('{"type":"progress","callId":"c","progress":"no number"}', browser.Progress),
        ('{"type":"pong","extra":1}', browser.Pong),
        ('{"type":"source/disconnected","reason":5}', browser.Disconnected),
        ('\r\n{\t"type" : "pong"\n}\n', browser.Pong),
    ],
)
def test_known_frames_are_read_whatever_their_optional_members_hold(text: str, kind: type) -> None:
    """B15: a wrong optional member never costs the frame."""
    assert type(browser.decode_frame(text.encode())) is kind


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ("null", True),
        ("[]", True),
        ("42", True),
        ('"hello"', True),
        ("{}", True),
        ('{"type":5}', True),
        ('{"type":null}', True),
        ('{"type":"__proto__"}', True),
        ('{"type":"invoke"}', True),
        ('{"type":"HELLO"}', True),
        ("", False),
        (" ", False),
        ("{", False),
        ('{"type":"pong"}{"type":"pong"}', False),
    ],
)
def test_anything_else_is_malformed(text: str, is_json: bool) -> None:
    """E06."""
    with pytest.raises(Malformed) as caught:
        browser.decode_frame(text.encode())
    assert caught.value.is_json is is_json


def test_members_are_kept_as_their_bytes_and_absence_differs_from_null() -> None:
    """A29: 64-bit integers, 1.0, 1e2 and -0.0 keep their digits."""
    result = '{"content":[],"n":[9007199254740993,1.0,1e2,-0.0,18446744073709551617]}'
    frame = browser.decode_frame(f'{{"type":"result","callId":null,"result":{result}}}'.encode())
    assert isinstance(frame, browser.Result)
    assert frame.callId is not UNSET
    assert isinstance(frame.result, Raw)
    assert bytes(frame.result).decode() == result
    missing = browser.decode_frame(b'{"type":"result"}')
    assert isinstance(missing, browser.Result)
    assert missing.callId is UNSET
    assert missing.result is UNSET


def test_a_pretty_printed_frame_is_spliceable() -> None:
    """C02, A02."""
    text = '{\r\n\t"type": "result",\r\n\t"result": {\r\n\t\t"a": "\\n\u2028\\u0000"\r\n\t}\r\n}'
    frame = browser.decode_frame(clean_text(text.encode()))
    assert isinstance(frame, browser.Result)
    assert isinstance(frame.result, Raw)
    line = bytes(frame.result)
    assert not any(sign in line.decode() for sign in "\r\n\u2028")
    assert json.loads(line) == {"a": "\n\u2028\0"}


def test_tools_are_taken_apart_without_being_read() -> None:
    items = browser.decode_tools(Raw(b'[{"name":"a"}, null ,5,"x",[1e2]]'))
    assert [bytes(item) for item in items] == [b'{"name":"a"}', b"null", b"5", b'"x"', b"[1e2]"]


@pytest.mark.parametrize("tools", [UNSET, Raw(b"null"), Raw(b"{}"), Raw(b'"[]"'), Raw(b"1")])
def test_tools_that_are_no_array_are_malformed(tools: Raw) -> None:
    with pytest.raises(Malformed):
        browser.decode_tools(tools)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (Raw(b'{"name":"x","version":"1","features":["open"]}'), browser.BrowserClient("x", "1", ("open",))),
        (Raw(b'{"features":["open"],"more":null}'), browser.BrowserClient(features=("open",))),
        (UNSET, browser.BrowserClient()),
        (Raw(b"null"), browser.BrowserClient()),
        (Raw(b'"x"'), browser.BrowserClient()),
        (Raw(b'{"name":5}'), browser.BrowserClient()),
        (Raw(b'{"features":"open"}'), browser.BrowserClient()),
    ],
)
def test_an_odd_client_is_an_anonymous_one(client: Raw, expected: browser.BrowserClient) -> None:
    assert browser.decode_client(client) == expected


@pytest.mark.parametrize("args", ["{}", '{"id":9007199254740993,"x":[1.0,1e2,-0.0]}', '{ "a" : null , "b": "é" }'])
def test_an_invoke_carries_the_argument_bytes_as_they_are(args: str) -> None:
    """A29, and nulls in arguments stay."""
    frame = browser.invoke("c1", 'my "tool"', Raw(args.encode()), None)
    assert frame.decode() == '{"type":"invoke","callId":"c1","toolName":"my \\"tool\\"","args":' + args + "}"


def test_an_invoke_names_its_deadline_only_when_there_is_one() -> None:
    assert json.loads(browser.invoke("c", "t", Raw(b"{}"), 1500))["deadlineMs"] == 1500
    assert "deadlineMs" not in json.loads(browser.invoke("c", "t", Raw(b"{}"), None))


def test_an_invoke_uses_the_original_name_of_a_tool() -> None:
    """B10."""
    for name in ("a.b", "a/b", "a b", "\u200b", "😀", "搜索", "__proto__"):
        assert json.loads(browser.invoke("c", name, Raw(b"{}"), None))["toolName"] == name


def test_the_greeting_has_its_version_and_leaves_out_what_is_not_set() -> None:
    hello = browser.ServerHello(
        service="s", version=browser.PROTOCOL_VERSION, host="h", instanceId="i", port=1, relayId="r", maxPayload=2
    )
    assert json.loads(encode(hello)) == {
        "type": "server-hello",
        "service": "s",
        "version": 1,
        "host": "h",
        "instanceId": "i",
        "port": 1,
        "relayId": "r",
        "maxPayload": 2,
    }


def test_the_other_frames_are_what_the_protocol_says() -> None:
    assert json.loads(browser.HELLO_ACCEPTED) == {"type": "hello/accepted"}
    assert json.loads(browser.PING) == {"type": "ping"}
    assert json.loads(browser.RELOAD) == {"type": "reload"}
    assert json.loads(browser.cancel("c", "timeout")) == {"type": "cancel", "callId": "c", "reason": "timeout"}
    assert json.loads(browser.open_url("https://a/")) == {"type": "open", "url": "https://a/"}
    rejected = json.loads(encode(browser.HelloRejected("invalid-hello", "why")))
    assert rejected == {"type": "hello/rejected", "reason": "invalid-hello", "message": "why"}


def test_a_tool_that_nests_too_deeply_to_be_read_costs_that_tool_alone() -> None:
    deep = b'{"name":"deep","inputSchema":{"x":"]]}\\"","y":' + b"[" * 3000 + b"]" * 3000 + b"}}"
    data = b'{"type":"tools/list","tools":[{"name":"a [x]"},' + deep + b',{"name":"b"},' + deep + b"]}"
    frame = browser.decode_frame(data)
    assert isinstance(frame, browser.ToolsList)
    items = [bytes(item) for item in browser.decode_tools(frame.tools)]
    assert items[0] == b'{"name":"a [x]"}'
    assert items[2] == b'{"name":"b"}'
    assert len(items) == 4
    assert items[1] in (b"null", deep)  # newer interpreters read deeper


def test_a_result_that_nests_too_deeply_is_not_changed_into_another() -> None:
    data = b'{"type":"result","callId":"c","result":{"content":' + b"[" * 200_000 + b"]" * 200_000 + b"}}"
    with pytest.raises(Malformed, match="nested too deeply"):
        browser.decode_frame(data)
