"""Lines of MCP: what the raw lane finds in a request, and the lines it writes."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import UNSET, Raw

from trio_relay.wire import mcp
from trio_relay.wire.codec import raw_bytes

CALL = '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"t","arguments":{"a":1e2}%s}}'


@pytest.mark.parametrize("request_id", ["0", '""', '"0"', "9007199254740993", "-1", "1.5", "null"])
def test_ids_keep_their_type_and_digits_in_every_line(request_id: str) -> None:
    """A11."""
    call = mcp.PLAIN_CALL.decode((CALL % (request_id, "")).encode())
    assert bytes(call.id).decode() == request_id
    for line in (mcp.result_line(bytes(call.id), b"{}"), mcp.error_line(bytes(call.id), -32600, "no")):
        assert line.startswith(b'{"jsonrpc":"2.0","id":' + request_id.encode() + b",")
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_a_plain_call_keeps_its_argument_bytes() -> None:
    call = mcp.PLAIN_CALL.decode((CALL % (1, ',"_meta":{"progressToken":7}')).encode())
    assert isinstance(call.params.arguments, Raw)
    assert bytes(call.params.arguments) == b'{"a":1e2}'
    assert not isinstance(call.params.meta, msgspec.UnsetType)
    assert raw_bytes(call.params.meta.progressToken) == b"7"
    assert raw_bytes(call.params.meta.protocolVersion) is None


@pytest.mark.parametrize(
    "line",
    [
        CALL % (1, ',"task":{}'),
        CALL % (1, ',"inputResponses":{}'),
        CALL % (1, ',"_meta":null'),
        '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"t"}}',
        '{"id":1,"method":"tools/call","params":{"name":"t"}}',
        '{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"t"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"name":"t"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
        "[]",
    ],
)
def test_anything_unusual_is_no_plain_call(line: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        mcp.PLAIN_CALL.decode(line.encode())


def test_an_envelope_tells_absent_from_null() -> None:
    envelope = mcp.ENVELOPE.decode(b'{"id":null,"method":5,"result":{},"more":1}')
    assert envelope.jsonrpc is UNSET
    assert envelope.params is UNSET
    assert raw_bytes(envelope.id) == b"null"
    assert raw_bytes(envelope.method) == b"5"


def test_modern_members_of_meta_are_found_by_their_long_names() -> None:
    meta = mcp.META.decode(
        b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x"},'
        b'"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"debug"}'
    )
    assert raw_bytes(meta.protocolVersion) == b'"2026-07-28"'
    assert raw_bytes(meta.clientInfo) == b'{"name":"x"}'
    assert raw_bytes(meta.clientCapabilities) == b"{}"
    assert raw_bytes(meta.logLevel) == b'"debug"'


def test_a_progress_line_has_only_the_members_it_was_given() -> None:
    bare = mcp.progress_line(b'"7"', b"1.0", None, None)
    assert (
        bare == b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"7","progress":1.0}}\n'
    )
    full = json.loads(mcp.progress_line(b"7", b"1", b"2", b'"half"'))
    assert full["params"] == {"progressToken": 7, "progress": 1, "total": 2, "message": "half"}


def test_an_error_message_is_escaped() -> None:
    line = mcp.error_line(b"null", mcp.PARSE_ERROR, 'a "b"\nc')
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": 'a "b"\nc'}}


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":[', b"7"),
        (b'{ "id" : "a b" , "method":"m"}', b'"a b"'),
        (b'{"method":"m","params":[[]],"jsonrpc":"2.0","id":-3}', b"-3"),
        (b'{"method":"m","params":{"id":5}}', b"null"),
        (b'{"method":"m","id":5,"params":{}}', b"null"),
        (b'{"id":1.5,"method":"m"}', b"null"),
    ],
)
def test_the_id_of_a_line_that_cannot_be_read_is_found_where_clients_put_it(line: bytes, request_id: bytes) -> None:
    assert mcp.find_request_id(line) == request_id
