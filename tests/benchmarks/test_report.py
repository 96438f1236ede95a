"""Results read off and written down: ratios, targets, tables, and the page of the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import docs, pure
from benchmarks.report import headline, markdown, number, tables
from benchmarks.results import MeasuredMetric, MeasuredScenario, Results
from benchmarks.scenarios import ALL
from benchmarks.scenarios.base import FULL
from benchmarks.subjects import FLOOR, FLOOR_WHOLE, NPM, OURS
from benchmarks.targets import PEER, TARGETS, judge_all


def results(*metrics: MeasuredMetric, names: tuple[str, ...] = (OURS, NPM, FLOOR)) -> Results:
    scenario = MeasuredScenario("results", "Results", list(metrics), {OURS: 0.25}, {NPM: "it | died"})
    machine = {"cpus": 2, "cpu": "a CPU", "system": "a system", "python": "3", "load": [0.1]}
    return Results("relay", "2026-01-01 00:00 UTC", False, 3, 1, machine, dict.fromkeys(names, "a command"), [scenario])


def metric(key: str, ours: list[float], npm: list[float], floor: list[float], *, more: bool = False) -> MeasuredMetric:
    values = {name: values for name, values in ((OURS, ours), (NPM, npm), (FLOOR, floor)) if values}
    return MeasuredMetric(key, key, "ms", more, values)


def test_ratios_are_those_of_the_medians() -> None:
    it = metric("it", [1, 50, 2], [8, 4, 1000], [])
    assert (it.median(OURS), it.median(NPM), it.median(FLOOR)) == (2, 8, None)
    assert it.ratio(OURS, NPM) == 0.25
    assert it.ratio(OURS, FLOOR) is None
    assert it.spread(OURS) is None  # of so few
    assert metric("it", [1, 2, 3, 4, 5], [], []).spread(OURS) == 1.5


def test_targets_are_judged_by_peer_floor_other_metric_and_unit() -> None:
    found = results(
        metric("result/text/9.9 MB", [49], [100], [30]),
        metric("in-flight/rate", [139], [100], [], more=True),
        metric("join/300", [100], [], []),
        metric("join/1000", [400], [], []),
        metric("memory/idle", [86], [], []),
    )
    judged = [(each.target.metric, each.limit, each.reached, each.met) for each in judge_all(found)]
    assert judged == [
        ("result/text/9.9 MB", "≤ 0.5 × npm", "0.49", True),
        ("result/text/9.9 MB", "≤ 1.5 × floor", "1.63", False),
        ("in-flight/rate", "≥ 1.4 × npm", "1.39", False),
        ("join/1000", "≤ 4 ×", "4.00", True),
        ("memory/idle", "≤ 85 ms", "86", False),
    ]


def test_every_target_is_about_something_that_is_measured() -> None:
    from benchmarks.payloads import Payloads
    from benchmarks.pump import Pump

    pump = Pump()
    keys = [metric.key for kind in ALL for cell in kind(Payloads(1), FULL, pump).cells() for metric in cell.metrics]
    pump.close()
    assert len(keys) == len(set(keys))
    assert {target.metric for target in TARGETS} <= set(keys)
    against = {target.against for target in TARGETS} - {None, PEER, FLOOR, FLOOR_WHOLE}
    assert against <= set(keys)


def test_the_peer_is_the_npm_relay_or_else_the_first_other_one() -> None:
    assert results(names=(OURS, "other", NPM, FLOOR)).peer == NPM
    assert results(names=(OURS, "other", FLOOR, FLOOR_WHOLE)).peer == "other"
    assert results(names=(OURS, FLOOR)).peer is None


def test_tables_show_medians_ratios_and_what_went_wrong() -> None:
    targets, table = tables(results(metric("latency/p50", [10, 11, 12], [20, 22, 24], [5, 5.5, 6])))
    assert targets.rows == [["small call, sequential, p50", "≤ 0.6 × npm", "0.50", "met"]]
    assert table.columns == ["", "unit", OURS, NPM, FLOOR, "× npm", "× floor"]
    assert table.rows == [["latency/p50", "ms", "11.0", "22.0", "5.50", "0.50", "2.00"]]
    assert table.notes == ["npm: it | died", "The driver's own CPU: 25% with trio-relay."]


def test_a_subject_without_any_value_has_no_column() -> None:
    (table,) = tables(results(metric("it", [1], [], [])))
    assert table.columns == ["", "unit", OURS]


@pytest.mark.parametrize(("value", "text"), [(0.257, "0.26"), (52.94, "52.9"), (6300.4, "6,300")])
def test_numbers_have_as_many_digits_as_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def test_the_plot_shows_cost_whatever_is_better() -> None:
    found = results(metric("in-flight/rate", [200], [100], [400], more=True), metric("latency/p50", [1], [4], []))
    rate, latency = headline(found)
    assert rate[1] == {OURS: 0.5, FLOOR: 0.25}
    assert rate[2] == pytest.approx(1 / 1.4)
    assert latency[1:] == ({OURS: 0.25}, 0.6)
    assert headline(results(metric("latency/p50", [1], [], [2]), names=(OURS, FLOOR))) == []


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    found = results(metric("it", [1.5], [2], []))
    found.write(tmp_path / "new" / "it.json")
    assert Results.read(tmp_path / "new" / "it.json") == found


def test_the_docs_get_the_table_between_their_marks_again_and_again(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    begin, end = docs.marks("pure")
    page.write_text(f"before\n\n{begin}\nold\n{end}\n\nafter\n")
    found = results(metric("latency/p50", [10], [20], []))
    found.suite = "pure"
    docs.refresh(found, page)
    once = page.read_text()
    docs.refresh(found, page)
    assert page.read_text() == once
    assert markdown(found).strip() in once
    assert "old" not in once
    assert once.startswith("before\n")
    assert once.endswith("after\n")


def test_the_docs_do_not_take_a_quick_run_or_a_page_without_marks(tmp_path: Path) -> None:
    found = results()
    with pytest.raises(ValueError, match="no marks"):
        docs.insert("nothing", "relay", "text")
    found.quick = True
    with pytest.raises(ValueError, match="quick"):
        docs.refresh(found, tmp_path / "performance.md")


def test_the_page_of_the_docs_has_its_marks() -> None:
    for suite in ("relay", "pure"):
        assert docs.insert(docs.PAGE.read_text(), suite, "text")


def test_the_plot_is_written_as_png_and_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import draw

    found = results(metric("result/text/9.9 MB", [1], [2], [0.5]), metric("result/text/1 MB", [1], [2], [0.5]))
    written = draw(found, tmp_path / "it")
    assert [path.name for path in written] == ["it.png", "it.svg"]
    assert all(path.stat().st_size > 5_000 for path in written)


def test_the_pure_suite_measures_every_operation() -> None:
    found = Results("pure", "now", True, 1, 1, {}, {OURS: "in this process"})
    pure.run(found, lambda shown, count: None)
    measured = [metric for scenario in found.scenarios for metric in scenario.metrics]
    assert len(measured) > 25
    assert all(metric.values[OURS][0] > 0 for metric in measured)
