# SPDX-License-Identifier: Apache-2.0
"""
Exporting windows of a feed in SQL Server: against a floor, Spark's JDBC source, and the loop people write.

The server shares the machine's processors, so what counts is the CPU of the client; wall time is told with
its spread.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq

from airflow_changefeed.export.parts import PART_ROWS
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.benchmarks.figures import Chapter, Figure, Target, figure_of
from tests.benchmarks.mssql_child import SOURCE_VARIABLE
from tests.benchmarks.mssql_orders import described, feed_name, load
from tests.benchmarks.orders import SHARD, month
from tests.benchmarks.polls import poll_figures
from tests.benchmarks.watch import Reading, watch
from tests.integration.contract.engines import MSSQL_VARIABLE
from tests.integration.mssql.line import line_to

TITLE = "Windows of SQL Server"
SMALL, LARGE = 500_000, 5_000_000
#: Rounds in which the floor and ours are measured in turn, and in how many of them all others are.
PAIRS, OTHERS = 5, 3
SPLITS = 5
_WHAT = {
    "floor": "floor: mssql-python's Arrow to pyarrow, one process",
    "jdbc": "Spark's JDBC source, the same ranges",
    "pymssql": "loop: pages of 1,000 by pymssql to pandas",
    "export": "export, one unit",
}


def run(folder: Path) -> Chapter:
    """Measure each way in processes of its own, in turn; medians count."""
    if not os.environ.get(MSSQL_VARIABLE):
        return Chapter(TITLE, note=f"Not measured: `{MSSQL_VARIABLE}` names no server.")
    loaded = {rows: load(rows) for rows in (SMALL, LARGE)}
    loads = [
        Figure("load: event, outbox and drain", rows, seconds) for rows, seconds in loaded.items() if seconds
    ]
    exports = _exports(folder)
    with closing(MssqlFeedSource(**described())) as source:
        split = Figure(f"split a range into {_parts(LARGE)}", LARGE, _split(source))
        polls = poll_figures([(source, feed_name(rows), rows) for rows in (SMALL, LARGE)])
    return Chapter(TITLE, [*loads, *exports.values(), split, *polls], _targets(exports, split, polls))


def _exports(folder: Path) -> dict[tuple[str, int], Figure]:
    readings: dict[tuple[str, int], list[Reading]] = {}
    for number in range(PAIRS):
        ways = [("floor", LARGE), ("export", LARGE)]
        if number < OTHERS:
            ways += [("jdbc", LARGE), ("floor", SMALL), ("export", SMALL)]
        if number == 0:
            # Alone: it takes long, and is far from where a round more would count.
            ways.append(("pymssql", SMALL))
        for way, rows in ways:
            readings.setdefault((way, rows), []).append(_measure(way, folder, rows))
    order = [
        ("pymssql", SMALL),
        *((way, rows) for rows in (SMALL, LARGE) for way in ("floor", "jdbc", "export")),
    ]
    return {
        key: figure_of(_WHAT[key[0]], key[1], readings[key], has_span=True)
        for key in order
        if key in readings
    }


def _measure(way: str, folder: Path, rows: int) -> Reading:
    """Export once; the description of the source holds a password, so it goes by the environment."""
    environment = {**os.environ, SOURCE_VARIABLE: json.dumps(described())}
    with tempfile.TemporaryDirectory(dir=folder) as output:
        arguments = [way, str(rows), output]
        reading = watch("tests.benchmarks.mssql_child", arguments, environment=environment)[way]
        written = sum(pq.read_metadata(file).num_rows for file in Path(output).rglob("*.parquet"))
    if written != rows:
        raise RuntimeError(f"{way} wrote {written} rows, not {rows}")
    return reading


def _parts(rows: int) -> int:
    return -(-rows // PART_ROWS)


def _split(source: MssqlFeedSource) -> float:
    """Return the seconds of a call as the plan makes it."""
    taken = []
    for _ in range(SPLITS):
        started = time.perf_counter()
        with source.open(feed_name(LARGE)) as found:
            parts = found.split(SHARD, month().range, _parts(LARGE), rows=LARGE)
        taken.append(time.perf_counter() - started)
        if len(parts) != _parts(LARGE):
            raise RuntimeError(f"split into {len(parts)}")
    return median(taken)


def _messages() -> int:
    """Return how many messages go to the server for one poll."""
    from airflow_changefeed.cursors.new_events import poll

    description = described()
    with line_to((description["host"], description["port"] or 1433)) as line:
        near: dict[str, Any] = {**description, "host": "127.0.0.1", "port": line.port}
        with closing(MssqlFeedSource(**near)) as source:
            poll(source, feed_name(LARGE), "reader")
            line.requests()
            poll(source, feed_name(LARGE), "reader")
            return line.requests()


def _targets(exports: dict[tuple[str, int], Figure], split: Figure, polls: list[Figure]) -> list[Target]:
    floor, jdbc, ours = (exports[way, LARGE] for way in ("floor", "jdbc", "export"))
    loop, small = exports["pymssql", SMALL], exports["export", SMALL]
    return [
        Target("export, CPU of the floor's", ours.cpu / floor.cpu, 1.25),
        Target("export, CPU of Spark JDBC's", ours.cpu / jdbc.cpu, 0.65),
        Target("export, time of Spark JDBC's", ours.seconds / jdbc.seconds, 1),
        Target(
            "export, rows/s of the pymssql loop's",
            ours.rows_per_second / loop.rows_per_second,
            6,
            at_least=True,
        ),
        Target("export, memory of that at a tenth of the rows", ours.memory / small.memory, 1.2),
        Target(f"split {LARGE:,} rows, s", split.seconds, 1),
        Target("poll, messages to the server", _messages(), 1),
        Target(
            f"poll of {LARGE:,} rows, time of one at {SMALL:,}", polls[1].seconds / polls[0].seconds, 1.25
        ),
    ]
