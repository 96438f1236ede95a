"""The relay-to-relay protocol (`webmcp-relay.v1`). docs/protocol.md describes every frame.

Other relays validate strictly: what they know must be exact and optional members absent rather than null;
what they do not know they drop, which is where our additions live.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct

from trio_relay.wire.codec import Maybe, decode_plain, decode_spliceable, encode
from trio_relay.wire.mcp import PlainResult

SUBPROTOCOL = "webmcp-relay.v1"
FEATURES = ("targeted-invoke", "cancel", "reload", "progress", "original-names")
"""What this relay understands beyond the plain protocol, in either role."""

ENVELOPE_BYTES = 64 << 10
"""Room for a frame's envelope on top of the payload limit, in bytes."""

PLAIN_FRAME = 10_000_000
"""Longest frame, in bytes, for a relay that does not say what it accepts: the default of them all."""

MAX_TOOLS_FRAME = 9_500_000
"""Longest `relay/tools`, in bytes: below the 10,000,000 that relays accept."""


class RelayHello(Struct, tag_field="type", tag="relay/hello", frozen=True):
    features: tuple[str, ...] = ()
    maxPayload: int | None = None


class ListTools(Struct, tag_field="type", tag="relay/list-tools", frozen=True):
    pass


class Invoke(Struct, tag_field="type", tag="relay/invoke", frozen=True):
    callId: str
    toolName: str
    args: Maybe = UNSET
    sourceId: str | None = None
    requestTabId: str | None = None
    deadlineMs: float | None = None


class Cancel(Struct, tag_field="type", tag="relay/cancel", frozen=True):
    callId: str


class Reload(Struct, tag_field="type", tag="relay/reload", frozen=True):
    sourceId: str


class Admin(Struct, tag_field="type", tag="relay/admin", frozen=True):
    """A command of a person for the relay that owns the browser. `token` shows that it comes from the same person."""

    requestId: str
    token: str
    ask: str
    args: Maybe = UNSET


ClientFrame = RelayHello | ListTools | Invoke | Cancel | Reload | Admin


class ServerHello(Struct, tag_field="type", tag="server-hello", frozen=True):
    service: str = ""
    version: int | float | str | None = None


