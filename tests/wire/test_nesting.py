"""How deep JSON nests, told without building it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.wire.codec import nested_deeper_than


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@pytest.mark.parametrize("depth", [1, 99, 199, 200, 201, 202, 500])
@pytest.mark.parametrize("pair", [b"[]", b"{}"])
def test_the_limit_is_exact_for_one_deep_chain(depth: int, pair: bytes) -> None:
    opening, closing = (b"[", b"]") if pair == b"[]" else (b'{"a":', b"}")
    inner = b"1"
    json_text = opening * depth + inner + closing * depth
    assert nested_deeper_than(json_text, 200) is (depth > 200)


def test_it_agrees_with_a_count_over_random_trees() -> None:
    rng = random.Random(7)

    def tree(levels: int) -> object:
        if levels == 0 or rng.random() < 0.004:
            return "text"
        width = 1 if levels > 8 else rng.randint(1, 2)
        children = [tree(levels - 1) for _ in range(width)]
        return children if rng.random() < 0.5 else {str(i): child for i, child in enumerate(children)}

    seen = set()
    for _ in range(60):
        value = [tree(rng.choice((3, 110, 120, 130))) for _ in range(5)]
        expected = depth_of(value) > 120
        seen.add(expected)
        assert nested_deeper_than(json.dumps(value).encode(), 120) is expected
    assert seen == {True, False}


def test_wide_and_flat_is_not_deep() -> None:
    assert not nested_deeper_than(json.dumps([{"a": [1]}] * 10_000).encode(), 200)


tricky = st.text(alphabet='[]{}"\\a,', max_size=6)
trees = st.recursive(
    tricky | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=30,
)


@given(trees, st.integers(0, 60))
def test_brackets_and_quotes_in_strings_do_not_count(tree: Any, wrapped: int) -> None:
    for number in range(wrapped):
        tree = [tree] if number % 3 else {'"]': tree, "[": "}"}
    depth = depth_of(tree)
    data = json.dumps(tree).encode()
    for limit in {max(8, depth - 1), max(8, depth), max(8, depth + 1)}:
        assert nested_deeper_than(data, limit) is (depth > limit)


@pytest.mark.parametrize("pattern", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b'["]",', b',"["]')])
def test_the_limit_is_exact_at_any_size(pattern: tuple[bytes, bytes]) -> None:
    begin, end = pattern
    per_pattern = begin.count(b"[") + begin.count(b"{")

    def nested(times: int) -> bytes:
        return begin * times + b"1" + end * times

    for times in (100, 5_000):
        depth = times * per_pattern
        assert nested_deeper_than(nested(times), depth) is False
        assert nested_deeper_than(nested(times), depth - 1) is True
    many = b"[" + b",".join([nested(95 // per_pattern)] * 2_000) + b"]"
    assert nested_deeper_than(many, 190) is False


def test_a_long_text_without_brackets_is_not_deep() -> None:
    assert nested_deeper_than(b'{"a":"' + b"x" * 1_000_000 + b'"}', 190) is False
    assert nested_deeper_than(b'{"a":"' + b"[" * 1_000_000 + b'"}', 190) is False
