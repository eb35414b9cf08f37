# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of a process: starting it costs more than all of them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.export.flights import Flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, without a page in the browser."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Workers are started with this path; they import the package from the working tree.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    session = (
        SparkSession.builder.master("local[2]")
        .appName("changefeed tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # As the hook starts it: short jobs lose more by the second compiler than they gain.
        # With one compiler Java keeps little room for code, and a whole suite's plans fill it.
        .config(
            "spark.driver.extraJavaOptions",
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
        )
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()
    # What it says of connections that are closed when the process ends has no stream to go to any more.
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed over a small made-up table of flights, in its own file."""
    return Flights.create(tmp_path / "feeds.db")