class SourceInfo(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A row of `relay/tools`; the same members as a `SourceView`."""

    source_id: str
    tab_id: str
    connected_at: int | float = 0
    last_seen_at: int | float = 0
    tool_count: int = 0
    origin: str | None = None
    url: str | None = None
    title: str | None = None
    icon_url: str | None = None


class Tools(Struct, tag_field="type", tag="relay/tools", frozen=True):
    tools: list[Raw]
    sources: list[SourceInfo] = []
    toolSourceMap: dict[str, list[str]] = {}
    features: tuple[str, ...] = ()
    originalNames: dict[str, str] = {}
    maxPayload: int | None = None
    providers: Maybe = UNSET
    providerTools: Maybe = UNSET


class ToolsChanged(Tools, tag_field="type", tag="relay/tools-changed", frozen=True):
    pass


class Result(Struct, tag_field="type", tag="relay/result", frozen=True):
    callId: str
    result: Maybe = UNSET


class Progress(Struct, tag_field="type", tag="relay/progress", frozen=True):
    callId: str
    progress: Raw
    total: Maybe = UNSET
    message: Maybe = UNSET


class AdminResult(Struct, tag_field="type", tag="relay/admin-result", frozen=True, omit_defaults=True):
    requestId: str
    result: Maybe = UNSET
    error: str | None = None


class PlainAnswer(Struct, tag_field="type", tag="relay/result", frozen=True, forbid_unknown_fields=True):
    """A `relay/result` frame about which nothing is odd, read in one pass."""

    callId: str
    result: PlainResult


ServerFrame = ServerHello | Tools | ToolsChanged | Result | Progress | AdminResult | PlainAnswer

_client_frames = msgspec.json.Decoder(ClientFrame)
_server_frames: msgspec.json.Decoder[ServerFrame] = msgspec.json.Decoder(
    ServerHello | Tools | ToolsChanged | Result | Progress | AdminResult
)
_plain_answer = msgspec.json.Decoder(PlainAnswer)
_ANSWER_START = b'{"type":"relay/result"'

LIST_TOOLS = b'{"type":"relay/list-tools"}'


def hello(max_payload: int) -> bytes:
    """Args:
    max_payload: Longest frame we accept, in bytes.
    """
    return encode(RelayHello(FEATURES, max_payload))


def decode_client_frame(data: bytes) -> ClientFrame:
    """A message of a relay client, which went through `clean_text`. Raises `Malformed`."""
    return decode_spliceable(_client_frames, data, clean=True)


def decode_server_frame(data: bytes) -> ServerFrame:
    """A message of a relay server, which went through `clean_text`. Raises `Malformed`."""
    if data.startswith(_ANSWER_START):
        plain = decode_plain(_plain_answer, data)
        if plain is not None:
            return plain
    return decode_spliceable(_server_frames, data, clean=True)


def tools_frame(
    kind: str,
    listings: list[bytes],
    sources: bytes,
    source_map: dict[str, tuple[str, ...]],
    original_names: dict[str, str],
    max_payload: int,
    providers: tuple[bytes, list[str]] | None = None,
) -> bytes:
    """A `relay/tools` or `relay/tools-changed` frame from texts that are kept anyway.

    Args:
        listings: As `ToolBackend.listing`.
        sources: JSON text of the list of rows.
        max_payload: Longest frame the server accepts, in bytes.
        providers: JSON text of the rows of provider extensions, and the names of their tools.
    """
    rows = b"" if providers is None else b',"providers":%b,"providerTools":%b' % (providers[0], encode(providers[1]))
    return b"".join(
        (
            b'{"type":',
            encode(kind),
            b',"tools":[',
            b",".join(listings),
            b'],"sources":',
            sources,
            b',"toolSourceMap":',
            encode(source_map),
            b',"features":',
            encode(FEATURES),
            b',"originalNames":',
            encode(original_names),
            rows,
            b',"maxPayload":%d}' % max_payload,
        )
    )


def invoke(
    call_id: str,
    tool_name: str,
    args: Raw,
    deadline_ms: int | None,
    source_id: str | None = None,
    tab_id: str | None = None,
) -> bytes:
    """A `relay/invoke` with the argument bytes spliced in."""
    optional = {"sourceId": source_id, "requestTabId": tab_id, "deadlineMs": deadline_ms}
    tail = b"".join(b',"%s":' % key.encode() + encode(value) for key, value in optional.items() if value is not None)
    head = b'{"type":"relay/invoke","callId":' + encode(call_id) + b',"toolName":' + encode(tool_name)
    return b"".join((head, b',"args":', args, tail, b"}"))


def result(call_id: str, pieces: tuple[bytes | Raw, ...]) -> bytes:
    """A `relay/result`; the pieces make up a CallToolResult."""
    return b"".join((b'{"type":"relay/result","callId":', encode(call_id), b',"result":', *pieces, b"}"))


def progress(call_id: str, value: bytes, total: bytes | None, message: bytes | None) -> bytes:
    parts = [b'{"type":"relay/progress","callId":', encode(call_id), b',"progress":', value]
    if total is not None:
        parts += [b',"total":', total]
    if message is not None:
        parts += [b',"message":', message]
    return b"".join((*parts, b"}"))


def admin_request(request_id: str, token: str, ask: str, args: bytes) -> bytes:
    return encode(Admin(request_id, token, ask, Raw(args)))


def admin_result(request_id: str, result: bytes) -> bytes:
    return encode(AdminResult(request_id, Raw(result)))


def admin_error(request_id: str, error: str) -> bytes:
    return encode({"type": "relay/admin-result", "requestId": request_id, "error": error})


def cancel(call_id: str) -> bytes:
    return encode(Cancel(call_id))


def reload(source_id: str) -> bytes:
    return encode(Reload(source_id))
