"""Reading JSON we did not write, and making bytes safe to splice into JSON we do write.

A 10 MB result is never turned into Python objects: msgspec skips over it (checking the grammar as it goes)
and hands the bytes on as `Raw`. What that skip does not check is checked here, so that spliced bytes are
always valid UTF-8, strict JSON and one line.
"""

from __future__ import annotations

import math
import re
from array import array
from itertools import accumulate
from typing import TypeVar

import msgspec
from msgspec import Raw, UnsetType

T = TypeVar("T")

Maybe = Raw | UnsetType
"""A member whose value is kept as bytes; UNSET when the member is absent."""

encode = msgspec.json.Encoder().encode

_ANYTHING = msgspec.json.Decoder(Raw)

_LONE_SURROGATE_HINT = re.compile(rb"\\u[dD][89a-fA-F]")
# Read left to right, so that an escaped backslash or a proper pair is consumed whole and never cut in two.
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT = re.compile(b"0e000")  # several times faster than `in`, as it looks for the first byte

_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")  # as signed bytes: one level in, one level out

MAX_NUMBER_CHARS = 2_000
"""Longest number passed on as it was written; the exact digits of any double are fewer."""


MAX_INTEGER_DIGITS = 4300
"""Longest integer of a line, a limit of Python: its client drops a line with a longer one, and the call hangs."""
_DIGIT_STEP = MAX_INTEGER_DIGITS // 2
_QUOTED = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{%d,}+(?![.eE])" % (MAX_INTEGER_DIGITS + 1))


class Malformed(ValueError):
    """The bytes are not a JSON text of the expected shape.

    Attributes:
        is_json: Whether they are JSON at all.
        too_deep: Whether they nest too deeply to be read.
    """

    def __init__(self, reason: str, *, is_json: bool, too_deep: bool = False) -> None:
        super().__init__(reason)
        self.is_json = is_json
        self.too_deep = too_deep


def decode(decoder: msgspec.json.Decoder[T], data: bytes, *, clean: bool = False) -> T:
    """Decode one JSON text, mending lone surrogate escapes on the way.

    Args:
        clean: Whether `data` went through `clean_text` already.

    Half an emoji (`"\\ud83d"`) is what `JSON.stringify` makes of a string that was cut in the middle of a
    character; it becomes U+FFFD instead of costing the whole message.

    Raises:
        Malformed: invalid UTF-8, invalid JSON, too deeply nested, or another shape than the decoder's type.
    """
    if not clean:
        require_utf8(data)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        # The decoder stops at the first wrong type, whatever follows.
        raise Malformed(str(error), is_json=_is_json(data)) from None
    except RecursionError:
        raise Malformed("JSON is nested too deeply", is_json=True, too_deep=True) from None
    except msgspec.DecodeError as error:
        if _LONE_SURROGATE_HINT.search(data) is not None:
            mended = mend_surrogates(data)
            if mended != data:
                return decode(decoder, mended, clean=clean)
        raise Malformed(str(error), is_json=False) from None


def _is_json(data: bytes) -> bool:
    try:
        _ANYTHING.decode(mend_surrogates(data))
    except RecursionError:
        return True
    except msgspec.DecodeError:
        return False
    return True


def decode_spliceable(decoder: msgspec.json.Decoder[T], data: bytes, *, clean: bool = False) -> T:
    """Like `decode`, and every `Raw` in the outcome can be spliced into a line as it is (see `one_line`)."""
    value = decode(decoder, data, clean=clean)
    safe = without_line_ends(data) if clean else one_line(data)
    return value if safe is data else decode(decoder, safe, clean=clean)


