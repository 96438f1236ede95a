"""Puts the table and the plot of stored results into docs/performance.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import markdown
from benchmarks.results import Results

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def marks(suite: str) -> tuple[str, str]:
    return f"<!-- {suite}: written by python -m benchmarks docs -->", f"<!-- {suite}: end -->"


def insert(page: str, suite: str, text: str) -> str:
    """The page with everything between the marks of a suite replaced.

    Raises:
        ValueError: a mark is missing.
    """
    begin, end = marks(suite)
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page has no marks for {suite}: {begin} and {end}")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def refresh(results: Results, page: Path = PAGE) -> list[Path]:
    """Write the tables into the page, and the plot beside it. Returns what was written.

    Raises:
        ValueError: the results are of a quick run, which says nothing about speed.
    """
    if results.quick:
        raise ValueError("results of a quick run do not belong into the docs")
    text = markdown(results)
    written = [page]
    if results.suite == "relay":
        from benchmarks.plot import draw

        plots = draw(results, page.with_suffix(""))
        written += plots
        if plots:
            text = f"![cost by that of the peer, and time by size]({page.stem}.svg)\n\n{text}"
    page.write_text(insert(page.read_text(), results.suite, text))
    return written
