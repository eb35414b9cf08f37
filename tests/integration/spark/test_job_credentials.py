# SPDX-License-Identifier: Apache-2.0
"""The Spark job writes to an object store with the credentials of an Airflow connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from airflow_changefeed.connections.output import storage_options
from airflow_changefeed.export.job_spec import JobConnection, write_spec
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.export_job import run_spec
from tests.exports import verify
from tests.integration.test_storage_credentials import KEYS, ROLE, aws
from tests.unit.export.flights import FEED, Flights, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["aws"]  # a fixture
pytestmark = [pytest.mark.ci, pytest.mark.spark]


def test_executors_assume_the_role_of_an_airflow_connection(
    spark: SparkSession, flights: Flights, monkeypatch: pytest.MonkeyPatch, aws: str
) -> None:
    """They are handed how to get credentials: the driver's would have expired in a long export."""
    services = {"sts": {"endpoint_url": aws}}
    extra = {"endpoint_url": aws, "region_name": "us-east-1", "role_arn": ROLE, "service_config": services}
    connection = {"conn_type": "aws", **KEYS, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    options = storage_options("s3a://lake/spark", "lake")
    flights.add(300, 0, shard=1, length=3)
    store = ExportStore("s3a://lake/spark", FEED, options)
    plan = flights.plan(store, hours(0, 3))
    job = JobConnection(flights.source.describe(), options)
    assert "ASIA" not in job.to_json()
    result = run_spec(lambda: spark, write_spec(store, plan), job, lambda _: None)
    assert (result.status, result.rows, result.units) == ("done", 300, 3)
    assert verify(store) == []
