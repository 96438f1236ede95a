"""The four `webmcp_*` tools, and the one place where a tool's name decides who answers."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from msgspec import Raw, Struct

from trio_relay.core.backend import SourceView, ToolBackend, ToolView
from trio_relay.core.indirect import IndirectCall, read_indirect_call
from trio_relay.core.naming import MANAGEMENT_TOOLS
from trio_relay.core.pending import OnProgress
from trio_relay.core.results import CallResult
from trio_relay.core.schema import first_violation
from trio_relay.errors import InvalidArguments, NotSent
from trio_relay.relay.urls import origin_of
from trio_relay.wire.codec import encode, one_line

OPENER_S = 10.0
"""Seconds the system's opener has; some wait for the browser they started."""


class _OpenArgs(Struct):
    url: str
    refresh: bool = False


_READ_ONLY = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_NOTHING = {"type": "object", "properties": {}}

DEFINITIONS: tuple[dict[str, Any], ...] = (
    {
        "name": "webmcp_list_sources",
        "title": "List browser tabs",
        "description": "Lists the browser tabs that are connected, with title, URL, origin and number of tools. "
        "Tabs without tools are listed too, and configured provider extensions with what stands in their way.",
        "inputSchema": _NOTHING,
        "annotations": _READ_ONLY,
    },
    {
        "name": "webmcp_list_tools",
        "title": "List tools of browser tabs",
        "description": "Lists every tool the connected tabs offer, with the name to call it by, the page's own name "
        "for it and the tabs it belongs to.",
        "inputSchema": _NOTHING,
        "annotations": _READ_ONLY,
    },
    {
        "name": "webmcp_open_page",
        "title": "Open or reload a page",
        "description": "Opens an http or https URL in the browser. With refresh, reloads the connected tab that has "
        "the URL's origin instead.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "url": {"type": "string", "description": "An http or https URL."},
                "refresh": {"type": "boolean", "description": "Reload the connected tab of this origin instead."},
            },
            "required": ["url"],
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
    },
    {
        "name": "webmcp_tool_call",
        "title": "Call a tool of a browser tab",
        "description": "Calls a tool by its public name, in a given tab if one is named: for clients that do not see "
        "tools that appeared later, and for tools that several tabs share.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "toolName": {
                    "type": "string",
                    "description": "Name from webmcp_list_tools; the page's own name too where a tab is given.",
                },
                "args": {"type": "object", "description": "The tool's arguments."},
                "sourceId": {
                    "anyOf": [{"type": "string"}, {"type": "integer"}],
                    "description": "Call it in this source (from webmcp_list_sources), or else in this tab id.",
                },
                "requestTabId": {
                    "anyOf": [{"type": "string"}, {"type": "integer"}],
                    "description": "Call it in this tab id, nowhere else.",
                },
            },
            "required": ["toolName"],
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    },
)
LISTING = b",".join(map(encode, DEFINITIONS))
_SCHEMAS = {definition["name"]: encode(definition["inputSchema"]) for definition in DEFINITIONS}


