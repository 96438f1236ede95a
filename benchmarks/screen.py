"""The terminal: progress while it runs, tables when it is done. The only module that needs rich."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from benchmarks.report import about, tables
from benchmarks.results import Results
from benchmarks.run import Step

UPDATES_PER_S = 2.0
"""The bar is drawn by a thread of the driver's process: seldom, so that it is not measured."""


@contextmanager
def progress(total: int) -> Iterator[Step]:
    """A bar on stderr; without a terminal, one line for each thing that is measured."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = ""

        def say(shown: str, steps: int) -> None:
            nonlocal last
            if shown != last:
                print(shown, file=sys.stderr, flush=True)
                last = shown

        yield say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=UPDATES_PER_S, transient=True) as bar:
        task = bar.add_task("", total=total)

        def step(shown: str, steps: int) -> None:
            bar.update(task, description=shown[:70], advance=steps)

        yield step


def show(results: Results) -> None:
    """All tables, to stdout."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(Text(about(results)), "")
    for table in tables(results):
        shown = Table(title=table.title, title_justify="left", title_style="bold", header_style="")
        for position, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*(_cell(text) for text in row))
        console.print(shown)
        for note in table.notes:
            console.print(Text("  " + note, style="dim"))
        console.print()


def _cell(text: str) -> Text:
    return Text(text, style={"met": "green", "missed": "red"}.get(text, ""))
