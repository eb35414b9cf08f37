# SPDX-License-Identifier: Apache-2.0
"""A streaming query as Spark runs it, in this process and without Spark, which can be killed anywhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict

from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
from tests.unit.export.flights import FEED, Flights

#: What happens in the course of a batch, in order, where a query can be killed.
STEPS = ("latest", "logged", "committed", "planned", "written")


#: Whether this PySpark hands the start of a batch to ``latestOffset`` (from 4.2 on).
PASSES_START = find_spec("pyspark.sql.streaming.datasource") is not None


class KilledError(Exception):
    """The process was killed."""


@dataclass
class Checkpoint:
    """What outlives a query: its log of offsets, and the batches that its sink has, with their rows."""

    offsets: list[str] = field(default_factory=list)
    done: int = 0
    sink: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the sink, batch by batch."""
        return [row for number in sorted(self.sink) for row in self.sink[number]]


class Query:
    """
    One process of a query, from its start to its end.

    :param source: feeds in a file, or the options of a connection.
    :param passes_start: whether ``latestOffset`` gets the start and a limit, as from PySpark 4.2 on.
    """

    def __init__(
        self,
        source: Flights | Mapping[str, Any],
        checkpoint: Checkpoint,
        *,
        passes_start: bool = PASSES_START,
        **options: object,
    ) -> None:
        connection = {"type": "sqlite", "path": source.path} if isinstance(source, Flights) else dict(source)
        texts = {"feed": FEED, "startingPosition": "earliest", "seal_interval": 0}
        given = {name: str(value) for name, value in {**connection, **texts, **options}.items()}
        loaded = ChangefeedDataSource(CaseInsensitiveDict(given))
        self.columns = loaded.schema()
        self.source = pickle.loads(pickle.dumps(loaded))  # noqa: S301 - our own bytes
        self.reader = self.source.streamReader(self.columns)
        self.checkpoint = checkpoint
        self.passes_start = passes_start
        if not passes_start and checkpoint.offsets:
            # A restart plans the last batch again, with its end for both ends where it was written.
            start, end = self._ends(len(checkpoint.offsets) - 1)
            self.reader.partitions(end if checkpoint.done == len(checkpoint.offsets) else start, end)

    def _ends(self, number: int) -> tuple[Any, Any]:
        offsets = self.checkpoint.offsets
        start = json.loads(offsets[number - 1]) if number else self.reader.initialOffset()
        return start, json.loads(offsets[number])

    def batch(self, kill: str | None = None) -> bool:
        """Run one batch; return whether there was one. Before ``kill`` is done, the query dies."""
        log = self.checkpoint
        if log.done == len(log.offsets):
            self._die(kill, "latest")
            start = json.loads(log.offsets[-1]) if log.offsets else self.reader.initialOffset()
            arguments = (start, self.reader.getDefaultReadLimit()) if self.passes_start else ()
            end = json.dumps(self.reader.latestOffset(*arguments))
            if end == (log.offsets[-1] if log.offsets else json.dumps(self.reader.initialOffset())):
                return False
            self._die(kill, "logged")
            log.offsets.append(end)
            if log.done:
                self._die(kill, "committed")
                self.reader.commit(json.loads(log.offsets[log.done - 1]))
        number = len(log.offsets) - 1
        self._die(kill, "planned")
        start, ended = self._ends(number)
        plan = self.reader.partitions(start, ended)
        reader = self.source.streamReader(self.columns)
        reader, plan = pickle.loads(pickle.dumps((reader, plan)))  # noqa: S301 - our own bytes
        found = [pa.Table.from_batches(list(reader.read(part))).to_pylist() for part in plan]
        self._die(kill, "written")
        rows = [row for part in found for row in part]
        # A sink that has a batch leaves it as it is.
        assert log.sink.setdefault(number, rows) == rows
        log.done = number + 1
        return True

    def run(self, *, most: int = 100) -> int:
        """Run batches until there is nothing new; return how many."""
        for number in range(most):
            if not self.batch():
                return number
        raise AssertionError("the query does not come to an end")

    def stop(self) -> None:
        """End the process as Spark does."""
        self.reader.stop()

    def _die(self, kill: str | None, step: str) -> None:
        if kill == step:
            raise KilledError(step)
