# SPDX-License-Identifier: Apache-2.0
"""Streams of Arrow batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    InvalidArgumentError,
    MissingEventError,
    PurgedError,
)
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN
from tests.integration.contract.bench import HOUR, PAST, Bench, set_up
from tests.integration.contract.engines import Engine, Table

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
ROWS: list[dict[str, Any]] = [
    {"Payload": "plain", "Quantity": 1, "Ratio": 0.5, "Blob": b"\x00\xff"},
    {"Payload": "Zürich 東京 🛫 \u0000 \"'\n", "Quantity": -(2**31), "Ratio": -1e300, "Blob": b""},
    {"Payload": "", "Quantity": 0, "Ratio": 0.1, "Blob": bytes(range(256)) * 20},
    {},
    {"Payload": "x" * 70_000, "Quantity": 2**31 - 1, "Ratio": 2.3e-308, "Blob": b"a"},
]


def _table(bench: Bench, range_: UlidRange = ALL, shard: int = 0, **options: Any) -> pa.Table:
    batches = list(bench.source.stream(bench.feed, shard, range_, **options))
    return pa.Table.from_batches(batches, bench.source.schema(bench.feed))


def _storable(bench: Bench, row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the characters that the database itself would refuse."""
    removed = dict.fromkeys(map(ord, bench.engine.unstorable))
    return {name: value.translate(removed) if name == "Payload" else value for name, value in row.items()}


def test_the_schema_is_ulid_time_and_the_tables_columns(either: Bench) -> None:
    """Ours first, under names that no event table has, then the table's own in its order."""
    schema = either.source.schema(either.feed)
    ours = ["Shard", "ULID"] if either.is_serialized else []
    assert schema.names == [
        ULID_COLUMN,
        TIME_COLUMN,
        *ours,
        "EventID",
        "Payload",
        "Quantity",
        "Ratio",
        "Blob",
    ]
    assert schema.field(ULID_COLUMN).type == pa.string()
    assert schema.field(TIME_COLUMN).type == pa.timestamp("ms", "UTC")
    assert pa.types.is_integer(schema.field("Quantity").type)
    assert schema.field("Payload").type == pa.string()
    assert schema.field("Ratio").type == pa.float64()
    assert schema.field("Blob").type == pa.binary()


def test_values_arrive_unchanged(either: Bench) -> None:
    """Promise 6: text, numbers, bytes, empty ones and nulls, in the order of the feed."""
    rows = [_storable(either, row) for row in ROWS]
    keys = [either.write(1, hint=PAST, **row)[0] for row in rows]
    events = either.events()
    found = _table(either).to_pylist()
    for row, key, event, expected in zip(found, keys, events, rows, strict=True):
        assert row[ULID_COLUMN] == str(event.ulid)
        assert row[TIME_COLUMN] == event.ulid.time
        assert (row["EventID"],) == key
        for name in ("Payload", "Quantity", "Ratio", "Blob"):
            assert row[name] == expected.get(name)


def test_batches_have_the_schema_and_are_no_larger_than_asked(either: Bench) -> None:
    """Together they are the range, whatever their size."""
    keys = either.write(10, Payload=None, Quantity=None)
    either.events()
    for batch_rows in (1, 3, 10, 65_536):
        batches = list(either.source.stream(either.feed, 0, ALL, batch_rows=batch_rows))
        assert all(batch.schema == either.source.schema(either.feed) for batch in batches)
        assert all(0 < batch.num_rows <= batch_rows for batch in batches)
        assert [(key,) for batch in batches for key in batch.column("EventID").to_pylist()] == keys


def test_a_range_is_taken_at_its_word(either: Bench) -> None:
    """After its start, up to its end, of its shard only; splitting and streaming give the same events."""
    either.write(12)
    either.write(3, shard=1)
    ulids = [str(event.ulid) for event in either.events()]
    either.events(1)
    range_ = UlidRange(Ulid.parse_text(ulids[2]), Ulid.parse_text(ulids[9]))
    assert _table(either, range_).column(ULID_COLUMN).to_pylist() == ulids[3:10]
    parts = either.split(range_, 3)
    streamed = [ulid for part in parts for ulid in _table(either, part.range).column(ULID_COLUMN).to_pylist()]
    assert streamed == ulids[3:10]


