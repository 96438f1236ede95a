"""One tool of a page: what is kept, what is mended, what is refused, and that every client can read the outcome."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tests.core.odd import mutated
from tests.core.sdk import check_tools
from trio_relay.core.tooldef import MAX_NAME_CHARS, ToolDef, ToolRefused, parse_tool
from trio_relay.wire.codec import encode

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def tool(**members: object) -> ToolDef:
    return parse_tool(json.dumps({"name": "t", **members}).encode())


def shown(definition: ToolDef) -> dict[str, Any]:
    """The definition as a client sees it."""
    text = b'{"name":' + encode(definition.name) + b',"description":' + encode(definition.description)
    value: dict[str, Any] = json.loads((text + definition.rest + b"}").decode())
    assert json.loads(definition.input_schema) == value["inputSchema"]
    if definition.output_schema is None:
        assert "outputSchema" not in value
    else:
        assert json.loads(definition.output_schema) == value["outputSchema"]
    return value


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, EMPTY),
        ({}, {"type": "object"}),
        ({"properties": {"q": {"type": "string"}}}, {"type": "object", "properties": {"q": {"type": "string"}}}),
        ({"type": None}, {"type": "object"}),
        (True, {"type": "object"}),
        ({"type": ["object", "null"]}, {"type": "object"}),
        ({"anyOf": [{"required": ["a"]}]}, {"type": "object", "anyOf": [{"required": ["a"]}]}),
        ({"type": "object", "properties": []}, {"type": "object"}),
        ({"type": "object", "properties": None}, {"type": "object"}),
        ({"type": "object", "required": {}}, {"type": "object"}),
        ({"type": "object", "required": None}, {"type": "object"}),
        ({"type": "object", "required": ["a", 1]}, {"type": "object"}),
        ({"type": "object", "$schema": None}, {"type": "object"}),
        ({"type": "object", "$schema": 5, "title": "x"}, {"type": "object", "title": "x"}),
        (
            {"type": "object", "properties": {"a": True, "b": False, "c": None, "d": "x", "e": []}},
            {"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": {}, "d": {}, "e": {}}},
        ),
        (
            {"type": "object", "properties": {"a": {"required": True}, "b": {"required": False}}, "required": ["z"]},
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["z", "a"]},
        ),
        (
            {"type": "object", "properties": {"o": {"type": "object", "properties": [], "required": {}}}},
            {"type": "object", "properties": {"o": {"type": "object"}}},
        ),
        ('{"type":"object","title":"x"}', {"type": "object", "title": "x"}),
        (' {"title":"x"}\n', {"type": "object", "title": "x"}),
        ("null", None),
        ("true", {"type": "object"}),
    ],
)
def test_an_input_schema_is_brought_into_shape(schema: object, expected: object) -> None:
    """B01, B03, B04, B07."""
    if expected is None:
        with pytest.raises(ToolRefused):
            tool(inputSchema=schema)
        return
    assert shown(tool(inputSchema=schema))["inputSchema"] == expected


def test_a_missing_input_schema_is_an_empty_object() -> None:
    """B01."""
    assert shown(tool())["inputSchema"] == EMPTY


@pytest.mark.parametrize(
    "schema",
    ["", " ", "not json", '"{}"', "[]", "5", {"type": "string"}, {"type": ["string"]}, {"type": 5}, 5, [], False],
)
def test_a_schema_that_describes_no_object_costs_the_tool(schema: object) -> None:
    """B04, B07."""
    with pytest.raises(ToolRefused, match="inputSchema"):
        tool(inputSchema=schema)


@pytest.mark.parametrize("raw", ["null", "5", '"x"', "[]", "true"])
def test_a_definition_that_is_no_object_is_refused(raw: str) -> None:
    with pytest.raises(ToolRefused, match="not an object"):
        parse_tool(raw.encode())


@pytest.mark.parametrize("name", ["", None, 5, True, [], {}])
def test_a_tool_without_a_usable_name_is_refused(name: object) -> None:
    """B10."""
    with pytest.raises(ToolRefused, match="name"):
        tool(name=name)
    with pytest.raises(ToolRefused, match="name"):
        parse_tool(b"{}")


@pytest.mark.parametrize("name", ["a.b", "a/b", "a b", "\u200b", "😀", "搜索", "__proto__", "a" * 129, "\0", "\n"])
def test_any_other_name_is_kept_as_the_page_wrote_it(name: str) -> None:
    """B10."""
    assert tool(name=name).name == name


def test_names_are_limited_in_characters() -> None:
    """DECISIONS 12."""
    assert len(tool(name="😀" * MAX_NAME_CHARS).name) == 1024
    with pytest.raises(ToolRefused, match="1024"):
        tool(name="a" * (MAX_NAME_CHARS + 1))


@pytest.mark.parametrize(
    ("execution", "kept"),
    [
        ({"taskSupport": "optional"}, True),
        ({"taskSupport": "forbidden"}, True),
        ({}, True),
        ({"taskSupport": None}, False),
        ({"taskSupport": "sometimes"}, False),
        (None, False),
        ("required", False),
    ],
)
def test_task_support_may_be_anything_but_required(execution: object, kept: bool) -> None:
    members = shown(tool(execution=execution))
    assert ("execution" in members) is kept
    with pytest.raises(ToolRefused, match="task"):
        tool(execution={"taskSupport": "required"})


@pytest.mark.parametrize(
    "key", ["title", "description", "icons", "annotations", "_meta", "outputSchema", "execution", "inputSchema"]
)
def test_a_null_in_an_optional_member_costs_that_member_only(key: str) -> None:
    """B08."""
    members = shown(tool(**{"title": "T", "description": "D", "_meta": {"m": None}, "x": 1, key: None}))
    assert members.get(key) in (None, "", EMPTY)
    assert key in ("description", "inputSchema") or key not in members
    for other, value in {"title": "T", "description": "D", "_meta": {"m": None}, "x": 1}.items():
        assert other == key or members[other] == value


def test_known_and_unknown_members_are_kept() -> None:
    """B09."""
    members = {
        "title": "T",
        "icons": [{"src": "data:x", "sizes": ["1x1"], "mimeType": "image/png", "theme": "dark", "new": 1}],
        "_meta": {"a": None, "b": [1]},
        "outputSchema": {"type": "object", "properties": {"n": {"type": "number"}}},
        "annotations": {"title": "A", "readOnlyHint": True, "costHint": "high"},
        "execution": {"taskSupport": "optional"},
        "x-unknown": {"deep": [None, {"a": 1}]},
        "unknownNull": None,
    }
    assert shown(tool(**members)) == {"name": "t", "description": "", "inputSchema": EMPTY, **members}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"readOnlyHint": "yes", "openWorldHint": False}, {"openWorldHint": False}),
        ({"readOnlyHint": None, "title": 5, "new": {}}, {"new": {}}),
        ([], None),
        ("x", None),
    ],
)
def test_a_bad_hint_costs_the_hint(given: object, kept: object) -> None:
    """B08, B09."""
    assert shown(tool(annotations=given)).get("annotations") == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([{"src": "a"}, None, {"src": 5}, {}], [{"src": "a"}]),
        ([{"src": "a", "sizes": "any", "theme": "blue", "mimeType": None}], [{"src": "a"}]),
        ([{"src": "a", "sizes": [1]}, {"src": "b", "sizes": []}], [{"src": "a"}, {"src": "b", "sizes": []}]),
        ([], None),
        ({}, None),
    ],
)
def test_a_bad_icon_costs_the_icon(given: object, kept: object) -> None:
    assert shown(tool(icons=given)).get("icons") == kept


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "array"}, [], "x", '{"type":"object"}', True, 5])
def test_an_output_schema_that_describes_no_object_is_left_out(schema: object) -> None:
    assert "outputSchema" not in shown(tool(outputSchema=schema))


def test_members_that_need_no_mending_keep_their_bytes() -> None:
    """A29: digits, key order and blanks of untouched members."""
    schema = '{ "type":"object", "properties":{"n":{"maximum":9007199254740993,"minimum":1.0,"multipleOf":1e2}} }'
    meta = '{"big":18446744073709551617,"z":-0.0,"e":1E+2}'
    definition = parse_tool(f'{{"name":"t","_meta":{meta},"new":1e2,"inputSchema":{schema}}}'.encode())
    assert definition.rest.decode() == f',"_meta":{meta},"new":1e2,"inputSchema":{schema}'
    assert definition.input_schema.decode() == schema


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"t","icons":[{"src":"a","sizes":[1e999]}]}',
        '{"name":"t","inputSchema":{"properties":{"a":{"maximum":1e999}}}}',
        '{"name":"t","outputSchema":{"type":[1e999]}}',
        '{"name":"t","annotations":{"readOnlyHint":1e999}}',
        '{"name":"t","inputSchema":' + '{"items":' * 450 + '{"required":true}' + "}" * 451,
        '{"name":"t","inputSchema":"' + "[" * 50_000 + '"}',
        '{"name":"t","inputSchema":{"required":["a"],"x":' + "1" * 5000 + "}}",
    ],
    ids=lambda text: text[:40],
)
def test_numbers_and_depths_nobody_can_hold_never_raise_anything_else(text: str) -> None:
    try:
        definition = parse_tool(text.encode())
    except ToolRefused:
        return
    assert definition.name == "t"


def test_half_an_emoji_and_line_separators_are_made_harmless_everywhere() -> None:
    """C01, A02: a client would drop the whole line for half an emoji."""
    inner = '{"type":"object","title":"\\ud83d\u2028"}'
    for schema in (inner, json.loads(inner)):
        raw = json.dumps({"name": "x\ud83d", "description": "\ud83d", "k\ud83d": "\u2028", "inputSchema": schema})
        definition = parse_tool(raw.replace('"\\u2028"', '"\u2028"').encode())
        assert definition.name == "x�"
        assert definition.description == "�"
        assert b"ud83d" not in definition.rest
        assert "\u2028" not in definition.rest.decode()
        assert shown(definition)["inputSchema"] == {"type": "object", "title": "�\u2028"}


BASE: dict[str, Any] = {
    "name": "t",
    "title": "T",
    "description": "D",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "object", "properties": {"c": {}}, "required": ["c"]}},
        "required": ["a"],
        "anyOf": [{"required": ["a"]}],
    },
    "outputSchema": {"type": "object", "properties": {"r": {"type": "array", "items": {}}}, "required": ["r"]},
    "annotations": {"title": "A", "readOnlyHint": True, "openWorldHint": False},
    "icons": [{"src": "a", "sizes": ["1x1"], "mimeType": "image/png", "theme": "dark"}],
    "execution": {"taskSupport": "optional"},
    "_meta": {"a": 1},
}
KEYS = (
    *("title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution", "_meta", "$schema"),
    *("type", "properties", "required", "readOnlyHint", "taskSupport", "src", "sizes", "theme", "mimeType", "new"),
)


@pytest.mark.parametrize("seed", range(4))
def test_every_accepted_tool_is_one_that_all_clients_accept(seed: int) -> None:
    """Ours against the SDK's models, both eras, and the TypeScript client's rules: thousands of odd tools."""
    random = Random(seed)
    accepted = []
    for _ in range(1000):
        raw = json.dumps(mutated(BASE, KEYS, random))
        try:
            accepted.append((raw, shown(parse_tool(raw.encode()))))
        except ToolRefused:
            continue
    assert len(accepted) > 500
    for raw, members in accepted:
        try:
            check_tools([members])
        except Exception as error:
            raise AssertionError(f"{raw} became {members}") from error


@pytest.mark.parametrize("schema", ['{"type":"object","default":%s}', '"{\\"default\\":%s}"'])
def test_a_tool_with_an_integer_no_client_reads_is_refused(schema: str) -> None:
    raw = '{"name":"a","inputSchema":' + schema + "}"
    assert parse_tool((raw % ("9" * 4300)).encode()).name == "a"
    with pytest.raises(ToolRefused, match="integer of more than 4300 digits"):
        parse_tool((raw % ("9" * 4301)).encode())
