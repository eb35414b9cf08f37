# SPDX-License-Identifier: Apache-2.0
"""Arguments: all wrong ones at once, those of other tasks later, and mapped tasks without retries."""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models import Variable
from airflow.sdk import DAG, task

import airflow_changefeed
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.plan import ExportOptions
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.notifications.freshness import ChangefeedFreshnessNotifier
from airflow_changefeed.operators.changefeed import (
    ChangefeedCleanOperator,
    ChangefeedFreshnessOperator,
    ChangefeedVerifyOperator,
)
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.operators.fold import ChangefeedFoldOperator, ChangefeedMergeOperator
from airflow_changefeed.operators.snapshot import ChangefeedReconcileOperator, ChangefeedSnapshotOperator
from airflow_changefeed.sensors.changefeed import ChangefeedSensor
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.tasks.arguments import parse_options
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.transfers.group import ChangefeedPlanOperator
from airflow_changefeed.version_compat import AirflowFailException
from tests.identity import DATABASE, name_database
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import InProcessOperator, context

HOUR = timedelta(hours=1)


def test_signatures_are_whole() -> None:
    """Editors see each argument that a docstring describes; a group takes those of an export of windows."""
    shown = [
        getattr(airflow_changefeed, name) for name in airflow_changefeed.__all__ if name != "__version__"
    ]
    for thing in shown:
        described = re.findall(r"^ *:param ([a-z_, ]+):", inspect.getdoc(thing) or "", re.MULTILINE)
        names = {name for several in described for name in several.split(", ")}
        assert names - {"kwargs"} <= set(inspect.signature(thing).parameters), thing
    export, group = (
        set(inspect.signature(one).parameters)
        for one in (ChangefeedToParquetOperator, airflow_changefeed.changefeed_export_group)
    )
    assert export - group == {"mode", "local_below"}


def test_all_wrong_arguments_are_named_at_once() -> None:
    """The DAG's author sees everything in one import error."""
    with pytest.raises(InvalidArgumentError) as caught:
        ChangefeedToParquetOperator(
            task_id="export",
            feed="",
            path="",
            consumer="a:b",
            shards=[],
            unit=timedelta(0),
            window_start="2013-01-01T00:00:00Z",
            options={"compression": "zip", "partitions": 0},
            lock_timeout=-1,
            application="other.py",
        )
    for name in (
        "feed",
        "path",
        "consumer",
        "shards",
        "unit",
        "window",
        "compression",
        "partitions",
        "lock_timeout",
    ):
        assert name in str(caught.value)
    assert "application" in str(caught.value)


def test_templates_are_not_judged_before_they_are_rendered() -> None:
    """What is templated is checked when the task runs, and assigned unchanged."""
    task = ChangefeedToParquetOperator(
        task_id="export",
        feed="{{ params.feed }}",
        path="{{ params.path }}",
        consumer="{{ dag.dag_id }}",
        window_start="{{ data_interval_start }}",
        window_end="{{ data_interval_end }}",
    )
    assert task.window_start == "{{ data_interval_start }}"
    assert {"feed", "path", "consumer", "window_start", "window_end", "conf"} <= set(task.template_fields)


def rendered(operator: Any, values: dict[str, Any]) -> Any:
    """Render a task's fields, with results of other tasks by task id."""
    ti = SimpleNamespace(xcom_pull=lambda *, task_ids, **_: values[task_ids])
    operator.render_template_fields({"ti": ti})
    return operator


def results(dag: DAG) -> dict[str, Any]:
    """Return other tasks' results, as TaskFlow hands them on."""

    def given() -> Any:
        return None

    with dag:
        return {name: task(task_id=f"get_{name}")(given)() for name in ("shards", "unit", "options")}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ChangefeedToParquetOperator, {"mode": "{{ params.mode }}", "path": "/out"}),
        (ChangefeedToParquetOperator, {"local_below": "{{ 5 }}", "path": "/out"}),
        (ChangefeedSensor, {"lock_timeout": "{{ 5 }}"}),
    ],
    ids=["mode", "local_below", "lock_timeout"],
)
def test_a_template_where_none_is_rendered_is_refused(kind: Any, arguments: dict[str, Any]) -> None:
    """Else a batch that was asked for by a template would become a window."""
    (name,) = arguments.keys() - {"path"}
    with pytest.raises(InvalidArgumentError, match=rf"{name} must be.*\{{\{{"):
        kind(task_id="export", feed=FEED, consumer=CONSUMER, **arguments)


