"""How deep JSON nests, told without building it."""

from __future__ import annotations

import json
import random

import pytest

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
