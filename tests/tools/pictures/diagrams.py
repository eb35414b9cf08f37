# SPDX-License-Identifier: Apache-2.0
"""The diagrams of the documentation. Units are hundredths of a picture's width, from its upper left."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from tests.tools.pictures.style import BLUE, FILL, INK, LIGHT_BLUE, LIGHT_ORANGE, ORANGE, PAPER, QUIET, svg_of

_INCHES = 8.2
Point = tuple[float, float]


class Canvas:
    """
    What a diagram is drawn on.

    :param height: in units.
    """

    def __init__(self, title: str, height: float) -> None:
        self.title = title
        self.figure = Figure(figsize=(_INCHES, _INCHES * height / 100))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, 100), ylim=(height, 0))
        self.axes.axis("off")
        self._drawn = 0
        self.text((1.5, 3.5), title, size=10.5, weight="bold", align="left")

    def _order(self) -> float:
        # What is drawn later lies above.
        self._drawn += 1
        return 2 + self._drawn / 1000

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: float = 8,
        colour: str = INK,
        align: str = "center",
        weight: str = "normal",
    ) -> None:
        """Write, by default around a point."""
        behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8} if colour != INK else None
        self.axes.text(
            *at,
            text,
            size=size,
            color=colour,
            ha=align,
            va="center",
            weight=weight,
            linespacing=1.4,
            bbox=behind,
            zorder=self._order(),
        )

    def box(
        self,
        at: Point,
        width: float,
        height: float,
        text: str,
        *,
        fill: str = FILL,
        edge: str = QUIET,
        size: float = 8,
    ) -> None:
        """Draw a box with a text in its middle; ``at`` is its upper left corner."""
        style = "round,pad=0,rounding_size=0.8"
        patch = FancyBboxPatch(at, width, height, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=1)
        patch.set_zorder(self._order())
        self.axes.add_patch(patch)
        self.text((at[0] + width / 2, at[1] + height / 2), text, size=size)

    def line(self, *points: Point, colour: str = QUIET, dashed: bool = False, width: float = 1.2) -> None:
        """Draw a line through points."""
        xs, ys = zip(*points, strict=True)
        style = (0, (3, 2)) if dashed else "-"
        self.axes.plot(xs, ys, color=colour, linewidth=width, linestyle=style, zorder=self._order())

    def arrow(self, *points: Point, text: str = "", colour: str = QUIET, dashed: bool = False) -> None:
        """Draw a line through points that ends in an arrow, with a text above the middle of its last part."""
        if len(points) > 2:
            self.line(*points[:-1], colour=colour, dashed=dashed)
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
        style |= {"linestyle": (0, (3, 2)) if dashed else "-", "mutation_scale": 9}
        self.axes.annotate("", points[-1], points[-2], arrowprops=style, zorder=self._order())
        if text:
            (x1, y1), (x2, y2) = points[-2:]
            self.text(((x1 + x2) / 2, (y1 + y2) / 2 - 1.6), text, size=7, colour=colour)

    def mark(self, at: Point, *, colour: str = BLUE, filled: bool = True) -> None:
        """Draw an event."""
        face = colour if filled else PAPER
        self.axes.plot(
            *at, marker="o", markersize=6, markerfacecolor=face, markeredgecolor=colour, zorder=self._order()
        )

    def svg(self) -> str:
        """Return all of it."""
        return svg_of(self.figure, self.title)


def way_of_the_data() -> str:
    """From a writer's transaction to files, tables and consumers."""
    canvas = Canvas("The way of the data", 47)
    canvas.box((2, 8), 38, 29.5, "", fill=PAPER)
    canvas.text((21, 10.5), "the database", colour=QUIET)
    canvas.box((4, 14), 14, 8, "writer's\ntransaction")
    canvas.box((4, 27), 14, 8, "captured table:\ntriggers")
    canvas.box((24, 14), 13, 8, "outbox")
    canvas.box((24, 27), 13, 8, "feed:\nULID per event", fill=LIGHT_BLUE, edge=BLUE)
    canvas.arrow((18, 18), (24, 18))
    canvas.arrow((18, 31), (21, 31), (21, 20), (24, 20))
    canvas.arrow((30.5, 22), (30.5, 27))
    canvas.text((33.5, 24.5), "drain", size=7, colour=QUIET)
    canvas.box((45, 27), 12, 8, "window\n[10:00, 11:00)", fill=LIGHT_BLUE, edge=BLUE)
    canvas.arrow((37, 31), (45, 31), text="seal", colour=BLUE)
    canvas.box((63, 27), 13, 8, "Spark or the\ntask: Parquet")
    canvas.arrow((57, 31), (63, 31), text="plan")
    canvas.box((82, 27), 16, 8, "unit in the lake,\nwith its manifest", fill=LIGHT_BLUE, edge=BLUE)
    canvas.arrow((76, 31), (82, 31), text="commit", colour=BLUE)
    canvas.box((82, 14), 16, 8, "states, current tables\n(Delta, Iceberg)")
    canvas.arrow((90, 27), (90, 22))
    canvas.text((93.5, 24.5), "fold,\nmerge", size=7, colour=QUIET)
    canvas.box((63, 14), 13, 8, "base: rows read\nbetween two seals", size=7.5)
    canvas.arrow((76, 18), (82, 18))
    canvas.arrow((40, 12), (69.5, 12), (69.5, 14), dashed=True)
    canvas.text((55, 10.5), "snapshot of the captured table", size=7, colour=QUIET)
    canvas.box((45, 14), 12, 8, "consumers:\neach event once")
    canvas.arrow((37, 28.5), (41, 28.5), (41, 18), (45, 18))
    canvas.arrow((90, 35), (90, 41), (30.5, 41), (30.5, 35), colour=BLUE)
    canvas.text((60, 39.5), "cursor moves, only after the commit", size=7, colour=BLUE)
    canvas.text((50, 44.5), "Each step uses only what the step before has committed.", size=7.5, colour=QUIET)
    return canvas.svg()


