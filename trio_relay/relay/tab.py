"""One browser socket as the hub sees it: checks what it says, and moves its source in and out of the registry.

The states of a socket: greeted (no hello yet), live (a hello was accepted), withdrawn (its page's port died;
the socket stays for the next hello), gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import UnsetType

from trio_relay.config import origin_allowed
from trio_relay.core.pending import read_progress
from trio_relay.core.registry import Source
from trio_relay.core.tooldef import MAX_DEFINITION_BYTES, MAX_TOOLS, ToolDef, ToolRefused, parse_tool
from trio_relay.errors import ResultRefused, SourceLost
from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import Closed
from trio_relay.wire import browser
from trio_relay.wire.codec import Malformed, Maybe, as_number, as_text, find_call_id

if TYPE_CHECKING:
    from trio_relay.relay.hub import Hub

logger = logging.getLogger(__name__)

MAX_TAB_ID_CHARS = 256
MAX_URL_CHARS = 8_192
MAX_TITLE_CHARS = 1_024
MAX_ICON_CHARS = 4_096
"""Longest members of a hello, in characters: ids and URLs above it are refused, titles cut, icons left out."""

_RETRY = "The tool may have run: look at what it did, and call webmcp_list_tools, before you try again."


class Tab:
    """A socket of the browser protocol. Implements `links.source.SourceSink`.

    Args:
        origin: The Origin header, or None where the client sent none.
        outbox: Of this socket; calls to the tab are put there.
    """

    def __init__(self, hub: Hub, origin: str | None, remote: str, outbox: Outbox) -> None:
        self._hub = hub
        self._origin = origin
        self._remote = remote
        self.outbox = outbox
        self.source_id = str(uuid4())
        self.client = browser.BrowserClient()
        self.accepted = False
        self._said: set[str] = set()

    @property
    def origin_ok(self) -> bool:
        """False once the Origin header alone shows that this client may not register tools."""
        return self._origin is None or origin_allowed(self._origin, self._hub.config.allowed_origins)

    @property
    def label(self) -> str:
        source = self._hub.registry.source(self.source_id)
        return f"tab {source.tab_id[:40]!r}" if source is not None else f"browser socket {self._remote}"

    # -- frames

    def hello(self, hello: browser.Hello) -> browser.HelloRejected | None:
        origin = self._origin if self._origin is not None else as_text(hello.origin)
        if origin is None or not origin_allowed(origin, self._hub.config.allowed_origins):
            shown = "no origin" if origin is None else f"origin {origin[:200]!r}"
            logger.warning("%s: %s is not in --widget-origin; refused", self.label, shown)
            return browser.HelloRejected(
                "host-origin-not-allowed",
                f"{shown} is not allowed; start the relay with --widget-origin to allow it",
            )
        tab_id = _tab_id(hello.tabId)
        if tab_id is None:
            logger.warning("%s: hello without a usable tabId; refused", self.label)
            return browser.HelloRejected(
                "invalid-hello", f"tabId must be a string of 1 to {MAX_TAB_ID_CHARS} characters"
            )
        self.client = browser.decode_client(hello.client)
        title = _text(hello.title, None)
        now = self._hub.now_ms()
        source = Source(
            source_id=self.source_id,
            tab_id=tab_id,
            connected_at=now,
            last_seen_at=now,
            origin=_text(hello.origin, MAX_URL_CHARS) or self._origin,
            url=_text(hello.url, MAX_URL_CHARS),
            title=title[:MAX_TITLE_CHARS] if title is not None else None,
            icon_url=_text(hello.iconUrl, MAX_ICON_CHARS),
        )
        self.accepted = True
        self._hub.joined(self, source)
        return None

    def tools(self, tools: browser.ToolsList | browser.ToolsChanged) -> None:
        if self._hub.registry.source(self.source_id) is None:
            self._warn("early-tools", "tools before an accepted hello; ignored")
            return
        if isinstance(tools.tools, UnsetType) or memoryview(tools.tools).nbytes > MAX_DEFINITION_BYTES:
            self._warn("tools-size", f"a tools list that is missing or above {MAX_DEFINITION_BYTES} bytes; ignored")
            return
        try:
            items = browser.decode_tools(tools.tools)
        except Malformed:
            self._warn("tools-shape", "a tools list that is not an array; ignored")
            return
        self._hub.published(self, list(self._usable(items).values()))

    def _usable(self, items: list[msgspec.Raw]) -> dict[str, ToolDef]:
        """The tools that can be offered, by name. What is left out is logged, once per reason and tab."""
        usable: dict[str, ToolDef] = {}
        for position, item in enumerate(items):
            try:
                tool = parse_tool(bytes(item))
            except ToolRefused as refused:
                self._warn(f"tool-{position}-{refused}", f"tool {position} is left out: {refused}")
                continue
            if tool.name in usable:
                self._warn(f"twice-{tool.name}", f"tool {tool.name[:60]!r} is defined twice; the first one counts")
                continue
            if len(usable) == MAX_TOOLS:
                self._warn("too-many", f"more than {MAX_TOOLS} tools; the rest is left out")
                break
            usable[tool.name] = tool
        return usable

    def result(self, result: browser.Result | browser.PlainAnswer) -> None:
        call_id = result.callId if isinstance(result, browser.PlainAnswer) else as_text(result.callId)
        self._hub.seen(self)
        if call_id is None or not self._hub.pending.settle(self.source_id, call_id, result.result):
            logger.debug("%s: a result nobody waits for (callId %.60r)", self.label, call_id)

    def progress(self, frame: browser.Progress) -> None:
        call_id = as_text(frame.callId)
        progress = read_progress(frame.progress, frame.total, frame.message)
        if call_id is None or progress is None:
            logger.debug("%s: a progress frame without callId or progress; ignored", self.label)
            return
        if not self._hub.pending.progress(self.source_id, call_id, progress):
            logger.debug("%s: progress nobody waits for (callId %.60r)", self.label, call_id)

    def withdrawn(self, frame: browser.Disconnected) -> None:
        reason = (as_text(frame.reason) or "").strip()[:200]
        self._say_once(logging.INFO, "withdrawn", f"the page disconnected{f' ({reason})' if reason else ''}")
        detail = f": {reason}" if reason else ""
        self._hub.lost(self, SourceLost(f"The page disconnected before it answered{detail}. {_RETRY}"))

    def unreadable(self, data: bytes, why: str) -> None:
        """A frame that cannot be read still says, most of the time, which call it was meant to answer."""
        self._warn(f"unreadable-{why[:40]}", f"a message that cannot be read is ignored ({why[:200]})")
        call_id = find_call_id(data)
        if call_id is not None:
            error = ResultRefused(f"The page's answer cannot be read: {why[:200]}.")
            self._hub.pending.settle(self.source_id, call_id, error)

    def gone(self, closed: Closed) -> None:
        log = logger.info if self.accepted else logger.debug
        log("%s: closed (%s)", self.label, closed)
        self._hub.lost(self, SourceLost(_explain(closed, self._hub.config.max_payload)))
        self._hub.left(self)

    def _warn(self, key: str, text: str) -> None:
        self._say_once(logging.WARNING, key, text)

    def say_connected(self, text: str) -> None:
        self._say_once(logging.INFO, "connected", text)

    def _say_once(self, level: int, key: str, text: str) -> None:
        """Log each kind of event of a tab once: a page that repeats it may not fill the log."""
        if key in self._said or len(self._said) > 100:
            level = logging.DEBUG
        self._said.add(key)
        logger.log(level, "%s: %s", self.label, text)


def _explain(closed: Closed, max_payload: int) -> str:
    if closed.code == 1009 and closed.ours:
        return (
            f"The page's message is larger than the limit of {max_payload} bytes, so its connection was closed. "
            "Ask for less, or raise --max-payload."
        )
    how = (
        f"The relay closed the tab's connection before it answered ({closed.reason})"
        if closed.ours
        else "The tab closed its connection before it answered"
    )
    return f"{how}. {_RETRY}"


def _tab_id(raw: Maybe) -> str | None:
    """The tab id of a hello: a string, or a whole number as its digits."""
    text = as_text(raw)
    number = as_number(raw)
    if number is not None and len(number) <= MAX_TAB_ID_CHARS:
        try:
            value = msgspec.json.decode(number)
        except msgspec.DecodeError:  # 1e999 is no number to us
            return None
        text = str(int(value)) if value == int(value) else None
    return text if text and len(text) <= MAX_TAB_ID_CHARS else None


def _text(raw: Maybe, limit: int | None) -> str | None:
    """An optional string; None if it is absent, null, no string, empty or longer than `limit`."""
    text = as_text(raw)
    return text if text and (limit is None or len(text) <= limit) else None
