"""What a page returned, made into a CallToolResult that every official client accepts.

The common case is judged from the outside: members are located, never decoded, and the page's bytes go on
unchanged. Only a result that would make a client throw (or hang) is rebuilt, and then only the members at
fault are. Which client refuses what was measured; the table is in docs/architecture.md.
"""

from __future__ import annotations

import binascii
import re
from datetime import datetime

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from trio_relay.core import tooldef
from trio_relay.core.schema import MAX_CHECKED_BYTES, first_violation
from trio_relay.wire.codec import Maybe, encode
from trio_relay.wire.mcp import PlainResult

MAX_PREVIEW_CHARS = 500
"""How much of an unusable answer is shown; a number of the wire protocol."""

MAX_SIZE_DIGITS = 15
"""Whole numbers up to here are exact in JavaScript."""

RELATED_TASK_KEY = "io.modelcontextprotocol/related-task"

_MOMENT = re.compile(rb'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"', re.ASCII)

_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])


class CallResult(Struct, frozen=True):
    """A CallToolResult, without a resultType (it is complete).

    Attributes:
        pieces: Its JSON text on one line, in pieces; the last one ends with the closing brace.
        structured: The text of its structuredContent, if any.
        has_meta: Whether it has a `_meta`.
    """

    pieces: tuple[bytes | Raw, ...]
    is_error: bool = False
    structured: Raw | None = None
    has_meta: bool = False

    @property
    def json(self) -> bytes:
        """The whole text, as a copy."""
        return b"".join(self.pieces)


class _Block(Struct, frozen=True):
    """A content block as the fast path sees it: any member but these is a reason to look closer."""

    type: str
    text: Maybe = UNSET
    data: Maybe = UNSET
    mimeType: Maybe = UNSET
    uri: Maybe = UNSET
    name: Maybe = UNSET
    title: Maybe = UNSET
    description: Maybe = UNSET
    size: Maybe = UNSET
    resource: Maybe = UNSET
    annotations: Maybe = UNSET
    icons: Maybe = UNSET
    meta: Maybe = msgspec.field(default=UNSET, name="_meta")

    def is_plain(self) -> bool:
        """Whether every client accepts it as it is, as far as a quick look can tell."""
        if self.annotations is not UNSET or self.meta is not UNSET or self.title is not UNSET:
            return False
        if self.type == "text":
            return first_byte(self.text) == b'"'
        if self.type in ("image", "audio") and not isinstance(self.data, UnsetType):
            is_strings = first_byte(self.data) == first_byte(self.mimeType) == b'"'
            return is_strings and _base64_ok(self.data)
        return False


_plain_blocks = msgspec.json.Decoder(list[_Block])


def _is_plain_meta(meta: Maybe) -> bool:
    """Whether a result's `_meta` can go on unread."""
    if isinstance(meta, UnsetType):
        return True
    text = bytes(meta)
    # A key can be written with escapes; those are looked at closely too.
    return text[:1] == b"{" and not any(sign in text for sign in (b"progressToken", b"related-task", b"\\u"))


def first_byte(raw: Maybe) -> bytes:
    """The first byte of a JSON text, which tells its type; empty when absent."""
    return b"" if isinstance(raw, UnsetType) else bytes(memoryview(raw)[:1])


def error_result(message: str) -> CallResult:
    """A result that tells a model what went wrong (`isError: true`)."""
    body = {"content": [{"type": "text", "text": message}], "isError": True}
    return CallResult((encode(body),), is_error=True)


def parse_result(raw: Maybe | PlainResult) -> CallResult:
    """Bring what a page returned into shape; whatever cannot be saved becomes an error result.

    Args:
        raw: The `result` of a result frame: checked JSON on one line (UNSET when it was missing), or its members as
            found when the frame was read.
    """
    if isinstance(raw, UnsetType):
        return error_result("The page answered without a result.")
    if isinstance(raw, PlainResult):
        if _needs_no_change(raw):
            structured = None if isinstance(raw.structuredContent, UnsetType) else raw.structuredContent
            return CallResult(raw.pieces(), raw.isError is True, structured, raw.meta is not UNSET)
        text = b"".join(raw.pieces())
    else:
        text = bytes(raw)
    if text[:1] != b"{":
        return _unusable(text, "is not an object")
    try:
        return _judge(text, _object(text))
    except RecursionError:
        # Nesting that could just be read in the reader task is too deep for a task with a deeper stack.
        return _unusable(text, "nests too deeply to be read")


