# SPDX-License-Identifier: Apache-2.0
"""Plots of the benchmarks' tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.tools.pictures.chapters import Chapter, NoFiguresError
from tests.tools.pictures.style import BLUE, GREY, INK, ORANGE, QUIET, svg_of

#: How the labels of what we measure against begin; the floor, and our own ways, have other colours.
_FLOOR, _PEERS = ("floor",), ("loop", "Spark's JDBC", "dlt")
_WIDTH = 8.2


def _colour(label: str) -> str:
    return GREY if label.startswith(_FLOOR) else ORANGE if label.startswith(_PEERS) else BLUE


def _finish(figure: Figure, title: str, *chapters: Chapter) -> str:
    note = f"{chapters[0].machine}."
    if len(chapters) == 1 and chapters[0].date:
        note += f" {chapters[0].date}."
    figure.text(0.01, 1 - 0.06 / figure.get_figheight(), title, va="top", fontsize=10.5, fontweight="bold")
    figure.text(0.01, 0.06 / figure.get_figheight(), note, va="bottom", fontsize=7, color=QUIET)
    return svg_of(figure, title)


def _bars(panel: Axes, title: str, labels: list[str], values: list[float], colours: list[str]) -> None:
    panel.barh(labels, values, color=colours, height=0.62)
    for place, value in enumerate(values):
        text = f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"
        panel.text(value, place, f" {text}", va="center", fontsize=8, color=INK)
    panel.set_title(title, loc="left", fontsize=8, color=QUIET)
    panel.set_xlim(0, max(values) * 1.3)
    panel.set_xticks([])
    panel.spines["bottom"].set_visible(False)
    panel.tick_params(axis="y", length=0, labelsize=8)


def speed(chapter: Chapter) -> str:
    """Draw rows/s, CPU and memory of each way that was measured, the largest size first."""
    found = [row for row in chapter.rows if {"rows", "CPU s", "MB"} <= row.keys()]
    if not found:
        raise NoFiguresError(f"{chapter.title}: no rows with CPU s and MB")
    found.sort(key=lambda row: -float(row["rows"]))
    names = [textwrap.fill(str(row[""]), 36) for row in found]
    labels = [f"{name}\n{float(row['rows']):,.0f} rows" for name, row in zip(names, found, strict=True)]
    values = {
        "rows/s, more is better": [float(row["rows/s"]) for row in found],
        "CPU s for a million rows": [float(row["CPU s"]) / float(row["rows"]) * 1_000_000 for row in found],
        "MB at most": [float(row["MB"]) for row in found],
    }
    height = 0.14 * sum(label.count("\n") + 2 for label in labels) + 0.9
    figure = Figure(figsize=(_WIDTH, height))
    panels = figure.subplots(1, 3, sharey=True, width_ratios=[1.25, 1, 1])
    figure.subplots_adjust(left=0.3, right=0.99, top=1 - 0.6 / height, bottom=0.25 / height, wspace=0.25)
    colours = [_colour(str(row[""])) for row in found]
    for panel, (title, column) in zip(panels, values.items(), strict=True):
        _bars(panel, title, labels, column, colours)
    panels[0].invert_yaxis()
    return _finish(figure, f"{chapter.title}: ours blue, the floor grey, others orange", chapter)


def memory(*chapters: Chapter) -> str:
    """Draw memory against rows, of what was measured at several sizes."""
    figure = Figure(figsize=(_WIDTH, 2.7))
    panels = figure.subplots(1, len(chapters), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.08, right=0.98, top=0.76, bottom=0.24, wspace=0.12)
    highest = 0.0
    for panel, chapter in zip(panels, chapters, strict=True):
        series: dict[str, dict[float, float]] = {}
        for row in chapter.rows:
            if {"rows", "MB"} <= row.keys():
                # One way, whatever the number of its units.
                label = re.sub(r"[\d,]+ hourly", "hourly", str(row[""])).partition(":")[0]
                series.setdefault(label, {})[float(row["rows"])] = float(row["MB"])
        several = {label: dict(sorted(points.items())) for label, points in series.items() if len(points) > 1}
        if not several:
            raise NoFiguresError(f"{chapter.title}: no way was measured at two sizes")
        for label, points in several.items():
            xs, ys = list(points), list(points.values())
            panel.plot(xs, ys, color=_colour(label), marker="o", markersize=4)
            # Below the line where another one is close above.
            is_lowest = ys[0] == min(each[xs[0]] for each in several.values() if xs[0] in each)
            offset = (0, -12) if is_lowest and len(several) > 1 else (0, 6)
            panel.annotate(label, (xs[0], ys[0]), offset, textcoords="offset points", fontsize=8)
        sizes = sorted({size for points in several.values() for size in points})
        panel.set(xscale="log", xlabel="rows")
        panel.margins(x=0.12)
        highest = max(highest, *(y for points in several.values() for y in points.values()))
        panel.set_xticks(sizes, [f"{size / 1e6:g} M" for size in sizes])
        panel.minorticks_off()
        panel.set_title(f"{chapter.title}\n{chapter.date}", loc="left", fontsize=8, color=QUIET)
        panel.grid(color=QUIET, alpha=0.25, linewidth=0.5)
    panels[0].set(ylabel="MB at most", ylim=(0, highest * 1.15))
    return _finish(figure, "Memory against rows: ours blue, floors grey, others orange", *chapters)


def history(chapter: Chapter) -> str:
    """Draw the seconds of each step beside few and beside many manifests that are there already."""
    steps: dict[str, dict[str, float]] = {}
    for row in chapter.rows:
        if found := re.fullmatch(r"(.+), (\S+ manifests) there", str(row[""])):
            steps.setdefault(found[1], {})[found[2]] = float(row["s"])
    if not steps:
        raise NoFiguresError(f"{chapter.title}: no row tells how many manifests were there")
    figure = Figure(figsize=(_WIDTH, 1.7))
    panels = figure.subplots(1, len(steps), squeeze=False)[0]
    figure.subplots_adjust(left=0.14, right=0.99, top=0.6, bottom=0.16, wspace=0.15)
    for number, (panel, (step, seconds)) in enumerate(zip(panels, steps.items(), strict=True)):
        _bars(panel, textwrap.fill(step, 24), list(seconds), list(seconds.values()), [BLUE] * len(seconds))
        panel.invert_yaxis()
        panel.set_yticks(panel.get_yticks(), list(seconds) if number == 0 else [""] * len(seconds))
    return _finish(figure, f"{chapter.title}: seconds, by how many manifests are there", chapter)


#: Each plot by its name: what draws it, and of which chapters.
PLOTS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "benchmark-embedded": (speed, ("Windows of the embedded source",)),
    "benchmark-tables": (speed, ("Exports that are tables",)),
    "benchmark-sql-server": (speed, ("Windows of SQL Server",)),
    "benchmark-memory": (
        memory,
        ("Windows of the embedded source", "Windows of SQL Server", "A year by one job"),
    ),
    "benchmark-history": (history, ("An output with a history",)),
}