def test_results_of_other_tasks_can_be_arguments() -> None:
    """Shards, unit and options may come from other tasks, which become upstream."""
    dag = DAG("results", schedule=None)
    given = results(dag)
    export = ChangefeedToParquetOperator(
        task_id="export", feed=FEED, path="/out", consumer=CONSUMER, dag=dag, **given
    )
    assert export.upstream_task_ids == {"get_shards", "get_unit", "get_options"}
    values = {"get_shards": [0, "1"], "get_unit": HOUR, "get_options": {"compression": "snappy"}}
    rendered(export, values)
    assert (export.shards, export.unit, export.options) == ([0, "1"], HOUR, {"compression": "snappy"})
    wait = ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER, dag=dag, shards=given["shards"])
    assert wait.upstream_task_ids == {"get_shards"}
    assert rendered(wait, values).shards == [0, "1"]


@pytest.mark.airflow
def test_a_wrong_result_of_another_task_fails_at_once(database: str, server: None, tmp_path: Any) -> None:
    """What could not be judged before is judged in the run, all at once, and nothing is written."""
    dag = DAG("wrong", schedule=None)
    export = InProcessOperator(
        task_id="export", feed=FEED, path=str(tmp_path / "out"), consumer=CONSUMER, dag=dag, **results(dag)
    )
    rendered(export, {"get_shards": "all", "get_unit": "an hour", "get_options": {"compression": "zip"}})
    with pytest.raises(AirflowFailException, match=r"InvalidArgumentError.*shards.*unit.*compression"):
        export.execute(context(START, START + HOUR))
    assert not (tmp_path / "out").exists()


def test_templates_within_lists_and_dicts_are_rendered() -> None:
    """Also a part of an argument may be a template."""
    export = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path="/out",
        consumer=CONSUMER,
        shards=["{{ 1 + 1 }}"],
        options={"compression": "{{ 'gzip' }}"},
    )
    rendered(export, {})
    assert (export.shards, export.options) == (["2"], {"compression": "gzip"})


def test_numbers_of_options_may_be_templates() -> None:
    """A template gives texts; None is what it is, and a text that is no number is named."""
    numbers = ("target_file_rows", "partitions", "batch_rows", "target_file_bytes")
    export = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path="/out",
        consumer=CONSUMER,
        table_format="{{ 'delta' }}",
        options={name: f"{{{{ 2 ** {20 + place} }}}}" for place, name in enumerate(numbers[3:])}
        | dict.fromkeys(numbers[:3], "{{ 5 * 5 }}"),
    )
    rendered(export, {})
    found = parse_options(export.options)
    assert [getattr(found, name) for name in numbers] == [25, 25, 25, 1 << 20]
    assert parse_options({"target_file_bytes": None}).target_file_bytes is None
    for wrong in ("None", "", "many", "1.5", "0", "-1"):
        said = "options: partitions must be a whole number, 1 to 10000, or None, not "
        with pytest.raises(InvalidArgumentError, match=f"{said}{wrong!r}"):
            parse_options({"partitions": wrong, "batch_rows": "7"})


NATIVE: list[tuple[Any, dict[str, Any]]] = [
    (ChangefeedToParquetOperator, {"feed": "2024", "path": "7", "consumer": "42"}),
    (ChangefeedPlanOperator, {"feeds": ["2024", "nyc.*"], "exclude": ["5"], "path": "/x", "consumer": "42"}),
    (ChangefeedSensor, {"feed": "2024", "consumer": "42"}),
    (ChangefeedVerifyOperator, {"feed": "2024", "path": "7"}),
    (ChangefeedCleanOperator, {"feed": "2024", "path": "7"}),
    (
        ChangefeedConsumeOperator,
        {"feed": "2024", "consumer": "42", "changefeed_conn_id": "8", "handler": len},
    ),
    (ChangefeedFreshnessOperator, {"feed": "2024", "consumer": "42", "max_age": HOUR}),
    (ChangefeedFreshnessOperator, {"feed": ["2024", "7"], "consumer": "42", "max_age": HOUR}),
    (ChangefeedFoldOperator, {"feed": "2024", "path": "7", "output_path": "8", "table": "9"}),
    (
        ChangefeedMergeOperator,
        {"feed": "2024", "path": "7", "output_path": "8", "table": "9", "states_path": "10"},
    ),
    (ChangefeedSnapshotOperator, {"feed": "2024", "output_path": "8", "table": "9"}),
    (ChangefeedReconcileOperator, {"feed": "2024", "path": "7", "output_path": "8", "table": "9"}),
]


@pytest.mark.parametrize(("kind", "arguments"), NATIVE)
def test_names_of_digits_are_names_where_templates_are_native(kind: Any, arguments: dict[str, Any]) -> None:
    """With render_template_as_native_obj Airflow makes numbers of them, also where nothing is templated."""
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        task = kind(task_id="task", **arguments)
    task.render_template_fields({"dag": dag, "ti": None}, dag.get_template_env())
    task._check()
    assert {name: getattr(task, name) for name in arguments} == arguments


