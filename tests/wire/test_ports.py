"""Frames of the tunnel: what each end writes, the other reads; anything else is malformed."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET, Raw, UnsetType

from trio_relay.wire import ports
from trio_relay.wire.codec import Malformed, as_text

ID = "abcdefghijklmnopabcdefghijklmnop"


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (ports.hello_accepted(10, serves=True), ports.HelloAccepted(10, True)),
        (ports.hello_rejected("version", "no"), ports.HelloRejected("version", "no")),
        (ports.probe("r1", ID, b'{"a":1}', 1500), ports.Ask("r1", ID, Raw(b'{"a":1}'), 1500)),
        (ports.probe_response("b1", b"{}"), ports.ProbeResponse("b1", Raw(b"{}"))),
        (
            ports.probe_error("b1", "failed", "x"),
            ports.ProbeResponse("b1", error=Raw(b'{"kind":"failed","message":"x"}')),
        ),
        (ports.port_open("r2", ID, "lumo:mcp"), ports.Open("r2", ID, "lumo:mcp")),
        (ports.port_opened("b2"), ports.Opened("b2")),
        (ports.port_refused("b2", "no"), ports.Refused("b2", Raw(b'"no"'))),
        (ports.port_message("r2", b"[1]"), ports.Message("r2", Raw(b"[1]"))),
        (ports.port_close("r2"), ports.Close("r2")),
        (ports.port_close("r2", "gone"), ports.Close("r2", Raw(b'"gone"'))),
        (ports.PING, ports.Ping()),
    ],
)
def test_what_a_relay_writes_a_bridge_reads(data: bytes, frame: ports.RelayFrame) -> None:
    assert ports.decode_relay_frame(data) == frame


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ('{"type":"hello","browserId":"x","version":1}', ports.Hello("x", 1)),
        ('{"type":"hello","browserId":"x","version":1,"client":5}', ports.Hello("x", 1, Raw(b"5"))),
        (f'{{"type":"probe","probeId":"b1","senderId":"{ID}","message":null}}', ports.Asked("b1", ID, Raw(b"null"))),
        ('{"type":"probe/response","probeId":"r1","response":5}', ports.ProbeResponse("r1", Raw(b"5"))),
        ('{"type":"probe/response","probeId":"r1","error":5}', ports.ProbeResponse("r1", error=Raw(b"5"))),
        ('{"type":"probe/response","probeId":"r1"}', ports.ProbeResponse("r1")),
        (f'{{"type":"port/open","portId":"b1","senderId":"{ID}","name":"n"}}', ports.Incoming("b1", ID, "n")),
        ('{"type":"port/opened","portId":"r1","future":1}', ports.Opened("r1")),
        ('{"type":"port/refused","portId":"r1","reason":{}}', ports.Refused("r1", Raw(b"{}"))),
        ('{"type":"port/message","portId":"r1","message":"x"}', ports.Message("r1", Raw(b'"x"'))),
        ('{"type":"port/close","portId":"r1","error":null}', ports.Close("r1", Raw(b"null"))),
        ('{"type":"pong"}', ports.Pong()),
    ],
)
def test_what_a_bridge_writes_a_relay_reads(text: str, frame: ports.BridgeFrame) -> None:
    assert ports.decode_bridge_frame(text.encode()) == frame


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        "{",
        '{"type":"port/opened"}',
        '{"type":"port/opened","portId":5}',
        '{"type":"port/message","portId":"r1"}',
        '{"type":"hello","browserId":"x"}',
        '{"type":"hello","browserId":"x","version":"1"}',
        '{"type":"probe","probeId":"b1","extensionId":"x","message":1,"timeoutMs":1}',
        '{"type":"ping"}',
        '{"type":"__proto__"}',
    ],
)
def test_anything_else_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        ports.decode_bridge_frame(text.encode())


def test_a_message_keeps_its_bytes_and_is_one_line() -> None:
    frame = ports.decode_bridge_frame(b'{"type":"port/message","portId":"r1","message":{"n":1.50,\n"t":"\\ud83d"}}')
    assert isinstance(frame, ports.Message)
    assert bytes(frame.message) == b'{"n":1.50, "t":"\\ufffd"}'
    assert json.loads(ports.port_message("b7", frame.message)) == {
        "type": "port/message",
        "portId": "b7",
        "message": {"n": 1.5, "t": "\ufffd"},
    }


@pytest.mark.parametrize(("error", "text"), [(UNSET, None), (Raw(b"null"), None), (Raw(b'"x"'), "x")])
def test_the_error_of_a_close_is_a_text_or_nothing(error: Raw | UnsetType, text: str | None) -> None:
    assert as_text(ports.Close("r1", error).error) == text


def test_the_port_of_a_message_that_cannot_be_read_is_found() -> None:
    deep = b"[" * 5_000 + b"]" * 5_000
    frame = b'{"type":"port/message","portId":"b12","message":' + deep + b"}"
    with pytest.raises(Malformed):
        ports.decode_bridge_frame(frame)
    assert ports.find_port_id(frame) == "b12"
    assert ports.find_port_id(b'{"type":"port/message","message":' + deep + b',"portId" : "r3"}') == "r3"
    assert ports.find_port_id(b'{"portId":"x1"}') is None
