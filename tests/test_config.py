"""Values of options: exact boundaries, and origins as browsers write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trio_relay.config import (
    DEFAULT_ORIGINS,
    DISCOVERY_PORTS,
    RelayConfig,
    origin_allowed,
    parse_invoke_timeout,
    parse_max_payload,
    parse_name,
    parse_origins,
    parse_port,
)
from trio_relay.errors import ConfigError

ID = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
RANGES = [
    (parse_port, 1, 65_535),
    (parse_max_payload, 1_024, 1_073_741_824),
]


@pytest.mark.parametrize(("parse", "low", "high"), RANGES)
def test_both_ends_of_a_range_are_in_it_and_their_neighbours_are_not(
    parse: Callable[[str], int], low: int, high: int
) -> None:
    """DECISIONS 23."""
    assert (parse(str(low)), parse(str(high))) == (low, high)
    for text in (str(low - 1), str(high + 1)):
        with pytest.raises(ConfigError, match=f"{low} to {high}"):
            parse(text)


@pytest.mark.parametrize("parse", [parse_port, parse_max_payload, parse_invoke_timeout])
@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "+2000", "2_000", " 2000", "2000\n", "2e3", "2000.0", "0x800", "٢٠٠٠", "two", "9" * 21, "9" * 5000],
)
def test_anything_but_plain_digits_is_refused_and_shown(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert str(caught.value).startswith("--")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 0.001), ("2147483647", 2_147_483.647), ("65000", 65.0), ("none", None), ("NONE", None)]
)
def test_a_timeout_is_given_in_milliseconds_and_kept_in_seconds(text: str, seconds: float | None) -> None:
    assert parse_invoke_timeout(text) == seconds


@pytest.mark.parametrize("text", ["0", "2147483648"])
def test_a_timeout_out_of_range_names_the_range_and_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"1 to 2147483647, or 'none'"):
        parse_invoke_timeout(text)


@pytest.mark.parametrize("text", ["a", "x" * 200, "My laptop – 搜索", "a b"])
def test_a_name_is_what_a_person_can_read(text: str) -> None:
    assert parse_name("--label", text) == text


@pytest.mark.parametrize("text", ["", "  ", "x" * 201, "a\nb", "\x1b[31m", "a\u2028b", "\u200b"])
def test_a_name_with_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--label"):
        parse_name("--label", text)


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("*", ("*",)),
        ("null", ("null",)),
        (ID, (ID,)),
        (f"{ID}/", (ID,)),
        ("https://Example.COM", ("https://example.com",)),
        ("https://example.com:8443", ("https://example.com:8443",)),
        ("http://[::1]:80", ("http://[::1]:80",)),
        ("chrome-extension://*", ("chrome-extension://*",)),
        ("moz-extension://*, https://a ,,https://a", ("moz-extension://*", "https://a")),
    ],
)
def test_origin_patterns(text: str, origins: tuple[str, ...]) -> None:
    assert parse_origins("--widget-origin", text) == origins


@pytest.mark.parametrize(
    "item",
    [
        "example.com",
        "https://",
        "https:///",
        "https://a/path",
        "https://a?q",
        "https://a#f",
        "https://user@a",
        "https://*.example.com",
        "https://a b",
        "*://a",
        "://a",
        "1https://a",
        "https//a",
        "https:\\\\a",
    ],
)
def test_what_is_no_origin_is_refused_by_name(item: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_origins("--widget-origin", f"https://good,{item}")
    assert str(caught.value).startswith("--widget-origin")
    assert item in str(caught.value).replace("\\\\", "\\")


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_an_empty_list_of_origins_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        parse_origins("--widget-origin", text)


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        (ID, DEFAULT_ORIGINS, True),
        (ID.upper(), DEFAULT_ORIGINS, True),
        ("https://example.com", DEFAULT_ORIGINS, False),
        ("null", DEFAULT_ORIGINS, False),
        ("", DEFAULT_ORIGINS, False),
        ("chrome-extension", DEFAULT_ORIGINS, False),
        ("chrome-extension:", DEFAULT_ORIGINS, False),
        ("xchrome-extension://a", DEFAULT_ORIGINS, False),
        ("https://chrome-extension://a", DEFAULT_ORIGINS, False),
        ("null", ("null",), True),
        ("null", ("*",), True),
        ("https://any", ("*",), True),
        ("https://a", ("https://a",), True),
        ("https://a:443", ("https://a",), False),
        ("http://a", ("https://a",), False),
        ("https://a.evil", ("https://a",), False),
        ("https://b", ("https://a", "https://b"), True),
        ("https://b", ("http://*", "https://*"), True),
        ("https://b", (), False),
    ],
)
def test_an_origin_is_allowed_by_a_pattern_that_matches_it_whole(
    origin: str, allowed: tuple[str, ...], expected: bool
) -> None:
    """WIRE 2."""
    assert origin_allowed(origin, allowed) is expected


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert RelayConfig(host=host).is_loopback is loopback


@pytest.mark.parametrize("host", ["127.example.com", "localhost.example.com", "10.0.0.127"])
def test_a_name_that_only_looks_like_loopback_is_not(host: str) -> None:
    assert not RelayConfig(host=host).is_loopback


def test_the_defaults_are_those_of_the_protocol() -> None:
    config = RelayConfig()
    assert (config.host, config.port, config.invoke_timeout, config.max_payload) == (
        "127.0.0.1",
        9333,
        65.0,
        10_000_000,
    )
    assert (DISCOVERY_PORTS[0], DISCOVERY_PORTS[-1]) == (9333, 9348)
