"""What official clients accept: the SDK's own models, and the stricter rules of the TypeScript client by hand.

The TypeScript rules are those of its zod schemas (`ToolSchema`, `CallToolResultSchema`), read in versions 1.32 and 2.4.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = ("2026-07-28",)
assert set(LEGACY) <= set(HANDSHAKE_PROTOCOL_VERSIONS)
assert set(MODERN) <= set(MODERN_PROTOCOL_VERSIONS)

_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def check_tools(tools: list[dict[str, Any]]) -> None:
    """Raise unless every client can read a `tools/list` with these tools."""
    body = {"tools": tools}
    for version in LEGACY:
        methods.parse_server_result("tools/list", version, body)
    for version in MODERN:
        stamped = {**body, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        methods.parse_server_result("tools/list", version, stamped)
    for tool in tools:
        check_tool_as_typescript(tool)


def check_result(result: dict[str, Any]) -> None:
    """Raise unless every client can read this result of `tools/call`."""
    for version in LEGACY:
        methods.parse_server_result("tools/call", version, result)
    for version in MODERN:
        methods.parse_server_result("tools/call", version, {**result, "resultType": "complete"})
    check_result_as_typescript(result)


def check_tool_as_typescript(tool: dict[str, Any]) -> None:
    assert isinstance(tool["name"], str)
    _optional(tool, str, "title", "description")
    _optional(tool, dict, "_meta", "annotations", "execution", "outputSchema")
    _icons(tool)
    for schema in (tool["inputSchema"], tool.get("outputSchema", {"type": "object"})):
        assert schema["type"] == "object"
        _optional(schema, dict, "properties")
        assert all(isinstance(sub, dict) for sub in schema.get("properties", {}).values()), schema
        _optional(schema, list, "required")
        assert all(isinstance(name, str) for name in schema.get("required", [])), schema
    annotations = tool.get("annotations", {})
    _optional(annotations, str, "title")
    _optional(annotations, bool, "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    assert tool.get("execution", {}).get("taskSupport", "optional") in ("required", "optional", "forbidden")


def check_result_as_typescript(result: dict[str, Any]) -> None:
    _optional(result, dict, "_meta", "structuredContent")
    _optional(result, bool, "isError")
    meta = result.get("_meta", {})
    token = meta.get("progressToken", "")
    assert isinstance(token, str | int), token
    assert not isinstance(token, bool)
    assert isinstance(meta.get("io.modelcontextprotocol/related-task", {"taskId": ""})["taskId"], str)
    assert isinstance(result["content"], list)
    for block in result["content"]:
        _block(block)


def _block(block: dict[str, Any]) -> None:
    _optional(block, dict, "_meta")
    _annotations(block)
    kind = block["type"]
    if kind == "text":
        assert isinstance(block["text"], str)
    elif kind in ("image", "audio"):
        assert isinstance(block["mimeType"], str)
        assert atob_takes(block["data"]), block
    elif kind == "resource":
        resource = block["resource"]
        assert isinstance(resource["uri"], str)
        _optional(resource, str, "mimeType")
        _optional(resource, dict, "_meta")
        assert isinstance(resource.get("text"), str) or atob_takes(resource["blob"]), resource
    else:
        assert kind == "resource_link", kind
        assert isinstance(block["uri"], str)
        assert isinstance(block["name"], str)
        _optional(block, str, "title", "description", "mimeType")
        _optional(block, int, "size")
        _icons(block)


def atob_takes(data: object) -> bool:
    """The forgiving base64 decode of the HTML standard, which `atob` is."""
    if not isinstance(data, str):
        return False
    data = re.sub(r"[ \t\n\f\r]", "", data)
    if len(data) % 4 == 0:
        data = re.sub(r"={1,2}\Z", "", data)
    if len(data) % 4 == 1 or re.fullmatch(r"[A-Za-z0-9+/]*", data) is None:
        return False
    base64.b64decode(data + "=" * (-len(data) % 4))
    return True


def _annotations(block: dict[str, Any]) -> None:
    _optional(block, dict, "annotations")
    annotations = block.get("annotations", {})
    _optional(annotations, list, "audience")
    assert all(role in ("user", "assistant") for role in annotations.get("audience", []))
    priority = annotations.get("priority", 0)
    assert isinstance(priority, int | float), annotations
    assert not isinstance(priority, bool), annotations
    assert 0 <= priority <= 1, annotations
    _optional(annotations, str, "lastModified")
    assert _DATETIME.fullmatch(annotations.get("lastModified", "2025-01-01T00:00:00Z")), annotations


def _icons(holder: dict[str, Any]) -> None:
    _optional(holder, list, "icons")
    for icon in holder.get("icons", []):
        assert isinstance(icon["src"], str)
        _optional(icon, str, "mimeType")
        _optional(icon, list, "sizes")
        assert all(isinstance(size, str) for size in icon.get("sizes", []))
        assert icon.get("theme", "light") in ("light", "dark")


def _optional(holder: dict[str, Any], kind: type, *keys: str) -> None:
    for key in keys:
        if key in holder:
            assert isinstance(holder[key], kind), f"{key}: {json.dumps(holder[key])}"
