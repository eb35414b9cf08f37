# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own instruments: what they read of a process, and what they say of a target."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks.figures import Chapter, Figure, Target
from tests.benchmarks.watch import watch

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


def test_a_child_that_fails_is_told_with_its_words() -> None:
    """Nothing is measured of it."""
    with pytest.raises(RuntimeError, match=r"No module named tests\.benchmarks\.nothing"):
        watch("tests.benchmarks.nothing", [])


@pytest.mark.parametrize(
    ("value", "at_least", "expected"),
    [(0.9, True, True), (0.89, True, False), (0.9, False, True), (0.91, False, False)],
)
def test_a_target_is_met_on_its_side_of_the_limit(value: float, at_least: bool, expected: bool) -> None:
    """The limit itself will do."""
    target = Target("speed", value, 0.9, at_least=at_least)
    assert target.is_met is expected
    assert target.text.endswith("| yes |" if expected else "| **no** |")


def test_a_chapter_is_two_tables() -> None:
    """Figures with what they have of rows, time, processor and memory; then what was asked."""
    figures = [Figure("export", 2_000_000, 4.0, 6.4, 916.2), Figure("look", 0, 0.0009)]
    text = Chapter("Windows", figures, [Target("export, of the floor", 1.0, 0.9, at_least=True)]).text
    assert text.splitlines() == [
        "## Windows",
        "",
        "| | rows | s | rows/s | CPU s | MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| export | 2,000,000 | 4.0 | 500,000 | 6.4 | 916 |",
        "| look |  | 0.001 |  |  |  |",
        "",
        "| asked | measured | limit | met |",
        "| --- | ---: | ---: | --- |",
        "| export, of the floor | 1.00 | at least 0.90 | yes |",
    ]
