"""JSON-RPC and MCP envelopes as far as the raw lane reads and writes them.

The SDK owns the protocol; these structs only find the few members the raw lane needs and leave the rest
as bytes.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from trio_relay.wire.codec import Maybe, encode, one_line

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"

LIST_CHANGED_LINE = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'


class Envelope(Struct, frozen=True):
    """One line of a client, taken apart at the first level."""

    jsonrpc: Maybe = UNSET
    id: Maybe = UNSET
    method: Maybe = UNSET
    params: Maybe = UNSET
    result: Maybe = UNSET
    error: Maybe = UNSET


class CallParams(Struct, frozen=True):
    """`params` of tools/call and tools/list; the last three are nothing the raw lane understands."""

    name: Maybe = UNSET
    arguments: Maybe = UNSET
    cursor: Maybe = UNSET
    meta: Maybe = msgspec.field(default=UNSET, name="_meta")
    task: Maybe = UNSET
    inputResponses: Maybe = UNSET
    requestState: Maybe = UNSET


class Meta(Struct, frozen=True):
    """The members of a request's `_meta` that matter here."""

    progressToken: Maybe = UNSET
    protocolVersion: Maybe = msgspec.field(default=UNSET, name=PROTOCOL_VERSION_KEY)
    clientInfo: Maybe = msgspec.field(default=UNSET, name="io.modelcontextprotocol/clientInfo")
    clientCapabilities: Maybe = msgspec.field(default=UNSET, name="io.modelcontextprotocol/clientCapabilities")
    logLevel: Maybe = msgspec.field(default=UNSET, name="io.modelcontextprotocol/logLevel")


class PlainParams(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: Maybe = UNSET
    meta: Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


class PlainCall(Struct, frozen=True):
    """A `tools/call` line as nearly all are, decoded in one step. Any other line fails to decode as one."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: Literal["tools/call"]
    params: PlainParams


class PlainResult(Struct, frozen=True, forbid_unknown_fields=True):
    """A CallToolResult with known members only, located in the pass that reads its frame."""

    content: Raw
    structuredContent: Maybe = UNSET
    isError: bool | UnsetType = UNSET
    meta: Maybe = msgspec.field(default=UNSET, name="_meta")

    def pieces(self) -> tuple[bytes | Raw, ...]:
        """Its JSON text, in pieces that nobody has to copy before the line is made."""
        parts: list[bytes | Raw] = [b'{"content":', self.content]
        if not isinstance(self.structuredContent, UnsetType):
            parts += [b',"structuredContent":', self.structuredContent]
        if not isinstance(self.isError, UnsetType):
            parts.append(b',"isError":true' if self.isError else b',"isError":false')
        if not isinstance(self.meta, UnsetType):
            parts += [b',"_meta":', self.meta]
        parts.append(b"}")
        return tuple(parts)


class CancelledParams(Struct, frozen=True):
    requestId: Maybe = UNSET
    reason: Maybe = UNSET


ENVELOPE = msgspec.json.Decoder(Envelope)
CALL_PARAMS = msgspec.json.Decoder(CallParams)
META = msgspec.json.Decoder(Meta)
PLAIN_CALL = msgspec.json.Decoder(PlainCall)
CANCELLED_PARAMS = msgspec.json.Decoder(CancelledParams)


_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?[0-9]{1,19}|"[^"\\]{0,100}")\s*,')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(-?[0-9]{1,19}|"[^"\\]{0,100}")\s*\}\s*\Z')


def find_request_id(line: bytes) -> bytes:
    """The id of a request that nests too deeply to be read, where clients put it; `null` if it is not there."""
    match = _ID_FIRST.match(line) or _ID_LAST.search(line, max(0, len(line) - 200))
    return b"null" if match is None else match.group(1)


def result_line(request_id: bytes, result: bytes) -> bytes:
    """A response line. `request_id` is echoed byte for byte; `result` must be checked JSON on one line."""
    return b"".join((b'{"jsonrpc":"2.0","id":', request_id, b',"result":', result, b"}\n"))


def error_line(request_id: bytes, code: int, message: str) -> bytes:
    """An error line; `request_id` is `null` where no id could be read."""
    error = encode({"code": code, "message": message})
    return b"".join((b'{"jsonrpc":"2.0","id":', request_id, b',"error":', error, b"}\n"))


def progress_line(token: bytes, progress: bytes, total: bytes | None, message: bytes | None) -> bytes:
    """A progress notification. All arguments are JSON texts, which keep their digits and escapes."""
    parts = [b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":', one_line(token)]
    parts += [b',"progress":', progress]
    if total is not None:
        parts += [b',"total":', total]
    if message is not None:
        parts += [b',"message":', message]
    return b"".join((*parts, b"}}\n"))
