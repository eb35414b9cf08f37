# SPDX-License-Identifier: Apache-2.0
"""What this version of PySpark has is what the table of versions says."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from airflow_changefeed.spark import version_compat
from tests.examples import section

PROJECT = Path(__file__).resolve().parents[3]


def _row() -> dict[str, str]:
    """Read the row of this minor version."""
    lines = [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in section("reference/compatibility.md#spark-versions").splitlines()
        if line.startswith("| ")
    ]
    minor = ".".join(pyspark.__version__.split(".")[:2])
    (row,) = [line for line in lines if line[0] == minor]
    return dict(zip(lines[0], row, strict=True))


def test_the_table_says_what_this_version_has() -> None:
    """Its patch, the data source, filters that reach it, and times of day."""
    row = _row()
    assert row["Tested"] == pyspark.__version__
    assert (row["Times of day"] == "yes") == version_compat.HAS_TIME_TYPE
    assert (row["Data source"] == "yes") == (find_spec("pyspark.sql.datasource") is not None)
    if row["Data source"] == "yes":
        assert (row["Its filters"] == "yes") == version_compat.has_filter_pushdown()


@pytest.mark.ci
def test_the_format_is_refused_by_name_where_data_sources_are_missing() -> None:
    """With the version that is there, and what to do; the job needs none."""
    code = (
        "import sys; sys.modules['pyspark.sql.datasource'] = None\n"
        "import airflow_changefeed.spark.job, airflow_changefeed.spark.export_job\n"
        "import airflow_changefeed.spark.fold\n"
        "import airflow_changefeed as c\n"
        "c.read_export, c.fold\n"
        "c.ChangefeedDataSource"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    version = re.escape(pyspark.__version__)
    assert re.search(
        rf"SparkEnvironmentError: PySpark {version} has no data sources .* use PySpark 4\.0", last
    )


def test_the_version_that_is_constrained_is_in_the_table() -> None:
    """That of constraints.txt, which every other test runs on."""
    pinned = re.search(r"^pyspark==(\S+)$", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"| {pinned[1]} |" in section("reference/compatibility.md#spark-versions")


pytestmark = pytest.mark.spark
