"""What a request says beside what it asks: its `_meta`, its client, and what is wrong with it if it is none."""

from __future__ import annotations

from msgspec import UnsetType

from trio_relay.core.results import first_byte
from trio_relay.wire import mcp
from trio_relay.wire.codec import as_text, decode, raw_bytes


def envelope_of(meta: mcp.Meta) -> tuple[bytes | None, ...]:
    """What a modern client says of itself in every request; the SDK accepts or refuses it as a whole."""
    return (
        raw_bytes(meta.protocolVersion),
        raw_bytes(meta.clientInfo),
        raw_bytes(meta.clientCapabilities),
        raw_bytes(meta.logLevel),
    )


def meta_of(params: mcp.CallParams) -> mcp.Meta | None:
    """The `_meta` members that matter; None when it is neither absent, null nor an object."""
    kind = first_byte(params.meta)
    if kind in (b"", b"n"):
        return mcp.Meta()
    return decode(mcp.META, bytes(params.meta)) if kind == b"{" else None  # type: ignore[arg-type]


def has_envelope(envelope: mcp.Envelope) -> bool:
    if first_byte(envelope.params) != b"{":
        return False
    meta = meta_of(decode(mcp.CALL_PARAMS, bytes(envelope.params)))  # type: ignore[arg-type]
    return meta is not None and not isinstance(meta.protocolVersion, UnsetType)


def fault_of(envelope: mcp.Envelope, has_id: bool) -> str:
    if as_text(envelope.jsonrpc) != "2.0":
        return 'jsonrpc must be "2.0"'
    if as_text(envelope.method) is None:
        return "method must be a string"
    return "id must be a string or an integer" if has_id else "id is missing"
