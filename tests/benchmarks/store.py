# SPDX-License-Identifier: Apache-2.0
"""What an export asks of S3: a day of hourly windows on a server of this process, all requests counted."""

from __future__ import annotations

from pathlib import Path

from airflow_changefeed.output.store import ExportStore
from tests.benchmarks.figures import Chapter, Target
from tests.stores import servers
from tests.stores.day import (
    MOST_REQUESTS,
    MOST_REQUESTS_OF_A_REPLACEMENT,
    UNITS,
    counted,
    create_day,
    requests_of_a_day,
)
from tests.unit.export.flights import FEED


def run(folder: Path) -> Chapter:
    """Count once: the same is asked each time."""
    flights = create_day(folder / "day.db")
    with servers.s3() as server:
        output = ExportStore("s3://out", FEED, files=server.files())
        first = requests_of_a_day(server, output, flights)
        second = requests_of_a_day(server, output, flights)
    return Chapter(
        "Requests of an object store",
        targets=[
            Target("requests per unit on S3", len(first) / UNITS, MOST_REQUESTS),
            Target(
                "requests per unit on S3 that replaces one",
                len(second) / UNITS,
                MOST_REQUESTS_OF_A_REPLACEMENT,
            ),
        ],
        note=f"{UNITS} hourly units, from the plan to the result: "
        + ", ".join(f"{number} {kind}" for kind, number in counted(first).most_common())
        + " for the first export of all.",
    )
