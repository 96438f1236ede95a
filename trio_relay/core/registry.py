"""The sources that are connected and the tools they offer. Synchronous, and the only owner of both.

Every change costs work in proportion to the tools of the tab it is about. Listings are assembled from bytes
kept per tab, and two running fingerprints tell whether a client would see any difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from trio_relay.core.backend import Change, SourceView, Target, ToolView
from trio_relay.core.naming import Key, Names
from trio_relay.core.tooldef import ToolDef
from trio_relay.errors import SourceNotFound, ToolNotFound
from trio_relay.wire.codec import encode

MAX_TITLE_CHARS = 80
"""How much of a tab's title stands in descriptions; enough to tell tabs apart, too little to argue with a model."""

_CLEAN = str.maketrans({"[": "(", "]": ")"})


@dataclass(slots=True, eq=False)
class Source:
    """One browser socket after its hello. Times in milliseconds since 1970."""

    source_id: str
    tab_id: str
    connected_at: int
    last_seen_at: int
    origin: str | None = None
    url: str | None = None
    title: str | None = None
    icon_url: str | None = None
    recency: int = 0  # higher is more recently seen; exact where clocks are not
    kept: bool = False  # of an earlier relay server: its tab is expected back
    tools: dict[str, ToolDef] = field(default_factory=dict)

    def view(self) -> SourceView:
        return SourceView(
            source_id=self.source_id,
            tab_id=self.tab_id,
            connected_at=self.connected_at,
            last_seen_at=self.last_seen_at,
            tool_count=len(self.tools),
            origin=self.origin,
            url=self.url,
            title=self.title,
            icon_url=self.icon_url,
        )


@dataclass(slots=True, eq=False)
class _Tab:
    """All sources with one tab id (usually one), and what they offer together."""

    tab_id: str
    sources: dict[str, Source] = field(default_factory=dict)
    tools: dict[str, ToolDef] = field(default_factory=dict)  # the latest definition of each tool
    names_print: int = 0
    titles_print: int = 0
    title: str = ""  # as it stands in descriptions: of the source seen last when the tab last changed
    listing: bytes | None = None

    def latest(self) -> Source:
        return max(self.sources.values(), key=lambda source: source.recency)


