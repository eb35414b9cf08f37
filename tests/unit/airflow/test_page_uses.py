# SPDX-License-Identifier: Apache-2.0
"""What the page learns of feeds from serialized DAGs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedFreshnessOperator, ChangefeedSensor, ChangefeedToParquetOperator
from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.plugins.uses import Use, uses_of
from tests.minors import dag_serialization, since

pytestmark = since("3.1", "the page")


def read(dag: DAG) -> dict[str, Use]:
    """Serialize a DAG as Airflow does, and return what is read of it, by task."""
    data: dict[str, Any] = dag_serialization().to_dict(dag)
    return {use.task_id: use for use in uses_of(dag.dag_id, data)}


def test_what_tasks_name_is_found() -> None:
    """Connections are serialized although they are no templates."""
    with DAG("a", schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC")) as dag:
        ChangefeedSensor(task_id="wait", feed="x", consumer="c", changefeed_conn_id="db")
        ChangefeedToParquetOperator(
            task_id="export",
            feed="x",
            consumer="c",
            path="/out",
            path_conn_id="storage",
            changefeed_conn_id="db",
            unit=timedelta(days=1, hours=2, minutes=3),
            shards=[1, 2],
            conn_id="spark",
        )
        BaseOperator(task_id="other")
    found = read(dag)
    assert sorted(found) == ["export", "wait"]
    assert (found["wait"].conn_id, found["wait"].has_windows) == ("db", False)
    assert found["export"] == Use(
        "db",
        "a",
        "export",
        "ChangefeedToParquetOperator",
        "x",
        "c",
        "/out",
        path_conn_id="storage",
        unit=timedelta(days=1, hours=2, minutes=3),
        shards=(1, 2),
    )


def test_templates_are_told_and_not_taken_for_names() -> None:
    """What is known in a run only is left out, and the task is listed all the same."""
    with DAG("a", schedule=None) as dag:
        ChangefeedToParquetOperator(
            task_id="export", feed="{{ params.feed }}", consumer="c", path="/{{ ds }}", conn_id="spark"
        )
    use = read(dag)["export"]
    assert (use.feed, use.consumer, use.path, use.templates) == (None, "c", None, ("feed", "path"))
    assert use.conn_id == "changefeed_default"


def test_mapped_tasks_and_tasks_of_subclasses_are_found() -> None:
    """By what they name, not by their class."""

    class Own(ChangefeedSensor):
        """Somebody's own."""

    with DAG("a", schedule=None) as dag:
        Own(task_id="own", feed="x", consumer="c", changefeed_conn_id="db")
        ChangefeedToParquetOperator.partial(
            task_id="mapped", path="/out", consumer="c", changefeed_conn_id="db", conn_id="spark"
        ).expand(feed=["x", "y"])
    found = read(dag)
    assert (found["own"].kind, found["own"].feed) == ("Own", "x")
    assert (found["mapped"].conn_id, found["mapped"].path, found["mapped"].feed) == ("db", "/out", None)


def test_what_is_written_otherwise_is_passed_over() -> None:
    """A DAG of another version of Airflow does not keep the page from opening; odd values are left out."""

    def tasks(*all_: dict[str, Any]) -> dict[str, Any]:
        return {"dag": {"tasks": [{"__var": one} for one in all_]}}

    odd = {"task_id": "x", "changefeed_conn_id": {"__var": 5}}
    for data in ({}, {"dag": {}}, tasks({"task_id": "x"}), tasks(odd)):
        assert list(uses_of("a", data)) == []
    task = {"task_id": "x", "changefeed_conn_id": "db", "unit": "soon", "shards": ["one"]}
    (use,) = uses_of("a", tasks(task))
    assert (use.unit, use.shards) == (None, None)


def test_an_address_is_told_without_its_secrets() -> None:
    """Keys may hold slashes and more, and what signs an address stands in its query."""
    for address, shown in {
        "s3://bucket/folder": "s3://bucket/folder",
        "s3://key:se/cr@et@bucket/folder": "s3://***@bucket/folder",
        "https://host/folder?sig=secret": "https://host/folder?***",
        "no '/out' nor s3://key:secret@bucket, says 'it'": "no '/out' nor s3://***@bucket, says 'it'",
    }.items():
        assert without_secrets(address) == shown


def test_what_a_task_that_watches_allows_is_found() -> None:
    """Of a list of feeds, or of a consumer that only a run knows, nothing, as it is not known of which."""
    with DAG("watch", schedule=None) as dag:
        for task_id, feed in (
            ("all", None),
            ("some", "shop.*"),
            ("listed", ["a", "b"]),
            ("rendered", "{{ x }}"),
        ):
            ChangefeedFreshnessOperator(task_id=task_id, max_age="2h", feed=feed, changefeed_conn_id="db")
        ChangefeedFreshnessOperator(
            task_id="somebody", max_age="2h", consumer="{{ x }}", changefeed_conn_id="db"
        )
    found = read(dag)
    ages = {name: use.max_age for name, use in found.items()}
    known = {"all": timedelta(hours=2), "some": timedelta(hours=2)}
    assert ages == {**known, "listed": None, "rendered": None, "somebody": None}
    assert found["some"].feed == "shop.*"
