# SPDX-License-Identifier: Apache-2.0
"""Small plans are written by the task itself: without Spark, Java or a Spark connection, and as safely."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.exceptions import InvalidArgumentError, MissingEventError, SupersededError
from airflow_changefeed.export import spec as spec_module
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark import export_job
from airflow_changefeed.version_compat import AirflowFailException
from tests.exports import verify
from tests.unit.airflow.conftest import FEED, START
from tests.unit.airflow.fakes import InProcessHook, context
from tests.unit.airflow.test_operator import (
    HOUR,
    POINTS,
    Crash,
    assert_complete,
    assert_cursors_follow_manifests,
    exported,
    operator,
    path,
)

__all__ = ["path"]  # a fixture
pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
#: A task that could not start a Spark.
NO_SPARK = {"conn_id": "nowhere", "env_vars": {"JAVA_HOME": "/none"}}


def test_a_small_plan_needs_no_spark(
    database: str, path: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a connection nor Java is looked for; the log says who has written, and how far it was."""
    spark = len(InProcessHook.commands)
    operator(path, local_below=19, **NO_SPARK).execute(context(START, START + 3 * HOUR))
    assert_complete(database, path, 3)
    assert verify(ExportStore(path, FEED)) == []
    assert len(InProcessHook.commands) == spark
    log = capsys.readouterr().out or caplog.text  # Airflow 3.0 logs by Python's own logging
    assert "18 rows are fewer than local_below=19: written here, without Spark" in log
    assert "changefeed progress: shard 0: 9 of 9 rows" in log


def test_the_result_is_the_same_either_way(database: str, path: str) -> None:
    """Who reads it need not know who has written."""
    results = [
        operator(where, local_below=below).execute(context(START, START + 3 * HOUR))
        for where, below in ((path, 0), (f"{path}-here", 1000))
    ]
    manifests = [result.pop("manifests") for result in results]
    attempts = [result.pop("attempt") for result in results]
    assert results[0] == results[1]
    assert attempts == [2, 3], "a job draws a token besides its plan's"
    assert [
        name.replace(f"{path}-here/", f"{path}/").replace("03.json", "02.json") for name in manifests[1]
    ] == (manifests[0])


@pytest.mark.parametrize("below", [18, 1])
def test_a_plan_at_the_bound_or_above_is_sparks(database: str, path: str, below: int) -> None:
    """The bound itself is exclusive."""
    spark = len(InProcessHook.commands)
    operator(path, local_below=below).execute(context(START, START + 3 * HOUR))
    assert len(InProcessHook.commands) == spark + 1
    assert_complete(database, path, 3)


def test_a_plan_above_the_bound_fails_without_spark(database: str, path: str) -> None:
    """What Spark lacks is named as ever; nothing is exported."""
    with pytest.raises(AirflowFailException, match=r"SparkEnvironmentError.*'nowhere'"):
        operator(path, local_below=18, **NO_SPARK).execute(context(START, START + 3 * HOUR))
    assert exported(path) == []
    assert ExportStore(path, FEED).list() == []


def test_a_batch_is_written_here_as_well(database: str, path: str) -> None:
    """With its lease held meanwhile."""
    result = operator(path, unit=None, mode="batch", local_below=1000, **NO_SPARK).execute(context())
    assert (result["rows"], result["windows"], exported(path)) == (36, [], list(range(36)))


@pytest.mark.parametrize(
    "point",
    [point for point in POINTS if point[1] not in (export_job, spec_module)],
    ids=lambda point: f"{point[0].__name__}-{point[2]}",
)
def test_a_retry_after_a_crash_anywhere_gives_the_same_result(
    database: str, path: str, point: tuple[Callable[..., None], Any, str]
) -> None:
    """The task dies at one point and Airflow tries again: output, cursors and Variable are whole."""
    crash, module, name = point
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, module, name)
        with pytest.raises(Crash):
            operator(path, local_below=1000).execute(context(START, START + 2 * HOUR))
    seen = exported(path)
    assert len(set(seen)) == len(seen)
    assert_cursors_follow_manifests(database, path)
    operator(path, local_below=1000).execute(context(START, START + 2 * HOUR, attempt=2))
    assert_complete(database, path, 2)


def test_an_older_run_of_the_same_unit_is_superseded(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark and a task export the same hour at once: the older one withdraws, and harms nothing."""
    whole = Commit.add

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(Commit, "add", whole)
        operator(path).execute(context(START, START + HOUR, attempt=2))
        return whole(*args)

    monkeypatch.setattr(Commit, "add", overtaken)
    with pytest.raises(SupersededError, match="newer attempts count"):
        operator(path, local_below=1000).execute(context(START, START + HOUR))
    assert_complete(database, path, 1)


def test_errors_are_the_same_either_way(database: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal one fails the task at once, by its class; nothing is left, and the remedy works."""
    import sqlite3

    monkeypatch.setattr("airflow_changefeed.output.commit._PAUSE", 0)
    with sqlite3.connect(database) as connection:
        connection.execute('delete from "nyc.Flight" where id = 3')
    connection.close()
    with pytest.raises(AirflowFailException, match=r"MissingEventError.*on_missing") as caught:
        operator(path, local_below=1000).execute(context(START, START + HOUR))
    assert str(caught.value).startswith(MissingEventError.__name__)
    assert exported(path) == [0, 2, 4], "the first shard's unit was whole, and stays"
    keys = {"on_missing": "keys_only"}
    operator(path, local_below=1000, options=keys).execute(context(START, START + HOUR))
    assert_complete(database, path, 1)


@pytest.mark.parametrize("value", [-1, 1.5, "many", True, None], ids=repr)
def test_what_is_no_number_of_rows_is_refused(path: str, value: Any) -> None:
    """With the other wrong arguments, when the DAG is parsed."""
    with pytest.raises(
        InvalidArgumentError, match=r"unit must be.*local_below must be a whole number of rows"
    ):
        operator(path, local_below=value, unit=timedelta(0))
