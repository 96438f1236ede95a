"""How much work a JSON Schema can ask for, told before it is compiled.

A schema of 2 KB in which each of 26 definitions refers twice to the next costs 2^26 steps, seconds with the
interpreter locked; one that refers to itself twice for the same child costs 2^depth. A validator has no limit
of its own, so schemas that could do this are not checked at all.
"""

from __future__ import annotations

from typing import Any

MAX_STEPS = 4_000_000
"""Weight of a schema times the number of values checked against it; about a quarter of a second (measured)."""

_SAME_PLACE = frozenset(
    {
        "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies",
        "patternProperties", "contains", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords that apply more than one schema to one value. Harmless alone; in a schema that refers to itself they may
double the work at every level."""

_ASIDE = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
)
_UNKNOWN_REFERENCES = ("$dynamicRef", "$recursiveRef")


class TooHeavy(ValueError):
    """This schema's work has no bound that can be told."""


def weigh(schema: Any) -> int:
    """The number of schema values one value may be held against, references followed.

    Raises:
        TooHeavy: references that are not plain pointers into the schema, a weight above `MAX_STEPS`, or a schema
            that refers to itself and also applies several schemas to one value.
    """
    scale = _Scale(schema)
    try:
        weight = scale.weigh(schema)
    except RecursionError:
        raise TooHeavy("references nest too deeply") from None
    if scale.cyclic and scale.same_place:
        raise TooHeavy("it refers to itself and applies several schemas to one value")
    return weight


class _Scale:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        self._open: set[str] = set()
        self.cyclic = False
        self.same_place = False

    def weigh(self, node: Any) -> int:
        total = 1
        if isinstance(node, dict):
            if any(key in node for key in _UNKNOWN_REFERENCES):
                raise TooHeavy("it has dynamic references")
            reference = node.get("$ref")
            siblings = node.keys() - _ASIDE
            if not _SAME_PLACE.isdisjoint(siblings) or (isinstance(reference, str) and len(siblings) > 1):
                self.same_place = True
            if isinstance(reference, str):
                total += self._follow(reference)
            total += sum(self.weigh(value) for value in node.values())
        elif isinstance(node, list):
            total += sum(self.weigh(value) for value in node)
        if total > MAX_STEPS:
            raise TooHeavy("it unfolds to too many parts")
        return total

    def _follow(self, reference: str) -> int:
        if reference in self._open:
            self.cyclic = True
            return 1
        if reference not in self._known:
            self._open.add(reference)
            self._known[reference] = self.weigh(self._resolve(reference))
            self._open.remove(reference)
        return self._known[reference]

    def _resolve(self, reference: str) -> Any:
        if reference == "#":
            # The root is being weighed already.
            self.cyclic = True
            return None
        if not reference.startswith("#/"):
            raise TooHeavy("it has references that are not pointers into itself")
        node = self._root
        for step in reference[2:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(key)] if isinstance(node, list) else node[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise TooHeavy(f"nothing is at {reference}") from None
        return node
