"""The tools of providers: read from what a provider lists, joined into one catalogue under public names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, Struct

from trio_relay.core import limits
from trio_relay.core.backend import RefusedView, ToolView
from trio_relay.core.registry import MAX_TITLE_CHARS, clean
from trio_relay.core.text import tidy
from trio_relay.core.tooldef import MAX_DEFINITION_BYTES, MAX_TOOLS, ToolDef, ToolRefused, parse_tool
from trio_relay.wire.codec import Malformed, Maybe, as_text, encode


@dataclass(frozen=True, slots=True)
class Offered:
    """What a provider lists: the tools that are well formed, in its order, and the others."""

    tools: tuple[ToolDef, ...] = ()
    refused: tuple[RefusedView, ...] = ()


@dataclass(frozen=True, slots=True)
class Shelf:
    """The tools of one provider and what is shown of it."""

    extension_id: str
    namespace: str
    name: str
    offered: Offered


def read_tools(pages: Iterable[Sequence[Raw]]) -> Offered:
    """Bring definitions into shape, each for itself. Beyond the caps of a tab (512, 2 MiB) they are only counted."""
    tools: list[ToolDef] = []
    refused: list[RefusedView] = []
    size = number = beyond = 0
    for page in pages:
        for raw in page:
            number += 1
            size += memoryview(raw).nbytes
            if number > MAX_TOOLS or size > MAX_DEFINITION_BYTES:
                beyond += 1
                continue
            try:
                tools.append(parse_tool(bytes(raw)))
            except ToolRefused as error:
                refused.append(RefusedView(_name_of(raw) or f"tool {number}", str(error)))
    if beyond:
        reason = f"a provider may list {MAX_TOOLS} tools and {MAX_DEFINITION_BYTES >> 20} MiB of definitions"
        refused.append(RefusedView(f"{beyond} more", reason))
    return Offered(tuple(tools), _capped(refused))


class Catalogue:
    """Every tool of the given providers that is offered, by public name.

    Args:
        shelves: In the order of the configuration; of two tools with one name the first wins.
        taken: Names that are never given away.
    """

    def __init__(self, shelves: Sequence[Shelf] = (), taken: frozenset[str] = frozenset()) -> None:
        self._shelves = {shelf.extension_id: shelf for shelf in shelves}
        offers = [
            limits.Offer(shelf.extension_id, shelf.namespace, [tool.name for tool in shelf.offered.tools])
            for shelf in shelves
        ]
        self._routes = limits.route(offers, taken)
        self._texts = {public: self._text(public, route) for public, route in self._routes.by_name.items()}
        self.print = hash(b",".join(self._texts.values()))

    def names(self) -> frozenset[str]:
        return frozenset(self._texts)

    def listing(self) -> list[bytes]:
        """One JSON text per provider with tools: them, separated by commas."""
        groups: dict[str, list[bytes]] = {}
        for public, route in self._routes.by_name.items():
            groups.setdefault(route.extension_id, []).append(self._texts[public])
        return [b",".join(texts) for texts in groups.values()]

    def tools(self) -> Iterator[ToolView]:
        for public, route in self._routes.by_name.items():
            yield ToolView(name=public, original_name=route.tool, definition=self._texts[public], source_ids=())

    def find(self, public: str) -> tuple[str, ToolDef] | None:
        """The provider and the tool that a public name means."""
        route = self._routes.by_name.get(public)
        return None if route is None else (route.extension_id, self._tool(route))

    def count(self, extension_id: str) -> int:
        return self._routes.count(extension_id)

    def refused(self, extension_id: str) -> tuple[RefusedView, ...]:
        """What a provider lists that is not offered, whatever the reason."""
        routed = self._routes.refused.get(extension_id, ())
        shelf = self._shelves.get(extension_id)
        own = () if shelf is None else shelf.offered.refused
        return (*own, *(RefusedView(item.tool, item.reason) for item in routed))

    def _tool(self, route: limits.Route) -> ToolDef:
        return self._shelves[route.extension_id].offered.tools[route.index]

    def _text(self, public: str, route: limits.Route) -> bytes:
        tool = self._tool(route)
        prefix = f"[Extension {clean(self._shelves[route.extension_id].name, MAX_TITLE_CHARS)}] "
        description = (prefix + tool.description).rstrip(" ")
        return b'{"name":' + encode(public) + b',"description":' + encode(description) + tool.rest + b"}"


class _Named(Struct, frozen=True):
    name: Maybe = UNSET


_named = msgspec.json.Decoder(_Named)


def _capped(refused: list[RefusedView]) -> tuple[RefusedView, ...]:
    more = len(refused) - limits.MAX_REFUSED_SHOWN
    if more <= 0:
        return tuple(refused)
    return (*refused[: limits.MAX_REFUSED_SHOWN], RefusedView("…", f"and {more} more"))


def _name_of(raw: Raw) -> str:
    try:
        name = as_text(_named.decode(raw).name)
    except (msgspec.DecodeError, RecursionError, Malformed):
        return ""
    return "" if name is None else tidy(name, limits.MAX_SHOWN_CHARS)