@pytest.mark.parametrize("consumer", ["42", "007", "4_2", "0x10", "1e3", "True", "None", "(1, 2)", "[1, 2]"])
def test_a_name_without_a_template_is_the_same_where_templates_are_native(consumer: str) -> None:
    """Also of a mapped task, and of a notifier, which has no DAG's file to look at."""
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        task = ChangefeedSensor(task_id="task", feed=FEED, consumer=consumer)
        mapped = ChangefeedSensor.partial(task_id="mapped", consumer=consumer).expand(feed=["2024", FEED])
    notifier = ChangefeedFreshnessNotifier(notifier=print, max_age=5, feed=[FEED, "7"], consumer=consumer)
    made = {"dag": dag, "ti": None}
    task.render_template_fields(made, dag.get_template_env())
    notifier.render_template_fields(made, dag.get_template_env())
    unmapped = mapped.unmap({"feed": "2024"})
    mapped._do_render_template_fields(unmapped, mapped.template_fields, made, dag.get_template_env(), set())
    assert {each.consumer for each in (task, notifier, unmapped)} == {consumer}
    assert (unmapped.feed, notifier.feed) == ("2024", [FEED, "7"])


@pytest.mark.parametrize(
    ("template", "consumer"),
    [
        ("{{ params.year }}", "2024"),
        ("{{ 'etl' }}_{{ 7 }}", "etl_7"),
        ("'{{ 1 }}e3'", "1e3"),
        ("{{ 20 }}{{ 24 }}", "2024"),
    ],
)
def test_a_native_template_of_a_name_may_give_digits(template: str, consumer: str) -> None:
    """They are the name; of another value the error says how to make a text."""
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        task = ChangefeedSensor(task_id="task", feed=FEED, consumer=template)
        wrong = ChangefeedSensor(task_id="wrong", feed=FEED, consumer="{{ 1 }}e3")
    for each in (task, wrong):
        each.render_template_fields({"dag": dag, "params": {"year": 2024}}, dag.get_template_env())
    task._check()
    assert task.consumer == consumer
    with pytest.raises(InvalidArgumentError, match=r"consumer must be a text, not 1000\.0.*quote it twice"):
        wrong._check()


