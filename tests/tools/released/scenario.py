# SPDX-License-Identifier: Apache-2.0
"""
What users of a version do, by names that docs/reference/compatibility.md promises: an older version that is
installed runs it, too.

A feed with an outbox is exported to each format; a captured table is exported, snapshotted, folded and
merged; events are consumed, of which one is parked; and one job has been planned, another one has run, and
nobody has finished them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from time import sleep
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_changefeed import (
    CaptureSpec,
    ChangefeedFoldOperator,
    ChangefeedMergeOperator,
    ChangefeedSnapshotOperator,
    ChangefeedToParquetOperator,
    ConsumerSpec,
    KeyChange,
    TableCapture,
    changefeed_export_group,
    create_consumer,
    open_source,
    run_consumer,
)
from airflow_changefeed.core.consumer import DeadLetterState, OnPoison
from tests.tools.released.place import Place

FEED, TABLE, CAPTURE = "shop.orders", "shop.stock", "shop.stock_changes"
START = datetime(2026, 3, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
#: Hours that are exported, with two events each.
HOURS = 3
FORMATS: dict[str, dict[str, Any]] = {
    "parquet": {},
    "delta": {"table_format": "delta"},
    "iceberg": {"table_format": "iceberg", "catalog_table": "shop.orders", "catalog_conn_id": "lake"},
}
SETTINGS = {"conf": {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}}


class Events(OutletEventAccessors):
    """The events of a task, which asks no API server which assets DAGs name."""

    def _get_asset_from_db(self, name: str | None = None, uri: str | None = None) -> Any:
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse

        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.ASSET_NOT_FOUND, detail={"uri": uri}))


def context(start: datetime, end: datetime, run: str = "run") -> Any:
    """Return what Airflow would hand to a task."""
    ti = SimpleNamespace(dag_id="dag", run_id=run, task_id="export", try_number=1, map_index=-1)
    made = {"data_interval_start": start, "data_interval_end": end}
    return {"ti": ti, "outlet_events": Events(), **made}


def export_hours(place: Place, name: str, start: int, end: int, run: str = "run") -> list[dict[str, Any]]:
    """Export hours to a format; return the extras of the events of its asset."""
    task = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=place.lake(name),
        consumer=f"warehouse_{name}",
        unit=HOUR,
        local_below=1000,
        **FORMATS[name],
    )
    made = context(START + start * HOUR, START + end * HOUR, run)
    task.execute(made)
    events = made["outlet_events"]
    return [each.extra for alias in events for each in events[alias].asset_alias_events]


def write_orders(place: Place, start: int, end: int) -> None:
    """Write two events in each hour, in two shards."""
    with closing(sqlite3.connect(place.database, timeout=60)) as connection, connection:
        for hour in range(start, end):
            for shard in (0, 1):
                number = hour * 2 + shard
                time = START + hour * HOUR + timedelta(minutes=10 + shard)
                connection.execute(
                    f'insert into "{FEED}" values (?, ?, ?)', (number, f"item {number}", number / 4)
                )
                connection.execute(
                    f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)',
                    (shard, int(time.timestamp() * 1000), number),
                )


def change_stock(place: Place, *statements: str) -> None:
    """Change the captured table, a transaction each."""
    with closing(sqlite3.connect(place.database, timeout=60, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement.replace("stock", f'"{TABLE}"'))


def export_stock(place: Place, start: datetime) -> datetime:
    """Export the capture from a time until now; return the end."""
    sleep(0.002)  # that of the last event is a millisecond before the end
    end = open_source({"type": "sqlite", "path": str(place.database)}).now()
    task = ChangefeedToParquetOperator(
        task_id="export",
        feed=CAPTURE,
        path=place.lake("changes"),
        consumer="warehouse",
        local_below=1000,
        window_start=start.isoformat(timespec="milliseconds"),
        window_end=end.isoformat(timespec="milliseconds"),
    )
    task.execute(context(start, end))
    return end


def take_snapshot(place: Place) -> dict[str, Any]:
    """Read the captured table; return what the task returns."""
    task = ChangefeedSnapshotOperator(
        task_id="base", feed=CAPTURE, output_path=place.lake("stock"), only_if_missing=True, local_below=1000
    )
    return task.execute(context(START, START + HOUR))


def fold_stock(place: Place, at: datetime) -> dict[str, Any]:
    """Write the state of the captured table at a time."""
    return ChangefeedFoldOperator(
        task_id="fold",
        feed=CAPTURE,
        path=place.lake("changes"),
        output_path=place.lake("stock"),
        at=at.isoformat(timespec="milliseconds"),
        **SETTINGS,
    ).execute(context(START, START + HOUR))


def merge_stock(place: Place, name: str, at: datetime) -> dict[str, Any]:
    """Bring the current table of a format to a time."""
    lake = {"catalog_table": "shop.stock", "catalog_conn_id": "lake"} if name == "iceberg" else {}
    return ChangefeedMergeOperator(
        task_id="merge",
        feed=CAPTURE,
        path=place.lake("changes"),
        output_path=place.lake(f"current_{name}"),
        states_path=place.lake("stock"),
        table_format=name,
        at=at.isoformat(timespec="milliseconds"),
        **lake,
        **SETTINGS,
    ).execute(context(START, START + HOUR))


class Group:
    """
    The tasks of an export by a group, run by hand.

    :param pushed: XComs of the tasks, as Airflow keeps them.
    """

    def __init__(self, place: Place, consumer: str, pushed: dict[str, Any] | None = None) -> None:
        with DAG("dag"):
            group = changefeed_export_group(
                feed=FEED, path=place.lake(consumer), consumer=consumer, unit=HOUR
            )
        self.tasks: dict[str, Any] = {task.task_id.partition(".")[2]: task for task in group}
        self.pushed = {} if pushed is None else pushed

    def run(self, name: str) -> Any:
        """Run a task."""
        made = context(START, START + HOURS * HOUR)
        made["ti"].xcom_push = lambda *, key, value: self.pushed.update({key: value})
        made["ti"].xcom_pull = lambda task_ids=None, key=None, map_indexes=None: self.pushed.get(key)
        made["ti"].get_task_states = lambda **_: {"run": {"export.plan": "success"}}
        task = self.tasks[name]
        if name == "submit":
            for field in ("spec_uri", "tasks"):
                setattr(task, field, self.pushed[field])
        return task.execute(made)


def begin(place: Place) -> None:
    """Make the database: a feed with its first events, and a captured table that had rows before."""
    with closing(sqlite3.connect(place.database)) as connection, connection:
        connection.execute(f'create table "{FEED}" (id integer primary key, item text, amount real)')
        connection.execute(f'create table "{TABLE}" (id integer primary key, name text, amount real)')
        rows = [(number, f"name {number}", number / 4) for number in range(1, 7)]
        connection.executemany(f'insert into "{TABLE}" values (?, ?, ?)', rows)
    source = open_source({"type": "sqlite", "path": str(place.database)})
    source.set_up_feed(FEED)
    table = TableCapture(TABLE, shard="id % 2")
    source.enable_capture(CaptureSpec((table,), key_change=KeyChange.DELETE_INSERT))
    write_orders(place, 0, HOURS)


def consume(place: Place) -> None:
    """Handle some events, and park one that cannot be handled; another one was parked and dropped."""
    source = open_source({"type": "sqlite", "path": str(place.database)})
    create_consumer(source, ConsumerSpec("mailer", FEED, max_attempts=1), "earliest", by="tests")

    def handle(event: Any, connection: Any) -> None:
        if event.row["id"] in (0, 2):
            raise ValueError(f"order {event.row['id']} has no address")

    run_consumer(source, "mailer", FEED, handle, at_head=True, max_events=3, on_poison=OnPoison.PARK)
    first, _ = source.dead_letters(FEED)
    source.resolve_dead_letter(first.number, DeadLetterState.DROPPED, by="tests", note="a test order")


def use_all(place: Place) -> dict[str, Any]:
    """Do everything that leaves something behind; return what Airflow would keep of it."""
    begin(place)
    extras = {name: export_hours(place, name, 0, HOURS) for name in FORMATS}
    since = open_source({"type": "sqlite", "path": str(place.database)}).capture(CAPTURE).enabled_at
    change_stock(place, "update stock set amount = 0.5 where id = 3", "delete from stock where id = 4")
    snapshot = take_snapshot(place)
    change_stock(
        place, "insert into stock values (7, 'name 7', 1.75)", "update stock set id = 8 where id = 1"
    )
    at = export_stock(place, since)
    fold_stock(place, at)
    for name in ("delta", "iceberg"):
        merge_stock(place, name, at)
    consume(place)
    groups = {name: Group(place, name) for name in ("planned", "submitted")}
    for name, group in groups.items():
        group.run("plan")
        if name == "submitted":
            group.run("submit")
    return {
        "extras": extras,
        "snapshot": snapshot,
        "exported_until": at.isoformat(timespec="milliseconds"),
        "xcoms": {name: group.pushed for name, group in groups.items()},
    }
