"""The program as a whole: through a second relay, from its start, and its memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import machine
from benchmarks.driver import PATIENCE_S, Call, Fault, Reply
from benchmarks.payloads import SIZES, SMALL, SMALL_CALL, Page, Payloads, readable
from benchmarks.scenarios.base import Cell, Metric, Scenario, Values, percentile, show_page, wait_until_listed
from benchmarks.subjects import Running, Subject, port_is_open, started

BIG = SIZES[-1]
BIG_CALL = Call("big", b'{"input":"x"}')
IDLE_S = 1.0
"""Rest before idle memory is read."""


def big_page(payloads: Payloads) -> Page:
    page = Page()
    page.add(BIG_CALL.tool, Reply(payloads.result("text", BIG)))
    page.add(SMALL_CALL.tool, SMALL)
    return page


@dataclass(frozen=True)
class Pair:
    """A relay that has the port and the tab, and one that joined it."""

    server: Running
    client: Running


class ThroughClient(Scenario):
    name = "through"
    title = "Through a second relay of the same kind"
    with_floor = False

    def cells(self) -> Sequence[Cell]:
        big = readable(BIG)
        return [
            Cell(
                (
                    Metric("through/direct/big", f"text of {big}, direct", "ms"),
                    Metric("through/client/big", f"text of {big}, through a relay client", "ms"),
                ),
                (BIG_CALL, 1),
            ),
            Cell(
                (
                    Metric("through/direct/small", "small call, direct, p50", "ms"),
                    Metric("through/client/small", "small call, through a relay client, p50", "ms"),
                ),
                (SMALL_CALL, self.scale.small_calls // 4),
            ),
        ]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Pair]:
        page = big_page(self.payloads)
        with started(subject, self.pump) as server:
            show_page(server, page)
            with started(subject, self.pump, server.driver.port) as client:
                client.driver.initialize()
                wait_until_listed(client, page.names)
                yield Pair(server, client)

    def warm_up(self, session: Pair, cell: Cell) -> None:
        call, count = cell.what
        (tab,) = session.server.driver.tabs.values()
        for relay in (session.server, session.client):
            relay.driver.check(call, tab.reply(call.tool), tab)
            for _ in range(min(count, self.scale.warm_up)):
                relay.driver.call(call)

    def measure(self, session: Pair, cell: Cell) -> Values:
        call, count = cell.what
        values: Values = {}
        for metric, relay in zip(cell.metrics, (session.server, session.client), strict=True):
            values[metric.key] = percentile([relay.driver.call(call) for _ in range(count)], 0.5) * 1e3
        return values


class StartUp(Scenario):
    name = "start-up"
    title = "From the start of the process"

    def cells(self) -> Sequence[Cell]:
        return [
            Cell(
                (
                    Metric("start-up/port", "to the open port", "ms"),
                    Metric("start-up/initialize", "to the first answer to initialize", "ms"),
                )
            )
        ]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Subject]:
        yield subject

    def warm_up(self, session: Subject, cell: Cell) -> None:
        self.measure(session, cell)  # the files are in the system's cache then

    def measure(self, session: Subject, cell: Cell) -> Values:
        """`initialize` is written before the process can read, as clients do."""
        with started(session, self.pump) as running:
            answered: list[float] = []
            port_at: float | None = None
            params = b'{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"b","version":"1"}}'
            line = b',"method":"initialize","params":' + params + b"}\n"
            running.driver.client.send(line, lambda _: answered.append(time.perf_counter()))
            while not answered or port_at is None:
                running.driver.rest(0.001)
                if port_at is None and port_is_open(running.driver.port):
                    port_at = time.perf_counter()
                if time.perf_counter() - running.began > PATIENCE_S:
                    raise Fault(f"it needs longer than {PATIENCE_S:.0f} s to start")
            return {
                "start-up/port": (port_at - running.began) * 1e3,
                "start-up/initialize": (answered[0] - running.began) * 1e3,
            }


class Memory(Scenario):
    name = "memory"
    title = "Memory of a fresh process"

    def cells(self) -> Sequence[Cell]:
        if not machine.HAS_PROC:
            return []
        idle = Metric("memory/idle", "idle, one tab", "MB")
        peak = Metric("memory/peak", f"at its peak, five results of {readable(BIG)}", "MB")
        return [Cell((idle, peak))]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[Subject]:
        yield subject

    def measure(self, session: Subject, cell: Cell) -> Values:
        with started(session, self.pump) as running:
            show_page(running, big_page(self.payloads))
            running.driver.rest(IDLE_S)
            idle = machine.memory_mb(running.pid, "VmRSS")
            for _ in range(5):
                running.driver.call(BIG_CALL)
            return {"memory/idle": idle, "memory/peak": machine.memory_mb(running.pid, "VmHWM")}