def _needs_no_change(result: PlainResult) -> bool:
    if first_byte(result.structuredContent) not in (b"", b"{") or not _is_plain_meta(result.meta):
        return False
    try:
        return all(block.is_plain() for block in _plain_blocks.decode(result.content))
    except (msgspec.DecodeError, RecursionError):
        return False


def _object(raw: bytes) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in _members.decode(raw).items()}


def _judge(raw: bytes, members: dict[str, bytes]) -> CallResult:
    fixed = {key: value for key, value in members.items() if not (value == b"null" and key in _OPTIONAL)}
    if fixed.pop("resultType", b'"complete"') == b'"input_required"':
        return error_result(
            "The page asked for more input before it can answer (input_required), which a relay cannot pass on. "
            "Call the tool again with everything it needs."
        )
    if "_meta" in fixed:
        if fixed["_meta"][:1] == b"{":
            fixed["_meta"] = _meta(fixed["_meta"])
        else:
            del fixed["_meta"]
    is_error = fixed.get("isError", b"false")
    if is_error not in (b"true", b"false"):
        return _unusable(raw, "has an isError that is not a boolean")
    structured = fixed.get("structuredContent")
    if structured is not None and structured[:1] != b"{":
        return _unusable(raw, "has a structuredContent that is not an object")
    content = fixed.get("content")
    if content is None:
        if structured is None:
            return _unusable(raw, "has no content")
        fixed["content"] = b"[" + _text_block(structured.decode()) + b"]"
    else:
        blocks = _blocks(content)
        if blocks is None:
            return _unusable(raw, "has a content that is not a list of blocks")
        fixed["content"] = blocks
    json = raw if fixed == members else tooldef.join(fixed)
    return CallResult(
        (json,), is_error == b"true", None if structured is None else Raw(structured), has_meta="_meta" in fixed
    )


def _unusable(raw: bytes, why: str) -> CallResult:
    preview = raw[: 4 * MAX_PREVIEW_CHARS].decode(errors="ignore")[:MAX_PREVIEW_CHARS]
    return error_result(f"The page's answer {why}, so it is no MCP tool result. It begins: {preview}")


def _text_block(text: str) -> bytes:
    return encode({"type": "text", "text": text})


def _blocks(content: bytes) -> bytes | None:
    """The content array with every block valid; None if it is no array of objects."""
    if content[:1] != b"[":
        return None
    items = [bytes(item) for item in _items.decode(content)]
    good: list[bytes] = []
    for item in items:
        if item[:1] != b"{":
            return None
        good.append(_block(item))
    return content if good == items else b"[" + b",".join(good) + b"]"


def _block(raw: bytes) -> bytes:
    """The block itself if clients know and accept it, else a text block with its JSON in its place."""
    members = _object(raw)
    kind = members.get("type", b"")
    required = _REQUIRED.get(kind)
    if required is None or any(not _is_string(members.get(key)) for key in required):
        return _text_block(raw.decode())
    if "data" in required and not _base64_ok(members["data"]):
        return _text_block(raw.decode())
    good: dict[str, bytes] = {}
    for key, value in members.items():
        fixed = _block_member(kind, key, value)
        if fixed is not None:
            good[key] = fixed
    if kind == b'"resource"' and "resource" not in good:
        return _text_block(raw.decode())
    return raw if good == members else tooldef.join(good)


def _is_string(value: bytes | None) -> bool:
    return value is not None and value[:1] == b'"'


