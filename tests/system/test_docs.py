# SPDX-License-Identifier: Apache-2.0
"""The documentation's code runs, as a newcomer would run it, in order."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.examples import examples, run_example
from tests.system.dag_runner import DagRunner

pytestmark = [pytest.mark.airflow]


def _shown(text: str) -> str:
    """Leave out of a result what is different each time: the end of a ULID, and DuckDB's time zone."""
    text = re.sub(r"\b(01\w{8})\w{16}\b", r"\1", text).strip()
    return re.sub(r"│ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-][\d:]+ +│", "│ a time │", text)


@pytest.mark.ci
def test_the_tutorial_runs(
    runner: DagRunner,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From an empty folder to DuckDB's answer, through Airflow; then the same by Spark."""
    page = "tutorial/first-export.md"
    monkeypatch.chdir(tmp_path)
    *before, dag, query = examples(page, {"~/changefeed-tutorial": tmp_path})
    by_hand, result, _ = examples(page, {}, "text")
    names: dict[str, Any] = {}
    for code in before:
        run_example(code, names)
    assert _shown(capsys.readouterr().out) == _shown(by_hand)
    assert by_hand.count("(1000, ") == 4
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "shoes.py").write_text(dag, encoding="utf-8")
    (copies,) = [each for each in examples(page, {}, "console") if "sed " in each]
    (copy,) = re.findall(r"sed .+", copies)
    subprocess.run(["sh", "-ec", copy], env=os.environ | {"AIRFLOW_HOME": str(tmp_path)}, check=True)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path / "dags"))
    feeds = {"conn_type": "sqlite", "host": str(tmp_path / "shoes.db")}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    spark = {"conn_type": "spark", "host": "local[*]"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    done = runner.run(("shoes", datetime(2026, 3, 2, tzinfo=timezone.utc).isoformat(), None))
    assert done.states == ["success"], done.output[-3000:]
    assert "4 rows are fewer than local_below=100000" in done.output
    capsys.readouterr()
    run_example(query, names)
    assert _shown(capsys.readouterr().out) == _shown(result)
    done = runner.run(("shoes_by_spark", datetime(2026, 3, 2, tzinfo=timezone.utc).isoformat(), None))
    assert done.states == ["success"], done.output[-3000:]
    run_example(query.replace("shoes-export", "shoes-by-spark"), names)
    assert _shown(capsys.readouterr().out) == _shown(result)
    assert re.findall(r"01\w{24}", result) == re.findall(r"01\w{24}", by_hand)
