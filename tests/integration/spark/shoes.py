# SPDX-License-Identifier: Apache-2.0
"""A captured table of shoes: its rows, and a history of random changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import BaseFacts, new_attempt
from airflow_changefeed.output.schemas import schema_text
from tests.identity import DATABASE
from tests.unit.export.captures import (
    CAPTURE,
    HOUR,
    IMAGE,
    TABLE,
    CapturedExport,
    Event,
    fold_in_python,
    shoe,
)
from tests.unit.export.flights import START, hours


def write_snapshot(
    files: SnapshotFiles,
    rows: Sequence[dict[str, Any]],
    begin: datetime,
    exact_from: datetime,
    known: CaptureShape,
    shards: tuple[int, ...] = (0, 1, 2),
    where: str = "",
) -> Snapshot:
    """Write a snapshot as if these rows had been read, in two files."""
    token = new_attempt()
    folder = Path(files.folder(token))
    folder.mkdir(parents=True)
    names = ("part-00000-0a.parquet", "part-00001-0a.parquet")
    schema = IMAGE.append(pa.field("changefeed_shard", pa.int64()))
    for number, name in enumerate(names):
        part = [{**row, "changefeed_shard": row["id"] % 3} for row in rows[number::2]]
        pq.write_table(pa.Table.from_pylist(part, schema), folder / name)
    fields = {name: name for name in IMAGE.names}
    return files.commit(
        Snapshot(
            feed=CAPTURE,
            table=TABLE,
            token=token,
            begin=begin,
            exact_from=exact_from,
            path=str(folder),
            files=names,
            rows=len(rows),
            bytes=1,
            base=BaseFacts(known, schema_text(IMAGE), fields, tuple(fields), shards, begin),
            database=DATABASE,
            where=where,
        )
    )


class History:
    """A table that changes at random, and what its capture records."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.table: dict[int, dict[str, Any]] = {}
        self.events: list[tuple[int, Event]] = []

    def run(self, hour: int, changes: int) -> None:
        """Make changes at random times of an hour; several may share a millisecond."""
        times = sorted(self.random.randrange(0, 3_600_000, 7) for _ in range(changes))
        for number, ms in enumerate(times):
            self.change(START + hour * HOUR + timedelta(milliseconds=ms), number)

    def change(self, at: datetime, number: int) -> None:
        """Make one change; a key change is recorded as a delete and an insert."""
        key, to = self.random.randrange(60), self.random.randrange(60)
        row = shoe(
            key, self.random.choice([None, "", "boot", "clog", "ß" * 20]), f"{self.random.random():.2f}"
        )
        old = self.table.pop(key, None)
        if old is None:
            self.add(at, number, row)
        elif self.random.random() < 0.3:
            self.tell(key, Event(at, "del", old, number=2 * number))
        elif to not in self.table and to != key and self.random.random() < 0.3:
            self.tell(key, Event(at, "del", old, number=2 * number))
            self.add(at, number, {**row, "id": to})
        else:
            self.table[key] = row
            self.tell(key, Event(at, "upd", old, row, number=2 * number))

    def add(self, at: datetime, number: int, row: dict[str, Any]) -> None:
        """Insert a row."""
        self.table[row["id"]] = row
        self.tell(row["id"], Event(at, "add", None, row, number=2 * number + 1))

    def tell(self, key: int, event: Event) -> None:
        """Record an event in the shard of its key."""
        self.events.append((key % 3, event))

    def of(self, shard: int, hour: int) -> list[Event]:
        """The events of a shard's hour."""
        return [
            event
            for own, event in self.events
            if own == shard and event.at - START - hour * HOUR < HOUR and event.at >= START + hour * HOUR
        ]

    def export(self, export: CapturedExport, hour: int, *, files: int = 1) -> None:
        """Export an hour in three shards."""
        for shard in range(3):
            export.write(self.of(shard, hour), hours(hour, hour + 1)[0], shard=shard, files=files)

    def read_between(
        self, begin: datetime, exact: datetime, keys: Sequence[int] = range(60)
    ) -> list[dict[str, Any]]:
        """Return rows of which each was read at a moment of its own."""
        found = []
        for key in keys:
            at = begin + (exact - begin) // 1000 * self.random.randrange(1000)
            found += [row for row in fold_in_python(self.events, at) if row["id"] == key]
        return found
