# SPDX-License-Identifier: Apache-2.0
"""The examples of operators that start a job: imported from the real providers, and rendered as for a run."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_changefeed import ExportJob, changefeed_export_group
from tests.examples import examples, run_example

PAGE = "how-to/run-by-any-operator.md"
PUSHED = {
    "spec_uri": "s3://lake/out/_changefeed/a.B/specs/000000000007/spec.json",
    "job_uri": "s3://programs/_changefeed/_programs/package/job.py",
    "archive_uri": "s3://programs/_changefeed/_programs/package/package.zip",
    "rows": 12,
    "units": 4,
    "tasks": 4,
}
EXAMPLES = {
    re.findall(r"import (\w+)$", code, re.MULTILINE)[-1]: code
    for code in examples(PAGE, {})
    if code.startswith("from airflow.providers.")
}


class Pulls:
    """As much of a task instance as rendering asks."""

    map_index = -1

    def xcom_pull(self, *, task_ids: str, key: str, **_: Any) -> Any:
        """Return what the task that plans has pushed."""
        assert task_ids == "export.plan"
        return PUSHED[key]


def test_the_page_shows_six_operators() -> None:
    """None is missed by the search."""
    assert set(EXAMPLES) == {
        "BashOperator",
        "DatabricksSubmitRunOperator",
        "DataprocSubmitJobOperator",
        "EmrAddStepsOperator",
        "LivyOperator",
        "SparkKubernetesOperator",
    }


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_is_rendered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made in the group, and names spec, file and archive where its operator hands them on."""
    names: dict[str, Any] = {"ExportJob": ExportJob}
    run_example(f"from __future__ import annotations\n{EXAMPLES[name]}", names)
    with DAG("dag", start_date=datetime(2013, 1, 1, tzinfo=timezone.utc)):
        group = changefeed_export_group(
            submit=names["submit"],
            feed="a.B",
            path="s3://lake/out",
            program_path="s3://programs",
            consumer="c",
            unit=timedelta(hours=1),
        )
    task = next(task for task in group if task.task_id == "export.submit")
    assert type(task).__name__ == name
    monkeypatch.setattr(
        "airflow.sdk.definitions.xcom_arg.PlainXComArg.resolve", lambda arg, context: PUSHED[arg.key]
    )
    task.render_template_fields(
        {"ti": Pulls(), "ts_nodash": "20130101T000000", "dag": task.dag, "task": task}
    )
    rendered = json.dumps({field: getattr(task, field, None) for field in task.template_fields}, default=str)
    # Databricks installs the package instead.
    for key in ("spec_uri", "job_uri", "archive_uri")[: 2 if name.startswith("Databricks") else 3]:
        assert str(PUSHED[key]) in rendered, rendered
    assert "xcom_pull" not in rendered
    if name == "DatabricksSubmitRunOperator":
        assert '"{{secrets/changefeed/connection}}"' in rendered
    if name == "BashOperator":
        assert '"ROWS": 12' in rendered
