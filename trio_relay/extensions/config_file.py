"""What stands in `~/.webmcp/trio-relay.toml`: so far, which provider extensions to use.

    [providers]
    notes = "abcdefghijklmnopabcdefghijklmnop"

The names are for people; the order decides who wins a tool name.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trio_relay.core.extension_id import require_extension_id
from trio_relay.errors import ConfigError

FILE_NAME = "trio-relay.toml"
MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """The settings of a file.

    Attributes:
        providers: Extension ids in the order of the file, each once.
    """

    providers: tuple[str, ...] = ()


def parse_settings(text: str, where: str = FILE_NAME) -> FileSettings:
    """Read the text of a settings file.

    Args:
        where: What the file is called in messages.

    Raises:
        ConfigError: it is no TOML, or holds something that is not known.
    """
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no TOML: {error}") from None
    for key in tables:
        if key != "providers":
            raise ConfigError(f"{where}: {key[:64]!r} is not known; there is one table, [providers]")
    return FileSettings(providers=_providers(tables.get("providers", {}), where))


def read_settings(path: Path | None) -> FileSettings:
    """The settings in a file; none where there is no file (or no home directory: None).

    Raises:
        ConfigError: the file cannot be read or understood.
    """
    if path is None:
        return FileSettings()
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return FileSettings()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_BYTES >> 20} MiB")
    try:
        return parse_settings(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8") from None


def _providers(table: Any, where: str) -> tuple[str, ...]:
    if not isinstance(table, dict):
        raise ConfigError(f'{where}: providers is a table: [providers], then lines like notes = "<extension id>"')
    ids: list[str] = []
    for name, value in table.items():
        if not isinstance(value, str):
            raise ConfigError(f'{where}: {name[:64]!r} in [providers] is an extension id in quotes: {name[:64]} = "…"')
        try:
            ids.append(require_extension_id(value))
        except ConfigError as error:
            raise ConfigError(f"{where}: {name[:64]!r} in [providers]: {error}") from None
    return tuple(dict.fromkeys(ids))
