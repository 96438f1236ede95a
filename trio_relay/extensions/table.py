"""The rows of providers as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from trio_relay.core.backend import ProviderView
from trio_relay.core.text import tidy

WIDTH = 100
ID_CHARS = 32
STATE_CHARS = len("connecting")
MAX_NAME_CHARS = 24
MAX_REFUSED = 5
"""Refused tools of one provider that are shown; `--json` shows them all."""

MAX_LINES = 3
"""Lines of one text that are shown."""

NOTHING = "No provider extensions are configured. Name one with --provider <id>, or in ~/.webmcp/trio-relay.toml."


def format_providers(rows: Sequence[ProviderView]) -> str:
    """A table of at most 100 columns, without a line end at its end: id, state, name, tools, then the outcome."""
    if not rows:
        return NOTHING
    lines = [_line("EXTENSION ID", "STATE", "NAME", "TOOLS")]
    for row in rows:
        name = " ".join(filter(None, (row.name or row.namespace or "?", row.version)))
        lines.append(_line(row.extension_id, row.state, name, str(row.tool_count)))
        lines += _wrapped(row.outcome, "  ")
        lines += [
            line for item in row.refused[:MAX_REFUSED] for line in _wrapped(f"{item.tool}: {item.reason}", "  refused ")
        ]
        if len(row.refused) > MAX_REFUSED:
            lines.append(f"  refused … and {len(row.refused) - MAX_REFUSED} more")
    return "\n".join(lines)


def _line(extension_id: str, state: str, name: str, tools: str) -> str:
    return (
        f"{extension_id:{ID_CHARS}}  {state:{STATE_CHARS}}  {tidy(name, MAX_NAME_CHARS):{MAX_NAME_CHARS}}  {tools:>5}"
    )


def _wrapped(text: str, indent: str) -> list[str]:
    """A few lines; words that are longer than a line are cut."""
    return textwrap.wrap(
        tidy(text, MAX_LINES * WIDTH),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        max_lines=MAX_LINES,
        placeholder=" …",
        break_on_hyphens=False,
    )
