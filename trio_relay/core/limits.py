"""Which tools of a provider are offered, under which names, and where a call by such a name goes.

The combined length comes from a hard limit of model providers (64 characters): do not widen it. A name is looked up
in a table and never split at its separator: `a_b` + `c` and `a` + `b_c` are one name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trio_relay.core.text import tidy

MAX_TOOLS = 64
MAX_NAMESPACE_CHARS = 16
MAX_NAME_CHARS = 40
MAX_COMBINED_CHARS = 57
RESERVED = frozenset({"browser", "page", "file", "network", "devtools", "webmcp", "ext"})

MAX_REFUSED_SHOWN = 100
"""Refused tools of one provider that are listed by name; the rest is counted."""
MAX_SHOWN_CHARS = 80

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Refused:
    """A tool that is not offered, and why. `tool` is the provider's own name, cut at 80 characters."""

    tool: str
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one provider, by its own names and in its order."""

    extension_id: str
    namespace: str
    tools: Sequence[str]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes.

    Attributes:
        tool: The provider's own name.
        index: Position in `Offer.tools`: of two tools with one name, the first is meant.
    """

    extension_id: str
    tool: str
    index: int


@dataclass(frozen=True, slots=True)
class Routes:
    """What is offered, and what is not.

    Attributes:
        by_name: Public name to route, in the order of offers and tools.
        refused: For each extension id that was offered; empty when all its tools are.
    """

    by_name: dict[str, Route]
    refused: dict[str, tuple[Refused, ...]]

    def count(self, extension_id: str) -> int:
        """How many tools of a provider are offered."""
        return sum(route.extension_id == extension_id for route in self.by_name.values())


def combine(namespace: str, tool: str) -> str:
    """The public name of a tool."""
    return f"{namespace}_{tool}"


def namespace_problem(namespace: str) -> str | None:
    """Why a namespace cannot be used; None when it can."""
    if len(namespace) > MAX_NAMESPACE_CHARS:
        return f"the namespace has {len(namespace)} characters; at most {MAX_NAMESPACE_CHARS} are allowed"
    if _NAME.fullmatch(namespace) is None:
        return "the namespace must be made of A-Z, a-z, 0-9, _ and -"
    if namespace in RESERVED:
        return f"the namespace {namespace} is reserved"
    return None


def name_problem(tool: str) -> str | None:
    """Why a tool's own name cannot be used; None when it can."""
    if len(tool) > MAX_NAME_CHARS:
        return f"the name has {len(tool)} characters; at most {MAX_NAME_CHARS} are allowed"
    if _NAME.fullmatch(tool) is None:
        return "the name must be made of A-Z, a-z, 0-9, _ and -"
    return None


def combined_problem(public: str) -> str | None:
    """Why a public name is too long; None when it is not."""
    if len(public) > MAX_COMBINED_CHARS:
        return f"{public[:MAX_SHOWN_CHARS]} has {len(public)} characters; at most {MAX_COMBINED_CHARS} are allowed"
    return None


def tool_problem(namespace: str, tool: str) -> str | None:
    """Why a tool cannot be offered, whatever its neighbours are; None when it can."""
    return namespace_problem(namespace) or name_problem(tool) or combined_problem(combine(namespace, tool))


def route(offers: Sequence[Offer], taken: Collection[str] = ()) -> Routes:
    """Decide what is offered. Of two tools with one public name the first wins, within and among providers.

    Args:
        offers: In the order of the configuration, one for each extension id.
        taken: Names that are never given away: the relay's own tools.
    """
    by_name: dict[str, Route] = {}
    refused: dict[str, tuple[Refused, ...]] = {}
    for offer in offers:
        kept = 0
        out: list[Refused] = []
        for index, tool in enumerate(offer.tools):
            public = combine(offer.namespace, tool)
            problem = tool_problem(offer.namespace, tool)
            if problem is None and public in taken:
                problem = f"{public} is a tool of the relay itself"
            if problem is None and public in by_name:
                problem = _collision(public, by_name[public], offer.extension_id)
            if problem is None and kept == MAX_TOOLS:
                problem = f"a provider may have {MAX_TOOLS} tools"
            if problem is None:
                by_name[public] = Route(offer.extension_id, tool, index)
                kept += 1
            else:
                out.append(Refused(tidy(tool, MAX_SHOWN_CHARS), problem))
        refused[offer.extension_id] = _listed(out)
    return Routes(by_name, refused)


def _collision(public: str, first: Route, extension_id: str) -> str:
    if first.extension_id == extension_id:
        return f"{public} is the name of an earlier tool of this provider"
    return f"{public} is a tool of the provider {first.extension_id}, which comes first"


def _listed(refused: list[Refused]) -> tuple[Refused, ...]:
    more = len(refused) - MAX_REFUSED_SHOWN
    if more <= 0:
        return tuple(refused)
    return (*refused[:MAX_REFUSED_SHOWN], Refused("…", f"and {more} more"))
