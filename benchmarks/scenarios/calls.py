"""Calls through one relay: their size in both directions, their latency, and many at once."""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import machine, wire
from benchmarks.driver import Call, Fault, Reply
from benchmarks.payloads import KINDS, MASK_KEY, SIZES, SMALL, SMALL_CALL, Page, Payloads, readable
from benchmarks.pump import Pump
from benchmarks.scenarios.base import Cell, Metric, OnePage, Scale, Values, milliseconds, percentile, show_page
from benchmarks.subjects import Running, Subject, started

REPEATS = {100: 50, 10_000: 50, 1_000_000: 5, 9_900_000: 1}
"""Calls of each size in one measurement, which gives their median: small ones are too short to be taken alone."""

TABS, IN_FLIGHT = 16, 64


@dataclass(frozen=True)
class Spec:
    """Which data a call carries; it is made when it is needed first.

    Attributes:
        label: The kind as tables show it.
        key: Masking key of the page's frames.
    """

    kind: str
    label: str
    size: int
    key: bytes = wire.NO_MASK

    @property
    def tool(self) -> str:
        return "".join(char if char.isalnum() else "_" for char in f"{self.label}_{self.size}")


class _BySize(OnePage):
    """One cell for each kind and size; every subject shows before that the data arrives as it was sent."""

    def __init__(self, payloads: Payloads, scale: Scale, pump: Pump) -> None:
        super().__init__(payloads, scale, pump)
        self._made: dict[Spec, tuple[Call, Reply]] = {}

    @abc.abstractmethod
    def _make(self, spec: Spec) -> tuple[Call, Reply]: ...

    def _data(self, spec: Spec) -> tuple[Call, Reply]:
        if spec not in self._made:
            self._made[spec] = self._make(spec)
        return self._made[spec]

    def page(self) -> Page:
        page = Page()
        for cell in self.cells():
            call, reply = self._data(cell.what)
            page.add(call.tool, reply, with_output=cell.what.kind.endswith("+schema"))
        return page

    def warm_up(self, session: Running, cell: Cell) -> None:
        call, reply = self._data(cell.what)
        (tab,) = session.driver.tabs.values()
        session.driver.check(call, reply, tab)
        session.driver.call(call)

    def measure(self, session: Running, cell: Cell) -> Values:
        call, reply = self._data(cell.what)
        # A relay may write the same JSON with fewer bytes, but not with much fewer.
        at_least = len(reply.result) * 3 // 4
        seconds = [session.driver.call(call, at_least) for _ in range(REPEATS[cell.what.size])]
        return {cell.metrics[0].key: milliseconds(seconds)}


class Results(_BySize):
    name = "results"
    title = "Results by kind and size"

    def cells(self) -> Sequence[Cell]:
        specs = [Spec(kind, kind, size) for kind in KINDS for size in SIZES]
        specs.append(Spec("text", "text, masked", SIZES[-1], MASK_KEY))
        return [_cell("result", spec) for spec in specs]

    def _make(self, spec: Spec) -> tuple[Call, Reply]:
        return Call(spec.tool, b'{"input":"x"}'), Reply(self.payloads.result(spec.kind, spec.size), spec.key)


class Arguments(_BySize):
    name = "arguments"
    title = "Arguments by kind and size"

    def cells(self) -> Sequence[Cell]:
        kinds = [kind for kind in KINDS if not kind.endswith("+schema")]
        return [_cell("arguments", Spec(kind, kind, size)) for kind in kinds for size in SIZES]

    def _make(self, spec: Spec) -> tuple[Call, Reply]:
        return Call(spec.tool, self.payloads.arguments(spec.kind, spec.size)), SMALL


def _cell(what: str, spec: Spec) -> Cell:
    metric = Metric(f"{what}/{spec.label}/{readable(spec.size)}", f"{spec.label}, {readable(spec.size)}", "ms")
    return Cell((metric,), spec, without_floor=spec.key != wire.NO_MASK)


