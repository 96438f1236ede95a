"""A registry with a clock, for tests: tabs join, publish and go; what a client sees is asked for in words."""

from __future__ import annotations

import json
from typing import Any

from trio_relay.core.backend import Target
from trio_relay.core.registry import Registry, Source
from trio_relay.core.tooldef import ToolDef, parse_tool


def defined(name: str, description: str = "", **members: object) -> ToolDef:
    return parse_tool(json.dumps({"name": name, "description": description, **members}).encode())


class Desk:
    """A registry, and a clock that moves with every event."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.now = 1000

    def tick(self) -> int:
        self.now += 1
        return self.now

    def join(self, source_id: str, tab_id: str, title: str | None = None) -> None:
        now = self.tick()
        self.registry.join(Source(source_id, tab_id, now, now, title=title), now)

    def publish(self, source_id: str, *tools: ToolDef | str) -> None:
        definitions = [defined(tool) if isinstance(tool, str) else tool for tool in tools]
        self.registry.publish(source_id, definitions, self.tick())

    def touch(self, source_id: str) -> None:
        self.registry.touch(source_id, self.tick())

    def listed(self) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = json.loads(b"[" + b",".join(self.registry.listing()) + b"]")
        return tools

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.listed()]

    def reach(self, name: str, source_id: str | None = None, tab_id: str | None = None) -> tuple[str, str]:
        """The source and the page's own name that a call reaches."""
        source, tool = self.registry.resolve(name, Target(source_id, tab_id))
        return source.source_id, tool.name
