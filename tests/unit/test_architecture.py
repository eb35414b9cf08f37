# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/architecture.md shows the package as it is: its rooms, who imports whom, and the walks."""

from __future__ import annotations

import ast
import re

from tests.unit.test_layers import BELOW_FACES, FACES, MAY_IMPORT, ROOT

PAGE = (ROOT.parent / "docs/explanation/architecture.md").read_text(encoding="utf-8")
WALKS = re.findall(r"^### (From .*)$", PAGE, re.MULTILINE)


def cells(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, without the table's own heading."""
    section = PAGE.split(f" {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def is_there(file: str, function: str) -> bool:
    """Whether a file has a function, by the names of classes and functions around it."""
    node: ast.AST | None = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for name in function.split("."):
        inner = (each for each in ast.walk(node or ast.Module([], [])) if each is not node)
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next((each for each in inner if isinstance(each, kinds) and each.name == name), None)
    return node is not None


def test_each_step_of_a_walk_is_there() -> None:
    """The functions have these names, in these files."""
    assert len(WALKS) == 3
    rows = [row for heading in WALKS for row in cells(heading) if row[0]]
    steps = [(row[1].strip("`"), row[2].strip("`")) for row in rows]
    assert len(steps) > len(WALKS)
    assert [step for step in steps if not is_there(*step)] == []


def test_the_rooms_are_those_of_the_layers() -> None:
    """Each room below the faces, what it may import, and from the ground up."""
    rooms = [row for row in cells("The rooms") if len(row) == 3]
    rows = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rooms}
    assert rows == {room: set(MAY_IMPORT[room]) for room in ("sql", *BELOW_FACES)}
    order = list(rows)
    above = {room: set(order[order.index(room) :]) for room in order if room not in ("core", "exceptions")}
    assert all(not rows[room] & above[room] for room in above)


def test_every_room_and_face_of_the_package_is_on_the_page() -> None:
    """The faces by rank; none is forgotten, and all of them exist."""
    ranks = [re.findall(r"`(\w+)`", row[1]) for row in cells("The rooms") if row[0].isdigit()]
    faces = [{face for face in rank if (ROOT / face).is_dir()} for rank in FACES]
    assert [set(rank) for rank in ranks] == faces
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms - set(re.findall(r"`(\w+)`", PAGE)) == set()


def test_both_engines_have_the_rooms_that_the_page_names() -> None:
    """A connection to SQLite needs no more than a module."""
    rooms = {name for row in cells("Two engines, the same rooms") for name in re.findall(r"`(\w+)`", row[0])}
    for engine in ("mssql", "sqlite"):
        inside = {path.stem for path in (ROOT / "sources" / engine).iterdir() if path.name != "__init__.py"}
        assert rooms <= inside
