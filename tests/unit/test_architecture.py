# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/architecture.md shows the package as it is: its rooms, who imports whom, and the walks."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.unit.test_layers import BELOW_FACES, FACES, MAY_IMPORT, ROOT

PAGE = (ROOT.parent / "docs/explanation/architecture.md").read_text(encoding="utf-8")
#: The headings of the walks.
WALKS = (
    "From execute to a row in Parquet",
    "From poke to its statement",
    "From a manifest to the moved cursor",
)


@dataclass(frozen=True)
class Step:
    """
    A step of a walk.

    :param is_called: by the step before; False for the first one, and where somebody else's code calls it.
    """

    file: str
    function: str
    is_called: bool


def cells(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without the table's own heading."""
    section = PAGE.split(f" {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def steps(heading: str) -> list[Step]:
    """Read a walk."""
    found: list[Step] = []
    is_called = False
    for number, file, function, _ in cells(heading):
        if number:
            found.append(Step(file.strip("`"), function.strip("`"), is_called))
        is_called = bool(number)
    return found


def function_of(step: Step) -> ast.AST:
    """Find a function in its file, by the names of classes and functions around it."""
    node: ast.AST = ast.parse((ROOT / step.file).read_text(encoding="utf-8"))
    for name in step.function.split("."):
        inner = (each for each in ast.walk(node) if isinstance(each, ast.ClassDef | ast.FunctionDef))
        node = next(each for each in inner if each.name == name and each is not node)
    return node


def called_names(node: ast.AST) -> set[str]:
    """Return the names of all that a function calls."""
    called = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return {getattr(each, "attr", getattr(each, "id", "")) for each in called}


@pytest.mark.parametrize("heading", WALKS)
def test_each_step_of_a_walk_calls_the_next_one(heading: str) -> None:
    """The functions are there, by these names, and in this order."""
    walk = steps(heading)
    for before, after in pairwise(walk):
        function_of(after)
        if after.is_called:
            assert after.function.rpartition(".")[2] in called_names(function_of(before)), (before, after)


def test_a_step_that_is_not_called_is_found() -> None:
    """The check sees calls, and not only names."""
    node = ast.parse("def f():\n    other.call(name)\n    run(lambda: inner())")
    assert called_names(node) == {"call", "run", "inner"}


def test_the_rooms_are_those_of_the_layers() -> None:
    """Each room below the faces, what it may import, and from the ground up."""
    rooms = [row for row in cells("The rooms") if len(row) == 3]
    rows = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rooms}
    assert rows == {room: set(MAY_IMPORT[room]) for room in ("sql", *BELOW_FACES)}
    order = list(rows)
    above = {room: set(order[order.index(room) :]) for room in order if room not in ("core", "exceptions")}
    assert all(not rows[room] & above[room] for room in above)


def test_the_faces_are_those_of_the_layers() -> None:
    """By rank; all of them exist."""
    ranks = [re.findall(r"`(\w+)`", row[1]) for row in cells("The rooms") if row[0].isdigit()]
    faces = [{face for face in rank if (ROOT / face).is_dir()} for rank in FACES]
    assert [set(rank) for rank in ranks] == faces


def test_both_engines_have_the_rooms_that_the_page_names() -> None:
    """A connection to SQLite needs no more than a module."""
    rooms = {name for row in cells("Two engines, the same rooms") for name in re.findall(r"`(\w+)`", row[0])}
    for engine in ("mssql", "sqlite"):
        inside = {path.stem for path in (ROOT / "sources" / engine).iterdir() if path.name != "__init__.py"}
        assert rooms <= inside
        assert {path.name for path in (ROOT / "sources" / engine).iterdir() if path.is_dir()} - {
            "__pycache__"
        } <= rooms


def test_every_room_of_the_package_is_on_the_page() -> None:
    """None is forgotten."""
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms - set(re.findall(r"`(\w+)`", PAGE)) == set()
