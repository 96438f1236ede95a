"""JSON Schema checks of arguments and structured results. Offline: no `$ref` is ever fetched.

A schema comes from a web page, so compiling and running it must be harmless: references to network or disk
fail, regular expressions have a step limit, and what cannot be compiled is not checked.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

import jsonschema_rs
import msgspec
from msgspec import Raw

from trio_relay.wire.codec import Malformed

MAX_CHECKED_BYTES = 1 << 20
"""Schemas and values above 1 MiB are not checked: decoding a 7 MB tree holds the interpreter for hundreds of
milliseconds (docs/decisions.md, 17)."""

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
    validator = _compiled(schema)
    if validator is None:
        return None
    try:
        instance = msgspec.json.decode(value)
        error = next(iter(validator.iter_errors(instance)), None)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    if error is None or isinstance(error.kind, _GAVE_UP):
        return None
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    message = error.message if len(error.message) <= 300 else error.message[:300] + "…"
    return f"{path.removeprefix('.') or '(top level)'}: {message}"


@lru_cache(maxsize=1024)
def _compiled(schema: bytes) -> jsonschema_rs.Validator | None:
    """Compile once per schema text. None if it is no schema, or one that would need the network."""
    try:
        return jsonschema_rs.validator_for(
            msgspec.json.decode(schema),
            retriever=_refuse,
            validate_formats=False,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=REGEX_STEPS),
        )
    except (ValueError, RecursionError, msgspec.DecodeError):
        # jsonschema_rs.ValidationError (a bad schema, a reference out) is a ValueError.
        return None


def _refuse(uri: str) -> NoReturn:
    raise Malformed(f"references are not followed: {uri}", is_json=True)
