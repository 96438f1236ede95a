"""JSON Schema checks of arguments and structured results. Offline: no `$ref` is ever fetched.

A schema comes from a web page, so compiling and running it must be harmless: references to network or disk
fail, regular expressions have a step limit, and what cannot be compiled, or could run for long, is not checked.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

import jsonschema_rs
import msgspec
from msgspec import Raw

from trio_relay.core.weight import MAX_STEPS, weigh
from trio_relay.wire.codec import Malformed

MAX_CHECKED_BYTES = 1 << 20
"""Schemas and values above 1 MiB are not checked: decoding a 7 MB tree holds the interpreter for hundreds of
milliseconds (docs/decisions.md, 17)."""

SMALL_BYTES = 16_384

REGEX_STEPS = 10_000
"""Backtracking steps of one `pattern` on one value; enough for honest patterns, microseconds for hostile ones."""

_GAVE_UP = (
    jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded,
    jsonschema_rs.ValidationErrorKind.RegexEngineFailure,
)
"""Errors that say nothing about the value: its pattern ran out of steps."""

_TRIVIAL = frozenset({b'{"type":"object"}', b'{"type":"object","properties":{}}'})


def first_violation(schema: bytes, value: Raw) -> str | None:
    """Check a JSON value against a JSON Schema, both as bytes.

    Returns:
        None if the value is valid or cannot be checked, else one line: the path of the first offence and what
        is wrong there.
    """
    if schema in _TRIVIAL or memoryview(value).nbytes > MAX_CHECKED_BYTES or len(schema) > MAX_CHECKED_BYTES:
        return None
    compiled = _compiled_small(schema) if len(schema) <= SMALL_BYTES else _compiled_large(schema)
    if compiled is None:
        return None
    validator, weight = compiled
    if weight * _count_values(bytes(value)) > MAX_STEPS:
        return None
    try:
        instance = msgspec.json.decode(value)
        if validator.is_valid(instance):  # a hundred times faster than looking for errors
            return None
        error = next(iter(validator.iter_errors(instance)), None)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    if error is None or isinstance(error.kind, _GAVE_UP):
        return None
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    message = error.message if len(error.message) <= 300 else error.message[:300] + "…"
    return f"{path.removeprefix('.') or '(top level)'}: {message}"


def _count_values(json: bytes) -> int:
    """At least the number of values in a JSON text (commas in strings count too)."""
    return 1 + json.count(b",") + json.count(b"[") + json.count(b"{")


def _compile(schema: bytes) -> tuple[jsonschema_rs.Validator, int] | None:
    """The validator and its weight. None if it is no schema, needs the network, or could run for long."""
    try:
        decoded = msgspec.json.decode(schema)
        weight = weigh(decoded)
        validator = jsonschema_rs.validator_for(
            decoded,
            retriever=_refuse,
            validate_formats=False,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=REGEX_STEPS),
        )
    except (ValueError, RecursionError, msgspec.DecodeError):
        # jsonschema_rs.ValidationError (a bad schema, a reference out) is a ValueError.
        return None
    return validator, weight


# Compiled once per schema text. Two caches, so that large schemas of hostile pages cannot fill the memory.
_compiled_small = lru_cache(maxsize=4096)(_compile)
_compiled_large = lru_cache(maxsize=16)(_compile)


def _refuse(uri: str) -> NoReturn:
    raise Malformed(f"references are not followed: {uri}", is_json=True)
