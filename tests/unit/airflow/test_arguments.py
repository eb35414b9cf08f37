# SPDX-License-Identifier: Apache-2.0
"""Arguments of all operators, sensors and groups: wrong ones, templates, results of tasks, mapped tasks."""

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
from airflow.sdk import DAG, BaseOperator, task

import airflow_changefeed
from airflow_changefeed.core.export_plan import ExportOptions
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
from airflow_changefeed.tasks.waiting import WAIT_LENGTH
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.transfers.group import ChangefeedPlanOperator
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.identity import name_database
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import InProcessOperator, context

HOUR = timedelta(hours=1)
OUTPUT = {"feed": FEED, "path": "/out"}
EXPORT = {**OUTPUT, "consumer": CONSUMER}
FOLD = {**OUTPUT, "output_path": "/states"}
JOB = "conf driver_class_path env_vars exclude_packages files jars keytab name packages post_submit_commands "
JOB += "principal properties_file proxy_user py_files"
#: For each class the arguments that it needs, and what may be a template beside those of Spark's provider.
TASKS: dict[type[Any], tuple[dict[str, Any], str]] = {
    ChangefeedToParquetOperator: (
        EXPORT,
        f"feed path consumer shards unit options window_start window_end program_path {JOB}",
    ),
    ChangefeedPlanOperator: (
        {"feeds": [FEED], "path": "/out", "consumer": CONSUMER},
        "feed feeds exclude path consumer shards unit options window_start window_end program_path",
    ),
    ChangefeedSensor: (
        {"feed": FEED, "consumer": CONSUMER},
        "feed consumer shards window_start window_end",
    ),
    ChangefeedVerifyOperator: (OUTPUT, "feed path shards window_start window_end"),
    ChangefeedCleanOperator: (OUTPUT, "feed path"),
    ChangefeedConsumeOperator: (
        {"feed": FEED, "consumer": CONSUMER, "handler": print},
        "feed consumer shards changefeed_conn_id",
    ),
    ChangefeedFreshnessOperator: (
        {"feed": FEED, "consumer": CONSUMER, "max_age": HOUR},
        "feed consumer changefeed_conn_id",
    ),
    ChangefeedFoldOperator: (FOLD, f"feed path output_path table at base {JOB}"),
    ChangefeedMergeOperator: (FOLD, f"feed path output_path table at base states_path {JOB}"),
    ChangefeedSnapshotOperator: (
        {"feed": FEED, "output_path": "/states"},
        f"feed output_path table where {JOB}",
    ),
    ChangefeedReconcileOperator: (FOLD, f"feed path output_path table base where {JOB}"),
}


def make(kind: Any, **more: Any) -> Any:
    """Make a task with the arguments that it needs, and others; or a group of tasks."""
    if kind is airflow_changefeed.changefeed_export_group:
        with DAG("dag"):
            return kind(**{**EXPORT, "program_path": "/programs", **more})
    return kind(**{"task_id": "task", **TASKS[kind][0], **more})


# ---- wrong ones

