"""The settings file: what is read from it, and what is said when it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from trio_relay.errors import ConfigError
from trio_relay.extensions.config_file import MAX_BYTES, FileSettings, parse_settings, read_settings

ONE, TWO = "a" * 32, "b" * 32


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "[providers]\n"])
def test_a_file_may_say_nothing(text: str) -> None:
    assert parse_settings(text) == FileSettings()


def test_providers_come_in_the_order_of_the_file_each_once() -> None:
    text = f'[providers]\nzeta = "{TWO}"\n"my notes" = "{ONE}"\nagain = "{TWO}"\n'
    assert parse_settings(text).providers == (TWO, ONE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[providers", "no TOML"),
        (f'[providers]\na = "{ONE}"\na = "{TWO}"\n', "no TOML"),
        ("[provider]\n", "'provider' is not known"),
        ("port = 1\n", "'port' is not known"),
        ("providers = 5\n", "is a table"),
        (f'providers = ["{ONE}"]\n', "is a table"),
        (f'[[providers]]\na = "{ONE}"\n', "is a table"),
        ("[providers]\nnotes = 5\n", "'notes' in .providers. is an extension id in quotes"),
        (f'[providers.deep]\na = "{ONE}"\n', "'deep' in .providers. is an extension id in quotes"),
        (f'[providers]\nids = ["{ONE}"]\n', "'ids' in .providers. is an extension id in quotes"),
        ('[providers]\nnotes = "abc"\n', "'notes' in .providers.: 'abc' is no extension id"),
        (f'[providers]\nnotes = "{ONE} "\n', "is no extension id"),
        (f'[providers]\nnotes = "{ONE.upper()}"\n', "is no extension id"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        parse_settings(text, "here.toml")
    assert str(error.value).startswith("here.toml")


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_settings(None) == read_settings(tmp_path / "none" / "x.toml") == FileSettings()
    (tmp_path / "file").touch()
    assert read_settings(tmp_path / "file" / "x.toml") == FileSettings()


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + f'[providers]\nnotes = "{ONE}"\r\n'.encode())
    assert read_settings(path).providers == (ONE,)


@pytest.mark.parametrize(
    ("data", "words"), [(b"\xff", "not UTF-8"), (b"#" * (MAX_BYTES + 1), "longer than"), (b"x", "no TOML")]
)
def test_a_file_that_cannot_be_read_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words) as error:
        read_settings(path)
    assert str(error.value).startswith(str(path))


def test_a_directory_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path)
