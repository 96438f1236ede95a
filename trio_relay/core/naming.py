"""Public tool names: which name each tab's tool is listed under, and which tool a name reaches.

The rule (docs/protocol.md, "Names"): characters outside `[A-Za-z0-9_]` become `_`; one tab with a tool has the
bare name; several tabs with it each get `_` and the first four characters of their tab id; what still
collides gets `_2`, `_3`, … . A name, once given, stays with its tab while that tab is connected: an agent in
the middle of a task never finds that its tool's name now reaches another page.

Knows nothing of sockets or definitions: a tab is a string, a tool is a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_NAME = 128
"""Longest tool name MCP clients accept, in characters."""

TAB_PREFIX = 4
MANAGEMENT_TOOLS = ("webmcp_list_sources", "webmcp_list_tools", "webmcp_open_page", "webmcp_tool_call")

MAX_REMEMBERED = 2048
"""Names kept per tab for tools it no longer offers; a page that invents names for ever may not fill our memory."""

_OTHER = re.compile(r"[^A-Za-z0-9_]")


class Key(NamedTuple):
    """A tool of a tab, under the page's own name. Sorts in code-point order of (tool, tab)."""

    tool: str
    tab: str


def sanitise(name: str) -> str:
    return _OTHER.sub("_", name)


def with_suffix(stem: str, suffix: str) -> str:
    """`stem` and `suffix` in at most 128 characters; the stem is what gets cut."""
    return stem[: MAX_NAME - len(suffix)] + suffix


class _Name(NamedTuple):
    text: str
    stem: str  # the text before a number was added


class _Given:
    """The names of one tool of one tab."""

    __slots__ = ("current", "retired", "shared")

    def __init__(self, current: _Name, *, shared: bool) -> None:
        self.current = current
        self.shared = shared  # True once it has the tab's suffix
        self.retired: _Name | None = None  # the bare name it had before


class _Stem:
    """Numbers in use after one stem. `next` is where to look for a free one."""

    __slots__ = ("next", "used")

    def __init__(self) -> None:
        self.next = 2
        self.used = 0


