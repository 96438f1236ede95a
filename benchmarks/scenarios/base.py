"""The contract between a scenario and the runner."""

from __future__ import annotations

import abc
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.payloads import Page, Payloads
from benchmarks.pump import Pump
from benchmarks.subjects import Running, Subject, started, wait_for_port

Values = dict[str, float]
"""By metric, as declared in `Cell.metrics`. A metric may be missing where the system does not tell it."""


@dataclass(frozen=True)
class Metric:
    """One number that is compared.

    Attributes:
        key: Unique among all: `result/text/9.9 MB`.
        label: In tables, without the scenario's title.
        unit: `ms`, `µs`, `MB` or `1/s`.
        more_is_better: Else less is.
    """

    key: str
    label: str
    unit: str
    more_is_better: bool = False


@dataclass(frozen=True)
class Cell:
    """What is measured in one go, subject after subject, round after round.

    Attributes:
        what: Whatever the scenario needs to know of it.
        without_floor: Whether the floor cannot do it.
    """

    metrics: tuple[Metric, ...]
    what: Any = None
    without_floor: bool = False


@dataclass(frozen=True)
class Scale:
    """How much is done in one measurement; `QUICK` only shows that everything works.

    Attributes:
        small_calls: Sequential small calls.
        per_tab: Calls of each of the 16 tabs that has 64 in flight.
        tabs: How many tabs join; the last number is that of the changes too.
    """

    small_calls: int
    per_tab: int
    tabs: tuple[int, ...]
    warm_up: int


FULL = Scale(small_calls=2_000, per_tab=256, tabs=(300, 1_000), warm_up=200)
QUICK = Scale(small_calls=200, per_tab=96, tabs=(30, 100), warm_up=20)


class Scenario(abc.ABC):
    """One scenario.

    A scenario either keeps one process of each subject for all its cells (`open` yields it), or starts a fresh one
    for each measurement.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    with_floor: ClassVar[bool] = True

    def __init__(self, payloads: Payloads, scale: Scale, pump: Pump) -> None:
        self.payloads = payloads
        self.scale = scale
        self.pump = pump

    @abc.abstractmethod
    def cells(self) -> Sequence[Cell]: ...

    @abc.abstractmethod
    @contextmanager
    def open(self, subject: Subject) -> Iterator[Any]:
        """What `warm_up` and `measure` work on."""

    def warm_up(self, session: Any, cell: Cell) -> None:
        """Before the first round of a cell: make it work once or more, and check that it works right."""
        return

    @abc.abstractmethod
    def measure(self, session: Any, cell: Cell) -> Values: ...


class OnePage(Scenario):
    """A scenario with one tab, whose page stays the same."""

    @abc.abstractmethod
    def page(self) -> Page: ...

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Running]:
        with started(subject, self.pump) as running:
            show_page(running, self.page())
            yield running


def show_page(running: Running, page: Page, tab_id: str = "aa00") -> None:
    """Shake hands, connect a tab, and wait until its tools are listed."""
    wait_for_port(running)
    running.driver.initialize()
    running.driver.open_tab(tab_id, page.tools, page.replies)
    wait_until_listed(running, page.names)


def wait_until_listed(running: Running, names: Sequence[str]) -> None:
    while True:
        tools = running.driver.list_tools()
        if all(b'"%s"' % name.encode() in tools for name in names):
            return
        running.driver.rest(0.005)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def milliseconds(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3
