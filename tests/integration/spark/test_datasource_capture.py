# SPDX-License-Identifier: Apache-2.0
"""The data source over a capture in a real session: structs, filters beside them, and every shape."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark.datasource.source import ChangefeedDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CAPTURE = "orders_changes"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that knows the format."""
    ChangefeedDataSource.register(spark)
    return spark


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A captured table with rows that were inserted, and some that were updated and deleted then."""
    path = tmp_path / "orders.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table orders (id integer primary key, note text, raw blob, rate real)")
        with closing(SqliteFeedSource(path)) as source:
            source.enable_capture(CaptureSpec((TableCapture("orders"),), name=CAPTURE))
            connection.executemany(
                "insert into orders values (?, ?, ?, ?)",
                [(n, None if n % 2 else f'"{n}"', bytes([n]), n / 8) for n in range(20)],
            )
            connection.execute("update orders set note = 'new' where id < 5")
            connection.execute("delete from orders where id >= 15")
            # All events, also those of this very millisecond, which a seal may leave to the next one.
            source.drain(CAPTURE)
            source.seal(CAPTURE, source.now())
    return path


def load(session: SparkSession, path: Path, **options: str) -> DataFrame:
    """The frame of a capture."""
    reader = session.read.format("changefeed").option("type", "sqlite").option("path", str(path))
    return reader.option("feed", CAPTURE).options(**options).load()


@pytest.mark.ci
def test_rows_are_structs_that_spark_can_ask(session: SparkSession, database: Path) -> None:
    """A filter on ULIDs narrows what is read; one on a field is Spark's own, and both hold."""
    frame = load(session, database)
    assert dict(frame.dtypes)["new"] == "struct<id:bigint,note:string,raw:binary,rate:double>"
    assert {each["type"]: each["count"] for each in frame.groupBy("type").count().collect()} == {
        **{"add": 20, "upd": 5, "del": 5}
    }
    found = frame.where("type = 'upd'").select("old.note", "new.note", "new.id").collect()
    assert sorted((each[2], each[0], each[1]) for each in found) == [
        (n, None if n % 2 else f'"{n}"', "new") for n in range(5)
    ]
    (tenth,) = frame.where("new.id = 9").collect()
    assert bytes(tenth["new"]["raw"]) == b"\t"
    assert tenth["old"] is None
    rest = frame.where(frame["changefeed_ulid"] > tenth["changefeed_ulid"])
    assert rest.count() == 20
    assert rest.where("new.id > 12").count() == 7
