# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own instruments: what they read of a process, and what they say of a target."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.benchmarks import mssql_orders, orders
from tests.benchmarks.figures import Chapter, Figure, Target, figure_of, surroundings
from tests.benchmarks.watch import Reading, watch
from tests.integration.contract.engines import MSSQL_VARIABLE
from tests.tools.pictures.chapters import NoFiguresError, read_chapters

CHILD = """
import sys
from multiprocessing import get_context
from tests.benchmarks.watch import measured

def work(size):
    held = bytearray(b"x") * size
    while sum(__import__("os").times()[:2]) < 1.5:
        pass

if __name__ == "__main__":
    with measured("work") as result:
        process = get_context("spawn").Process(target=work, args=(200_000_000,))
        process.start()
        process.join()
        result["arguments"] = sys.argv[1:]
"""


@pytest.mark.ci
def test_a_childs_children_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their processor time and memory count, and what the child says of itself arrives."""
    (tmp_path / "child.py").write_text(CHILD)
    environment = {
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}",
        "PATH": str(Path(sys.executable).parent),
    }
    reading = watch("child", ["one", "two"], environment=environment)["work"]
    assert reading.result == {"arguments": ["one", "two"]}
    assert reading.cpu_seconds > 1
    assert reading.megabytes > 200
    assert reading.seconds > 1


def test_a_target_is_met_on_its_side_of_the_limit() -> None:
    """The limit itself will do."""
    for value, at_least, is_met in (
        (0.9, True, True),
        (0.89, True, False),
        (0.9, False, True),
        (0.91, False, False),
    ):
        assert Target("speed", value, 0.9, at_least=at_least).is_met is is_met


def test_a_figure_of_several_runs_is_their_median() -> None:
    """Of each quantity by itself; the fastest and the slowest run are told where that was asked for."""
    readings = [Reading(4.0, 9.0, 300.0, {}), Reading(0.5, 7.0, 100.0, {}), Reading(3.0, 8.0, 200.0, {})]
    assert figure_of("export", 6_000, readings) == Figure("export", 6_000, 3.0, 8.0, 200.0)
    spread = figure_of("export", 6_000, readings, has_span=True)
    assert spread.cells == ["export", "6,000", "3.0 (0.500 to 4.0)", "2,000", "8.0", "200"]
    assert figure_of("export", 6_000, readings[:1], has_span=True).span is None


def test_orders_are_the_same_on_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns by name and order; the database of SQL Server is never the one that the tests empty."""
    assert list(mssql_orders.COLUMNS) == list(orders.COLUMNS)
    monkeypatch.setenv(MSSQL_VARIABLE, "mssql://me:secret@server.example/mine?encrypt=no")
    description = mssql_orders.described()
    assert description["host"] == "server.example"
    assert description["database"].startswith("changefeed_benchmark_")


def test_the_benchmarks_are_read_as_they_are_written() -> None:
    """What the tables of a chapter say is what make bench has measured, and so what the plots show."""
    figures = [Figure("export, one unit", 2_000_000, 3.2, 5.6, 915), Figure("loop", 200_000, 1.8)]
    page = "\n".join([surroundings(), "", Chapter("Windows", figures, [Target("x", 1, 2)]).text])
    chapter = read_chapters(page)["Windows"]
    assert chapter.rows == (
        {"": "export, one unit", "rows": 2_000_000, "s": 3.2, "rows/s": 625_000, "CPU s": 5.6, "MB": 915},
        {"": "loop", "rows": 200_000, "s": 1.8, "rows/s": 111_111},
    )
    assert re.fullmatch(r"\d+ cores \(.+\), Python .+, pyspark .+, pyarrow .+", chapter.machine)
    assert re.fullmatch(r"Measured on \d{4}-\d\d-\d\d", chapter.date)


def test_figures_of_an_unknown_machine_are_refused() -> None:
    """A plot without machine and versions says nothing."""
    with pytest.raises(NoFiguresError, match=r"no line '\*\*Machine and versions"):
        read_chapters("# Benchmarks\n\n## Windows\n")