WINDOW_END = {"window_end": "2013-01-01T00:00:00Z"}
WINDOW = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T01:00:00Z"}
#: Wrong arguments, and what the error says of them.
WRONG: dict[Any, list[tuple[dict[str, Any], str]]] = {
    ChangefeedToParquetOperator: [
        ({"consumer": "a:b"}, "consumer"),
        ({"shards": []}, "shards: no shard is named"),
        (WINDOW_END, "window_start"),
        ({"options": {"compression": "zip"}}, "compression"),
        ({"options": {"partitions": 0}}, "partitions"),
        ({"lock_timeout": -1}, "lock_timeout"),
        ({"application": "other.py"}, "application cannot be given"),
        ({"mode": "auto"}, "mode must be one of window, batch, not 'auto'"),
        ({"mode": "{{ params.mode }}"}, r"mode must be.*\{\{"),
        ({"mode": "batch", "unit": HOUR}, "unit cannot be given with mode='batch'"),
        ({"mode": "batch", "window_start": "{{ ds }}"}, "window_start cannot be given with mode='batch'"),
        ({"unit": timedelta(0)}, "unit must be a length of time above 0"),
        ({"unit": "an hour"}, "unit must be a length of time above 0 .*, or None, not 'an hour'"),
        ({"unit": True}, "unit must be a length of time"),
        ({"unit": "PT0.0001S"}, "unit must be in whole milliseconds, not 'PT0.0001S'"),
        *(
            ({"local_below": value}, "local_below must be a whole number of rows")
            for value in (-1, 1.5, "many", True, None, "{{ 5 }}")
        ),
        ({"shape": "avro"}, "shape must be one of typed, envelope, hasura, debezium, not 'avro'"),
        (
            {"shape": "hasura", "options": {"shape": "typed"}},
            "shape is 'hasura', but options has 'typed'",
        ),
        ({"shape": "hasura", "options": ExportOptions(shape="envelope")}, "options has 'envelope'"),
        ({"shape": "hasura", "options": "{{ params.options }}"}, "set it in options"),
    ],
    airflow_changefeed.changefeed_export_group: [
        ({"mode": "batch"}, "the leases of a batch cannot span tasks"),
        ({"submit": lambda job: None}, "submit of group 'export' created no task"),
        ({"unit": timedelta(0)}, "unit must be"),
        (
            {"program_path": None, "submit": lambda job: None},
            "program_path is missing: .* or, to accept the risk, the output's path",
        ),
        (
            {"program_path": "lake/x/y", "path": "lake/x", "submit": lambda job: BaseOperator(task_id="s")},
            "program_path 'lake/x/y' lies in the output 'lake/x'",
        ),
        ({"feeds": "shop.*"}, "feed and feeds cannot both be given"),
        ({"feed": None, "feeds": 7}, "feeds must be names or patterns of feeds, not 7"),
        ({"feed": None, "feeds": [""]}, r"feeds must be names or patterns of feeds, not \[''\]"),
        ({"feed": None, "feeds": "shop.*", "exclude": 7}, "exclude must be names"),
        ({"submit": print, "spark": {}}, "spark configures the task that is created without submit"),
        ({"spark": {"application": "mine.py"}}, "application cannot be given"),
    ],
    ChangefeedSensor: [
        ({"shards": "EWR"}, "shards"),
        (WINDOW_END, "window_start"),
        ({"lock_timeout": "x"}, "lock_timeout"),
        ({"lock_timeout": "{{ 5 }}"}, r"lock_timeout must be.*\{\{"),
    ],
    ChangefeedVerifyOperator: [
        ({"shards": "EWR"}, "shards"),
        (WINDOW_END, "window_start"),
        ({"sample_days": 0}, "sample_days must be a whole number"),
        ({"sample_days": 1, **WINDOW}, "sample_days draws from the whole export"),
    ],
    ChangefeedCleanOperator: [
        ({"keep_for": value}, "keep_for must be a length of time, 0 or more")
        for value in (-1, float("nan"), 1e12, "a week", True)
    ],
    ChangefeedConsumeOperator: [
        ({"until": "noon"}, "until must be one of"),
        ({"batch": 0}, "batch must be"),
        ({"handler": 5}, "handler must be"),
        ({"shards": []}, "shards: no shard is named"),
        *(
            ({"handler": value}, f"'{value}' is not a handler; write package.module:function")
            for value in ("nomod", "nomod:", ":f", "procedure:")
        ),
    ],
    ChangefeedFoldOperator: [
        ({"table": ""}, "table is missing"),
        ({"at": "yesterday"}, "at: 'yesterday' is not a time"),
        ({"at": "2013-01-01T00:00:00"}, "at: .*no time zone"),
        ({"at": 5}, "at: 5 is not a time"),
        ({"base": "oldest"}, "base must be .*the time of a state or the begin of a snapshot"),
        ({"base": None}, "base must be 'newest'"),
        ({"application": "x.py"}, "application cannot be given"),
    ],
    ChangefeedMergeOperator: [
        ({"table": ""}, "table is missing"),
        ({"states_path": ""}, "states_path is missing"),
        ({"table_format": "parquet"}, "not 'parquet'; for plain Parquet use ChangefeedFoldOperator"),
        ({"table_format": "iceberg"}, "catalog_table must name the table of iceberg"),
        (
            {"table_format": "iceberg", "catalog_table": "shop..shoe"},
            "catalog_table must name the table of iceberg",
        ),
        ({"catalog_table": "a.b"}, "catalog_table is for table_format='iceberg'"),
        ({"at": "yesterday"}, "at: 'yesterday' is not a time"),
        ({"base": "oldest"}, "base must be"),
        ({"deleted": "flag"}, "deleted must be remove or keep, not 'flag'"),
        ({"history": "yes"}, "history must be True or False, not 'yes'"),
        ({"history": True, "deleted": "keep"}, "history=True cannot be combined with deleted='keep'"),
        ({"keep_for": "long"}, "keep_for must be a length of time, 3600 seconds or more"),
        ({"keep_for": 0}, "keep_for must be a length of time, 3600 seconds or more"),
        ({"application": "x.py"}, "application cannot be given"),
    ],
    ChangefeedSnapshotOperator: [
        ({"table": 5}, "table"),
        ({"range_rows": 0}, "range_rows"),
        ({"parallel": 0}, "tasks"),
        ({"rows_per_second": 0}, "rows_per_second"),
        ({"local_below": -1}, "local_below"),
        ({"where": "id is 1"}, "where 'id is 1' cannot be read; expected comparisons"),
        ({"application": "job.py"}, "application cannot be given"),
        *(
            ({"max_age": value}, "max_age must be a length of time above 0")
            for value in (0, timedelta(days=-1), "a month")
        ),
    ],
}
for _kind in (ChangefeedToParquetOperator, ChangefeedConsumeOperator):
    WRONG[_kind] += [
        (
            {"wait_timeout": value},
            "wait_timeout must be a length of time, 0 or more .*a timedelta, seconds, or a text",
        )
        for value in (-1, -HOUR, None, "an hour", True, float("nan"), float("inf"), 1e300, "{{ params.x }}")
    ]


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [(kind, *each) for kind, every in WRONG.items() for each in every],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_argument_is_refused_as_the_dag_is_parsed(
    kind: Any, arguments: dict[str, Any], words: str
) -> None:
    """By its name, with what it may be."""
    with pytest.raises(InvalidArgumentError, match=words):
        make(kind, **arguments)


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_what_is_needed_is_missed_and_what_is_unknown_is_refused(kind: Any) -> None:
    """All that is missing at once; a name that nothing has is Airflow's to refuse."""
    texts = [name for name, value in TASKS[kind][0].items() if isinstance(value, str)]
    with pytest.raises(InvalidArgumentError) as caught:
        make(kind, **dict.fromkeys(texts, " "))
    assert [name for name in texts if name not in str(caught.value)] == []
    with pytest.raises((TypeError, AirflowException), match="nothing_like_it"):
        make(kind, nothing_like_it=1)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (
            ChangefeedToParquetOperator,
            {
                **{"feed": "", "path": "", "consumer": "a:b", "shards": [], "unit": timedelta(0)},
                **{"window_start": "2013-01-01T00:00:00Z", "lock_timeout": -1, "application": "other.py"},
            },
        ),
        (ChangefeedToParquetOperator, {"options": {"compression": "zip", "partitions": 0}}),
        (ChangefeedToParquetOperator, {"unit": timedelta(0), "local_below": -1}),
        (
            ChangefeedSensor,
            {"feed": "", "consumer": "", "shards": "EWR", **WINDOW_END, "lock_timeout": "x"},
        ),
        (ChangefeedVerifyOperator, {"feed": "", "path": " ", "shards": "EWR", "sample_days": 0}),
        (ChangefeedFoldOperator, {"feed": "", "path": "", "output_path": "", "at": "x"}),
        (ChangefeedMergeOperator, {"deleted": "mark", "history": 1}),
        (ChangefeedConsumeOperator, {"feed": "", "until": "noon", "batch": 0, "handler": 5, "shards": []}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_all_wrong_arguments_are_named_at_once(kind: Any, arguments: dict[str, Any]) -> None:
    """The DAG's author sees everything in one import error."""
    with pytest.raises(InvalidArgumentError) as caught:
        make(kind, **arguments)
    wrong = [*arguments.get("options", arguments)]
    assert [name for name in wrong if name.removesuffix("_end") not in str(caught.value)] == []
    assert len(caught.value.problems) >= len(wrong)


def test_a_wait_timeout_is_a_length_or_seconds() -> None:
    """Zero too."""
    lengths = [WAIT_LENGTH(one) for one in (HOUR, 90, 0.5, 0, "1h")]
    assert lengths == [HOUR, 90 * HOUR / 3600, HOUR / 7200, 0 * HOUR, HOUR]


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


# ---- templates


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_what_a_dag_may_know_late_is_a_template(kind: Any) -> None:
    """It is assigned unchanged, and what it gives is judged when the task runs; the job itself is none."""
    needed, fields = TASKS[kind]
    assert set(kind.template_fields) == set(fields.split())
    names = [name for name in fields.split() if name in inspect.signature(kind).parameters]
    given = {name: f"{{{{ params.{name} }}}}" for name in names if name != "feeds" or "feed" not in names}
    made = make(kind, **given)
    assert {name: getattr(made, name) for name in given} == given
    wrong = "feeds" if "feeds" in needed else "feed"
    setattr(made, wrong, "")
    for name in given.keys() - {wrong}:
        setattr(made, name, needed.get(name))
    with pytest.raises(AirflowFailException, match=f"InvalidArgumentError.*{wrong}"):
        made.execute(context(START, START + HOUR))


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


def test_results_of_other_tasks_can_be_arguments() -> None:
    """Shards, unit and options may come from other tasks, which become upstream."""
    dag = DAG("results", schedule=None)
    given = results(dag)
    export = make(ChangefeedToParquetOperator, dag=dag, **given)
    assert export.upstream_task_ids == {"get_shards", "get_unit", "get_options"}
    values = {"get_shards": [0, "1"], "get_unit": HOUR, "get_options": {"compression": "snappy"}}
    rendered(export, values)
    assert (export.shards, export.unit, export.options) == ([0, "1"], HOUR, {"compression": "snappy"})
    wait = make(ChangefeedSensor, task_id="wait", dag=dag, shards=given["shards"])
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


def test_parts_of_arguments_may_be_templates_and_what_is_none_stays_the_object_it_was() -> None:
    """Within lists and dicts; numbers come as texts, and a text that is no number is named."""
    numbers = ("target_file_rows", "partitions", "batch_rows")
    export = make(
        ChangefeedToParquetOperator,
        shards=["{{ 1 + 1 }}"],
        options={"target_file_bytes": "{{ 2 ** 20 }}", **dict.fromkeys(numbers, "{{ 5 * 5 }}")},
        shape="{{ 'hasura' }}",
        table_format="{{ 'delta' }}",
    )
    rendered(export, {})
    found = parse_options(export.options)
    assert ([getattr(found, name) for name in numbers], found.target_file_bytes) == ([25, 25, 25], 1 << 20)
    assert (export.shards, found.shape, found.table_format) == (["2"], "hasura", "delta")
    assert parse_options({"target_file_bytes": None}).target_file_bytes is None
    for wrong in ("None", "", "many", "1.5", "0", "-1"):
        said = "options: partitions must be a whole number, 1 to 10000, or None, not "
        with pytest.raises(InvalidArgumentError, match=f"{said}{wrong!r}"):
            parse_options({"partitions": wrong, "batch_rows": "7"})
    options = ExportOptions(partitions=3)
    export = rendered(make(ChangefeedToParquetOperator, unit=HOUR, options=options, shards=(0, 1)), {})
    assert (export.unit, export.options, list(export.shards or ())) == (HOUR, options, [0, 1])


NATIVE: list[tuple[Any, dict[str, Any]]] = [
    (ChangefeedToParquetOperator, {"feed": "2024", "path": "7", "consumer": "42"}),
    (ChangefeedPlanOperator, {"feeds": ["2024", "nyc.*"], "exclude": ["5"], "path": "/x", "consumer": "42"}),
    (ChangefeedSensor, {"feed": "2024", "consumer": "42"}),
    (ChangefeedVerifyOperator, {"feed": "2024", "path": "7"}),
    (ChangefeedCleanOperator, {"feed": "2024", "path": "7"}),
    (ChangefeedConsumeOperator, {"feed": "2024", "consumer": "42", "changefeed_conn_id": "8"}),
    (ChangefeedFreshnessOperator, {"feed": "2024", "consumer": "42"}),
    (ChangefeedFreshnessOperator, {"feed": ["2024", "7"], "consumer": "42"}),
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
        made = make(kind, **arguments)
    made.render_template_fields({"dag": dag, "ti": None}, dag.get_template_env())
    made._check()
    assert {name: getattr(made, name) for name in arguments} == arguments


def test_a_name_without_a_template_is_the_same_where_templates_are_native() -> None:
    """Also of a mapped task, and of a notifier, which has no DAG's file to look at."""
    for consumer in ("42", "007", "4_2", "0x10", "1e3", "True", "None", "(1, 2)", "[1, 2]"):
        with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
            plain = make(ChangefeedSensor, consumer=consumer)
            mapped = ChangefeedSensor.partial(task_id="mapped", consumer=consumer).expand(feed=["2024", FEED])
        notifier = ChangefeedFreshnessNotifier(notifier=print, max_age=5, feed=[FEED, "7"], consumer=consumer)
        made = {"dag": dag, "ti": None}
        plain.render_template_fields(made, dag.get_template_env())
        notifier.render_template_fields(made, dag.get_template_env())
        one = mapped.unmap({"feed": "2024"})
        mapped._do_render_template_fields(one, mapped.template_fields, made, dag.get_template_env(), set())
        assert {each.consumer for each in (plain, notifier, one)} == {consumer}
        assert (one.feed, notifier.feed) == ("2024", [FEED, "7"])


@pytest.mark.parametrize(
    ("template", "consumer"),
    [
        ("{{ params.year }}", "2024"),
        ("{{ 'etl' }}_{{ 7 }}", "etl_7"),
        ("'{{ 1 }}e3'", "1e3"),
        ("{{ 20 }}{{ 24 }}", "2024"),
        ("{{ 1 }}e3", None),
    ],
)
def test_a_native_template_of_a_name_may_give_digits(template: str, consumer: str | None) -> None:
    """They are the name; of another value the error says how to make a text."""
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        made = make(ChangefeedSensor, consumer=template)
    made.render_template_fields({"dag": dag, "params": {"year": 2024}}, dag.get_template_env())
    if consumer is None:
        with pytest.raises(
            InvalidArgumentError, match=r"consumer must be a text, not 1000\.0.*quote it twice"
        ):
            made._check()
        return
    made._check()
    assert made.consumer == consumer


@pytest.mark.airflow
def test_a_feed_and_a_consumer_of_digits_are_exported_natively(
    tmp_path: Path, server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, cursors and Variable have the texts."""
    file = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute('create table "2024" (id integer primary key)')
        source = SqliteFeedSource(file)
        source.set_up_feed("2024")
        connection.execute('insert into "changefeed.outbox:2024" (shard_id, id) values (0, 1)')
        connection.commit()
    name_database(file)
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": file}))
    with DAG("native", schedule=None, render_template_as_native_obj=True) as dag:
        export = InProcessOperator(
            task_id="export", feed="2024", path=str(tmp_path / "out"), consumer="42", local_below=1000
        )
    made = context(START, START + HOUR, dag=dag)
    export.render_template_fields(made, dag.get_template_env())
    assert export.execute(made)["feed"] == "2024"
    assert {(row.feed, row.consumer) for row in source.cursors("2024")} == {("2024", "42")}


# ---- options, mapped tasks, defaults


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
    assert make(ChangefeedToParquetOperator, options=options, shape="hasura").options == put
    assert make(ChangefeedToParquetOperator, options=options).options is options


def test_a_shape_may_be_given_to_all_mapped_tasks() -> None:
    """It stands in the signature, which ``partial`` reads, beside options that differ."""
    with DAG("shapes", schedule=None, start_date=datetime(2013, 1, 1)):
        mapped = ChangefeedToParquetOperator.partial(task_id="export", **EXPORT, shape="hasura").expand(
            options=[{"partitions": 1}, {"partitions": 2}]
        )
    assert mapped.unmap({"options": {"partitions": 2}}).options == {"partitions": 2, "shape": "hasura"}


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
    """The job's name of ``default_args`` wins over ours, and the task's over both; groups take them, too."""
    with DAG("named", schedule=None, default_args={"name": "nightly", "java_class": "other.Job"}):
        assert make(ChangefeedToParquetOperator, task_id="one").name == "nightly"
        assert make(ChangefeedToParquetOperator, task_id="two", name="mine").name == "mine"
    assert make(ChangefeedToParquetOperator).name == "changefeed-export"
    defaults = {
        "changefeed_conn_id": "feeds",
        "path_conn_id": "lake",
        "catalog_conn_id": "catalog",
        "lock_timeout": 7,
        "program_path": "/programs",
    }
    with DAG("group", schedule=None, default_args=defaults) as dag:
        airflow_changefeed.changefeed_export_group(**EXPORT)
    for task_id, names in {
        "plan": defaults.keys(),
        "submit": defaults.keys() - {"catalog_conn_id", "lock_timeout"},
        "finish": defaults.keys() - {"program_path"},
    }.items():
        made: BaseOperator = dag.get_task(f"export.{task_id}")
        assert {name: getattr(made, name) for name in names} == {name: defaults[name] for name in names}