class Registry:
    """See the module.

    Attributes:
        rows: Counts changes of the sources and of who offers what, which no `tools/list` shows: other relays follow it.
    """

    def __init__(self) -> None:
        self._names = Names()
        self._sources: dict[str, Source] = {}
        self._tabs: dict[str, _Tab] = {}
        self._recency = count(1)
        self._names_print = 0
        self._titles_print = 0
        self.rows = 0

    def __repr__(self) -> str:
        tools = sum(len(tab.tools) for tab in self._tabs.values())
        return f"<Registry: {len(self._sources)} sources, {tools} tools>"

    # -- changes

    def join(self, source: Source, now: int) -> None:
        """A hello was accepted: the source appears, or its row (and its tab id) changes.

        A source that changes its tab id takes its tools along.
        """
        self.rows += 1
        old = self._sources.get(source.source_id)
        tools: Sequence[ToolDef] = ()
        if old is not None:
            source.connected_at = old.connected_at
            if old.tab_id == source.tab_id:
                source.tools = old.tools
            else:
                tools = list(old.tools.values())
                self.remove(source.source_id)
        self._sources[source.source_id] = source
        tab = self._tabs.setdefault(source.tab_id, _Tab(source.tab_id))
        tab.sources[source.source_id] = source
        self.touch(source.source_id, now)
        if tools:
            self.publish(source.source_id, tools, now)
        else:
            self._refresh(tab)

    def publish(self, source_id: str, tools: Sequence[ToolDef], now: int) -> None:
        """Replace the tools of a source. Names must be unique within `tools`."""
        source = self._sources[source_id]
        self.touch(source_id, now)
        self.rows += 1
        source.tools = {tool.name: tool for tool in tools}
        tab = self._tabs[source.tab_id]
        for kept in [other for other in tab.sources.values() if other.kept and other.origin == source.origin]:
            # The tab is back, and says itself what it offers.
            del tab.sources[kept.source_id], self._sources[kept.source_id]
        self._merge(tab, source)

    def remove(self, source_id: str) -> None:
        """The source is gone, and with its last source a tab gives its names back."""
        source = self._sources.pop(source_id, None)
        if source is None:
            return
        self.rows += 1
        tab = self._tabs[source.tab_id]
        del tab.sources[source_id]
        if tab.sources:
            self._merge(tab, None)
            return
        self._names_print ^= tab.names_print
        self._titles_print ^= tab.titles_print
        self._names.forget(tab.tab_id)
        del self._tabs[tab.tab_id]

    def mirror(self, source: Source, tools: dict[str, ToolDef]) -> None:
        """Show a source as another relay lists it.

        Args:
            tools: By the public name they have there; each with the page's own name, as far as it is known.
        """
        self._sources[source.source_id] = source
        source.recency = next(self._recency)
        source.tools = {tool.name: tool for tool in tools.values()}
        tab = self._tabs.setdefault(source.tab_id, _Tab(source.tab_id))
        tab.sources[source.source_id] = source
        for public, tool in tools.items():
            self._names.adopt(Key(tool.name, source.tab_id), public)
        self.rows += 1
        self._merge(tab, source)

    def mirror_retired(self, tool: str, tab_id: str, name: str) -> None:
        """The other relay listed this tool under another name before; the tool is mirrored already."""
        self._names.adopt_retired(Key(tool, tab_id), name)

    def reserve(self, names: Iterable[str]) -> None:
        """Names that tools of tabs may not have, as other tools of this relay have them (see `Names.reserve`)."""
        renamed = {key.tab for key in self._names.reserve(names)}
        self.rows += bool(renamed)
        for tab_id in renamed & self._tabs.keys():
            self._refresh(self._tabs[tab_id])

    def keep_all(self) -> None:
        """The relay server that had these sources is gone: they are expected back."""
        for source in self._sources.values():
            source.kept = True

    def drop_kept(self) -> int:
        """Forget the sources that did not come back. Returns how many."""
        kept = [source.source_id for source in self._sources.values() if source.kept]
        for source_id in kept:
            self.remove(source_id)
        return len(kept)

    def touch(self, source_id: str, now: int) -> None:
        """The source has just been seen; among sources of one tab it now serves the calls."""
        source = self._sources[source_id]
        source.last_seen_at = now
        source.recency = next(self._recency)

    def _merge(self, tab: _Tab, latest: Source | None) -> None:
        """Bring a tab's tools in line with its sources; `latest` has just published."""
        merged: dict[str, ToolDef] = {}
        others = sorted(
            (source for source in tab.sources.values() if source is not latest), key=lambda source: source.recency
        )
        for source in [*others, *([latest] if latest is not None else [])]:
            merged.update(source.tools)
        gone = tab.tools.keys() - merged.keys()
        new = merged.keys() - tab.tools.keys()
        tab.tools = merged
        self._names.remove(tab.tab_id, gone)
        renamed = self._names.add(tab.tab_id, new)
        self._refresh(tab)
        for other in {key.tab for key in renamed}:
            self._refresh(self._tabs[other])

    def _refresh(self, tab: _Tab) -> None:
        """What clients see of this tab may have changed: drop its kept bytes, recompute its fingerprints."""
        tab.listing = None
        tab.title = _clean_title(tab.latest().title)
        names_print, titles_print = 0, 0
        for name, tool in tab.tools.items():
            public = self._names.public(Key(name, tab.tab_id))
            names_print ^= hash((public, tab.tab_id, tool.description.rstrip(" "), tool.rest))
        if tab.tools:
            titles_print = hash((tab.tab_id, tab.title))
        self._names_print ^= tab.names_print ^ names_print
        self._titles_print ^= tab.titles_print ^ titles_print
        tab.names_print, tab.titles_print = names_print, titles_print

    # -- what is there

    def change(self) -> Change:
        return Change(self._names_print, self._titles_print)

    def source(self, source_id: str) -> Source | None:
        return self._sources.get(source_id)

    def sources(self) -> list[SourceView]:
        return [source.view() for source in self._sources.values()]

    def newest_first(self) -> list[Source]:
        return sorted(self._sources.values(), key=lambda source: -source.recency)

    def listing(self) -> list[bytes]:
        """The catalogue, one text per tab with tools (see `ToolBackend.listing`)."""
        texts: list[bytes] = []
        for tab in self._tabs.values():
            if tab.listing is None:
                tab.listing = b",".join(self._define(tab, tool) for tool in tab.tools.values())
            if tab.listing:
                texts.append(tab.listing)
        return texts

    def owners(self) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Two maps by public name: the sources that offer a tool, and the page's own name for it."""
        sources: dict[str, tuple[str, ...]] = {}
        originals: dict[str, str] = {}
        for tool in self.tools():
            sources[tool.name] = tool.source_ids
            originals[tool.name] = tool.original_name
        return sources, originals

    def tools(self) -> Iterator[ToolView]:
        for tab in self._tabs.values():
            for name, tool in tab.tools.items():
                serving = sorted(
                    (source for source in tab.sources.values() if name in source.tools),
                    key=lambda source: -source.recency,
                )
                yield ToolView(
                    name=self._names.public(Key(name, tab.tab_id)),
                    original_name=name,
                    definition=self._define(tab, tool),
                    source_ids=tuple(source.source_id for source in serving),
                )

    def _define(self, tab: _Tab, tool: ToolDef) -> bytes:
        public = self._names.public(Key(tool.name, tab.tab_id))
        description = (source_prefix(tab.tab_id, tab.title) + tool.description).rstrip(" ")
        return b'{"name":' + encode(public) + b',"description":' + encode(description) + tool.rest + b"}"

    # -- where a call goes

    def resolve(self, name: str, target: Target | None = None) -> tuple[Source, ToolDef]:
        """The source and the definition a call means.

        Raises:
            ToolNotFound, SourceNotFound: saying what to do about it.
        """
        key = self._names.resolve(name)
        if target is not None and (target.source_id is not None or target.tab_id is not None):
            return self._resolve_in(self._targeted(target), name, key, target)
        if key is None:
            raise ToolNotFound(
                f"There is no tool {name!r}. Its tab may have been closed or reloaded: "
                "call webmcp_list_tools to see what is there now."
            )
        tab = self._tabs.get(key.tab)
        found = self._serving(tab.sources.values() if tab is not None else (), (key.tool,))
        if found is None:
            raise ToolNotFound(
                f"The tab that had {name!r} is still open but no longer offers it: "
                "call webmcp_list_tools to see what is there now."
            )
        return found

    def _targeted(self, target: Target) -> list[Source]:
        """The sources a target names: an exact source id, else a tab id; `tab_id` is strict."""
        found: list[Source] = []
        if target.source_id is not None:
            exact = self._sources.get(target.source_id)
            tab = self._tabs.get(target.source_id)
            found = [exact] if exact is not None else list(tab.sources.values()) if tab is not None else []
            if target.tab_id is not None:
                found = [source for source in found if source.tab_id == target.tab_id]
        elif target.tab_id is not None and target.tab_id in self._tabs:
            found = list(self._tabs[target.tab_id].sources.values())
        if not found:
            wanted = " and ".join(
                f"{label} {value!r}"
                for label, value in (("sourceId", target.source_id), ("requestTabId", target.tab_id))
                if value is not None
            )
            raise SourceNotFound(
                f"No connected tab has {wanted}: call webmcp_list_sources to see which tabs are connected."
            )
        return found

    def _resolve_in(self, sources: list[Source], name: str, key: Key | None, target: Target) -> tuple[Source, ToolDef]:
        """A named tool within given sources: as one of their public names, or as the page's own name."""
        own = {source.tab_id for source in sources}
        if key is not None and key.tab in own:
            names: tuple[str, ...] = (key.tool, name)
        else:
            # The public name of the same tool in another tab: the target decides the tab, the name the tool.
            names = (name,) if key is None else (name, key.tool)
        found = self._serving(sources, names)
        if found is None:
            wanted = target.source_id if target.source_id is not None else target.tab_id
            raise ToolNotFound(
                f"The tab {wanted!r} offers no tool {name!r}: call webmcp_list_tools to see what it offers."
            )
        return found

    @staticmethod
    def _serving(sources: Iterable[Source], names: tuple[str, ...]) -> tuple[Source, ToolDef] | None:
        """The most recently seen of `sources` with one of `names`, the first name first."""
        newest = sorted(sources, key=lambda source: -source.recency)
        for name in names:
            for source in newest:
                if name in source.tools:
                    return source, source.tools[name]
        return None


def source_prefix(tab_id: str, title: str | None) -> str:
    """What stands in front of the description of a tab's tool."""
    cleaned = _clean_title(title)
    where = clean(tab_id, MAX_TITLE_CHARS) + (f" • {cleaned}" if cleaned else "")
    return f"[WebMCP {where}] "


def clean(text: str, limit: int) -> str:
    """Text of a page or an extension made harmless inside `[…]`: one line, no brackets, cut."""
    printable = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    cleaned = " ".join(printable.translate(_CLEAN).split())
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def _clean_title(title: str | None) -> str:
    return clean(title, MAX_TITLE_CHARS) if title else ""
