# SPDX-License-Identifier: Apache-2.0
"""Jobs of folds, merges and snapshots, started as ``spark-submit`` starts them, in this process."""

from __future__ import annotations

from pathlib import Path

from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.result import TaskResult
from airflow_changefeed.spark import job


def run_job(folder: Path, task: str, connection: JobConnection) -> tuple[int, TaskResult]:
    """
    Run the job of a task; return its exit status and what it leaves for the operator.

    :param folder: of its documents; made.
    :param task: as a document.
    """
    folder.mkdir()
    files = {name: folder / f"{name}.json" for name in ("task", "connection")}
    files["task"].write_text(task)
    connection.save(str(files["connection"]))
    status = job.main([text for name, file in files.items() for text in (f"--{name}", str(file))])
    assert not files["connection"].exists(), "it may hold secrets"
    return status, TaskResult.from_json((folder / "result.json").read_text(), named="result")