class Names:
    """The only owner of the table of public names.

    Work per change is in proportion to the tools named in it, plus, for each, at most one tool of another tab
    whose bare name has to become a suffixed one.
    """

    def __init__(self) -> None:
        self._reserved = frozenset(MANAGEMENT_TOOLS)
        self._holders: dict[str, Key] = {}  # every name a connected tab holds, current or retired
        self._given: dict[str, dict[str, _Given]] = {}  # tab -> tool -> names; oldest first
        self._live: dict[str, dict[str, None]] = {}  # tool -> tabs that offer it now
        self._stems: dict[str, _Stem] = {}

    def __repr__(self) -> str:
        return f"<Names: {len(self._holders)} names of {len(self._given)} tabs>"

    def public(self, key: Key) -> str:
        """The name a live tool is listed under. Raises KeyError for one that was never added."""
        return self._given[key.tab][key.tool].current.text

    def resolve(self, name: str) -> Key | None:
        """The tool that a current or retired name means; it may no longer be live."""
        return self._holders.get(name)

    def add(self, tab: str, tools: Iterable[str]) -> list[Key]:
        """Make tools of a tab live and name them.

        Returns:
            Tools of *other* tabs that are now listed under another name.
        """
        given = self._given.setdefault(tab, {})
        renamed: list[Key] = []
        for tool in sorted(tools):
            live = self._live.setdefault(tool, {})
            affected = [tab]
            if len(live) == 1 and tab not in live:
                affected += live  # the one that may still have the bare name
            live[tab] = None
            shared = len(live) > 1 or self._taken_by_other(tool, tab)
            for each in sorted(affected):
                if self._name(Key(tool, each), shared=shared) and each != tab:
                    renamed.append(Key(tool, each))
        if len(given) > MAX_REMEMBERED:
            self._forget_oldest(tab)
        return renamed

    def reserve(self, names: Iterable[str]) -> list[Key]:
        """From now on these names, and the management tools', are not for tabs. What was reserved before is free.

        A tab that holds one loses it at once: a call by that name must reach the tool it now belongs to.

        Returns:
            Tools that have another name now, listed or not.
        """
        self._reserved = frozenset(MANAGEMENT_TOOLS) | frozenset(names)
        renamed: list[Key] = []
        for name in sorted(self._reserved & self._holders.keys()):
            key = self._holders[name]
            given = self._given[key.tab][key.tool]
            if given.retired is not None and given.retired.text == name:
                self._release(given.retired)
                given.retired = None
            else:
                self._release(given.current)
                given.current, given.shared = self._allocate(key, shared=True), True
                renamed.append(key)
        return renamed

    def adopt(self, key: Key, public: str) -> None:
        """Reserve the name another relay gave a tool, for `add` to find; not if it is taken or no legal name.

        A name with its tab's suffix stays; a bare one can still become a suffixed one.
        """
        given = self._given.setdefault(key.tab, {})
        if key.tool in given or not self._is_free(public) or len(public) > MAX_NAME or sanitise(public) != public:
            return
        use = self._stems.setdefault(public, _Stem())
        use.used += 1
        self._holders[public] = key
        given[key.tool] = _Given(_Name(public, public), shared=public != sanitise(key.tool)[:MAX_NAME])

    def adopt_retired(self, key: Key, name: str) -> None:
        """A name that another relay has retired goes on reaching its tool here too, if it is free."""
        names = self._given[key.tab][key.tool]
        if names.retired is None and self._is_free(name):
            self._stems.setdefault(name, _Stem()).used += 1
            self._holders[name] = key
            names.retired = _Name(name, name)

    def remove(self, tab: str, tools: Iterable[str]) -> None:
        """These tools are no longer offered by the tab; their names stay the tab's while it is connected."""
        for tool in tools:
            live = self._live.get(tool)
            if live is not None:
                live.pop(tab, None)
                if not live:
                    del self._live[tool]

    def forget(self, tab: str) -> None:
        """The tab is gone: its names are free again."""
        given = self._given.pop(tab, {})
        self.remove(tab, given)
        for names in given.values():
            self._release_all(names)

    def _taken_by_other(self, tool: str, tab: str) -> bool:
        """Whether another tab holds the bare name for its tool of this name, listed or not."""
        holder = self._holders.get(sanitise(tool)[:MAX_NAME])
        return holder is not None and holder.tool == tool and holder.tab != tab

    def _name(self, key: Key, *, shared: bool) -> bool:
        """Give a tool a name, or its tab's suffix if it has none yet. True if its name is another now."""
        given = self._given[key.tab]
        names = given.get(key.tool)
        if names is None:
            given[key.tool] = _Given(self._allocate(key, shared=shared), shared=shared)
            return True
        if names.shared or not shared:
            return False
        names.shared, names.retired = True, names.current
        names.current = self._allocate(key, shared=True)
        return True

    def _allocate(self, key: Key, *, shared: bool) -> _Name:
        base = sanitise(key.tool)
        text = stem = with_suffix(base, "_" + sanitise(key.tab)[:TAB_PREFIX]) if shared else base[:MAX_NAME]
        use = self._stems.setdefault(stem, _Stem())
        use.used += 1
        if not self._is_free(text):
            while not self._is_free(text := with_suffix(stem, f"_{use.next}")):
                use.next += 1
            use.next += 1
        self._holders[text] = key
        return _Name(text, stem)

    def _is_free(self, text: str) -> bool:
        return text not in self._holders and text not in self._reserved

    def _release_all(self, names: _Given) -> None:
        self._release(names.current)
        if names.retired is not None:
            self._release(names.retired)

    def _release(self, name: _Name) -> None:
        del self._holders[name.text]
        use = self._stems[name.stem]
        use.used -= 1
        if use.used == 0:
            del self._stems[name.stem]
        else:
            number = name.text.rpartition("_")[2]
            if name.text != name.stem and int(number) < use.next:
                use.next = int(number)

    def _forget_oldest(self, tab: str) -> None:
        given = self._given[tab]
        for tool in [tool for tool in given if tab not in self._live.get(tool, ())]:
            if len(given) <= MAX_REMEMBERED:
                return
            self._release_all(given.pop(tool))
