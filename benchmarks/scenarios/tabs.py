"""Many tabs, all with the same twenty tools, so that every name has to be told apart: joining, leaving, coming."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks import machine
from benchmarks.driver import Fault, Tab
from benchmarks.payloads import SMALL, Page
from benchmarks.scenarios.base import Cell, Metric, Scenario, Values
from benchmarks.subjects import Running, Subject, started, wait_for_port

TOOLS = 20
AT_ONCE = 64
"""Handshakes under way at the same time: more than a relay's backlog would cost some of them a second each."""

ASK_AGAIN_S = 0.01
"""Between two looks at a list that is not complete yet."""

PATIENCE_S = 180.0

FIRST_COMING = 0x8000
"""Numbers of the tabs that come while others are there."""


def page() -> Page:
    page = Page()
    for number in range(TOOLS):
        page.add(f"bench_{number:02}", SMALL)
    return page


def tab_id(number: int) -> str:
    """Its first four characters, which tell names apart, are its own."""
    return f"{number:04x}"


def join(running: Running, numbers: range, offer: Page) -> float:
    """Connect tabs and wait until every tool is listed, theirs and those of tabs before them.

    Returns:
        Seconds from the first connection.
    """
    driver = running.driver
    start = time.perf_counter()
    joining: list[Tab] = []
    tools = offer.tools
    for number in numbers:
        joining.append(driver.open_tab(tab_id(number), tools, offer.replies))
        if len(joining) > AT_ONCE:
            oldest = joining[-1 - AT_ONCE]
            driver.until(lambda tab=oldest: tab.ready, "a tab's handshake")  # type: ignore[misc]
    driver.until(lambda: all(tab.ready for tab in joining), "a tab's handshake")
    wanted = len(driver.tabs) * TOOLS
    while (seen := driver.list_tools().count(b'"bench_')) != wanted:
        if time.perf_counter() - start > PATIENCE_S:
            raise Fault(f"after {PATIENCE_S:.0f} s {seen} of {wanted} tools are listed")
        driver.rest(ASK_AGAIN_S)
    return time.perf_counter() - start


class Join(Scenario):
    name = "join"
    title = f"Tabs with {TOOLS} tools each, all of the same names, join"
    with_floor = False

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(
                (
                    Metric(f"join/{count}", f"{count} tabs until all are listed", "ms"),
                    Metric(f"join/{count}/memory", f"memory with {count} tabs", "MB"),
                ),
                count,
            )
            for count in self.scale.tabs
        ]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Subject]:
        yield subject  # a fresh process for each measurement

    def measure(self, session: Subject, cell: Cell) -> Values:
        time_metric, memory_metric = cell.metrics
        with started(session, self.pump) as running:
            wait_for_port(running)
            running.driver.initialize()
            values = {time_metric.key: join(running, range(cell.what), page()) * 1e3}
            if machine.HAS_PROC:
                values[memory_metric.key] = machine.memory_mb(running.pid, "VmRSS")
            return values


class Churn(Scenario):
    name = "churn"
    title = "One tab among many leaves, another comes"
    with_floor = False

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(
                (
                    Metric(f"churn/{count}/leave", f"gone from the list of {count} tabs", "ms"),
                    Metric(f"churn/{count}/come", f"in the list of {count} tabs", "ms"),
                ),
                count,
            )
            for count in self.scale.tabs
        ]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[tuple[Running, Iterator[int]]]:
        with started(subject, self.pump) as running:
            wait_for_port(running)
            running.driver.initialize()
            yield running, itertools.count()

    def warm_up(self, session: tuple[Running, Iterator[int]], cell: Cell) -> None:
        """The tabs of the cell before stay; only the missing ones join."""
        running, _ = session
        join(running, range(len(running.driver.tabs), cell.what), page())
        self.measure(session, cell)

    def measure(self, session: tuple[Running, Iterator[int]], cell: Cell) -> Values:
        running, numbers = session
        driver = running.driver
        leaving = next(iter(driver.tabs))  # the one that is there longest
        coming = tab_id(FIRST_COMING + next(numbers))
        start = time.perf_counter()
        driver.close_tab(leaving)
        self._wait(running, leaving, 0)
        gone = time.perf_counter()
        offer = page()
        driver.open_tab(coming, offer.tools, offer.replies)
        self._wait(running, coming, TOOLS)
        came = time.perf_counter()
        left, appeared = cell.metrics
        return {left.key: (gone - start) * 1e3, appeared.key: (came - gone) * 1e3}

    def _wait(self, running: Running, tab: str, wanted: int) -> None:
        """Ask for the list, again at once, until it has this many names with the tab's suffix."""
        suffix = b'_%s"' % tab.encode()
        while running.driver.list_tools().count(suffix) != wanted:
            running.driver.rest(0)
