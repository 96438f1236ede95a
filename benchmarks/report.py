"""Results as a table: in Markdown for the docs, and row by row for the screen."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import MeasuredMetric, MeasuredScenario, Results
from benchmarks.subjects import FLOOR, FLOOR_WHOLE, OURS
from benchmarks.targets import judge_all

PLOTTED = ("/1 MB", "/9.9 MB", "/cpu", "/idle", "/port", "/initialize", "/big", "/leave", "/come", "/300", "/1000")
"""Ends of the keys of metrics that the plot shows beside those that have a target."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def number(value: float) -> str:
    """Three digits that mean something: `0.26`, `52.9`, `6,300`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def tables(results: Results) -> list[Table]:
    """One for each scenario, and the targets in front of a run that has any."""
    found = [scenario_table(results, scenario) for scenario in results.scenarios]
    judged = judge_all(results)
    if judged:
        rows = [[each.target.label, each.limit, each.reached or "", "met" if each.met else "missed"] for each in judged]
        found.insert(0, Table("Targets", ["target", "limit", "reached", ""], rows, []))
    return found


def scenario_table(results: Results, scenario: MeasuredScenario) -> Table:
    """A row for each metric: the median of each subject with half its interquartile range, and ours by the others."""
    names = [name for name in results.subjects if any(metric.values.get(name) for metric in scenario.metrics)]
    others = [name for name in names if name != OURS] if OURS in names else []
    columns = ["", "unit", *names, *(f"× {name}" for name in others)]
    rows = [_row(metric, names, others) for metric in scenario.metrics if metric.values]
    notes = [f"{name}: {problem}" for name, problem in scenario.problems.items()]
    if scenario.driver_share:
        shares = ", ".join(f"{share:.0%} with {name}" for name, share in scenario.driver_share.items())
        notes.append(f"The driver's own CPU: {shares}.")
    return Table(scenario.title, columns, rows, notes)


def _row(metric: MeasuredMetric, names: list[str], others: list[str]) -> list[str]:
    cells = [metric.label, metric.unit]
    for name in names:
        median, spread = metric.median(name), metric.spread(name)
        shown = "" if median is None else number(median)
        cells.append(shown if spread is None else f"{shown} ± {number(spread)}")
    for name in others:
        ratio = metric.ratio(OURS, name)
        cells.append("" if ratio is None else f"{ratio:.2f}")
    return cells


def about(results: Results) -> str:
    """Where and how the run was made, in two lines."""
    machine = results.machine
    subjects = "; ".join(f"{name} is `{shown}`" for name, shown in results.subjects.items())
    rounds = f"{results.rounds} round{'s' if results.rounds != 1 else ''}"
    quick = " A quick run, which only shows that everything works." if results.quick else ""
    return (
        f"{results.made}, {machine.get('cpus')} CPUs ({machine.get('cpu') or 'unnamed'}), {machine.get('system')}, "
        f"Python {machine.get('python')}, load {machine.get('load')}. Medians of {rounds}, ± half the interquartile "
        f"range; seed {results.seed}.{quick}\nHere {subjects}."
    )


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [about(results)]
    for table in tables(results):
        parts.append(f"**{table.title}**")
        lines = [_line(table.columns), _line(["---", *("--:" for _ in table.columns[1:])])]
        parts.append("\n".join(lines + [_line(row) for row in table.rows]))
        parts += table.notes
    return "\n\n".join(parts) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def headline(results: Results) -> list[tuple[str, dict[str, float], float | None]]:
    """For the plot: label, cost of ours and of the floor by the peer's (less is better), and the target.

    Empty without a peer.
    """
    peer = results.peer
    found: list[tuple[str, dict[str, float], float | None]] = []
    limits = {each.target.metric: each.target for each in judge_all(results) if each.target.against == "peer"}
    for scenario in results.scenarios if peer is not None else ():
        for metric in scenario.metrics:
            target = limits.get(metric.key)
            if target is None and not metric.key.endswith(PLOTTED):
                continue
            costs = {}
            for name in (OURS, FLOOR, FLOOR_WHOLE):
                ratio = metric.ratio(name, peer) if peer is not None else None
                if ratio:
                    costs[name] = 1 / ratio if metric.more_is_better else ratio
            if OURS in costs:
                limit = None if target is None else 1 / target.limit if target.at_least else target.limit
                inverse = " (inverse)" if metric.more_is_better else ""
                found.append((f"{scenario.name}: {metric.label}{inverse}", costs, limit))
    return found
