"""The one validator of Chrome extension ids. Options, files, frames and the public API all ask here."""

from __future__ import annotations

import re

from trio_relay.errors import ConfigError

_ID = re.compile(r"[a-p]{32}")


def is_extension_id(value: object) -> bool:
    """Whether `value` is a string of exactly 32 letters from a to p: no blanks, no line end, nothing else."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def require_extension_id(value: str) -> str:
    """`value` itself. Raises `ConfigError` when it is no extension id."""
    if not is_extension_id(value):
        raise ConfigError(
            f"{value[:64]!r} is no extension id: 32 letters from a to p, as shown on chrome://extensions with "
            "developer mode on"
        )
    return value