def seal() -> str:
    """A transaction that is open at the seal gets into a later window."""
    canvas = Canvas("The seal: after it, no event gets into the window any more", 45)
    axis = {"9:00": 16, "10:00": 40, "11:00": 64, "12:00": 88}
    for label, x in axis.items():
        canvas.line((x, 9), (x, 39), colour=QUIET, dashed=True, width=0.7)
        canvas.text((x, 41), label, size=7.5, colour=QUIET)
    canvas.text((8, 41), "feed time", size=7.5, colour=QUIET)
    canvas.text((28, 8), "window 9:00 to 10:00", size=7.5, colour=QUIET)
    canvas.text((52, 8), "window 10:00 to 11:00", size=7.5, colour=QUIET)
    for y, name, start, end, event in (
        (14, "transaction A", 20, 27, 27),
        (19, "transaction B", 29, 35, 35),
        (24, "transaction C", 33, 58, 58),
    ):
        canvas.text((8, y), name)
        canvas.line((start, y), (end, y), colour=QUIET, width=5)
        late = event > axis["10:00"]
        canvas.arrow((event, y), (event, 32.3), colour=ORANGE if late else BLUE, dashed=True)
        canvas.mark((event, 34), colour=ORANGE if late else BLUE)
    canvas.text(
        (60, 21.5), "commits after the seal:\nlater window, never lost", size=7, align="left", colour=ORANGE
    )
    canvas.text((8, 34), "feed")
    canvas.arrow((16, 34), (95, 34))
    canvas.line((42.5, 10.5), (42.5, 39), colour=BLUE, width=2)
    canvas.text(
        (43.5, 12),
        "seal(feed, 10:00), shortly after 10:00 by the database's clock",
        size=7.5,
        align="left",
        colour=BLUE,
    )
    canvas.text((28, 38), "never changes again", size=7.5, colour=BLUE)
    canvas.mark((27, 34))
    canvas.mark((35, 34))
    canvas.mark((58, 34), colour=ORANGE)
    return canvas.svg()


def commit() -> str:
    """The steps of a unit's commit, and what readers see."""
    canvas = Canvas("The commit of a unit by the attempt with token 8, which replaces token 7", 50)
    steps = (
        ("1 check", "a higher token?\nthen withdraw"),
        ("2 hide", "7's files go to\n7's own folder"),
        ("3 place", "8's files go to\ntheir place"),
        ("4 manifest", "of token 8:\nthe commit"),
        ("5 check again", "a higher token?\nthen withdraw"),
        ("6 clean", "remove what\n7 has left"),
    )
    for number, (name, what) in enumerate(steps):
        x = 2 + number * 16.3
        is_commit = name.startswith("4")
        canvas.box(
            (x, 8),
            14.3,
            10,
            f"{name}\n{what}",
            fill=LIGHT_BLUE if is_commit else FILL,
            edge=BLUE if is_commit else QUIET,
            size=7.5,
        )
        if number:
            canvas.arrow((x - 2, 13), (x, 13))
    for y, reader, parts in (
        (
            24,
            "readers by manifests\nsee",
            (("the unit of token 7, whole", 51, ORANGE), ("the unit of token 8, whole", 100, BLUE)),
        ),
        (
            32,
            "plain readers, on disks,\nsee",
            (("token 7", 26, ORANGE), ("nothing", 42, QUIET), ("token 8", 100, BLUE)),
        ),
    ):
        canvas.text((9.5, y + 2.5), reader, size=7.5, colour=QUIET)
        begin = 18.3
        for text, end, colour in parts:
            fill = {ORANGE: LIGHT_ORANGE, BLUE: LIGHT_BLUE}.get(colour, PAPER)
            canvas.box((begin, y), min(end, 98) - begin, 5, text, fill=fill, edge=colour, size=7.5)
            begin = end
    canvas.text(
        (50, 42.5),
        "A retry ends in the same tree wherever a job was killed. One that outlived its task finds the",
        size=7.5,
        colour=QUIET,
    )
    canvas.text(
        (50, 45.5),
        "higher token in step 1, 3 or 5, and withdraws. The cursor moves when all units are committed.",
        size=7.5,
        colour=QUIET,
    )
    return canvas.svg()


