"""Frames of the bridge: ids of extensions and of the two sides, and what an answered probe means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, Raw

from trio_relay.core.probe import Result
from trio_relay.core.tunnel import TunnelIds, finding_of, read_frame
from trio_relay.wire import ports
from trio_relay.wire.codec import Malformed

ID = "abcdefghijklmnopabcdefghijklmnop"


def frame(kind: str, **members: Any) -> bytes:
    return json.dumps({"type": kind} | members).encode()


def test_ids_of_the_relay_are_never_used_twice() -> None:
    ids = TunnelIds()
    assert [ids.next() for _ in range(3)] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    "data",
    [
        frame("probe", probeId="b1", senderId=ID, message=1),
        frame("port/open", portId="b1", senderId=ID, name="lumo:mcp"),
        frame("probe/response", probeId="r1"),
        frame("port/opened", portId="r1"),
        frame("port/refused", portId="r1"),
        frame("port/message", portId="r1", message=1),
        frame("port/message", portId="b1", message=1),
        frame("port/close", portId="b1"),
        frame("hello", browserId="x", version=2),
        frame("pong"),
    ],
)
def test_frames_with_ids_of_the_right_side_are_read(data: bytes) -> None:
    assert read_frame(data) == ports.decode_bridge_frame(data)


@pytest.mark.parametrize(
    "data",
    [
        frame("probe", probeId="b1", senderId=ID + "\n", message=1),
        frame("port/open", portId="b1", senderId=ID.upper(), name="lumo:mcp"),
        frame("port/open", portId="b1", senderId="", name="lumo:mcp"),
        frame("probe", probeId="r1", senderId=ID, message=1),
        frame("port/open", portId="r1", senderId=ID, name="lumo:mcp"),
        frame("port/open", portId="b", senderId=ID, name="lumo:mcp"),
        frame("port/open", portId="b1\n", senderId=ID, name="lumo:mcp"),
        frame("port/open", portId="b" + "1" * 100, senderId=ID, name="lumo:mcp"),
        frame("probe/response", probeId="b1"),
        frame("port/opened", portId="b1"),
        frame("port/refused", portId="x"),
        frame("port/message", portId="", message=1),
        frame("port/close", portId="c1"),
    ],
)
def test_frames_with_other_ids_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_frame(data)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (ports.ProbeResponse("r1", Raw(b"5")), Result.INCOMPLETE),
        (ports.ProbeResponse("r1", Raw(b"null")), Result.INCOMPLETE),
        (ports.ProbeResponse("r1", Raw(b'{"ok":false,"error":"x"}')), Result.PROTOCOL_FAILURE),
        (ports.ProbeResponse("r1", Raw(b'{"ok":true,"id":"other"}')), Result.PROTOCOL_FAILURE),
        (ports.ProbeResponse("r1", error=Raw(b'{"kind":"timeout"}')), Result.TIMED_OUT),
        (ports.ProbeResponse("r1", error=Raw(b'{"kind":"not-installed","message":"m"}')), Result.REJECTED),
        (ports.ProbeResponse("r1", error=Raw(b'{"kind":"no-response"}')), Result.REJECTED),
        (ports.ProbeResponse("r1", error=Raw(b'{"kind":"future"}')), Result.REJECTED),
        (ports.ProbeResponse("r1", error=Raw(b"5")), Result.REJECTED),
        (ports.ProbeResponse("r1", UNSET, UNSET), Result.REJECTED),
    ],
)
def test_every_answer_of_the_bridge_has_a_row(answer: ports.ProbeResponse, result: Result) -> None:
    assert finding_of(answer, "probe-1").result is result
