"""The picture of a run, as PNG and SVG. The only module that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.payloads import SIZES, readable
from benchmarks.report import headline
from benchmarks.results import Results
from benchmarks.subjects import FLOOR, FLOOR_WHOLE, FLOORS, OURS

COLOURS = {OURS: "#1b6ca8", FLOOR: "#8a8a8a", FLOOR_WHOLE: "#c9a227"}
WORSE = "#c25a5a"
OTHERS = ("#d1603d", "#4a8f5a", "#8d5fa8")


def draw(results: Results, stem: Path) -> list[Path]:
    """Write `stem`.png and .svg. Returns them."""
    import matplotlib

    matplotlib.use("Agg")
    # The same results give the same file; text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    rows = headline(results)
    curves = [(kind, curve) for kind in ("result", "arguments") if (curve := _curves(results, kind))]
    if not rows and not curves:
        return []
    height = max(4.0, 1.2 + 0.24 * len(rows))
    widths = ([1.5] if rows else []) + [1.0] * bool(curves)
    figure = pyplot.figure(figsize=(6.0 * sum(widths), height), layout="constrained")
    grid = figure.add_gridspec(max(1, len(curves)), len(widths), width_ratios=widths)
    if rows:
        _bars(figure.add_subplot(grid[:, 0]), results, rows)
    for position, (kind, curve) in enumerate(curves):
        _lines(figure.add_subplot(grid[position, len(widths) - 1]), results, kind, curve)
    note = " (a quick run: only shows that everything works)" if results.quick else ""
    figure.suptitle(f"Medians, rounds: {results.rounds}, {results.made[:10]}{note}", fontsize=9, color="#555555")
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def _colour(results: Results, name: str) -> str:
    others = [other for other in results.subjects if other not in COLOURS]
    return COLOURS[name] if name in COLOURS else OTHERS[others.index(name) % len(OTHERS)]


def _bars(axes: Any, results: Results, rows: list[tuple[str, dict[str, float], float | None]]) -> None:
    """Our cost by the peer's on a logarithmic scale, with the floors' and the targets as marks."""
    places = range(len(rows))
    costs = [row[1][OURS] for row in rows]
    colours = [COLOURS[OURS] if cost <= 1 else WORSE for cost in costs]
    axes.barh(places, [cost - 1 for cost in costs], left=1, height=0.62, color=colours)
    for name in FLOORS:
        points = [(row[1][name], place) for place, row in zip(places, rows, strict=True) if name in row[1]]
        _marks(axes, points, name, marker="D", markersize=5, color=COLOURS[name], markeredgecolor="white")
    limits = [(row[2], place) for place, row in zip(places, rows, strict=True) if row[2] is not None]
    _marks(axes, limits, "target", marker="|", markersize=13, markeredgewidth=2.2, color="black")
    for place, cost in zip(places, costs, strict=True):
        axes.text(1.01, place, f"{cost:.2f}", va="center", fontsize=8, transform=axes.get_yaxis_transform())
    axes.axvline(1.0, color=_colour(results, results.peer or ""), linewidth=1.5)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_yticks(places, [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(f"Cost of {OURS} by that of {results.peer} (= 1): less is better", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.35, -0.03), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _marks(axes: Any, points: Sequence[tuple[float | None, int]], label: str, **look: Any) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), linestyle="none", zorder=3, label=label, **look)


def _curves(results: Results, kind: str) -> dict[str, list[tuple[int, float]]]:
    """By subject: size in bytes and milliseconds."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for size in SIZES:
        metric = results.metric(f"{kind}/text/{readable(size)}")
        for name in results.subjects if metric is not None else ():
            median = metric.median(name) if metric is not None else None
            if median is not None:
                curves.setdefault(name, []).append((size, median))
    return curves


def _lines(axes: Any, results: Results, kind: str, curves: dict[str, list[tuple[int, float]]]) -> None:
    for name, points in curves.items():
        style = {"linestyle": ":" if name in FLOORS else "-", "color": _colour(results, name)}
        axes.plot([size for size, _ in points], [ms for _, ms in points], marker="o", markersize=3, label=name, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(SIZES, [readable(size) for size in SIZES])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("ms per call")
    axes.set_title(f"ASCII text, {'result' if kind == 'result' else 'arguments'} by size", loc="left")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