def base() -> str:
    """A snapshot between two seals, and what folds over it give."""
    canvas = Canvas("A base: a table's rows, read between two seals while others write", 44)
    begin, end, later = 24, 58, 84
    for x, label in (
        (begin, "begin\n(seal)"),
        (end, "exact_from\n(seal)"),
        (later, "T, any later\nsealed time"),
    ):
        canvas.line((x, 9), (x, 36), colour=BLUE, width=1.6)
        canvas.text((x, 39.5), label, size=7.5, colour=BLUE)
    canvas.text((10, 14), "reading the table,\nrange by range", size=7.5)
    for number in range(4):
        canvas.box((begin + 2 + number * 7.8, 11.5), 7, 5, f"range {number + 1}", size=7)
    canvas.text((10, 24), "events of\nthe capture", size=7.5)
    canvas.arrow((16, 24), (97, 24))
    for x in (19, 21.5):
        canvas.mark((x, 24), colour=QUIET, filled=False)
    for x in (29, 34, 41, 46, 53):
        canvas.mark((x, 24), colour=ORANGE)
    for x in (64, 69, 77, 81):
        canvas.mark((x, 24))
    canvas.text(
        (41, 27.5), "read or not, applied again:\nevery event has the whole row", size=7, colour=ORANGE
    )
    canvas.text((71, 27.5), "each of a row that base\nor events have made", size=7, colour=BLUE)
    canvas.text((19.5, 27.5), "not\nneeded", size=7, colour=QUIET)
    canvas.box(
        (begin, 31),
        later - begin,
        4.2,
        "rows that were read + events of [begin, T) = the table at T, exactly",
        fill=LIGHT_BLUE,
        edge=BLUE,
        size=7.5,
    )
    return canvas.svg()


def merge() -> str:
    """A current table goes from one frontier to the next in one commit."""
    canvas = Canvas("A merge: one commit takes a current table from 10:00 to 11:00", 47)
    canvas.box((2, 8), 24, 31, "", fill=PAPER)
    canvas.text((14, 10.5), "table at frontier 10:00", size=7.5, colour=QUIET)
    canvas.box((74, 8), 24, 31, "", fill=PAPER)
    canvas.text((86, 10.5), "table at frontier 11:00", size=7.5, colour=QUIET)
    for number, changed in enumerate((False, True, False, True)):
        y = 13.5 + number * 6.2
        fill, edge = (LIGHT_ORANGE, ORANGE) if changed else (FILL, QUIET)
        canvas.box((5, y), 18, 4.6, f"file {number + 1}", fill=fill, edge=edge, size=7.5)
        if changed:
            canvas.arrow((23, y + 2.3), (33, 24.5), colour=ORANGE)
            canvas.box(
                (77, y), 18, 4.6, f"file {number + 1}, written again", fill=LIGHT_BLUE, edge=BLUE, size=7.5
            )
            canvas.arrow((61, 24.5), (77, y + 2.3), colour=BLUE)
        else:
            canvas.arrow((23, y + 2.3), (77, y + 2.3), dashed=True)
            canvas.box((77, y), 18, 4.6, f"file {number + 1}, stays", size=7.5)
    canvas.box(
        (33, 20.5),
        28,
        8,
        "fold: rows of the changed files,\nevents since the frontier",
        fill=LIGHT_BLUE,
        edge=BLUE,
    )
    canvas.box((33, 34.5), 28, 5, "exported events of [10:00, 11:00)", size=7.5)
    canvas.arrow((47, 34.5), (47, 28.5))
    canvas.text(
        (50, 43.5),
        "The commit adds files, removes the replaced ones and moves the frontier: all of it, or nothing.",
        size=7.5,
        colour=QUIET,
    )
    return canvas.svg()


#: Each diagram by its name.
DIAGRAMS: dict[str, Callable[[], str]] = {
    "way-of-the-data": way_of_the_data,
    "seal": seal,
    "commit": commit,
    "base": base,
    "merge": merge,
}
