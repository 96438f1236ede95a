"""The codec: what is decoded, mended, refused, and made safe to splice into one line."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from trio_relay.wire.codec import (
    Malformed,
    as_text,
    clean_text,
    decode,
    decode_plain,
    decode_spliceable,
    has_infinite_number,
    has_overlong_integer,
    mend_surrogates,
    one_line,
)
from trio_relay.wire.mcp import PlainResult

MEMBERS = msgspec.json.Decoder(dict[str, Raw])
ANY = msgspec.json.Decoder()

pieces = st.sampled_from(
    (
        *(r"\ud83d", r"\uD83D", r"\ude00", r"\uDE00", r"\udfff", r"\ud800", r"\ufffd", r"\u0041", r"\ud7ff"),
        *(r"\ue000", r"\\", r"\"", r"\n", r"\/", "ud83d", "d83d", "é", "😀", "x", "\u2028"),
    )
)
string_bodies = st.lists(pieces, max_size=12).map("".join)


def reference_mend(text: str) -> str:
    """What a JSON string means once every surrogate without a partner is U+FFFD: by the standard library."""
    value: str = json.loads(text)
    return "".join("�" if "\ud800" <= char <= "\udfff" else char for char in value)


@given(string_bodies)
def test_mending_gives_what_the_standard_library_reads_with_lone_halves_replaced(body: str) -> None:
    text = f'"{body}"'
    mended = mend_surrogates(text.encode())
    assert msgspec.json.decode(mended) == reference_mend(text)


@given(string_bodies)
def test_mending_leaves_a_string_without_lone_halves_alone(body: str) -> None:
    text = f'"{body}"'
    if reference_mend(text) == json.loads(text):
        assert mend_surrogates(text.encode()) == text.encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'{"a":"x\ud83d y"}', {"a": "x� y"}),
        (rb'{"\ud83d":1}', {"�": 1}),
        (rb'{"a":"\ude00\ud83d"}', {"a": "��"}),
        (rb'{"a":"\ud83d\ud83d\ude00"}', {"a": "�😀"}),
        (rb'{"a":"\\ud83d"}', {"a": r"\ud83d"}),
        (rb'{"a":"\\\ud83d"}', {"a": "\\�"}),
    ],
)
def test_half_an_emoji_becomes_a_replacement_character(text: bytes, value: object) -> None:
    """C01."""
    assert decode(ANY, text) == value
    inside = decode(MEMBERS, b'{"raw":' + text + b"}")["raw"]
    assert json.loads(bytes(inside).decode()) == value


@pytest.mark.parametrize(
    ("data", "is_json"),
    [
        (b"", False),
        (b"{oops", False),
        (b'{"a":NaN}', False),
        (b'{"a":-Infinity}', False),
        (b'{"a":01}', False),
        (b'{"a":[1,]}', False),
        (b'{"a":"\n"}', False),
        (b'{"a":"\\x"}', False),
        (b'{"a":1} x', False),
        (b'\xef\xbb\xbf{"a":1}', False),
        (b'{"a":"\xff"}', False),
        (b'{"a":"\xed\xa0\xbd"}', False),
        (b'{"a":"x\xff\xfe"}', False),
        (b"[oops", False),
        (b"5x", False),
        (b"[1,2", False),
        (b"true false", False),
        (b"null", True),
        (rb'["\ud83d"]', True),
        (b"[]", True),
        (b"5", True),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", True),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_read_is_malformed_and_says_which_kind(data: bytes, is_json: bool) -> None:
    """A05, A07, A10, E06."""
    with pytest.raises(Malformed) as caught:
        decode(MEMBERS, data)
    assert caught.value.is_json is is_json


blanks = st.sampled_from(["", " ", "\n", "\r\n", "\t", "\r"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.sampled_from('a"\\\n\r\t\0\x1b\u2028\u2029\x85é😀'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("k\u2028", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def pretty(value: object, blank: str) -> str:
    """JSON text with a blank between all tokens and everything raw that may be raw."""
    if isinstance(value, dict):
        members = f",{blank}".join(f"{pretty(key, blank)}{blank}:{blank}{pretty(v, blank)}" for key, v in value.items())
        return f"{{{blank}{members}{blank}}}"
    if isinstance(value, list):
        return f"[{blank}{f'{blank},'.join(pretty(item, blank) for item in value)}{blank}]"
    return json.dumps(value, ensure_ascii=False)


@given(values, blanks)
def test_one_line_keeps_the_value_and_has_no_character_a_client_could_split_at(value: object, blank: str) -> None:
    """A02, C02."""
    line = one_line(pretty(value, blank).encode())
    assert json.loads(line.decode()) == value
    assert not set("\n\r\u2028\u2029") & set(line.decode())


@given(values, blanks)
def test_a_spliceable_member_is_one_line_whatever_stood_around_it(value: object, blank: str) -> None:
    """C02: a page can never write a second message into our stdout."""
    member = decode_spliceable(MEMBERS, f'{{{blank}"a":{blank}{pretty(value, blank)}{blank}}}'.encode())["a"]
    line = bytes(member).decode()
    assert json.loads(line) == value
    assert not set("\n\r\u2028\u2029") & set(line)


def test_one_line_returns_the_same_object_when_nothing_has_to_change() -> None:
    for data in (b'{"a":1}', '{"a":"é\x85"}'.encode()):
        assert one_line(data) is data


MAX_DOUBLE = (2**53 - 1) * 2**971


@pytest.mark.parametrize(
    ("text", "infinite"),
    [
        ("1e999", True),
        ("-1e999", True),
        ("1E+400", True),
        ("1e0999", True),
        ("[0.5,[1e309]]", True),
        ('{"a":{"b":1e309}}', True),
        ("1" * 400, True),
        ("-" + "1" * 400, True),
        ("1" * 5000, True),
        ("1" * 300 + "e10", True),
        ("1" * 211 + "e99", True),
        ("1" * 300 + ".5E+10", True),
        (str(MAX_DOUBLE + 2**970), True),
        ("1.7976931348623159e308", True),
        ('[1e999,"1e999"]', True),
        (str(MAX_DOUBLE), False),
        ("1.7976931348623157e308", False),
        ("1e308", False),
        ("1e-999", False),
        ("1e0000000001", False),
        ("0e999", False),
        ('"1e999"', False),
        (r'"\"1e999"', False),
        ('{"1e999":["1E+400"]}', False),
        ('"' + "1" * 400 + '"', False),
        ("[1,2.5,9007199254740993,-0.0,null,true]", False),
        ("{}", False),
    ],
    ids=lambda value: str(value)[:24],
)
def test_numbers_no_page_can_represent_are_found(text: str, infinite: bool) -> None:
    """A10."""
    assert has_infinite_number(text.encode()) is infinite


@given(st.from_regex(r"-?[1-9][0-9]{0,320}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_a_number_is_infinite_exactly_when_a_double_is(text: str) -> None:
    assert has_infinite_number(f"[{text}]".encode()) is (float(text) in (float("inf"), float("-inf")))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (UNSET, None),
        (Raw(b"null"), None),
        (Raw(b"5"), None),
        (Raw(b"true"), None),
        (Raw(b'["a"]'), None),
        (Raw(b'{"a":1}'), None),
        (Raw(b'""'), ""),
        (Raw(rb'"a\u00e9\n"'), "aé\n"),
        (Raw(rb'"\ud83d"'), "�"),
    ],
)
def test_as_text_reads_strings_only(raw: Raw, text: str | None) -> None:
    assert as_text(raw) == text


@pytest.mark.parametrize(
    ("digits", "overlong"), [(4299, False), (4300, False), (4301, True), (9000, True), (2_000_000, True)]
)
@pytest.mark.parametrize("frame", ["%s", "-%s", '{"a":[1,%s]}', '{"a\\\\":%s,"b":"\\""}'])
def test_integers_that_no_python_client_reads_are_found(frame: str, digits: int, overlong: bool) -> None:
    for shift in (0, 1, 2149, 2150, 2151):
        assert has_overlong_integer((" " * shift + frame % ("9" * digits)).encode()) is overlong


@pytest.mark.parametrize("text", ['"%s"', '{"%s":1}', '"\\"%s"', "0.%s", "1e-%s", "%s.5", "%se1", "[1.5,%s.0]"])
def test_digits_that_are_no_integer_do_not_matter(text: str) -> None:
    assert not has_overlong_integer((text % ("7" * 9000)).encode())


def test_text_that_was_cleaned_is_utf8_on_one_line_and_else_unchanged() -> None:
    for text in ("", "plain", "é漢😀", r'"a\u2028b"'):
        data = text.encode()
        assert clean_text(data) is data
    assert clean_text('"a\u2028b\u2029c é"'.encode()) == r'"a\u2028b\u2029c é"'.encode()
    for broken in (b"\xff", b"\xc3", b"\xed\xa0\xbd", b"\xc0\xaf"):
        with pytest.raises(UnicodeDecodeError):
            clean_text(broken)


def test_plain_decoding_gives_none_for_whatever_it_does_not_take() -> None:
    strict = msgspec.json.Decoder(PlainResult)
    plain = decode_plain(strict, b'{\r\n"content":\n[1]}')
    assert plain is not None
    assert bytes(plain.content) == b"[1]"
    for text in (b"{", b"[]", b'{"content":[],"more":1}', b'{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        assert decode_plain(strict, text) is None
