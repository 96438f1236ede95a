"""The picture of a run, as PNG and SVG. The only module that needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.payloads import SIZES, readable
from benchmarks.report import headline
from benchmarks.results import Results
from benchmarks.subjects import FLOOR, FLOOR_WHOLE, FLOORS, OURS

COLOURS = {OURS: "#1b6ca8", FLOOR: "#8a8a8a", FLOOR_WHOLE: "#c9a227"}
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
    height = max(4.0, 1.2 + 0.27 * len(rows))
    widths = ([1.5] if rows else []) + [1.0] * bool(curves)
    figure = pyplot.figure(figsize=(6.0 * sum(widths), height), layout="constrained")
    grid = figure.add_gridspec(max(1, len(curves)), len(widths), width_ratios=widths)
    if rows:
        _bars(figure.add_subplot(grid[:, 0]), results, rows)
    for position, (kind, curve) in enumerate(curves):
        _lines(figure.add_subplot(grid[position, len(widths) - 1]), results, kind, curve)
    note = " (a quick run: only shows that everything works)" if results.quick else ""
    figure.suptitle(f"Medians of {results.rounds} rounds, {results.made[:10]}{note}", fontsize=9, color="#555555")
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def _colour(results: Results, name: str) -> str:
    others = [other for other in results.subjects if other not in COLOURS]
    return COLOURS[name] if name in COLOURS else OTHERS[others.index(name) % len(OTHERS)]


def _bars(axes: Any, results: Results, rows: list[tuple[str, dict[str, float], float | None]]) -> None:
    """Our cost by the peer's, with the floor's and the targets as marks."""
    places = range(len(rows))
    costs = [row[1][OURS] for row in rows]
    axes.barh(places, costs, height=0.6, color=COLOURS[OURS], label=OURS)
    limits = [(place, row[2]) for place, row in zip(places, rows, strict=True) if row[2] is not None]
    marks = {"color": "black", "zorder": 3, "linestyle": "none"}
    for name in FLOORS:
        points = [(row[1][name], place) for place, row in zip(places, rows, strict=True) if name in row[1]]
        if points:
            look = marks | {"color": COLOURS[name], "markeredgecolor": "white", "markeredgewidth": 0.6}
            axes.plot(*zip(*points, strict=True), marker="D", markersize=5.5, label=name, **look)
    if limits:
        axes.plot([limit for _, limit in limits], [place for place, _ in limits], marker="|", markersize=13,
                  markeredgewidth=2, label="target", **marks)  # fmt: skip
    edge = max(1.25, *costs) * 1.12
    for place, cost in zip(places, costs, strict=True):
        axes.text(edge * 0.995, place, f"{cost:.2f}", ha="right", va="center", fontsize=8, color="#333333")
    axes.axvline(1.0, color=_colour(results, results.peer or ""), linewidth=1.5, label=f"{results.peer} = 1")
    axes.set_xlim(0, edge)
    axes.set_yticks(places, [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_title(f"Cost by that of {results.peer}: less is better", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.35, -0.05), ncols=4, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


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