class Latency(OnePage):
    name = "latency"
    title = "Small calls, one after the other"

    def page(self) -> Page:
        page = Page()
        page.add(SMALL_CALL.tool, SMALL)
        return page

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(
                (
                    Metric("latency/p50", "p50", "µs"),
                    Metric("latency/p99", "p99", "µs"),
                    Metric("latency/cpu", "CPU per call", "µs"),
                )
            )
        ]

    def warm_up(self, session: Running, cell: Cell) -> None:
        (tab,) = session.driver.tabs.values()
        session.driver.check(SMALL_CALL, SMALL, tab)
        for _ in range(self.scale.warm_up):
            session.driver.call(SMALL_CALL)

    def measure(self, session: Running, cell: Cell) -> Values:
        cpu = machine.cpu_seconds(session.pid) if machine.HAS_PROC else 0.0
        seconds = [session.driver.call(SMALL_CALL) for _ in range(self.scale.small_calls)]
        values = {"latency/p50": percentile(seconds, 0.5) * 1e6, "latency/p99": percentile(seconds, 0.99) * 1e6}
        if machine.HAS_PROC:
            values["latency/cpu"] = (machine.cpu_seconds(session.pid) - cpu) / len(seconds) * 1e6
        return values


class InFlight(OnePage):
    name = "in-flight"
    title = f"{TABS} tabs with {IN_FLIGHT} calls in flight each"

    def page(self) -> Page:
        raise NotImplementedError("each tab has its own")

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(
                (
                    Metric("in-flight/rate", "calls per second", "1/s", more_is_better=True),
                    Metric("in-flight/p99", "p99", "ms"),
                    Metric("in-flight/cpu", "CPU per call", "µs"),
                )
            )
        ]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Running]:
        """Each tab has a tool of its own name, so that the floor can tell them apart too."""
        with started(subject, self.pump) as running:
            for number in range(TABS):
                page = Page()
                page.add(f"work_{number}", SMALL)
                if number == 0:
                    show_page(running, page, "aa00")
                else:
                    running.driver.open_tab(f"aa{number:02}", page.tools, page.replies)
            while running.driver.list_tools().count(b'"work_') < TABS:
                running.driver.rest(0.005)
            yield running

    def warm_up(self, session: Running, cell: Cell) -> None:
        for number, tab in enumerate(session.driver.tabs.values()):
            session.driver.check(Call(f"work_{number}", b'{"input":"x"}'), SMALL, tab)
        self._run(session, self.scale.per_tab // 2)

    def measure(self, session: Running, cell: Cell) -> Values:
        cpu = machine.cpu_seconds(session.pid) if machine.HAS_PROC else 0.0
        start = time.perf_counter()
        seconds = self._run(session, self.scale.per_tab)
        took = time.perf_counter() - start
        values = {"in-flight/rate": len(seconds) / took, "in-flight/p99": percentile(seconds, 0.99) * 1e3}
        if machine.HAS_PROC:
            values["in-flight/cpu"] = (machine.cpu_seconds(session.pid) - cpu) / len(seconds) * 1e6
        return values

    def _run(self, session: Running, per_tab: int) -> list[float]:
        """Every tab has 64 calls in flight until it has had all of its calls. Returns the seconds of each call."""
        client = session.driver.client
        seconds: list[float] = []
        problems: list[bytes] = []

        def send(tail: bytes, left: int) -> None:
            begun = time.perf_counter()

            def answered(line: wire.Message) -> None:
                seconds.append(time.perf_counter() - begun)
                if line.is_error():
                    problems.append(line.head)
                if left > IN_FLIGHT:
                    send(tail, left - IN_FLIGHT)

            client.send(tail, answered)

        tails = [Call(f"work_{number}", b'{"input":"x"}').tail for number in range(TABS)]
        for first in range(min(IN_FLIGHT, per_tab)):
            for tail in tails:
                send(tail, per_tab - first)
        session.driver.until(lambda: len(seconds) == TABS * per_tab, "many calls at once")
        if problems:
            raise Fault(f"{len(problems)} calls failed: {problems[0][:200]!r}")
        return seconds
