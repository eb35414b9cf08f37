# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' tables, read from Markdown: so a plot cannot say anything else than its table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_DATE = re.compile(r"(?:Measured|Published) on \d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class Chapter:
    """
    A chapter of the benchmarks.

    :param rows: of its tables of figures: the label as ``""``, and by its column each cell with a number.
    :param machine: and versions.
    :param date: of the figures, with what happened then; empty if it is not told.
    """

    title: str
    rows: tuple[Mapping[str, str | float], ...]
    machine: str
    date: str


class NoFiguresError(Exception):
    """A page without the chapter or the rows of a plot."""


def read_chapters(markdown: str) -> dict[str, Chapter]:
    """Read the chapters of a page by their titles."""
    before, *sections = re.split(r"^## ", markdown, flags=re.MULTILINE)
    machine = re.search(r"^\*\*Machine and versions\.\*\* (.+?)\.$", before, flags=re.MULTILINE | re.DOTALL)
    if machine is None:
        raise NoFiguresError("the page has no line '**Machine and versions.** ….' before its first chapter")
    place = " ".join(machine[1].replace("`", "").split())
    chapters = {}
    for section in sections:
        title, _, text = section.partition("\n")
        date = _DATE.search(text) or _DATE.search(before)
        chapters[title] = Chapter(title, tuple(_rows(text)), place, date[0] if date else "")
    return chapters


def _rows(text: str) -> list[Mapping[str, str | float]]:
    rows = []
    for head, body in re.findall(r"^(\| \| .*)\n\| ---.*\n((?:\|.*\n?)+)", text, flags=re.MULTILINE):
        names = [cell.strip() for cell in head.strip("|").split("|")]
        for line in body.splitlines():
            label, *cells = (cell.strip() for cell in line[1:-1].split("|"))
            numbers = zip(names[1:], (re.match(r"[\d,.]+", cell) for cell in cells), strict=True)
            rows.append(
                {"": label} | {name: float(found[0].replace(",", "")) for name, found in numbers if found}
            )
    return rows
