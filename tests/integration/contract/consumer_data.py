# SPDX-License-Identifier: Apache-2.0
"""The tables of the consumers' examples in Comdb2's manual, captured."""

from __future__ import annotations

from typing import Any

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from tests.integration.contract.captures import CaptureBench
from tests.integration.contract.engines import Engine, Table

NAME = "watch"
COUNTED = (("n", "identity"),)
#: What the transactions of the batch example insert.
BATCHES = [["first"], ["second", "third"], ["fourth", "fifth"], [f"row {number}" for number in range(6, 11)]]


def begun(engine: Engine, table: Table, name: str, **options: Any) -> CaptureBench:
    """Capture all columns of a table but its key, and make a consumer."""
    columns = tuple(column for column, _ in table.columns)
    engine.create_table(table)
    bench = CaptureBench(engine, engine.source())
    bench.enable(
        TableCapture(table.name, insert=columns, update=columns, delete=columns), name=name, **options
    )
    create_consumer(bench.source, ConsumerSpec(NAME, name, max_attempts=2), by="test")
    return bench


def data_batches(engine: Engine, **options: Any) -> CaptureBench:
    """Commit the transactions of the manual's batch example."""
    bench = begun(engine, Table("shop.t", COUNTED, (("data", "text"),)), "shop.batch", **options)
    insert = 'insert into "shop.t" (data) values '
    bench.run(f"{insert} ('first')")
    bench.run(f"{insert} ('second'), ('third')")
    bench.run(f"{insert} ('fourth')", f"{insert} ('fifth')")
    bench.run(insert + ", ".join(f"('row {number}')" for number in range(6, 11)))
    return bench
