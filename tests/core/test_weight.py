"""Schemas that would freeze the relay are recognised before they run; honest ones are checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from trio_relay.core.schema import first_violation
from trio_relay.core.weight import TooHeavy, weigh


def doubling(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {"a0": {"type": "integer"}}
    for i in range(1, levels + 1):
        defs[f"a{i}"] = {"allOf": [{"$ref": f"#/$defs/a{i - 1}"}, {"$ref": f"#/$defs/a{i - 1}"}]}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer"}}}
LIST = {
    "$ref": "#/definitions/node",
    "definitions": {"node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}},
}


@pytest.mark.parametrize(
    "schema",
    [
        doubling(60),
        doubling(25),
        {"allOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}]},
        {"$defs": {"a": {"properties": {"x": {"$ref": "#"}}}}, "$ref": "#/$defs/a", "properties": {"x": {"$ref": "#"}}},
        {"properties": {"x": {"$ref": "#"}}, "patternProperties": {"x": {"$ref": "#"}}},
        {"$dynamicRef": "#x"},
        {"$ref": "#anchor"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/missing"},
        {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}, "$ref": "#/$defs/a0"},
    ],
)
def test_what_could_run_for_long_is_not_weighed(schema: dict[str, Any]) -> None:
    with pytest.raises(TooHeavy):
        weigh(schema)
    assert first_violation(json.dumps(schema).encode(), Raw(b'{"x":{"x":{}}}')) is None


@pytest.mark.parametrize("schema", [TREE, LIST, doubling(5), {"anyOf": [{"type": "integer"}, {"type": "null"}]}])
def test_honest_schemas_have_a_weight(schema: dict[str, Any]) -> None:
    assert 0 < weigh(schema) < 1000


def test_a_schema_that_refers_to_itself_is_checked() -> None:
    bad = Raw(b'{"left":{"right":{"n":"x"}}}')
    assert first_violation(json.dumps(TREE).encode(), bad) is not None
    assert first_violation(json.dumps(LIST).encode(), Raw(b'{"next":{"next":5}}')) is not None


def test_a_heavy_schema_is_checked_against_few_values_and_not_against_many() -> None:
    items = {"properties": {"a": {"items": {"$ref": "#/$defs/a12"}}}}
    heavy = json.dumps({"$defs": doubling(12)["$defs"], **items}).encode()
    assert first_violation(heavy, Raw(b'{"a":["x"]}')) is not None
    many = json.dumps({"a": ["x"] * 10_000}).encode()
    assert first_violation(heavy, Raw(many)) is None
