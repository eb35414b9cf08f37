# SPDX-License-Identifier: Apache-2.0
"""Jobs that are killed at any moment: hardly a unit is written twice, and the result is exact."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.export_plan import Plan
from airflow_changefeed.export.job_spec import JobConnection, read_receipt, remove_spec, write_spec
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.export.result import attempts_of
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from tests.exports import verify
from tests.integration.spark.connect import connect_server
from tests.unit.export.faults import manifest_rows, plain_rows
from tests.unit.export.flights import CONSUMER, FEED, Flights, hours

pytestmark = pytest.mark.nightly

SEED = 20261123
#: Units written in all, for each that there is.
MOST_WRITTEN = 1.15
#: The same for a few rounds, where one late kill weighs more. If every try began again it would be 1.5 on
#: average, because the kills are spread evenly over a job.
MOST_WRITTEN_IN_FEW = 1.3


def _plan(source: Any, store: ExportStore, units: int, attempt: int) -> Plan:
    request = ExportRequest(FEED, store.path, CONSUMER, f"task/{attempt}", hours(0, units))
    return make_plan(source, store, request)


def _here(database: str, path: str, units: int, attempt: int, url: str) -> None:
    """Run a try in this process, and forget it as a task does that finishes."""
    store = ExportStore(path, FEED)
    with closing(open_source({"type": "sqlite", "path": database})) as source:
        plan = _plan(source, store, units, attempt)
        result = run_here(source, store, plan, lambda line: None)
    forget(store, attempts_of(result))


def _connected(database: str, path: str, units: int, attempt: int, url: str) -> None:
    """Run a try on a Spark Connect server."""
    from pyspark.sql import SparkSession

    from airflow_changefeed.spark.archive import package_archive
    from airflow_changefeed.spark.export_job import run_spec

    store = ExportStore(path, FEED)
    description = {"type": "sqlite", "path": database}
    with closing(open_source(description)) as source:
        plan = _plan(source, store, units, attempt)
    session = SparkSession.builder.remote(url).create()
    session.addArtifact(package_archive(), pyfile=True)
    run_spec(lambda: session, write_spec(store, plan), JobConnection(description), lambda line: None)
    result = read_receipt(store, plan.attempt)
    assert result is not None
    remove_spec(store, plan.attempt)
    forget(store, attempts_of(result))
    session.stop()


def _written_in_vain(store: ExportStore) -> int:
    """Count units whose files tasks have written, and that were not committed."""
    names = (name.split("/") for name in store.files.sizes(store.layout.attempts))
    return len({tuple(parts[3:5]) for parts in names if parts[-1].endswith(".parquet") and len(parts) > 5})


def _rounds(
    run: Callable[..., None], folder: Path, flights: Flights, *, units: int, rounds: int, url: str = ""
) -> float:
    """
    Kill a try of each round at a random moment, and let the next one finish.

    :return: units written for each that there is, over all rounds.
    """
    chance = random.Random(SEED)
    context = multiprocessing.get_context("spawn")
    seconds, killed, vain = 0.0, 0, 0
    for number in range(rounds + 1):
        store = ExportStore(str(folder / f"out{number}"), FEED)
        arguments = (str(flights.path), store.path, units)
        if number:
            first = context.Process(target=run, args=(*arguments, 1, url))
            first.start()
            while not store.files.names(store.layout.attempts) and first.is_alive():
                time.sleep(0.01)
            began = time.monotonic()
            first.join(chance.uniform(0, seconds))
            if first.exitcode == 0:
                # It was faster than the one that was timed: the machine has less to do now.
                seconds = time.monotonic() - began
            with suppress(ProcessLookupError):
                os.kill(first.pid or 0, signal.SIGKILL)
            first.join()
            killed += first.exitcode != 0
            vain += _written_in_vain(store)
        second = context.Process(target=run, args=(*arguments, 2, url))
        second.start()
        if not number:
            while not store.files.names(store.layout.attempts):
                time.sleep(0.01)
            seconds = -time.monotonic()
        second.join()
        if not number:
            seconds += time.monotonic()
        assert second.exitcode == 0
        assert verify(store) == []
        assert len(store.list()) == units
        assert manifest_rows(store) == len(plain_rows(store.files, FEED)) == flights.rows()
    assert killed >= rounds / 2, "the kills came too late"
    return 1 + vain / (units * rounds)


def test_a_process_that_is_killed_has_written_little_in_vain(tmp_path: Path) -> None:
    """A few rounds of a hundred units, whose share varies."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(1000, 0, length=100)
    assert _rounds(_here, tmp_path, flights, units=100, rounds=4) <= MOST_WRITTEN_IN_FEW


@pytest.mark.spark
def test_a_job_that_is_killed_has_written_little_in_vain(tmp_path: Path) -> None:
    """Five hundred units on two cores of a Spark Connect server, which goes on with what it was asked."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(50_000, 0, length=500)
    with connect_server(tmp_path) as port:
        url = f"sc://127.0.0.1:{port}"
        written = _rounds(_connected, tmp_path, flights, units=500, rounds=50, url=url)
    print(f"\nunits written for each that there is: {written:.3f}")  # noqa: T201 - for who runs it
    assert written <= MOST_WRITTEN