@pytest.mark.airflow
def test_a_feed_and_a_consumer_of_digits_are_exported_natively(
    tmp_path: Path, server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a mapped task, too; rows, cursors and Variable have the texts."""
    file = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute('create table "2024" (id integer primary key)')
    source = SqliteFeedSource(file)
    source.set_up_feed("2024")
    name_database(file)
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": file}))
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        task = InProcessOperator(
            task_id="export", feed="2024", path=str(tmp_path / "out"), consumer="42", local_below=1000
        )
    made = context(START, START + HOUR, dag=dag)
    task.render_template_fields(made, dag.get_template_env())
    Variable.delete(variable_key(DATABASE, "42", "2024"))
    assert task.execute(made)["feed"] == "2024"
    assert [(row.feed, row.consumer) for row in source.cursors("2024")] == [("2024", "42")] * len(
        source.shards("2024")
    )


def test_options_and_units_pass_rendering_unchanged() -> None:
    """What is no template stays the object it was."""
    options = ExportOptions(partitions=3)
    export = ChangefeedToParquetOperator(
        task_id="export", feed=FEED, path="/out", consumer=CONSUMER, unit=HOUR, options=options, shards=(0, 1)
    )
    rendered(export, {})
    assert (export.unit, export.options, list(export.shards or ())) == (HOUR, options, [0, 1])


@pytest.mark.parametrize(
    ("options", "put"),
    [
        (None, {"shape": "hasura"}),
        ({"partitions": 3}, {"partitions": 3, "shape": "hasura"}),
        ({"shape": "hasura"}, {"shape": "hasura"}),
        (ExportOptions(partitions=3), {**asdict(ExportOptions(partitions=3)), "shape": "hasura"}),
    ],
)
def test_a_shape_is_one_of_the_options(options: Any, put: dict[str, Any]) -> None:
    """Given by itself, it says the same; without one, options stay the object they were."""
    arguments = {"task_id": "export", "feed": FEED, "path": "/out", "consumer": CONSUMER, "options": options}
    assert ChangefeedToParquetOperator(**arguments, shape="hasura").options == put
    assert ChangefeedToParquetOperator(**arguments).options is options


def test_a_shape_may_be_a_template() -> None:
    """It is rendered with the options."""
    export = ChangefeedToParquetOperator(
        task_id="export", feed=FEED, path="/out", consumer=CONSUMER, shape="{{ 'hasura' }}"
    )
    assert rendered(export, {}).options == {"shape": "hasura"}


def test_a_shape_may_be_given_to_all_mapped_tasks() -> None:
    """It stands in the signature, which ``partial`` reads, beside options that differ."""
    with DAG("shapes", schedule=None, start_date=datetime(2013, 1, 1)):
        mapped = ChangefeedToParquetOperator.partial(
            task_id="export", feed=FEED, path="/out", consumer=CONSUMER, shape="hasura"
        ).expand(options=[{"partitions": 1}, {"partitions": 2}])
    assert mapped.unmap({"options": {"partitions": 2}}).options == {"partitions": 2, "shape": "hasura"}


@pytest.mark.parametrize(
    ("options", "shape", "words"),
    [
        (None, "avro", "shape must be one of typed, envelope, hasura, debezium, not 'avro'"),
        ({"shape": "typed"}, "hasura", "shape is 'hasura', but options has 'typed'"),
        (ExportOptions(shape="envelope"), "hasura", "options has 'envelope'"),
        ("{{ params.options }}", "hasura", "set it in options"),
    ],
)
def test_a_wrong_shape_is_named(options: Any, shape: str, words: str) -> None:
    """Also one that the options contradict, or that they cannot hold yet."""
    with pytest.raises(InvalidArgumentError, match=re.escape(words)):
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, path="/out", consumer=CONSUMER, options=options, shape=shape
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "auto"}, "mode must be one of window, batch, not 'auto'"),
        ({"mode": "batch", "unit": HOUR}, "unit cannot be given with mode='batch'"),
        ({"mode": "batch", "window_start": "{{ ds }}"}, "window_start cannot be given with mode='batch'"),
        ({"unit": "an hour"}, "unit must be a length of time above 0 .*, or None, not 'an hour'"),
        ({"unit": True}, "unit must be a length of time"),
        ({"unit": "PT0.0001S"}, "unit must be in whole milliseconds, not 'PT0.0001S'"),
    ],
)
def test_a_mode_is_one_of_two_and_a_batch_has_no_window(arguments: dict[str, Any], message: str) -> None:
    """Refused when the DAG file is read."""
    with pytest.raises(InvalidArgumentError, match=message):
        ChangefeedToParquetOperator(task_id="e", feed=FEED, path="/out", consumer=CONSUMER, **arguments)


@pytest.mark.parametrize("kind", [ChangefeedToParquetOperator, ChangefeedSensor])
def test_a_mapped_task_with_a_wrong_argument_is_not_retried(kind: Any) -> None:
    """Airflow makes it when it runs: a clear error of ours then fails it for good."""
    more = {"path": "/out"} if kind is ChangefeedToParquetOperator else {}
    with DAG("mapped", schedule=None, start_date=datetime(2013, 1, 1)):
        mapped = kind.partial(task_id="mapped", consumer=CONSUMER, **more).expand(feed=[FEED, ""])
    assert mapped.unmap({"feed": FEED}).feed == FEED
    with pytest.raises(AirflowFailException, match=r"InvalidArgumentError.*'mapped': feed is missing"):
        mapped.unmap({"feed": ""})


def test_default_arguments_of_the_dag_count() -> None:
    """The job's name of ``default_args`` wins over ours, and the task's over both."""
    arguments: dict[str, Any] = {"feed": FEED, "path": "/out", "consumer": CONSUMER}
    with DAG("named", schedule=None, default_args={"name": "nightly", "java_class": "other.Job"}):
        assert ChangefeedToParquetOperator(task_id="one", **arguments).name == "nightly"
        assert ChangefeedToParquetOperator(task_id="two", name="mine", **arguments).name == "mine"
    assert ChangefeedToParquetOperator(task_id="three", **arguments).name == "changefeed-export"
    defaults = {
        "changefeed_conn_id": "feeds",
        "path_conn_id": "lake",
        "catalog_conn_id": "catalog",
        "lock_timeout": 7,
        "program_path": "/programs",
    }
    with DAG("group", schedule=None, default_args=defaults) as dag:
        airflow_changefeed.changefeed_export_group(**arguments)
    for task_id, names in {
        "plan": defaults.keys(),
        "submit": defaults.keys() - {"catalog_conn_id", "lock_timeout"},
        "finish": defaults.keys() - {"program_path"},
    }.items():
        made = dag.get_task(f"export.{task_id}")
        assert {name: getattr(made, name) for name in names} == {name: defaults[name] for name in names}
