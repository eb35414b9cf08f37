# SPDX-License-Identifier: Apache-2.0
"""What benchmarks say: figures, and whether each keeps to what was asked of it."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median

from tests.benchmarks.watch import Reading

_COLUMNS = ("", "rows", "s", "rows/s", "CPU s", "MB")


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
    :param span: seconds of the fastest and of the slowest run, where they are told.
    """

    what: str
    rows: int
    seconds: float
    cpu_seconds: float | None = None
    megabytes: float | None = None
    span: tuple[float, float] | None = None

    @property
    def cpu(self) -> float:
        """CPU seconds, where they were measured."""
        assert self.cpu_seconds is not None
        return self.cpu_seconds

    @property
    def memory(self) -> float:
        """Megabytes, where they were measured."""
        assert self.megabytes is not None
        return self.megabytes

    @property
    def rows_per_second(self) -> float:
        """Rows by wall time."""
        return self.rows / self.seconds

    @property
    def cells(self) -> list[str]:
        """Of a table: what, rows, seconds, rows/s, CPU seconds, MB; empty where nothing was measured."""
        return [
            self.what,
            f"{self.rows:,}" if self.rows else "",
            _seconds(self.seconds) + (f" ({' to '.join(map(_seconds, self.span))})" if self.span else ""),
            f"{self.rows_per_second:,.0f}" if self.rows else "",
            f"{self.cpu_seconds:.1f}" if self.cpu_seconds is not None else "",
            f"{self.megabytes:,.0f}" if self.megabytes is not None else "",
        ]


@dataclass(frozen=True)
class Chapter:
    """
    The figures of one benchmark, and what is asked of them.

    :param note: what must be known of them, or why there are none.
    """

    title: str
    figures: Sequence[Figure] = ()
    targets: Sequence[Target] = ()
    note: str = ""

    @property
    def text(self) -> str:
        """Tables in Markdown, without columns in which nothing was measured."""
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        if self.figures:
            columns = [
                column
                for column in zip(_COLUMNS, *(figure.cells for figure in self.figures), strict=True)
                if any(column[1:])
            ]
            head, *rows = (f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
            lines += [head.replace("|  |", "| |"), f"| --- |{' ---: |' * (len(columns) - 1)}", *rows, ""]
        if self.targets:
            lines += ["| asked | measured | limit | met |", "| --- | ---: | ---: | --- |"]
            lines += [target.text for target in self.targets]
            lines += [""]
        return "\n".join(lines)


def surroundings() -> str:
    """Say on what machine, with which versions and when is measured, as docs/reference/benchmarks.md does."""
    cpus = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.+)$", cpus.read_text(), re.MULTILINE) if cpus.exists() else None
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "pyarrow"))
    return (
        f"**Machine and versions.** {os.cpu_count()} cores ({model[1] if model else platform.machine()}), "
        f"Python {platform.python_version()}, {packages}.\n\n"
        f"Measured on {datetime.now(timezone.utc):%Y-%m-%d}."
    )


def tell(what: str) -> None:
    """Say what is measured next; apart from the tables, which come when all of a chapter is measured."""
    print(f"measuring {what}", file=sys.stderr, flush=True)


def figure_of(what: str, rows: int, readings: Sequence[Reading], *, has_span: bool = False) -> Figure:
    """Return the median of each quantity of several runs."""
    seconds = [reading.seconds for reading in readings]
    return Figure(
        what,
        rows,
        median(seconds),
        median(reading.cpu_seconds for reading in readings),
        median(reading.megabytes for reading in readings),
        (min(seconds), max(seconds)) if has_span and len(seconds) > 1 else None,
    )


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
