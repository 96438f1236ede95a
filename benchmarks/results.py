"""The results of a run, as they are kept in a JSON file, and the few numbers that are read off them."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from benchmarks.scenarios.base import Metric
from benchmarks.subjects import FLOORS, NPM, OURS


class MeasuredMetric(Struct):
    """A metric and its values by subject, one for each round."""

    key: str
    label: str
    unit: str
    more_is_better: bool
    values: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, metric: Metric) -> MeasuredMetric:
        return cls(metric.key, metric.label, metric.unit, metric.more_is_better)

    def median(self, subject: str) -> float | None:
        values = self.values.get(subject)
        return statistics.median(values) if values else None

    def spread(self, subject: str) -> float | None:
        """Half the distance between the quartiles, with at least four rounds."""
        values = self.values.get(subject, [])
        if len(values) < 4:
            return None
        low, _, high = statistics.quantiles(values, n=4)
        return (high - low) / 2

    def ratio(self, subject: str, other: str) -> float | None:
        """The median of one subject by that of another."""
        mine, theirs = self.median(subject), self.median(other)
        return None if mine is None or not theirs else mine / theirs


class MeasuredScenario(Struct):
    """A scenario's metrics.

    Attributes:
        driver_share: By subject, CPU time of the driver by the time the measurements took: near 1 the driver is what
            was measured.
        problems: By subject, why it has no values, or fewer.
    """

    name: str
    title: str
    metrics: list[MeasuredMetric] = field(default_factory=list)
    driver_share: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


class Results(Struct):
    """One run.

    Attributes:
        suite: `relay` or `pure`.
        made: When, in UTC.
        subjects: Their commands, by name, in the order of the tables.
    """

    suite: str
    made: str
    quick: bool
    rounds: int
    seed: int
    machine: dict[str, Any]
    subjects: dict[str, str]
    scenarios: list[MeasuredScenario] = field(default_factory=list)

    @property
    def peer(self) -> str | None:
        """Whom the targets compare with: the npm relay, else the first other one."""
        others = [name for name in self.subjects if name not in (OURS, *FLOORS)]
        return NPM if NPM in others else others[0] if others else None

    def metric(self, key: str) -> MeasuredMetric | None:
        for scenario in self.scenarios:
            for metric in scenario.metrics:
                if metric.key == key:
                    return metric
        return None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises OSError and msgspec.MsgspecError."""
        return msgspec.json.decode(path.read_bytes(), type=cls)
