"""One tool as a page defines it, made valid for every MCP client, or refused alone with a reason.

MCP clients reject a whole `tools/list` for one bad tool, so each definition is brought into the shape the
strictest of them accepts, member by member. Members that are fine, known or not, keep their bytes.
A test compares the outcome with the SDK's own models (tests/core/test_tooldef.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from trio_relay.wire.codec import (
    MAX_INTEGER_DIGITS,
    Malformed,
    decode,
    encode,
    has_overlong_integer,
    nested_deeper_than,
    one_line,
)

MAX_TOOLS = 512
MAX_DEFINITION_BYTES = 2 << 20
MAX_NAME_CHARS = 1024
"""Limits per tab (docs/decisions.md, 12): a page may not fill a client's context or our memory."""

MAX_DEPTH = 150
"""Deepest nesting of a definition: a list of tools that nests 201 deep is dropped by the Python client."""

NO_SCHEMA = b'{"type":"object","properties":{}}'

_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_raw = msgspec.json.Decoder(Raw)


class ToolRefused(ValueError):
    """This tool cannot be offered; the message says why. Its siblings are unaffected."""


class ToolDef(msgspec.Struct, frozen=True):
    """A tool of a page, ready to be listed.

    Attributes:
        name: The page's own name, 1 to 1,024 characters.
        description: Without the source prefix; may be empty.
        rest: All other members as JSON text, each with a leading comma: `,"inputSchema":{…},"title":"…"`.
        input_schema: JSON text, always an object schema.
        output_schema: JSON text of an object schema, or None.
    """

    name: str
    description: str
    rest: bytes
    input_schema: bytes
    output_schema: bytes | None = None


def parse_tool(raw: bytes) -> ToolDef:
    """Normalise one definition.

    Raises:
        ToolRefused: when it cannot be offered: no object, no usable name, a schema that is no object schema,
            or task execution required.
    """
    members = _object(raw)
    if members is None:
        raise ToolRefused("the definition is not an object")
    if nested_deeper_than(raw, MAX_DEPTH):
        raise ToolRefused(f"its definition nests more than {MAX_DEPTH} levels deep")
    if has_overlong_integer(raw):
        raise ToolRefused(f"its definition holds an integer of more than {MAX_INTEGER_DIGITS} digits")
    name = _string(members.pop("name", None))
    if name is None or not name:
        raise ToolRefused("its name is missing, empty or not a string")
    if len(name) > MAX_NAME_CHARS:
        raise ToolRefused(f"its name is longer than {MAX_NAME_CHARS} characters")
    description = _string(members.pop("description", None)) or ""
    if _needs_tasks(members.get("execution")):
        raise ToolRefused("it requires MCP task execution, which a relay cannot offer")

    members["inputSchema"] = input_schema = _input_schema(members.get("inputSchema"))
    output_schema: bytes | None = None
    kept: list[bytes] = []
    for key, value in members.items():
        rule = _RULES.get(key)
        fixed = bytes(value) if rule is None else rule(bytes(value))
        if fixed is None:
            continue
        if key == "outputSchema":
            output_schema = fixed
        kept.append(b"," + encode(key) + b":" + fixed)
    return ToolDef(name, description, one_line(b"".join(kept)), one_line(input_schema), output_schema)


def _object(raw: bytes) -> dict[str, bytes] | None:
    if raw.lstrip()[:1] != b"{":
        return None
    try:
        return {key: bytes(value) for key, value in decode(_members, raw).items()}
    except Malformed:
        return None


def _string(raw: bytes | None) -> str | None:
    if raw is None or raw[:1] != b'"':
        return None
    value: str = msgspec.json.decode(raw)
    return value


def _needs_tasks(raw: bytes | None) -> bool:
    execution = _object(raw) if raw is not None else None
    return execution is not None and execution.get("taskSupport") == b'"required"'


def _input_schema(raw: bytes | None) -> bytes:
    if raw is None or raw == b"null":
        return NO_SCHEMA
    text = _string(raw)
    if text is not None:
        # Older Chromes hand schemas over as JSON text.
        try:
            raw = bytes(decode(_raw, text.encode().strip()))
        except Malformed:
            raise ToolRefused("its inputSchema is a string that is not JSON") from None
        if nested_deeper_than(raw, MAX_DEPTH):
            raise ToolRefused(f"its inputSchema nests more than {MAX_DEPTH} levels deep")
        if has_overlong_integer(raw):
            raise ToolRefused(f"its inputSchema holds an integer of more than {MAX_INTEGER_DIGITS} digits")
    if raw == b"true":
        return b'{"type":"object"}'
    schema = _object_schema(raw)
    if schema is None:
        raise ToolRefused("its inputSchema does not describe an object")
    return schema


