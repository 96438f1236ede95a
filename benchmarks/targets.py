"""What is to be reached, and whether a run reached it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import Results
from benchmarks.subjects import FLOOR, FLOOR_WHOLE, FLOORS, OURS

PEER = "peer"


@dataclass(frozen=True)
class Target:
    """A limit for one metric of ours.

    Attributes:
        against: `PEER` or a floor: the same metric of theirs; another metric's key: that one of ours; None: the limit
            has the metric's unit.
        at_least: The limit is to be exceeded, else it must not be.
    """

    label: str
    metric: str
    limit: float
    against: str | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Judged:
    """A target and what became of it; `reached` is None where a number for it is missing."""

    target: Target
    limit: str
    reached: str | None
    met: bool | None


TARGETS = (
    Target("9.9 MB result, ASCII text", "result/text/9.9 MB", 0.50, PEER),
    Target("9.9 MB result, ASCII text", "result/text/9.9 MB", 1.5, FLOOR),
    Target("9.9 MB result, ASCII text", "result/text/9.9 MB", 1.5, FLOOR_WHOLE),
    Target("9.9 MB result, non-ASCII text", "result/non-ASCII/9.9 MB", 0.55, PEER),
    Target("9.9 MB result, nested JSON with structuredContent", "result/nested/9.9 MB", 0.28, PEER),
    Target("9.9 MB arguments", "arguments/text/9.9 MB", 0.5, PEER),
    Target("1 MB result", "result/text/1 MB", 0.5, PEER),
    Target("small call, sequential, p50", "latency/p50", 0.60, PEER),
    Target("16 tabs × 64 in flight, calls per second", "in-flight/rate", 1.4, PEER, at_least=True),
    Target("16 tabs × 64 in flight, p99", "in-flight/p99", 0.6, PEER),
    Target("300 tabs × 20 tools join until listed", "join/300", 0.2, PEER),
    Target("1,000 tabs join, by the time of 300", "join/1000", 4, "join/300"),
    Target("one tab leaving among 1,000, not listed any more", "churn/1000/leave", 30),
    Target("one tab coming among 1,000, listed", "churn/1000/come", 30),
    Target("peak memory, 9.9 MB results", "memory/peak", 0.5, PEER),
    Target("idle memory", "memory/idle", 85),
    Target("first answer to initialize", "start-up/initialize", 650),
    Target("port open", "start-up/port", 250),
    Target("9.9 MB through a relay client, by direct", "through/client/big", 1.8, "through/direct/big"),
)


def judge(results: Results, target: Target) -> Judged:
    metric = results.metric(target.metric)
    unit = ""
    reached: float | None = None
    if target.against is None:
        unit = f" {metric.unit}" if metric is not None else ""
        reached = metric.median(OURS) if metric is not None else None
    elif metric is not None and target.against in (PEER, *FLOORS):
        other = results.peer if target.against == PEER else target.against
        reached = metric.ratio(OURS, other) if other is not None else None
        unit = f" × {other or PEER}"
    elif metric is not None:
        mine, base = metric.median(OURS), results.metric(target.against)
        theirs = base.median(OURS) if base is not None else None
        reached = mine / theirs if mine is not None and theirs else None
        unit = " ×"
    limit = f"{'≥' if target.at_least else '≤'} {target.limit:g}{unit}"
    if reached is None:
        return Judged(target, limit, None, None)
    met = reached >= target.limit if target.at_least else reached <= target.limit
    return Judged(target, limit, f"{reached:.0f}" if reached >= 20 else f"{reached:.2f}", met)


def judge_all(results: Results) -> list[Judged]:
    """Every target, in order; those of a metric that was not measured are left out."""
    judged = [judge(results, target) for target in TARGETS]
    return [each for each in judged if each.reached is not None]