class Tools:
    """Every tool a client sees: the four of this module, and the backend's.

    Args:
        opener: Opens a URL on this machine and says whether it could; the system's own by default.
    """

    def __init__(self, backend: ToolBackend, opener: Callable[[str], Awaitable[str | None]] | None = None) -> None:
        self._backend = backend
        self._opener = opener or open_on_this_machine

    def call(self, name: str, args: Raw, on_progress: OnProgress | None = None) -> Awaitable[CallResult]:
        """Call any tool by the name a client uses; like `ToolBackend.call`."""
        if name not in MANAGEMENT_TOOLS:
            return self._backend.call(name, args, on_progress=on_progress)
        return self._manage(name, args, on_progress)

    async def _manage(self, name: str, args: Raw, on_progress: OnProgress | None) -> CallResult:
        violation = first_violation(_SCHEMAS[name], args)
        if violation is not None:
            raise InvalidArguments(f"The arguments of {name} do not match its inputSchema at {violation}")
        match name:
            case "webmcp_list_sources":
                return self._list_sources()
            case "webmcp_list_tools":
                return self._list_tools()
            case "webmcp_open_page":
                return await self._open_page(_decode(args, _OpenArgs))
            case _:
                return await self._tool_call(read_indirect_call(args), on_progress)

    def _list_sources(self) -> CallResult:
        sources = self._backend.sources()
        body: dict[str, Any] = {"count": len(sources), "sources": sources}
        self._backend.asked()
        providers = self._backend.provider_rows()
        if providers:
            body["providers"] = providers
        mode = self._backend.info()["mode"]
        if mode != "server":
            body["mode"] = mode
        return _structured(encode(body))

    def _list_tools(self) -> CallResult:
        self._backend.asked()
        rows = {source.source_id: _row(source) for source in self._backend.sources()}
        tools = b",".join(_describe(tool, rows) for tool in self._backend.tools())
        count = sum(1 for _ in self._backend.tools())
        return _structured(b'{"count":%d,"tools":[' % count + tools + b"]}")

    async def _open_page(self, args: _OpenArgs) -> CallResult:
        origin = _http_origin(args.url)
        if args.refresh:
            source = self._backend.refresh(origin)
            return _text(f"Reloading the tab {source.title or source.tab_id!r} ({source.url or origin}).")
        if self._backend.open_in_browser(args.url):
            return _text(f"Asked the connected browser to open {args.url}")
        problem = await self._opener(args.url)
        if problem is not None:
            raise NotSent(f"No browser could be opened for {args.url}: {problem}")
        return _text(f"Opened {args.url} in the default browser.")

    async def _tool_call(self, call: IndirectCall, on_progress: OnProgress | None) -> CallResult:
        if call.tool in MANAGEMENT_TOOLS:
            raise InvalidArguments(f"{call.tool} is not a tool of a page: call it directly.")
        return await self._backend.call(call.tool, call.args, target=call.target, on_progress=on_progress)


def _decode(args: Raw, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(args, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"The arguments do not match the tool's inputSchema: {error}") from None


def _row(source: SourceView) -> dict[str, Any]:
    row = {"sourceId": source.source_id, "tabId": source.tab_id}
    optional = {"title": source.title, "url": source.url, "origin": source.origin}
    return row | {key: value for key, value in optional.items() if value is not None}


def _describe(tool: ToolView, rows: dict[str, dict[str, Any]]) -> bytes:
    sources = encode([rows[source_id] for source_id in tool.source_ids if source_id in rows])
    own = b',"originalName":' + encode(tool.original_name) + b',"sources":' + sources + b"}"
    return tool.definition[:-1] + own


def _structured(json: bytes) -> CallResult:
    """A result whose text and structuredContent are the same JSON."""
    json = one_line(json)
    text = one_line(encode({"type": "text", "text": json.decode()}))
    body = b'{"content":[' + text + b'],"structuredContent":' + json + b"}"
    return CallResult((body,), structured=Raw(json))


def _text(text: str) -> CallResult:
    return CallResult((one_line(encode({"content": [{"type": "text", "text": text}]})),))


def _http_origin(url: str) -> str:
    """The origin of an http(s) URL, as browsers write it. Raises `InvalidArguments` for anything else."""
    origin = origin_of(url)
    if origin is None or not origin.startswith(("http://", "https://")) or not url.isprintable() or " " in url:
        raise InvalidArguments(f"url must be an http or https URL, not {url[:200]!r}")
    return origin


async def open_on_this_machine(url: str) -> str | None:
    """Open a URL with the system's opener. Returns None, or why that was not possible."""
    if sys.platform.startswith("linux") and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return (
            "this process has no display (MCP clients pass no DISPLAY on). Open the page by hand, or add "
            '"env": {"DISPLAY": ":0"} to the client\'s configuration'
        )
    opened: bool | None = None
    with trio.move_on_after(OPENER_S):
        opened = await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)
    return None if opened else "no browser was found on this machine"
