"""The one validator of extension ids."""

from __future__ import annotations

import pytest

from trio_relay.core.extension_id import is_extension_id, require_extension_id
from trio_relay.errors import ConfigError

ID = "abcdefghijklmnopabcdefghijklmnop"


@pytest.mark.parametrize("text", [ID, "a" * 32, "p" * 32])
def test_thirty_two_letters_from_a_to_p_are_an_id(text: str) -> None:
    assert is_extension_id(text)
    assert require_extension_id(text) == text


@pytest.mark.parametrize(
    "value",
    [
        ID + "\n",
        ID + "\r\n",
        "\n" + ID,
        " " + ID,
        ID[:31],
        ID + "a",
        "q" + ID[1:],
        ID.upper(),
        "а" + ID[1:],  # Cyrillic
        "ａ" + ID[1:],  # full width
        "",
        f"chrome-extension://{ID}",
        ID.encode(),
        None,
        41,
        [ID],
    ],
)
def test_nothing_else_is(value: object) -> None:
    assert not is_extension_id(value)
    if isinstance(value, str):
        with pytest.raises(ConfigError, match="is no extension id"):
            require_extension_id(value)


def test_the_error_does_not_repeat_a_long_value() -> None:
    with pytest.raises(ConfigError) as caught:
        require_extension_id("a" * 1_000_000)
    assert len(str(caught.value)) < 300
