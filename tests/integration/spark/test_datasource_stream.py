# SPDX-License-Identifier: Apache-2.0
"""``spark.readStream`` in real sessions, whose processes are killed; each offset: tests/unit/spark."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from airflow_changefeed.exceptions import PurgedError, changefeed_error
from tests.integration.spark.streaming import query, stream
from tests.unit.export.flights import FEED, Flights
from tests.unit.spark.test_datasource_stream import written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).resolve().parents[3]
SEED = 20261128
#: The process that plans the batches of a query.
PLANNER = b"python_streaming_source_runner"


def rows(session: SparkSession, folder: Path) -> list[tuple[int, str]]:
    """Shard and ULID of all that was written, by shard."""
    found = session.read.parquet(str(folder / "rows")).collect()
    return sorted((row["changefeed_shard"], row["changefeed_ulid"]) for row in found)


def read_all(session: SparkSession, flights: Flights, folder: Path, **options: object) -> None:
    """Run until nothing is new; before 4.2 such a run is one batch."""
    while True:
        running = query(stream(session, flights.path, **options), folder, availableNow=True)
        try:
            running.awaitTermination()
        except StreamingQueryException as error:
            # A busy machine needs longer to start Python than the ten seconds that Spark gives it.
            if "failed to connect back" not in str(error):
                raise
            continue
        if running.lastProgress is None or not running.lastProgress["numInputRows"]:
            return


def planners() -> list[int]:
    """The processes that plan a query's batches."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if PLANNER in (folder / "cmdline").read_bytes() and _is_ours(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _is_ours(process: int) -> bool:
    """Whether a process descends from this one: others run such tests at the same time."""
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        if process == os.getpid():
            return True
    return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_each_event_is_written_once_though_the_planner_is_killed(
    spark: SparkSession, flights: Flights, tmp_path: Path, kills: int
) -> None:
    """
    With all columns of a batch read, and the seal. A query that cannot go on says why.

    ``make soak`` kills all of Spark fifty times.
    """
    chance = random.Random(SEED)
    options = {"maxEventsPerTrigger": 25, "consumer": "lake"}
    for number in range(kills):
        flights.add(60, number, shard=number % 2)
        running = query(stream(spark, flights.path, **options), tmp_path, processingTime="0 seconds")
        while not running.recentProgress and running.isActive:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 0.3))
        for process in planners():
            os.kill(process, signal.SIGKILL)
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever Spark says of it
            running.awaitTermination(60)
    flights.add(8, 5, shard=2)
    read_all(spark, flights, tmp_path, **options)
    assert rows(spark, tmp_path) == written(flights)
    frame = spark.read.parquet(str(tmp_path / "rows"))
    batch = spark.read.format("changefeed").options(type="sqlite", path=flights.path, feed=FEED).load()
    assert frame.dtypes == [*batch.dtypes, ("changefeed_sealed_until", "timestamp")]
    assert frame.where("changefeed_sealed_until < changefeed_time").count() == 0
    flights.add(10, 6, shard=1)
    flights.source.seal(FEED, flights.source.now())
    flights.source.drop_consumer("lake", FEED)
    flights.source.purge(FEED, flights.source.now())
    with pytest.raises(Exception, match="PurgedError") as caught:
        read_all(spark, flights, tmp_path, **options)
    assert isinstance(changefeed_error(caught.value), PurgedError)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_query_that_is_killed_fifty_times_writes_each_event_once(tmp_path: Path, kind: str) -> None:
    """All of its processes die at a random moment, while others write."""
    flights = Flights.create(tmp_path / "feeds.db")
    chance = random.Random(SEED)
    program = "tests.integration.spark.streaming"
    command = [sys.executable, "-m", program, str(flights.path), str(tmp_path), kind]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
    for number in range(50):
        process = subprocess.Popen(
            command, cwd=PROJECT, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
        )
        # Starting takes most of the time; the kills come from the first batch on.
        before = len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")))
        ends = time.monotonic() + 600
        while len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))) <= before:
            assert process.poll() is None, "the query ended by itself"
            assert time.monotonic() < ends, "the query does not begin"
            flights.add(chance.randint(1, 5), number, shard=chance.randint(1, 3))
            time.sleep(0.5)
        time.sleep(chance.uniform(0, 2))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(
        [*command, "once"], cwd=PROJECT, env=environment, check=True, capture_output=True, text=True
    )
    found = sorted(tuple(line.split()) for line in done.stdout.splitlines())
    assert found == sorted((str(shard), ulid) for shard, ulid in written(flights))
    assert len(found) == flights.rows()
