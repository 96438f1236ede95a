"""Runs scenarios: every subject in turn, round by round, so that a busy moment of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks import machine
from benchmarks.driver import Fault
from benchmarks.payloads import Payloads
from benchmarks.pump import Pump
from benchmarks.results import MeasuredMetric, MeasuredScenario
from benchmarks.scenarios.base import Cell, Scale, Scenario
from benchmarks.subjects import Subject

SLOW_S = 30.0
"""A subject that needs longer for one measurement is measured once only: its rounds would be the whole run."""

Step = Callable[[str, int], None]
"""Told what is measured now, and how many steps are done with it."""


def plan(scenario: Scenario, subjects: Sequence[Subject], rounds: int) -> int:
    """How many steps a scenario has: one for each subject's warm-up and measurement."""
    return sum(len(_able(scenario, cell, subjects)) * (rounds + 1) for cell in scenario.cells())


def _able(scenario: Scenario, cell: Cell, subjects: Sequence[Subject]) -> list[Subject]:
    return [subject for subject in subjects if not subject.is_floor or (scenario.with_floor and not cell.without_floor)]


def run(
    kind: type[Scenario], subjects: Sequence[Subject], rounds: int, payloads: Payloads, scale: Scale, step: Step
) -> MeasuredScenario:
    """Run one scenario. What fails costs the subject it belongs to the rest of this scenario."""
    with closing(Pump()) as pump, ExitStack() as stack:
        scenario = kind(payloads, scale, pump)
        return _Run(scenario, subjects, rounds, step).all(stack)


class _Run:
    def __init__(self, scenario: Scenario, subjects: Sequence[Subject], rounds: int, step: Step) -> None:
        self._scenario = scenario
        self._subjects = subjects
        self._rounds = rounds
        self._step = step
        self._measured = MeasuredScenario(scenario.name, scenario.title)
        self._cpu: dict[str, float] = {}
        self._wall: dict[str, float] = {}

    def all(self, stack: ExitStack) -> MeasuredScenario:
        sessions: dict[str, Any] = {}
        for subject in self._subjects:
            if subject.is_floor and not self._scenario.with_floor:
                continue
            with self._trouble(subject):
                self._step(f"{self._scenario.title}: {subject.name} starts", 0)
                sessions[subject.name] = stack.enter_context(self._scenario.open(subject))
        for cell in self._scenario.cells():
            self._cell(cell, sessions)
        for name, wall in self._wall.items():
            self._measured.driver_share[name] = round(self._cpu[name] / wall, 3)
        return self._measured

    def _cell(self, cell: Cell, sessions: dict[str, Any]) -> None:
        metrics = [MeasuredMetric.of(metric) for metric in cell.metrics]
        self._measured.metrics += metrics
        able = _able(self._scenario, cell, self._subjects)
        slow: set[str] = set()
        shown = f"{self._scenario.title}: {cell.metrics[0].label}"
        for subject in able:
            if self._in_use(subject, sessions):
                with self._trouble(subject):
                    self._scenario.warm_up(sessions[subject.name], cell)
            self._step(shown, 1)
        for number in range(self._rounds):
            turn = number % len(able)
            for subject in able[turn:] + able[:turn]:  # nobody is always the one after the slow one
                if subject.name not in slow and self._in_use(subject, sessions):
                    with self._trouble(subject):
                        if self._measure(subject.name, sessions[subject.name], cell, metrics) > SLOW_S:
                            slow.add(subject.name)
                self._step(shown, 1)

    def _measure(self, name: str, session: Any, cell: Cell, metrics: Sequence[MeasuredMetric]) -> float:
        """Returns seconds."""
        self._scenario.pump.run_for(0)  # what came meanwhile from others is not this one's cost
        cpu, start = machine.own_cpu(), time.perf_counter()
        values = self._scenario.measure(session, cell)
        wall = time.perf_counter() - start
        self._cpu[name] = self._cpu.get(name, 0.0) + machine.own_cpu() - cpu
        self._wall[name] = self._wall.get(name, 0.0) + wall
        for metric in metrics:
            if metric.key in values:
                metric.values.setdefault(name, []).append(round(values[metric.key], 4))
        return wall

    def _in_use(self, subject: Subject, sessions: dict[str, Any]) -> bool:
        return subject.name in sessions and subject.name not in self._measured.problems

    def _trouble(self, subject: Subject) -> _Trouble:
        return _Trouble(subject.name, self._measured.problems)


class _Trouble:
    """Notes a `Fault` as the problem of a subject, and goes on."""

    def __init__(self, name: str, problems: dict[str, str]) -> None:
        self._name = name
        self._problems = problems

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Fault):
            self._problems[self._name] = str(error)
        return isinstance(error, Fault)


def scenarios_named(names: Sequence[str], kinds: Sequence[type[Scenario]]) -> Iterator[type[Scenario]]:
    """Those named, or all. Raises ValueError for a name there is not."""
    known = {kind.name: kind for kind in kinds}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no scenario {name!r}; there are {', '.join(known)}")
    yield from (kind for kind in kinds if not names or kind.name in names)
