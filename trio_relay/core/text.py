"""Texts of strangers, made fit to be shown."""

from __future__ import annotations


def tidy(text: str, limit: int) -> str:
    """A text as one line of at most `limit` printable characters; what does not print becomes a blank."""
    short = "".join(char if char.isprintable() else " " for char in text[: limit + 1]).strip()
    return short if len(short) <= limit else short[: limit - 1] + "…"
