"""The data of the benchmarks: exact sizes, the same for the same seed, and valid for every relay."""

from __future__ import annotations

import base64
import json

import pytest
from msgspec import Raw

from benchmarks.payloads import KINDS, SIZES, SMALL, Page, Payloads, readable
from trio_relay.core.results import check_output, parse_result
from trio_relay.core.tooldef import parse_tool

ALL_BUT_LARGEST = SIZES[:-1]


@pytest.mark.parametrize("kind", KINDS)
def test_results_have_exactly_the_size_asked_for(kind: str) -> None:
    payloads = Payloads(1)
    for size in (*ALL_BUT_LARGEST, 101, 102, 103, 9_999):
        result = payloads.result(kind, size)
        assert len(result) == size
        parsed = parse_result(Raw(result))
        assert not parsed.is_error
        assert bytes(parsed.json) == result  # nothing about it has to be mended
    assert len(payloads.result(kind, SIZES[-1])) == SIZES[-1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "schema" not in kind])
def test_arguments_have_exactly_the_size_asked_for(kind: str) -> None:
    payloads = Payloads(1)
    for size in (*ALL_BUT_LARGEST, 101, 102, 103):
        arguments = payloads.arguments(kind, size)
        assert len(arguments) == size
        assert isinstance(json.loads(arguments), dict)
    assert len(payloads.arguments(kind, SIZES[-1])) == SIZES[-1]


def test_the_seed_decides_the_data() -> None:
    for kind in KINDS:
        assert Payloads(1).result(kind, 10_000) == Payloads(1).result(kind, 10_000)
        assert Payloads(1).result(kind, 10_000) != Payloads(2).result(kind, 10_000)


def test_the_kinds_are_what_they_are_called() -> None:
    payloads = Payloads(1)
    assert payloads.result("text", 10_000).isascii()
    text = json.loads(payloads.result("non-ASCII", 10_000))["content"][0]["text"]
    assert sum(not char.isascii() for char in text) > len(text) / 3
    image = json.loads(payloads.result("image", 10_000))["content"][0]
    assert len(base64.b64decode(image["data"], validate=True)) > 7_000
    items = json.loads(payloads.result("nested", 10_000))["structuredContent"]["items"]
    assert max(map(_depth, items)) > 8


def test_the_output_schema_fits_the_data_that_goes_with_it() -> None:
    page = Page()
    page.add("it", SMALL, with_output=True)
    (definition,) = json.loads(page.tools)
    tool = parse_tool(json.dumps(definition).encode())
    assert tool.output_schema is not None
    result = parse_result(Raw(Payloads(1).result("nested+schema", 10_000)))
    assert check_output(result, tool.output_schema) is result


@pytest.mark.parametrize(
    ("size", "text"), [(100, "100 B"), (10_000, "10 kB"), (1_000_000, "1 MB"), (9_900_000, "9.9 MB")]
)
def test_sizes_are_shown_as_people_write_them(size: int, text: str) -> None:
    assert readable(size) == text


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)
