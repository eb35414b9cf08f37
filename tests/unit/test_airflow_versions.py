# SPDX-License-Identifier: Apache-2.0
"""docs/reference/compatibility.md: a test shows each cell, and make matrix has the same versions."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement

from tests.examples import section

PROJECT = Path(__file__).resolve().parents[2]
PAGE = section("reference/compatibility.md#airflow-versions")
MAKEFILE = (PROJECT / "Makefile").read_text(encoding="utf-8")
#: The tests of each feature, by what its cell has.
TESTS = {
    "Sensor, operators": "tests/system/test_dags.py",
    "The page": "tests/unit/airflow/test_page.py",
    "Links from a task": "tests/unit/airflow/test_task_links.py",
    "Azure's container": "tests/unit/airflow/test_assets.py",
    "`airflow changefeed`": "tests/unit/airflow/test_cli.py",
    "Partitioned runs": "tests/unit/airflow/test_partition.py",
    "Freshness": "tests/unit/airflow/test_freshness_dags.py",
    "Windows as partitions": "tests/unit/airflow/test_asset_windows.py",
}


def table(heading: str) -> list[dict[str, str]]:
    """Read the rows of a table by the names of its columns; its first is given."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    (start,) = (number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    width = len(rows[0])
    body = [row for row in rows[2:] if len(row) == width]
    return [dict(zip(rows[0], row, strict=True)) for row in body]


def pinned(file: str) -> dict[str, str]:
    """Read the versions of a constraints file that hold everywhere."""
    lines = (PROJECT / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line))


def test_each_feature_has_a_test_that_runs_where_it_is() -> None:
    """Its tests are skipped on the minors that lack it, and on no other."""
    for row in table("Feature"):
        minors = [name for name in row if name.startswith("3.")]
        has_it = [minor for minor in minors if row[minor] == "yes"]
        assert minors[-len(has_it) :] == has_it
        assert all(row[minor] == "no" for minor in minors[: -len(has_it)])
        (test,) = (test for feature, test in TESTS.items() if feature in row["Feature"])
        assert any(test.startswith(face) for face in faces())
        marks = re.findall(r'since\("(3\.\d)"', (PROJECT / test).read_text(encoding="utf-8"))
        assert set(marks) == ({has_it[0]} if has_it != minors else set()), row
        assert bool(row["Without it"]) == (has_it != minors)


def faces() -> list[str]:
    """Return what make matrix runs."""
    (found,) = re.findall(r"^FACES \?= (.*)$", MAKEFILE, re.MULTILINE)
    return str(found).split()


def test_what_is_tested_is_what_make_and_the_constraints_name() -> None:
    """The newest patch of each older minor, the day of its release, and its Spark."""
    *older, newest = table("Airflow")
    sparks = dict(re.findall(r"^PYSPARK_(\S+) := (\S+)$", MAKEFILE, re.MULTILINE))
    releases = re.findall(r"^RELEASE_(\S+) := (\S+) (\S+) \$\(PYSPARK_(\S+)\)$", MAKEFILE, re.MULTILINE)
    assert [
        (row["Airflow"], row["Released"], row["Constraints"].strip("`"), row["Spark"]) for row in older
    ] == [
        (patch, day, f"constraints/airflow-{minor}.txt", sparks[spark])
        for minor, patch, day, spark in releases
    ]
    for row in (*older, newest):
        versions = pinned(row["Constraints"].strip("`"))
        assert (versions["apache-airflow"], versions["pyspark"]) == (row["Airflow"], row["Spark"])
        assert versions["pyspark-client"] == row["Spark"]
    assert [minor for minor, *_ in releases] == re.findall(r"^MINORS \?= (.*)$", MAKEFILE, re.MULTILINE)[
        0
    ].split()


def test_the_lowest_is_the_floor_and_runs_in_ci() -> None:
    """What pyproject.toml asks for is what .ci/run tests."""
    lines = re.findall(r'"(apache-airflow>=[^"]+)"', (PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    (requirement,) = map(Requirement, lines)
    lowest = table("Airflow")[0]["Airflow"]
    assert f">={lowest}" in str(requirement.specifier)
    assert f"make matrix MINORS={lowest.rpartition('.')[0]} " in (PROJECT / ".ci/run").read_text(
        encoding="utf-8"
    )
    chosen = [
        line
        for line in (PROJECT / ".ci/lowest-airflow.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert len(chosen) == len(set(chosen)) >= 15
    for test in chosen:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (PROJECT / file).read_text(encoding="utf-8")
