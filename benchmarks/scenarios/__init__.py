"""What is measured. Each module holds scenarios of one family; `ALL` is their order in a run."""

from __future__ import annotations

from benchmarks.scenarios.base import Scenario
from benchmarks.scenarios.calls import Arguments, InFlight, Latency, Results
from benchmarks.scenarios.tabs import Churn, Join
from benchmarks.scenarios.whole import Memory, StartUp, ThroughClient

ALL: tuple[type[Scenario], ...] = (
    Results,
    Arguments,
    Latency,
    InFlight,
    Join,
    Churn,
    ThroughClient,
    StartUp,
    Memory,
)
