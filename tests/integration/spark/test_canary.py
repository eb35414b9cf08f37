# SPDX-License-Identifier: Apache-2.0
"""Secrets that Spark's driver and executors are given are not in the errors that they raise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_changefeed.export.job_spec import JobConnection, write_spec
from airflow_changefeed.export.parts import plan_parts
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
from airflow_changefeed.spark.executors import FACTS_SCHEMA
from airflow_changefeed.spark.export_job import WriteParts, packed, run_spec
from tests.system.canary.search import Search, canary
from tests.system.canary.servers import garbage_server, repeating_server
from tests.unit.export.flights import FEED, Flights, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.ci, pytest.mark.spark]

PASSWORD, TOKEN = canary("password"), canary("token")


@pytest.fixture
def search() -> Search:
    """A search for both."""
    return Search({"password": PASSWORD, "token": TOKEN})


def test_of_a_server_that_speaks_garbage(
    spark: SparkSession, flights: Flights, tmp_path: Path, search: Search
) -> None:
    """Met by a task of an export: neither the driver's error nor what is left for the operator tells."""
    flights.add(30, 0, shard=1)
    store = ExportStore(str(tmp_path / "out"), FEED)
    plan = flights.plan(store, hours(0, 1))
    with garbage_server() as port:
        server = {"type": "mssql", "host": "127.0.0.1", "port": port, "database": "shop", "user": "reader"}
        connection = JobConnection({**server, "password": PASSWORD, "encrypt": "no"}, {"token": TOKEN})
        with pytest.raises(Exception, match=f"127.0.0.1,{port}") as caught:
            run_spec(lambda: spark, write_spec(store, plan), connection, lambda line: None)
    search.look_at_error("error", caught.value, "SourceUnavailableError", "127.0.0.1")
    search.look_into("output", Path(store.path), FEED, "SourceUnavailableError")
    search.look("objects", f"{connection!r} {connection}", "JobConnection")
    assert search.leaks == []


def test_of_a_storage_that_repeats_what_it_is_asked(
    spark: SparkSession, flights: Flights, tmp_path: Path, search: Search
) -> None:
    """Met by a task of an export."""
    flights.add(30, 0, shard=1)
    plan = flights.plan(ExportStore(str(tmp_path / "out"), FEED), hours(0, 1))
    with repeating_server() as (port, requests):
        path = f"webhdfs://127.0.0.1:{port}/out"
        connection = JobConnection(flights.source.describe(), {"token": TOKEN})
        write = WriteParts(
            plan.feed,
            path,
            plan.attempt,
            plan.options,
            connection,
            {0: packed(plan_parts(plan))},
            plan.database,
        )
        frame = spark.range(0, 1, 1, 1).mapInArrow(write, FACTS_SCHEMA)
        plans = f"{frame._jdf.queryExecution()} {frame._jdf.queryExecution().executedPlan().toJSON()}"
        with pytest.raises(Exception, match="OutputNotWritableError") as caught:
            frame.collect()
    assert any(search.found(request) for request in requests), "the storage got its token"
    search.look("plans", plans, "MapInArrow")
    search.look_at_error("error", caught.value, "403")
    search.look("function", repr(write), "WriteParts")
    assert search.leaks == []


def test_of_an_option_of_the_data_source(spark: SparkSession, search: Search) -> None:
    """A password that is given as an option, to a server that speaks garbage."""
    ChangefeedDataSource.register(spark)
    with garbage_server() as port:
        reader = spark.read.format("changefeed").options(
            type="mssql", host="127.0.0.1", port=str(port), database="shop", user="reader", feed=FEED
        )
        with pytest.raises(Exception, match="SourceUnavailableError") as caught:
            reader.option("password", PASSWORD).option("encrypt", "no").load()
    search.look_at_error("error", caught.value, "127.0.0.1")
    assert search.leaks == []
