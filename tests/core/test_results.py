"""What a page returns: usable results keep their bytes, odd ones are mended, the rest become readable errors."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from msgspec import UNSET, Raw

from tests.core.odd import mutated
from tests.core.sdk import check_result
from trio_relay.core.results import MAX_PREVIEW_CHARS, CallResult, check_output, error_result, parse_result
from trio_relay.core.schema import MAX_CHECKED_BYTES
from trio_relay.wire.browser import PlainAnswer, Result, decode_frame
from trio_relay.wire.codec import clean_text

TEXT = {"type": "text", "text": "t"}


def arrived(text: str) -> CallResult:
    """A result as it comes out of a frame."""
    frame = decode_frame(clean_text(f'{{"type":"result","callId":"c","result":{text}}}'.encode()))
    assert isinstance(frame, Result | PlainAnswer)
    return parse_result(frame.result)


def parsed(value: object) -> CallResult:
    return arrived(json.dumps(value))


def shown(result: CallResult) -> dict[str, Any]:
    """The result as a client sees it; what the struct says about it must be true."""
    value: dict[str, Any] = json.loads(bytes(result.json).decode())
    assert result.is_error is value.get("isError", False)
    assert result.has_meta is ("_meta" in value)
    assert "resultType" not in value
    structured = None if result.structured is None else json.loads(bytes(result.structured))
    assert structured == value.get("structuredContent")
    return value


def message(result: CallResult) -> str:
    """The text of an error result."""
    value = shown(result)
    assert value["isError"] is True
    (block,) = value["content"]
    assert block["type"] == "text"
    text: str = block["text"]
    return text


@pytest.mark.parametrize(
    "value",
    [
        *(None, "hi", 42, True, 1.5, [], [TEXT], {}, {"a": 1}, {"content": "hi"}, {"content": [None]}),
        *({"content": {}}, {"content": 5}, {"content": None}, {"content": ["hi"]}, {"content": [TEXT, 5]}),
        *({"structuredContent": []}, {"structuredContent": "x"}, {"content": [], "structuredContent": [1]}),
        *({"content": [TEXT], "isError": "true"}, {"content": [TEXT], "isError": 1}),
    ],
    ids=json.dumps,
)
def test_what_is_no_tool_result_becomes_an_error_that_shows_its_beginning(value: object) -> None:
    """C04, C05."""
    text = json.dumps(value, separators=(",", ":"))
    assert text in message(arrived(text))
    check_result(shown(parsed(value)))


def test_a_missing_result_is_an_error() -> None:
    """C04."""
    assert "without a result" in message(parse_result(UNSET))


@pytest.mark.parametrize("letter", ["a", "é", "漢", "😀"])
def test_a_preview_has_at_most_500_characters(letter: str) -> None:
    text = message(parse_result(Raw(f'"{letter * 5000}"'.encode())))
    assert text.endswith(letter * (MAX_PREVIEW_CHARS - 1))
    assert text.count(letter) - text.partition("begins")[0].count(letter) <= MAX_PREVIEW_CHARS


def test_an_input_required_result_is_an_error() -> None:
    result = {"resultType": "input_required", "inputRequests": {}, "content": [TEXT]}
    assert "input_required" in message(parsed(result))


@pytest.mark.parametrize("kind", ["complete", None, 5, "other"])
def test_any_other_result_type_is_left_out(kind: object) -> None:
    assert shown(parsed({"resultType": kind, "content": [TEXT]})) == {"content": [TEXT]}


def test_structured_content_without_content_gets_its_text() -> None:
    """C05, A29: with the digits the page wrote."""
    result = arrived('{"structuredContent":{"n":1e2,"id":9007199254740993}}')
    assert bytes(result.json) == (
        b'{"structuredContent":{"n":1e2,"id":9007199254740993},'
        b'"content":[{"type":"text","text":"{\\"n\\":1e2,\\"id\\":9007199254740993}"}]}'
    )
    assert shown(parsed({"content": None, "structuredContent": {}}))["content"] == [{"type": "text", "text": "{}"}]


@pytest.mark.parametrize("key", ["structuredContent", "isError", "_meta", "resultType"])
def test_a_null_in_an_optional_member_costs_that_member_only(key: str) -> None:
    """B08."""
    full = {"content": [TEXT], "structuredContent": {"a": None}, "isError": False, "_meta": {"m": None}, "new": None}
    expected = {name: value for name, value in full.items() if name != key}
    assert shown(parsed({**full, key: None})) == expected


GOOD_BLOCKS: list[dict[str, Any]] = [
    TEXT,
    {"type": "text", "text": "", "annotations": {"audience": ["user"], "priority": 0.5}, "_meta": {"a": 1}, "new": 1},
    {"type": "text", "text": "t", "annotations": {"lastModified": "2025-01-02T03:04:05.678Z"}},
    {"type": "image", "data": "QUJD", "mimeType": "image/png"},
    {"type": "audio", "data": "QQ==", "mimeType": "audio/wav", "new": None},
    {"type": "resource_link", "uri": "u", "name": "n", "title": "t", "size": 5, "icons": [{"src": "a"}]},
    {"type": "resource", "resource": {"uri": "u", "text": "t", "mimeType": "text/plain", "_meta": {}}},
    {"type": "resource", "resource": {"uri": "u", "blob": "QUJD", "new": 1}, "annotations": {"priority": 1}},
]


@pytest.mark.parametrize("block", GOOD_BLOCKS, ids=lambda block: json.dumps(block)[:50])
def test_every_known_block_goes_on_byte_for_byte(block: dict[str, Any]) -> None:
    """C07, C09."""
    text = json.dumps({"content": [block, TEXT, block], "new": {"x": [None]}, "_meta": {"k": None}})
    assert bytes(arrived(text).json).decode() == text


def test_an_unknown_block_becomes_text_in_its_place() -> None:
    """C07, DECISIONS 15."""
    unknown = '{"type":"video","url":"u","n":1e2}'
    result = shown(arrived(f'{{"content":[{json.dumps(TEXT)},{unknown},{json.dumps(GOOD_BLOCKS[3])}]}}'))
    assert result["content"] == [TEXT, {"type": "text", "text": unknown}, GOOD_BLOCKS[3]]


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"type": 5},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "image", "data": "QUJD"},
        {"type": "image", "data": "QUJD", "mimeType": None},
        {"type": "image", "data": "no base64!", "mimeType": "image/png"},
        {"type": "image", "data": "QUJD=", "mimeType": "image/png"},
        {"type": "audio", "data": "A", "mimeType": "audio/wav"},
        {"type": "audio", "data": 5, "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "u"},
        {"type": "resource_link", "name": "n"},
        {"type": "resource"},
        {"type": "resource", "resource": None},
        {"type": "resource", "resource": {"uri": "u"}},
        {"type": "resource", "resource": {"text": "t"}},
        {"type": "resource", "resource": {"uri": "u", "blob": "?"}},
        {"type": "resource", "resource": {"uri": "u", "text": "t", "mimeType": 5}},
        {"type": "resource", "resource": {"uri": "u", "text": "t", "_meta": []}},
    ],
    ids=json.dumps,
)
def test_a_block_clients_would_throw_at_becomes_text_and_nothing_else_is_lost(block: dict[str, Any]) -> None:
    result = shown(parsed({"content": [TEXT, block], "structuredContent": {"a": 1}}))
    assert result["content"] == [TEXT, {"type": "text", "text": json.dumps(block)}]
    assert result["structuredContent"] == {"a": 1}


@pytest.mark.parametrize(
    ("block", "mended"),
    [
        ({**TEXT, "_meta": None}, TEXT),
        ({**TEXT, "_meta": 5, "annotations": "x"}, TEXT),
        (
            {**TEXT, "annotations": {"priority": None, "audience": ["user"]}},
            {**TEXT, "annotations": {"audience": ["user"]}},
        ),
        (
            {**TEXT, "annotations": {"priority": 2, "audience": ["bot"], "x": None}},
            {**TEXT, "annotations": {"x": None}},
        ),
        ({**TEXT, "annotations": {"lastModified": "yesterday"}}, {**TEXT, "annotations": {}}),
        ({**TEXT, "annotations": {"lastModified": "2025-02-30T00:00:00Z"}}, {**TEXT, "annotations": {}}),
        (
            {
                "type": "resource_link",
                "uri": "u",
                "name": "n",
                "size": 1.5,
                "title": None,
                "description": 5,
                "icons": {},
            },
            {"type": "resource_link", "uri": "u", "name": "n"},
        ),
        (
            {"type": "resource_link", "uri": "u", "name": "n", "icons": [{"src": "a"}, {"src": None}]},
            {"type": "resource_link", "uri": "u", "name": "n", "icons": [{"src": "a"}]},
        ),
        (
            {"type": "resource", "resource": {"uri": "u", "text": "t", "mimeType": None, "_meta": None, "new": None}},
            {"type": "resource", "resource": {"uri": "u", "text": "t", "new": None}},
        ),
    ],
    ids=lambda block: json.dumps(block)[:60],
)
def test_an_odd_optional_member_of_a_block_costs_that_member_only(block: dict[str, Any], mended: object) -> None:
    """B08."""
    assert shown(parsed({"content": [block]}))["content"] == [mended]


@pytest.mark.parametrize("data", ["", "QQ", "QQ==", "QU\nJD", " Q Q = = "])
def test_base64_that_browsers_take_stays_data(data: str) -> None:
    block = {"type": "image", "data": data, "mimeType": "image/png"}
    assert shown(parsed({"content": [block]}))["content"] == [block]


def test_very_large_base64_is_not_looked_at() -> None:
    text = '{"content":[{"type":"image","data":"%s","mimeType":"a"}]}' % ("!" * MAX_CHECKED_BYTES)
    assert bytes(arrived(text).json).decode() == text


@pytest.mark.parametrize("text", ["1e999", "[1e999]", '{"a":1e999}', "1" * 5000])
def test_numbers_nobody_can_hold_never_raise(text: str) -> None:
    for body in (
        '{"content":[{"type":"text","text":"t","annotations":{"priority":%s,"audience":%s,"lastModified":%s}}]}',
        '{"content":[{"type":"resource_link","uri":"u","name":"n","size":%s,"icons":[{"src":"a","sizes":%s}],"x":%s}]}',
        '{"content":[],"isError":null,"structuredContent":%s,"x":[%s,%s]}',
    ):
        assert isinstance(arrived(body % (text, text, text)), CallResult)


@pytest.mark.parametrize("key", ["progressToken", r"progress\u0054oken", "io.modelcontextprotocol/related-task"])
def test_meta_members_that_make_clients_drop_the_line_are_left_out(key: str) -> None:
    """A call whose line is dropped hangs."""
    for value in ("null", "1.5", "[]", "true", "{}"):
        result = shown(arrived(f'{{"content":[],"_meta":{{"a":null,"{key}":{value}}}}}'))
        assert result == {"content": [], "_meta": {"a": None}}


def test_good_meta_stays() -> None:
    """C09."""
    for meta in (
        {"progressToken": 5},
        {"progressToken": "x"},
        {"io.modelcontextprotocol/related-task": {"taskId": "t"}},
    ):
        assert shown(parsed({"content": [], "_meta": meta}))["_meta"] == meta


def test_a_pretty_printed_result_is_one_line() -> None:
    """C02, A02."""
    value = {"content": [{"type": "text", "text": "a\nb\0\x1b\u2028\u2029"}], "structuredContent": {"a": [1]}}
    for full in (value, {**value, "isError": None}):
        text = json.dumps(full, indent="\t", ensure_ascii=False).replace("\n", "\r\n")
        result = arrived(text)
        assert not set("\r\n\u2028\u2029") & set(bytes(result.json).decode())
        assert shown(result) == value


def test_digits_survive_the_slow_path() -> None:
    """A29."""
    numbers = '{"id":9007199254740993,"big":18446744073709551617,"f":1.0,"e":1e2,"z":-0.0}'
    text = f'{{"isError":null,"content":[],"structuredContent":{numbers},"_meta":{numbers},"x":{numbers}}}'
    expected = text.replace('"isError":null,', "")
    assert bytes(arrived(text).json).decode() == expected


BASE: dict[str, Any] = {
    "content": GOOD_BLOCKS,
    "structuredContent": {"a": {"b": [1, None]}},
    "isError": False,
    "_meta": {"a": 1, "progressToken": 1},
}
KEYS = (
    *("content", "structuredContent", "isError", "_meta", "resultType", "type", "text", "data", "mimeType", "uri"),
    *("name", "annotations", "audience", "priority", "lastModified", "resource", "blob", "size", "icons", "title"),
    *("progressToken", "io.modelcontextprotocol/related-task", "new"),
)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_out_is_a_result_that_all_clients_accept(seed: int) -> None:
    """Against the SDK's models, both eras, and the TypeScript client's rules."""
    random = Random(seed)
    for _ in range(1000):
        value = mutated(BASE, KEYS, random)
        result = shown(parsed(value))
        try:
            check_result(result)
        except Exception as error:
            raise AssertionError(f"{json.dumps(value)} became {result}") from error


@pytest.mark.parametrize("seed", range(2))
def test_the_fast_path_and_the_slow_path_agree(seed: int) -> None:
    """A null resultType forces the close look and changes nothing else."""
    random = Random(seed)
    for _ in range(500):
        base = {**BASE, "content": [TEXT, {**TEXT, "x": None}], "_meta": {"a": None}}
        value = mutated(base, KEYS, random)
        if "resultType" not in value:
            fast, slow = shown(parsed(value)), shown(parsed({**value, "resultType": None}))
            if fast.get("isError") is not True:
                assert fast == slow


SCHEMA = b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'


def test_output_that_matches_its_schema_is_the_same_object() -> None:
    result = parsed({"content": [], "structuredContent": {"n": 5}})
    assert check_output(result, SCHEMA) is result
    assert check_output(result, None) is result


def test_output_without_structured_content_is_an_error_at_any_size() -> None:
    """DECISIONS 17."""
    for text in ("t", "t" * (MAX_CHECKED_BYTES + 1)):
        result = parsed({"content": [{"type": "text", "text": text}]})
        assert "structuredContent" in message(check_output(result, SCHEMA))
        assert check_output(result, None) is result


def test_output_that_does_not_match_names_the_place() -> None:
    result = parsed({"content": [], "structuredContent": {"n": "five"}})
    assert " n: " in message(check_output(result, SCHEMA))


def test_an_error_of_the_page_needs_no_structured_content() -> None:
    result = parsed({"content": [TEXT], "isError": True})
    assert check_output(result, SCHEMA) is result
    refusal = error_result("why")
    assert check_output(refusal, SCHEMA) is refusal
    assert message(refusal) == "why"


def test_large_output_is_not_checked() -> None:
    """DECISIONS 17."""
    result = parsed({"content": [], "structuredContent": {"n": "x" * MAX_CHECKED_BYTES}})
    assert check_output(result, SCHEMA) is result