def test_a_limit_cuts_the_range_behind_its_first_events(either: Bench) -> None:
    """In batches of any size, and not beyond the range; a limit of nothing is refused."""
    keys = [key for (key,) in either.write(10)]
    ulids = [event.ulid for event in either.events()]
    range_ = UlidRange(ulids[0], ulids[7])
    for limit, batch_rows, expected in ((4, 3, keys[1:5]), (4, 100, keys[1:5]), (100, 5, keys[1:8])):
        batches = list(either.source.stream(either.feed, 0, range_, batch_rows=batch_rows, limit=limit))
        assert [key for batch in batches for key in batch.column("EventID").to_pylist()] == expected
        assert all(0 < batch.num_rows <= batch_rows for batch in batches)
    assert list(either.source.stream(either.feed, 8, ALL, limit=1)) == []
    with pytest.raises(InvalidArgumentError, match="limit must be 1 or more events, not 0"):
        list(either.source.stream(either.feed, 0, range_, limit=0))


def test_a_range_without_events_gives_no_rows(either: Bench) -> None:
    """An empty range, one between events, and a shard that has none."""
    either.write(1, hint=PAST)
    ulid = either.events()[0].ulid
    for shard, range_ in ((0, UlidRange(ulid, ulid)), (0, UlidRange(ulid, Ulid.MAX)), (8, ALL)):
        assert _table(either, range_, shard).num_rows == 0


def test_the_outbox_is_not_checked(bench: Bench) -> None:
    """A stream reads what is ordered, and orders nothing."""
    bench.write(1)
    bench.events()
    bench.write(2)
    with bench.engine.watch() as has_changed:
        assert _table(bench).num_rows == 1
        assert not has_changed()


def test_a_deleted_row_fails_the_stream(bench: Bench) -> None:
    """By default; the error names the feed and the event."""
    keys = bench.write(3, Payload="x")
    ulids = [event.ulid for event in bench.events()]
    bench.engine.delete_row(bench.table, keys[1])
    with pytest.raises(MissingEventError, match=str(ulids[1])) as caught:
        _table(bench)
    assert not caught.value.transient
    assert _table(bench, UlidRange(Ulid.MIN, ulids[0])).num_rows == 1


def test_a_deleted_row_can_be_given_with_its_keys_alone(engine: Engine) -> None:
    """With all keys, null in the other columns, at its place in the order."""
    bench = set_up(engine, Table(keys=(("Stream", "text"), ("Version", "integer"))))
    keys = bench.write(3, Payload="x", Quantity=5)
    bench.events()
    engine.delete_row(bench.table, keys[1])
    found = _table(bench, on_missing="keys_only").to_pylist()
    assert [(row["Stream"], row["Version"]) for row in found] == keys
    assert [row["Payload"] for row in found] == ["x", None, "x"]
    assert [row["Quantity"] for row in found] == [5, None, 5]


def test_wrong_options_are_refused(either: Bench) -> None:
    """None of them silently means something else, or nothing."""
    either.write(1)
    either.events()
    options: tuple[dict[str, Any], ...] = ({"on_missing": "skip"}, {"batch_rows": 0}, {"batch_rows": -1})
    for wrong in options:
        with pytest.raises(InvalidArgumentError):
            _table(either, **wrong)


def test_a_value_that_cannot_be_exported_unchanged_stops_the_stream(bench: Bench) -> None:
    """Promise 6: the error names the column, nothing is turned into something else."""
    keys = bench.write(2, Quantity=1)
    bench.events()
    column = bench.engine.put_misfit(bench.table, keys[1])
    if column is None:
        pytest.skip("this engine's columns hold nothing of another type")
    with pytest.raises(ColumnTypeError, match=column) as caught:
        _table(bench)
    assert not caught.value.transient


def test_a_purged_range_is_refused(bench: Bench) -> None:
    """Also when only its beginning is gone."""
    bench.write(2, hint=PAST)
    bench.write(2, hint=PAST + HOUR * 2)
    bench.events()
    bench.seal()
    purged = bench.source.purge(bench.feed, PAST + HOUR)[0].upto
    with pytest.raises(PurgedError):
        _table(bench)
    assert _table(bench, UlidRange(purged, Ulid.MAX)).num_rows == 2


def test_a_stream_sees_one_state(bench: Bench) -> None:
    """Events that come while it is read are not in it, nor do they hold it up."""
    bench.write(10)
    bench.events()
    stream = bench.source.stream(bench.feed, 0, ALL, batch_rows=2)
    rows = next(stream).num_rows
    bench.write(10)
    bench.events()
    rows += sum(batch.num_rows for batch in stream)
    assert rows in (10, 20)