def decode_plain(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    """Like `decode_spliceable` for a decoder that is strict about members; None for whatever it does not take.

    Args:
        data: Went through `clean_text`.
    """
    try:
        return decoder.decode(without_line_ends(data))
    except (msgspec.DecodeError, RecursionError):
        return None


def require_utf8(data: bytes) -> None:
    """Raise `Malformed` unless `data` is valid UTF-8 (msgspec does not look inside what it skips)."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"invalid UTF-8 at byte {error.start}", is_json=False) from None


def mend_surrogates(data: bytes) -> bytes:
    """Replace every surrogate escape without a partner by U+FFFD; everything else stays as it is."""
    return _ESCAPES.sub(lambda match: b"\\ufffd" if match.group(1) else match.group(), data)


def one_line(json: bytes) -> bytes:
    """Make valid JSON safe to put on a line of its own: no line end of any kind is left in it."""
    return clean_text(without_line_ends(json))


def without_line_ends(json: bytes) -> bytes:
    """Valid JSON without CR and LF: raw ones are only legal between tokens, so a blank does as well."""
    if b"\n" in json or b"\r" in json:
        json = json.replace(b"\n", b" ").replace(b"\r", b" ")
    return json


def clean_text(json: bytes) -> bytes:
    """JSON as valid UTF-8 without raw U+2028 and U+2029: some clients split lines on them.

    They are only legal inside strings, where their escapes mean the same. One look serves both purposes, as decoding
    10 MB takes 7 ms; finding one character in a str is then much faster than finding three bytes.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    if not json.isascii():
        text = json.decode()
        if "\u2028" in text or "\u2029" in text:
            json = json.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return json


def has_infinite_number(json: bytes) -> bool:
    """Whether valid JSON holds a number no page can represent, such as `1e999` (JavaScript reads Infinity).

    The exact answer builds objects, so a cheap necessary sign is looked for first: an exponent of three
    digits, or so many digits that an exponent of two is enough (the largest double has 309 before its point).
    """
    shape = json.translate(_DIGITS_TO_ZERO, b"+")
    if _LONG_EXPONENT.search(shape) is None and b"0" * (309 - 99) not in shape:
        return False
    try:
        value = msgspec.json.decode(json)
    except (msgspec.DecodeError, RecursionError):
        return True
    return _overflows(value)


def has_overlong_integer(json: bytes) -> bool:
    """Whether valid JSON holds an integer of more than `MAX_INTEGER_DIGITS` digits.

    One so long fills at least one whole step, so 10 MB without such a run of digits are answered in 2 ms.
    """
    if not any(json[at : at + _DIGIT_STEP].isdigit() for at in range(0, len(json), _DIGIT_STEP)):
        return False
    return _LONG_INTEGER.search(_QUOTED.sub(b'""', json)) is not None


def nested_deeper_than(json: bytes, limit: int) -> bool:
    """Whether valid JSON nests objects and arrays in more than `limit` levels.

    A text with few brackets is answered at the speed of memchr, whatever its size. A dense one of 10 MB takes 10 to
    40 ms; one that is nothing but brackets 0.4 s.
    """
    if not _has_more_openers(json, limit):
        return False
    if b"\\" in json:
        json = json.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = json.translate(_SQUARE, _NO_MARKS)
    brackets = marks.translate(None, b'"')
    # Where quotes only come in pairs of neighbours, no string holds a bracket.
    if 2 * marks.count(b'""') != len(marks) - len(brackets):
        brackets = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    depth = 0
    for at in range(0, len(brackets), limit):
        openers = brackets.count(b"[", at, at + limit)
        if depth + openers > limit:  # else it cannot be exceeded here, in whatever order they come
            piece = brackets[at : at + limit]
            if depth + max(accumulate(array("b", piece.translate(_STEPS)))) > limit:
                return True
        depth += 2 * openers - limit
    return False


def _has_more_openers(json: bytes, limit: int) -> bool:
    seen = 0
    for opener in (b"[", b"{"):
        at = json.find(opener)
        while at >= 0:
            seen += 1
            if seen > limit:
                return True
            at = json.find(opener, at + 1)
    return False


def _overflows(value: object) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, int):
            try:
                float(item)
            except OverflowError:
                return True
    return False


def find_call_id(data: bytes) -> str | None:
    """The `callId` of a frame that cannot be decoded, if one can be seen near its beginning or end."""
    match = _CALL_ID.search(data, 0, 4_096) or _CALL_ID.search(data, max(0, len(data) - 4_096))
    return None if match is None else match.group(1).decode(errors="replace")


_CALL_ID = re.compile(rb'"callId"\s*:\s*"([^"\\]{1,100})"')
_STRING = msgspec.json.Decoder(str)


def as_text(raw: Maybe) -> str | None:
    """The string a member holds; None if it is absent, null or anything else."""
    if isinstance(raw, UnsetType):
        return None
    data = bytes(raw)
    if data[:1] != b'"':
        return None
    return decode(_STRING, data)


def as_number(raw: Maybe) -> bytes | None:
    """The JSON text of an optional number; None if it is absent, null or anything else.

    Also for one beyond every range, which clients read as Infinity, and one of more than `MAX_NUMBER_CHARS`.
    """
    if isinstance(raw, UnsetType) or memoryview(raw).nbytes > MAX_NUMBER_CHARS:
        return None
    text = bytes(raw)
    return text if text[:1] in b"-0123456789" and math.isfinite(float(text)) else None


def raw_bytes(raw: Maybe) -> bytes | None:
    """The bytes of a member; None when it is absent."""
    return None if isinstance(raw, UnsetType) else bytes(raw)
