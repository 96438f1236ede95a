"""Odd JSON, seeded: definitions and results as a careless or hostile page might write them."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 5, -1, 1.5, 0.5, "", "x", "object", "optional", "not json", "\ud83d", "a\u2028b"),
    *([], [None], [1], ["a"], ["a", 1], [[]], [{}], ["object", "null"]),
    *({}, {"a": None}, {"a": 1}, {"a": {}}, {"a": True}, {"type": "object"}, {"type": "string"}, {"required": True}),
    *({"a": {"required": True}}, {"src": "x"}, [{"src": "x", "sizes": [1]}], {"properties": []}, {"required": {}}),
    *({"title": None}, {"readOnlyHint": "yes"}, {"taskSupport": "required"}, {"$schema": 5}, 2**70, "2025-13-01T0:0Z"),
    *([{"type": "text", "text": "t"}], {"uri": "u", "text": "t"}, {"uri": "u", "blob": "?"}, '{"type":"object"}'),
)


def mutated(value: Any, keys: tuple[str, ...], random: Random) -> Any:
    """A copy of `value` with one to three places changed: junk put in, a member removed, a known key added."""
    value = copy.deepcopy(value)
    for _ in range(random.randint(1, 3)):
        holder, key = random.choice(list(_places(value)))
        action = random.random()
        if action < 0.6:
            holder[key] = copy.deepcopy(random.choice(JUNK))
        elif action < 0.8 and isinstance(holder[key], dict):
            holder[key][random.choice(keys)] = copy.deepcopy(random.choice(JUNK))
        elif action < 0.9 and isinstance(holder, dict):
            del holder[key]
        elif isinstance(holder, dict):
            holder[random.choice(keys)] = copy.deepcopy(random.choice(JUNK))
        if not list(_places(value)):
            break
    return value


def _places(value: Any) -> Any:
    """Every (container, key) below `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)