def _block_member(kind: bytes, key: str, value: bytes) -> bytes | None:
    """A member of a block as it may stay; None if it must go."""
    if key == "_meta":
        return value if value[:1] == b"{" else None
    if key == "annotations":
        return _annotations(value)
    if kind == b'"resource"' and key == "resource":
        return _resource(value)
    if kind == b'"resource_link"':
        if key in ("title", "description", "mimeType"):
            return value if value[:1] == b'"' else None
        if key == "size":
            return value if value.isdigit() and len(value) <= MAX_SIZE_DIGITS else None
        if key == "icons":
            return tooldef.icons(value)
    return value


def _annotations(raw: bytes) -> bytes | None:
    if raw[:1] != b"{":
        return None
    members = _object(raw)
    good = {key: value for key, value in members.items() if _annotation_ok(key, value)}
    return raw if len(good) == len(members) else tooldef.join(good)


def _annotation_ok(key: str, value: bytes) -> bool:
    if key == "audience":
        return value[:1] == b"[" and all(bytes(item) in (b'"user"', b'"assistant"') for item in _items.decode(value))
    if key == "priority":
        return value[:1] in b"-0123456789" and 0 <= float(value) <= 1
    if key == "lastModified":
        return _MOMENT.fullmatch(value) is not None and _is_moment(value[1:-1].decode())
    return True


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _resource(raw: bytes) -> bytes | None:
    """The contents of an embedded resource without nulls; None if it has no valid text or blob."""
    if raw[:1] != b"{":
        return None
    members = _object(raw)
    good = {key: value for key, value in members.items() if not (value == b"null" and key in ("mimeType", "_meta"))}
    if not _is_string(good.get("uri")) or good.get("_meta", b"{")[:1] != b"{":
        return None
    if not _is_string(good.get("mimeType", b'"')):
        return None
    if not _is_string(good.get("text")) and not (_is_string(good.get("blob")) and _base64_ok(good["blob"])):
        return None
    return raw if len(good) == len(members) else tooldef.join(good)


def _base64_ok(raw: bytes | Raw) -> bool:
    """Whether a JSON string holds base64 as browsers' `atob` takes it: blanks and missing padding are forgiven.

    The TypeScript client insists. Not looked at above 1 MiB.
    """
    if memoryview(raw).nbytes > MAX_CHECKED_BYTES:
        return True
    text: str = msgspec.json.decode(raw)
    data = text.encode().translate(None, b" \t\n\f\r")
    if b"=" not in data:
        data += b"=" * (-len(data) % 4)
    if len(data) % 4:
        return False
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except binascii.Error:
        return False
    return True


def _meta(raw: bytes) -> bytes:
    """A result's `_meta` without members that clients check and would drop the whole line for."""
    members = _object(raw)
    good = {key: value for key, value in members.items() if _meta_ok(key, value)}
    return raw if len(good) == len(members) else tooldef.join(good)


def _meta_ok(key: str, value: bytes) -> bool:
    if key == "progressToken":
        return value[:1] == b'"' or (value.removeprefix(b"-").isdigit() and len(value) <= MAX_SIZE_DIGITS)
    if key == RELATED_TASK_KEY:
        return value[:1] == b"{" and _is_string(_object(value).get("taskId"))
    return True


def check_output(result: CallResult, output_schema: bytes | None) -> CallResult:
    """Hold a result against the tool's outputSchema, as clients do; they would throw the whole call away."""
    if output_schema is None or result.is_error:
        return result
    if result.structured is None:
        return error_result(
            "The tool declares an outputSchema but the page returned no structuredContent, so clients refuse the "
            "answer. The page must return structuredContent or drop the outputSchema."
        )
    violation = first_violation(output_schema, result.structured)
    if violation is not None:
        return error_result(f"The page's structuredContent does not match the tool's outputSchema at {violation}")
    return result


_OPTIONAL = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_REQUIRED: dict[bytes, tuple[str, ...]] = {
    b'"text"': ("text",),
    b'"image"': ("data", "mimeType"),
    b'"audio"': ("data", "mimeType"),
    b'"resource_link"': ("uri", "name"),
    b'"resource"': (),
}
"""Members that must be strings, per type of content block (MCP 2024-11-05 to 2026-07-28)."""
