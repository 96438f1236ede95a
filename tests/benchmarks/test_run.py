"""The runner: subjects take turns, and what one of them gets wrong costs only itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from benchmarks import run
from benchmarks.driver import Fault
from benchmarks.payloads import Payloads
from benchmarks.scenarios import ALL
from benchmarks.scenarios.base import QUICK, Cell, Metric, Scenario, Values, percentile
from benchmarks.subjects import FLOOR, NPM, OURS, Subject

A, B, F = (Subject(name, name, ("no", "{port}")) for name in (OURS, NPM, FLOOR))


class Pretended(Scenario):
    """A scenario without relays, which notes what it is asked for."""

    name = "pretended"
    title = "Pretended"
    calls: ClassVar[list[tuple[str, str]]] = []
    faults: ClassVar[dict[tuple[str, str], str]] = {}

    def cells(self) -> Sequence[Cell]:
        return [
            Cell((Metric("one", "one", "ms"), Metric("not told", "not told", "MB"))),
            Cell((Metric("two", "two", "ms"),), without_floor=True),
        ]

    @contextmanager
    def open(self, subject: Subject) -> Iterator[str]:
        self._note("open", subject.name)
        yield subject.name
        self._note("close", subject.name)

    def warm_up(self, session: Any, cell: Cell) -> None:
        self._note("warm up", session)

    def measure(self, session: Any, cell: Cell) -> Values:
        self._note(cell.metrics[0].key, session)
        return {cell.metrics[0].key: float(len(self.calls))}

    def _note(self, what: str, name: str) -> None:
        self.calls.append((what, name))
        if (what, name) in self.faults:
            raise Fault(self.faults[what, name])


@pytest.fixture(autouse=True)
def forgotten() -> None:
    Pretended.calls.clear()
    Pretended.faults.clear()


def steps() -> tuple[list[int], run.Step]:
    done: list[int] = []
    return done, lambda shown, count: done.append(count)


def test_subjects_take_turns_round_by_round_and_nobody_is_always_first() -> None:
    done, step = steps()
    measured = run.run(Pretended, [A, B, F], 3, Payloads(1), QUICK, step)
    one = [name for what, name in Pretended.calls if what == "one"]
    assert one == [OURS, NPM, FLOOR, NPM, FLOOR, OURS, FLOOR, OURS, NPM]
    two = [name for what, name in Pretended.calls if what == "two"]
    assert two == [OURS, NPM, NPM, OURS, OURS, NPM]
    assert {name: len(values) for name, values in measured.metrics[0].values.items()} == {OURS: 3, NPM: 3, FLOOR: 3}
    assert measured.metrics[1].values == {}
    assert measured.problems == {}
    assert sum(done) == 3 * 4 + 2 * 4
    assert set(measured.driver_share) == {OURS, NPM, FLOOR}


def test_as_many_steps_are_planned_as_are_done() -> None:
    from benchmarks.pump import Pump

    pump = Pump()
    assert run.plan(Pretended(Payloads(1), QUICK, pump), [A, B, F], 3) == 20
    pump.close()


@pytest.mark.parametrize("where", ["open", "warm up", "one"])
def test_a_fault_costs_its_subject_the_scenario_and_no_one_else(where: str) -> None:
    Pretended.faults[where, NPM] = "it is broken"
    done, step = steps()
    measured = run.run(Pretended, [A, B], 2, Payloads(1), QUICK, step)
    assert measured.problems == {NPM: "it is broken"}
    assert all(set(metric.values) <= {OURS} for metric in measured.metrics)
    assert sum(done) == 2 * 3 * 2
    assert Pretended.calls.count(("two", OURS)) == 2


def test_a_slow_subject_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SLOW_S", -1.0)
    measured = run.run(Pretended, [A, B], 5, Payloads(1), QUICK, steps()[1])
    assert {len(values) for metric in measured.metrics for values in metric.values.values()} == {1}


def test_scenarios_are_chosen_by_name() -> None:
    assert [kind.name for kind in run.scenarios_named(["memory", "latency"], ALL)] == ["latency", "memory"]
    assert list(run.scenarios_named([], ALL)) == list(ALL)
    with pytest.raises(ValueError, match="there is no scenario 'speed'"):
        list(run.scenarios_named(["speed"], ALL))


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7
