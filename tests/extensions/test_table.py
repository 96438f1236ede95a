"""The table of providers: what it shows, and that it fits a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.core.backend import ProviderView, RefusedView
from trio_relay.extensions.table import NOTHING, WIDTH, format_providers

ONE, TWO = "a" * 32, "b" * 32


def test_no_providers_are_a_sentence() -> None:
    assert format_providers([]) == NOTHING


def test_a_table_shows_every_row() -> None:
    rows = [
        ProviderView(
            extension_id=ONE,
            namespace="notes",
            name="Notes",
            version="1.2",
            state="connected",
            outcome="Connected: 12 tools, 1 refused.",
            tool_count=12,
            refused=(RefusedView("bad name", "the name must be made of A-Z, a-z, 0-9, _ and -"),),
        ),
        ProviderView(extension_id=TWO, state="error", outcome="Extension not installed, or no agent endpoint."),
    ]
    assert format_providers(rows).splitlines() == [
        "EXTENSION ID                      STATE       NAME                      TOOLS",
        f"{ONE}  connected   Notes 1.2                    12",
        "  Connected: 12 tools, 1 refused.",
        "  refused bad name: the name must be made of A-Z, a-z, 0-9, _ and -",
        f"{TWO}  error       ?                             0",
        "  Extension not installed, or no agent endpoint.",
    ]


def test_only_the_first_refused_tools_are_shown() -> None:
    refused = tuple(RefusedView(f"t{number}", "no") for number in range(9))
    lines = format_providers([ProviderView(extension_id=ONE, state="connected", outcome="x", refused=refused)])
    assert lines.splitlines()[-2:] == ["  refused t4: no", "  refused … and 4 more"]


@pytest.mark.parametrize("words", ["word " * 200, "x" * 500])
def test_a_long_outcome_is_wrapped_and_cut(words: str) -> None:
    lines = format_providers([ProviderView(extension_id=ONE, state="error", outcome=words)]).splitlines()
    assert len(lines) == 5
    assert lines[-1].endswith("…")


@given(st.text(max_size=600), st.text(max_size=600), st.text(max_size=100))
def test_every_line_fits(name: str, outcome: str, tool: str) -> None:
    row = ProviderView(
        extension_id=ONE,
        name=name,
        version=name,
        state="connecting",
        outcome=outcome,
        tool_count=64,
        refused=(RefusedView(tool, outcome),),
    )
    lines = format_providers([row]).split("\n")
    assert all(len(line) <= WIDTH and line.isprintable() for line in lines)
