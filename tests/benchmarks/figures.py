# SPDX-License-Identifier: Apache-2.0
"""What benchmarks say: figures, and whether each keeps to what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """
    What is asked of a figure.

    :param what: the quantity, with what it is a ratio of where it is one.
    :param value: as measured.
    :param limit: as asked.
    :param at_least: whether ``limit`` is the lowest that will do, or else the highest.
    """

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side of the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def text(self) -> str:
        """One row of a table: what, value, limit, verdict."""
        bound = "at least" if self.at_least else "at most"
        return (
            f"| {self.what} | {_number(self.value)} | {bound} {_number(self.limit)} "
            f"| {'yes' if self.is_met else '**no**'} |"
        )


@dataclass(frozen=True)
class Figure:
    """
    What was measured of one way to do one thing.

    :param rows: events that went through; 0 where rows are not what counts.
    :param seconds: wall time.
    :param cpu_seconds: of all processes that took part; None where the work is also done in a server.
    :param megabytes: highest sum of the processes' memory, pages they share counted once; None likewise.
    """

    what: str
    rows: int
    seconds: float
    cpu_seconds: float | None = None
    megabytes: float | None = None

    @property
    def rows_per_second(self) -> float:
        """Rows by wall time."""
        return self.rows / self.seconds

    @property
    def text(self) -> str:
        """One row of a table: what, rows, seconds, rows/s, CPU seconds, MB."""
        cells = [
            self.what,
            f"{self.rows:,}" if self.rows else "",
            f"{self.seconds:.3f}" if self.seconds < 1 else f"{self.seconds:.1f}",
            f"{self.rows_per_second:,.0f}" if self.rows else "",
            f"{self.cpu_seconds:.1f}" if self.cpu_seconds is not None else "",
            f"{self.megabytes:,.0f}" if self.megabytes is not None else "",
        ]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Chapter:
    """The figures of one benchmark, and what is asked of them."""

    title: str
    figures: Sequence[Figure]
    targets: Sequence[Target] = ()

    @property
    def text(self) -> str:
        """Tables in Markdown."""
        lines = [f"## {self.title}", ""]
        lines += ["| | rows | s | rows/s | CPU s | MB |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
        lines += [figure.text for figure in self.figures]
        if self.targets:
            lines += ["", "| asked | measured | limit | met |", "| --- | ---: | ---: | --- |"]
            lines += [target.text for target in self.targets]
        return "\n".join([*lines, ""])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
