"""The browser protocol (`webmcp.v1`, `webmcp-discovery.v1`): frames in, frames out.

Members of incoming frames are kept as `Raw`: their types are judged one by one where they are used, so a
wrong optional member never costs the frame. docs/protocol.md describes every frame.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from trio_relay.wire.codec import Malformed, Maybe, decode, decode_plain, decode_spliceable, encode
from trio_relay.wire.mcp import PlainResult

SUBPROTOCOLS = ("webmcp.v1", "webmcp-discovery.v1")
SERVICE_NAMES = ("webmcp-extension-relay", "webmcp-local-relay")
"""Each browser client in the field accepts one of these only; the extension's comes first."""

PROTOCOL_VERSION = 1


class Hello(Struct, tag_field="type", tag="hello", frozen=True):
    tabId: Maybe = UNSET
    origin: Maybe = UNSET
    url: Maybe = UNSET
    title: Maybe = UNSET
    iconUrl: Maybe = UNSET
    client: Maybe = UNSET


class ToolsList(Struct, tag_field="type", tag="tools/list", frozen=True):
    tools: Maybe = UNSET


class ToolsChanged(Struct, tag_field="type", tag="tools/changed", frozen=True):
    tools: Maybe = UNSET


class Result(Struct, tag_field="type", tag="result", frozen=True):
    callId: Maybe = UNSET
    result: Maybe = UNSET


class Progress(Struct, tag_field="type", tag="progress", frozen=True):
    callId: Maybe = UNSET
    progress: Maybe = UNSET
    total: Maybe = UNSET
    message: Maybe = UNSET


class Pong(Struct, tag_field="type", tag="pong", frozen=True):
    pass


class Disconnected(Struct, tag_field="type", tag="source/disconnected", frozen=True):
    reason: Maybe = UNSET


class PlainAnswer(Struct, tag_field="type", tag="result", frozen=True, forbid_unknown_fields=True):
    """A `result` frame about which nothing is odd, read in one pass."""

    callId: str
    result: PlainResult


BrowserFrame = Hello | ToolsList | ToolsChanged | Result | Progress | Pong | Disconnected | PlainAnswer


class BrowserClient(Struct, frozen=True):
    """What a browser client says of itself in `hello.client`; our own extension does."""

    name: str = ""
    version: str = ""
    features: tuple[str, ...] = ()


class ServerHello(Struct, tag_field="type", tag="server-hello", frozen=True, omit_defaults=True, kw_only=True):
    service: str
    # A default would be left out by omit_defaults, and browsers insist on this member.
    version: int
    host: str
    instanceId: str
    port: int
    relayId: str
    maxPayload: int
    label: str | None = None
    workspace: str | None = None
    ports: bool = False


class HelloRejected(Struct, tag_field="type", tag="hello/rejected", frozen=True):
    reason: Literal["host-origin-not-allowed", "invalid-hello"]
    message: str


MAX_SALVAGED = (2 << 20) + (64 << 10)
"""Longest frame, in bytes, that is searched for the one item that cannot be read; longer lists are ignored anyway."""

ITEM_DEPTH = 3  # of an item of a frame's list: {"tools":[item]}
READABLE_DEPTH = 300
"""Nesting that is certainly decoded (msgspec gives up at the interpreter's recursion limit, 1,000 by default)."""

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)

HELLO_ACCEPTED = b'{"type":"hello/accepted"}'
PING = b'{"type":"ping"}'
RELOAD = b'{"type":"reload"}'

_frames: msgspec.json.Decoder[BrowserFrame] = msgspec.json.Decoder(
    Hello | ToolsList | ToolsChanged | Result | Progress | Pong | Disconnected
)
_plain_answer = msgspec.json.Decoder(PlainAnswer)
_ANSWER_START = b'{"type":"result"'
_raw_list = msgspec.json.Decoder(list[Raw])
_client = msgspec.json.Decoder(BrowserClient)


def decode_frame(data: bytes) -> BrowserFrame:
    """Decode one message of a browser; its `Raw` members are safe to splice into a line of stdout.

    Args:
        data: As `links.socket` delivers it: it went through `clean_text`.

    Raises:
        Malformed: not JSON, no object, or an unknown `type`.
    """
    if data.startswith(_ANSWER_START):
        plain = decode_plain(_plain_answer, data)
        if plain is not None:
            return plain
    try:
        return decode_spliceable(_frames, data, clean=True)
    except Malformed as error:
        if not error.too_deep or len(data) > MAX_SALVAGED or b'"tools/' not in data:
            raise
        frame = decode_spliceable(_frames, _without_deep_items(data), clean=True)
        if isinstance(frame, ToolsList | ToolsChanged):
            return frame
        raise


def _without_deep_items(data: bytes) -> bytes:
    """The frame with each item of its lists that nests too deeply to be read replaced by null."""
    parts: list[bytes] = []
    depth = start = kept = 0
    deep = False
    for token in _TOKENS.finditer(data):
        mark = token.group()
        if mark in (b"[", b"{"):
            depth += 1
            if depth == ITEM_DEPTH:
                start, deep = token.start(), False
            deep = deep or depth > READABLE_DEPTH
        elif mark in (b"]", b"}"):
            if depth == ITEM_DEPTH and deep:
                parts += [data[kept:start], b"null"]
                kept = token.end()
            depth -= 1
    return b"".join((*parts, data[kept:]))


def decode_tools(tools: Maybe) -> list[Raw]:
    """The items of a tools list, undecoded. Raises `Malformed` when it is no array."""
    return decode(_raw_list, b"null" if isinstance(tools, msgspec.UnsetType) else bytes(tools))


def decode_client(client: Maybe) -> BrowserClient:
    """`hello.client`, or an anonymous one when it is absent or odd."""
    try:
        return decode(_client, b"{}" if isinstance(client, msgspec.UnsetType) else bytes(client))
    except ValueError:
        return BrowserClient()


def invoke(call_id: str, tool_name: str, args: Raw, deadline_ms: int | None) -> bytes:
    """An `invoke` frame with the argument bytes spliced in; `args` must be a checked JSON object."""
    tail = b"}" if deadline_ms is None else b',"deadlineMs":%d}' % deadline_ms
    return b"".join(
        (b'{"type":"invoke","callId":', encode(call_id), b',"toolName":', encode(tool_name), b',"args":', args, tail)
    )


def cancel(call_id: str, reason: str) -> bytes:
    return encode({"type": "cancel", "callId": call_id, "reason": reason})


def open_url(url: str) -> bytes:
    return encode({"type": "open", "url": url})