def _object_schema(raw: bytes) -> bytes | None:
    """A schema clients accept at the root: `type` is `"object"`, `properties` and `required` well formed.

    Returns the same bytes when nothing had to change; None when the schema excludes objects.
    """
    members = _object(raw)
    if members is None:
        return None
    kind = members.get("type")
    changed = False
    if kind != b'"object"':
        if kind is not None and kind != b"null":
            try:
                kinds = decode(_items, kind)
            except Malformed:
                return None
            if not any(bytes(item) == b'"object"' for item in kinds):
                return None
        members = {"type": b'"object"', **{key: value for key, value in members.items() if key != "type"}}
        changed = True
    if members.get("$schema", b'"')[:1] != b'"':
        del members["$schema"]
        changed = True
    if "properties" in members or "required" in members or _mentions_required(raw):
        try:
            tree = msgspec.json.decode(join(members))
        except (msgspec.DecodeError, RecursionError):
            return None
        if _mend(tree):
            return encode(tree)
    return join(members) if changed else raw


def _mentions_required(raw: bytes) -> bool:
    return b'"required"' in raw


def _mend(schema: dict[str, Any], depth: int = 0) -> bool:
    """Mend the members clients are strict about, in place, at every level. True if anything changed."""
    if depth > 64:
        return False
    changed = False
    properties: dict[str, Any] = {}
    if isinstance(schema.get("properties"), dict):
        properties = schema["properties"]
    elif "properties" in schema:
        del schema["properties"]
        changed = True
    promoted: list[str] = []
    for name, sub in properties.items():
        if not isinstance(sub, dict):
            properties[name] = {"not": {}} if sub is False else {}
            changed = True
        elif isinstance(sub.get("required"), bool):
            # Draft 3 put `required: true` on the property itself.
            if sub.pop("required"):
                promoted.append(name)
            changed = True
    required = schema.get("required")
    if "required" in schema and not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        del schema["required"]
        required, changed = None, True
    if promoted:
        schema["required"] = list(dict.fromkeys([*(required or []), *promoted]))
    for sub in _subschemas(schema):
        changed = _mend(sub, depth + 1) or changed
    return changed


def _subschemas(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[Any] = []
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        group = schema.get(key)
        if isinstance(group, dict):
            found += group.values()
    for key in ("items", "additionalProperties", "not", "anyOf", "oneOf", "allOf"):
        group = schema.get(key)
        found += group if isinstance(group, list) else [group]
    return [sub for sub in found if isinstance(sub, dict)]


def join(members: dict[str, bytes]) -> bytes:
    """A JSON object from its members' JSON texts."""
    return b"{" + b",".join(encode(key) + b":" + value for key, value in members.items()) + b"}"


def _if_string(raw: bytes) -> bytes | None:
    return raw if raw[:1] == b'"' else None


def _if_object(raw: bytes) -> bytes | None:
    return raw if raw[:1] == b"{" else None


def _annotations(raw: bytes) -> bytes | None:
    members = _object(raw)
    if members is None:
        return None
    good = {key: value for key, value in members.items() if _annotation_ok(key, value)}
    return raw if len(good) == len(members) else join(good)


def _annotation_ok(key: str, value: bytes) -> bool:
    if key == "title":
        return value[:1] == b'"'
    if key in ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"):
        return value in (b"true", b"false")
    return value != b"null"


def icons(raw: bytes) -> bytes | None:
    """The valid icons of an `icons` member: each an object with a string `src`."""
    try:
        items = [bytes(item) for item in decode(_items, raw)]
    except Malformed:
        return None
    good = [icon for icon in map(_icon, items) if icon is not None]
    if not good:
        return None
    return raw if good == items else b"[" + b",".join(good) + b"]"


def _icon(raw: bytes) -> bytes | None:
    members = _object(raw)
    if members is None or members.get("src", b"")[:1] != b'"':
        return None
    good = {key: value for key, value in members.items() if _icon_member_ok(key, value)}
    return raw if len(good) == len(members) else join(good)


def _icon_member_ok(key: str, value: bytes) -> bool:
    if key == "mimeType":
        return value[:1] == b'"'
    if key == "sizes":
        return value[:1] == b"[" and all(bytes(size)[:1] == b'"' for size in _items.decode(value))
    if key == "theme":
        return value in (b'"light"', b'"dark"')
    return value != b"null"


def _execution(raw: bytes) -> bytes | None:
    members = _object(raw)
    if members is None or members.get("taskSupport", b'"optional"') not in (b'"forbidden"', b'"optional"'):
        return None
    return raw


_RULES: dict[str, Callable[[bytes], bytes | None]] = {
    "title": _if_string,
    "_meta": _if_object,
    "annotations": _annotations,
    "icons": icons,
    "execution": _execution,
    "inputSchema": lambda raw: raw,
    "outputSchema": _object_schema,
    "name": lambda raw: None,
    "description": lambda raw: None,
}
"""What is done to a member; None as an outcome leaves it out. Unknown members stay as they are."""
