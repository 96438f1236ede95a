"""The tunnel between a relay and the bridge of its own browser extension (`trio-relay-ports.v1`).

A program outside the browser cannot call `chrome.runtime`, so probes and ports of other extensions go through here.
Both ends open ports and ask probes; ids of the relay begin with `r`, those of the bridge with `b`, so they never meet.
docs/protocol.md, "Ports of extensions", describes every frame. Ids of extensions are judged in `core/tunnel.py`.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, Raw, Struct

from trio_relay.wire.codec import Maybe, decode_spliceable, encode

SUBPROTOCOL = "trio-relay-ports.v1"
PROTOCOL_VERSION = 1

RELAY_PREFIX = "r"
BRIDGE_PREFIX = "b"

PING = b'{"type":"ping"}'
PONG = b'{"type":"pong"}'


class Hello(Struct, tag_field="type", tag="hello", frozen=True):
    """First frame of the bridge. `browserId` is a random name of the browser profile, and stays when it restarts."""

    browserId: str
    version: int
    client: Maybe = UNSET


class HelloAccepted(Struct, tag_field="type", tag="hello/accepted", frozen=True):
    """`serves` is whether the relay answers probes and ports of other extensions."""

    maxPayload: int
    serves: bool


class HelloRejected(Struct, tag_field="type", tag="hello/rejected", frozen=True):
    reason: str
    message: str


class Ask(Struct, tag_field="type", tag="probe", frozen=True):
    """Relay to bridge: send a message to an extension and tell its answer."""

    probeId: str
    extensionId: str
    message: Raw
    timeoutMs: int


class Asked(Struct, tag_field="type", tag="probe", frozen=True):
    """Bridge to relay: an extension sent us a message."""

    probeId: str
    senderId: str
    message: Raw


class ProbeError(Struct, frozen=True):
    """Why there is no response. Kinds: `not-installed`, `no-response`, `timeout`, `failed`."""

    kind: str
    message: str = ""


class ProbeResponse(Struct, tag_field="type", tag="probe/response", frozen=True):
    """Both ways: `response`, or `error` (a `ProbeError`)."""

    probeId: str
    response: Maybe = UNSET
    error: Maybe = UNSET


class Open(Struct, tag_field="type", tag="port/open", frozen=True):
    """Relay to bridge: connect to an extension."""

    portId: str
    extensionId: str
    name: str


class Opened(Struct, tag_field="type", tag="port/opened", frozen=True):
    """Both ways: the port is there; messages may flow."""

    portId: str


class Incoming(Struct, tag_field="type", tag="port/open", frozen=True):
    """Bridge to relay: an extension has connected to us."""

    portId: str
    senderId: str
    name: str


class Refused(Struct, tag_field="type", tag="port/refused", frozen=True):
    """Both ways: there will be no such port."""

    portId: str
    reason: Maybe = UNSET


class Message(Struct, tag_field="type", tag="port/message", frozen=True):
    """Both ways."""

    portId: str
    message: Raw


class Close(Struct, tag_field="type", tag="port/close", frozen=True):
    """Both ways, and the last frame about a port. With `error` it was not on purpose."""

    portId: str
    error: Maybe = UNSET


class Pong(Struct, tag_field="type", tag="pong", frozen=True):
    pass


class Ping(Struct, tag_field="type", tag="ping", frozen=True):
    pass


BridgeFrame = Hello | Asked | ProbeResponse | Incoming | Opened | Refused | Message | Close | Pong
"""What a relay receives."""

RelayFrame = HelloAccepted | HelloRejected | Ask | ProbeResponse | Open | Opened | Refused | Message | Close | Ping
"""What a bridge receives (ours is JavaScript; tests play one)."""

_bridge_frames = msgspec.json.Decoder(BridgeFrame)
_relay_frames = msgspec.json.Decoder(RelayFrame)
_errors = msgspec.json.Decoder(ProbeError)
_PORT_ID = re.compile(rb'"portId"\s*:\s*"([rb][0-9]{1,18})"')


def decode_bridge_frame(data: bytes) -> BridgeFrame:
    """A message of the bridge, ids of extensions not judged: use `core.tunnel.read_frame`. Raises `Malformed`."""
    return decode_spliceable(_bridge_frames, data)


def decode_relay_frame(data: bytes) -> RelayFrame:
    """A message of a relay. Raises `Malformed`."""
    return decode_spliceable(_relay_frames, data)


def decode_probe_error(member: Raw) -> ProbeError:
    """`error` of a `probe/response`. Raises `Malformed`."""
    return decode_spliceable(_errors, bytes(member))


def find_port_id(data: bytes) -> str | None:
    """The port id of a frame that cannot be decoded (a message that nests too deeply), to close that port only."""
    match = _PORT_ID.search(data, 0, 4_096) or _PORT_ID.search(data, max(0, len(data) - 4_096))
    return None if match is None else match.group(1).decode()


def hello_accepted(max_payload: int, *, serves: bool) -> bytes:
    return encode(HelloAccepted(max_payload, serves))


def hello_rejected(reason: str, message: str) -> bytes:
    return encode(HelloRejected(reason, message))


def probe(probe_id: str, extension_id: str, message: bytes, timeout_ms: int) -> bytes:
    return encode(Ask(probe_id, extension_id, Raw(message), timeout_ms))


def probe_response(probe_id: str, response: bytes) -> bytes:
    return encode(ProbeResponse(probe_id, Raw(response)))


def probe_error(probe_id: str, kind: str, message: str = "") -> bytes:
    return encode(ProbeResponse(probe_id, error=Raw(encode(ProbeError(kind, message)))))


def port_open(port_id: str, extension_id: str, name: str) -> bytes:
    return encode(Open(port_id, extension_id, name))


def port_opened(port_id: str) -> bytes:
    return encode(Opened(port_id))


def port_refused(port_id: str, reason: str) -> bytes:
    return encode(Refused(port_id, Raw(encode(reason))))


def port_message(port_id: str, message: bytes) -> bytes:
    """A frame with the message's bytes spliced in; they must be valid JSON."""
    return encode(Message(port_id, Raw(message)))


def port_close(port_id: str, error: str | None = None) -> bytes:
    return encode(Close(port_id, UNSET if error is None else Raw(encode(error))))
