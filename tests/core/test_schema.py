"""Schema checks: they name the first offence, follow no reference out, and give up rather than harm."""

from __future__ import annotations

import json
import socket
import urllib.request

import jsonschema_rs
import pytest
from msgspec import Raw

from trio_relay.core import schema
from trio_relay.core.schema import MAX_CHECKED_BYTES, first_violation


def check(rules: object, value: object) -> str | None:
    return first_violation(json.dumps(rules).encode(), Raw(json.dumps(value).encode()))


NESTED = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"properties": {"b c": {"type": "integer", "maximum": 5}}}}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [{"b c": 1}, {"b c": "x"}]}, "a[1].b c: "),
        ({"a": [{"b c": 6}]}, "a[0].b c: "),
        ({"a": 5}, "a: "),
        ({}, "(top level): "),
        ({"a": [], "z": 1}, "(top level): "),
        ([], "(top level): "),
    ],
)
def test_a_violation_begins_with_the_path_of_the_first_offence(value: object, path: str) -> None:
    found = check(NESTED, value)
    assert found is not None
    assert found.startswith(path)
    assert "\n" not in found


def test_valid_values_have_no_violation() -> None:
    assert check(NESTED, {"a": [{"b c": 5}, {}]}) is None
    assert check({"type": "object"}, {"any": 1}) is None


def test_a_long_message_is_cut() -> None:
    found = check({"properties": {"a": {"const": 1}}}, {"a": "x" * 5000})
    assert found is not None
    assert len(found) < 320


@pytest.mark.parametrize(
    "rules",
    [
        {"$ref": "http://127.0.0.1:{port}/schema"},
        {"properties": {"a": {"$ref": "http://127.0.0.1:{port}/schema"}}},
        {"$id": "http://127.0.0.1:{port}/base", "$ref": "other"},
        {"$schema": "http://127.0.0.1:{port}/dialect"},
        {"$ref": "file:///etc/hostname"},
        {"$ref": "relative.json"},
    ],
    ids=json.dumps,
)
def test_no_reference_is_ever_fetched(rules: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        text = json.dumps(rules).replace("{port}", str(server.getsockname()[1]))
        assert first_violation(text.encode(), Raw(b'{"a":1}')) is None
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_server_of_the_test_above_would_notice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=0.1)
        server.accept()[0].close()


def test_references_inside_the_schema_and_to_known_dialects_work() -> None:
    rules = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert check(rules, {"a": 1}) is None
    assert (check(rules, {"a": "x"}) or "").startswith("a: ")
    assert check({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "object"}) is None


@pytest.mark.parametrize(
    "rules", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"$dynamicAnchor": "x", "$dynamicRef": "#x"}]
)
def test_a_schema_that_refers_to_itself_ends(rules: object) -> None:
    assert check(rules, {"a": 1}) is None


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(?=(a+)+$)(a|aa)+$", r"^(a*)*\1$", "(x{1000}){1000}"])
def test_a_hostile_pattern_comes_back(pattern: str) -> None:
    check({"properties": {"a": {"pattern": pattern}}}, {"a": "a" * 60 + "b"})


def test_a_pattern_that_runs_out_of_steps_is_no_violation() -> None:
    """The value is valid; only finding out takes longer than we allow."""
    assert check({"properties": {"a": {"pattern": r"^(?:(a|aa)+\1c|.*)$"}}}, {"a": "a" * 60 + "b"}) is None
    assert check({"properties": {"a": {"pattern": r"^(a)\1$"}}}, {"a": "ab"}) is not None


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"objet"}',
        b'{"properties":{"a":{"pattern":"("}}}',
        b'{"minimum":"x"}',
        b'{"required":5}',
        b"[]",
        b"5",
        b"not json",
        b'{"maximum":1e999}',
        b'{"not":' * 3000 + b"{}" + b"}" * 3000,
    ],
    ids=lambda text: repr(text[:30]),
)
def test_what_cannot_be_compiled_is_not_checked(text: bytes) -> None:
    assert first_violation(text, Raw(b'{"a":1}')) is None


@pytest.mark.parametrize(
    "value", [b'{"a":1e999}', b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"a":' + b"1" * 5000 + b"}"]
)
def test_a_value_that_cannot_be_decoded_is_not_checked(value: bytes) -> None:
    assert first_violation(b'{"properties":{"a":{"type":"string"}}}', Raw(value)) is None


def test_formats_are_not_checked() -> None:
    assert check({"properties": {"a": {"format": "email"}}}, {"a": "no mail"}) is None


def test_above_one_mebibyte_nothing_is_checked() -> None:
    """DECISIONS 17: the exact boundary, on either side."""
    rules = b'{"properties":{"a":{"maxLength":1}}}'
    frame = len('{"a":""}')
    for size, expected in ((MAX_CHECKED_BYTES, True), (MAX_CHECKED_BYTES + 1, False)):
        value = Raw(b'{"a":"%s"}' % (b"x" * (size - frame)))
        assert (first_violation(rules, value) is not None) is expected
    for size, expected in ((MAX_CHECKED_BYTES, True), (MAX_CHECKED_BYTES + 1, False)):
        head = b'{"properties":{"a":{"maxLength":1}},"x":"'
        padded = head + b"x" * (size - len(head) - 2) + b'"}'
        assert (first_violation(padded, Raw(b'{"a":"xx"}')) is not None) is expected


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    original = jsonschema_rs.validator_for

    def counting(*args: object, **options: object) -> object:
        compiled.append(args)
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(jsonschema_rs, "validator_for", counting)
    schema._compiled_small.cache_clear()
    for number in range(5):
        check({"properties": {"a": {"type": "string"}}}, {"a": number})
        check({"type": "nonsense"}, {"a": number})
    assert len(compiled) == 2
    for rules in ({"type": "object"}, {"type": "object", "properties": {}}):
        assert first_violation(json.dumps(rules, separators=(",", ":")).encode(), Raw(b"{}")) is None
    assert len(compiled) == 2
