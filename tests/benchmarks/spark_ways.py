# SPDX-License-Identifier: Apache-2.0
"""What the ways through Spark need, whatever the engine: a warm session, and our export."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.benchmarks.watch import PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_changefeed.core.export_plan import Plan
    from airflow_changefeed.core.window import Window
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.sources.base import FeedSource


def spark_session(
    settings: Mapping[str, str] = MappingProxyType({}), *, is_javas_work: bool = False
) -> SparkSession:
    """
    Return a session on two cores, as the operator's job has it.

    :param settings: of Spark, besides; they count for the first session of the process, as the next one does.
    :param is_javas_work: leave Java both of its compilers, where the rows go through it.
    """
    from pyspark.sql import SparkSession

    from airflow_changefeed.connections.spark import local_environment

    environment = local_environment(None)
    if is_javas_work:
        environment.pop("SPARK_SUBMIT_OPTS")
    os.environ.update(environment, PYTHONPATH=str(PROJECT))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.config("spark.log.level", "WARN").getOrCreate()


def warm_up(session: SparkSession) -> None:
    """Run one small ``mapInArrow``: a session's first one costs seconds, whatever it does."""
    session.range(0, 2, 1, 2).mapInArrow(_same, "id long").collect()


def _same(batches: Any) -> Any:
    yield from batches


def export(
    source: FeedSource,
    feed: str,
    output: Path,
    window: Window,
    unit: timedelta | None = None,
    table_format: str = "parquet",
) -> int:
    """
    Run our export: seal, plan, job and commit; also that of the table, if it has one.

    :param unit: length of the units; None for one.
    :param table_format: an Iceberg table has its catalog in the output.
    :return: rows.
    """
    from airflow_changefeed.core.export_plan import ExportOptions
    from airflow_changefeed.export.job_spec import JobConnection, write_spec
    from airflow_changefeed.export.planner import make_plan
    from airflow_changefeed.export.request import ExportRequest
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.spark.export_job import run_spec

    with closing(source):
        store = ExportStore(str(output), feed)
        name = "shop.orders" if table_format == "iceberg" else ""
        request = ExportRequest(
            feed,
            str(output),
            "benchmark",
            "benchmark",
            windows=window.cut(unit),
            options=ExportOptions(table_format=table_format, catalog_table=name),
        )
        plan = make_plan(source, store, request)
        connection = JobConnection(source.describe(), {})
        rows = run_spec(spark_session, write_spec(store, plan), connection, lambda line: None).rows
        if table_format != "parquet":
            _publish(store, plan)
        return rows


def _publish(store: ExportStore, plan: Plan) -> None:
    """Commit to the table, as the task does behind its job."""
    from airflow_changefeed.formats.publish import open_table, publish

    catalog = {"name": "benchmark", "type": "sql", "uri": f"sqlite:///{store.path}/catalog.db"}
    is_iceberg = bool(plan.options.catalog_table)
    table = open_table(
        plan.options.table_format,
        store,
        table=plan.options.catalog_table or None,
        catalog=catalog if is_iceberg else None,
    )
    publish(store, table, [planned.unit for planned in plan.units], plan.run)
