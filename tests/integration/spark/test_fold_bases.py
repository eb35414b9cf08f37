# SPDX-License-Identifier: Apache-2.0
"""Folding from a state of an earlier time: as from the beginning, wherever both are possible."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import KeyChange, Operation
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import FoldError, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.states import BEGINNING, State, new_attempt
from airflow_changefeed.spark.fold import fold, run_fold
from tests.integration.spark.shoes import History
from tests.unit.export.captures import (
    CAPTURE,
    HOUR,
    TABLE,
    CapturedExport,
    Event,
    fold_in_python,
    minute,
    reshaped,
    shape,
    shoe,
)
from tests.unit.export.flights import START, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]


class Folded:
    """An export, and the states that were folded of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.export = CapturedExport.create(folder / "out")
        self.states = str(folder / "states")
        self.said: list[str] = []

    def save(self, at: datetime) -> State:
        """Write the state of a time, as the operator does."""
        task = FoldTask(CAPTURE, self.export.store.path, self.states, at, TABLE, new_attempt(), "tests/run")
        return run_fold(lambda: self.spark, task, JobConnection({}), self.said.append)

    def rows(self, at: datetime, base: datetime | str = BEGINNING) -> Rows:
        """Fold at a time, and return the rows in order."""
        path = self.export.store.path
        frame = fold(self.spark, path, CAPTURE, at=at, table=TABLE, states=self.states, base=base)
        return sorted((row.asDict(recursive=True) for row in frame.collect()), key=repr)

    def agree(self, at: datetime, base: datetime) -> Rows:
        """Fold at a time from a base, and from the beginning; return the rows that both give."""
        found = self.rows(at, base)
        assert found == self.rows(at)
        return found


@pytest.fixture
def folded(spark: SparkSession, tmp_path: Path) -> Folded:
    """An empty output, and no state."""
    return Folded(spark, tmp_path)


def saved(folded: Folded, *shards: Sequence[Event]) -> datetime:
    """Export the first hour of each shard, and write the state at its end."""
    for shard, events in enumerate(shards):
        folded.export.write(events, shard=shard)
    folded.save(START + HOUR)
    return START + HOUR


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_each_state_from_the_one_before_is_the_table_of_then(folded: Folded, seed: int) -> None:
    """A random history in three shards, an idle hour, a time within an hour, and a state that is skipped."""
    history, times = History(seed), [1, 2.5, 4]
    for hour in range(4):
        history.run(hour, 0 if hour == 1 else 120)
        history.export(folded.export, hour)
    for number, place in enumerate(times):
        at = START + place * HOUR
        expected = sorted(fold_in_python(history.events, at), key=repr)
        state = folded.save(at)
        since = f"the state at {format_time(START + times[number - 1] * HOUR)}" if number else "the beginning"
        assert folded.said[-2].endswith(f"events since {since}")
        assert state.rows == len(expected)
        written = folded.spark.read.parquet(state.path)
        assert {row["changefeed_shard"] for row in written.collect()} <= {0, 1, 2}
        assert all(row["id"] % 3 == row["changefeed_shard"] for row in written.collect())
        found = (row.asDict() for row in written.drop("changefeed_shard").collect())
        assert sorted(found, key=repr) == expected
    assert folded.agree(START + 4 * HOUR, START + HOUR) == expected


def test_events_before_the_base_are_not_needed(folded: Folded) -> None:
    """They may have been deleted from the lake; without the base they are missing."""
    at = saved(folded, [Event(minute(1), "add", None, shoe(1)), Event(minute(2), "add", None, shoe(2))])
    folded.export.write([Event(minute(70), "upd", shoe(1), shoe(1, "clog"))], hours(1, 2)[0])
    (old, _) = folded.export.store.list(0)
    folded.export.store.remove_manifest(old.unit, old.attempt)
    shutil.rmtree(folded.export.store.layout.unit(old.unit))
    assert folded.rows(at + HOUR, "newest") == [shoe(1, "clog"), shoe(2)]
    with pytest.raises(Exception, match="changes a row that no earlier event has inserted"):
        folded.rows(at + HOUR)


@pytest.mark.ci
def test_without_later_events_the_base_is_the_state(folded: Folded) -> None:
    """Its columns are those of then."""
    at = saved(folded, [Event(minute(1), "add", None, shoe(1))])
    folded.export.write([], hours(1, 2)[0])
    assert folded.agree(at + HOUR, at) == [shoe(1)]
    assert folded.save(at + HOUR).rows == 1


@pytest.mark.ci
def test_a_base_without_rows_is_one(folded: Folded) -> None:
    """All that comes later is new."""
    at = saved(folded, [Event(minute(1), "add", None, shoe(1)), Event(minute(2), "del", shoe(1))])
    folded.export.write([Event(minute(61), "add", None, shoe(2))], hours(1, 2)[0])
    assert folded.agree(at + HOUR, at) == [shoe(2)]


@pytest.mark.ci
def test_a_change_of_a_row_that_the_base_does_not_have_fails(folded: Folded) -> None:
    """As one that nothing has added: events are missing."""
    at = saved(folded, [Event(minute(1), "add", None, shoe(1))])
    orphan = Event(minute(65), "upd", shoe(7), shoe(7, "clog"))
    folded.export.write([Event(minute(64), "del", shoe(1)), orphan], hours(1, 2)[0])
    with pytest.raises(Exception, match="FoldError") as failed:
        folded.rows(at + HOUR, at)
    assert f"event {orphan.ulid} changes a row" in own_error(failed.value).message


@pytest.mark.ci
def test_a_reset_drops_the_rows_of_its_shard_only(folded: Folded) -> None:
    """Those of the base as those of events before it."""
    others = [Event(minute(1), "add", None, shoe(number)) for number in (1, 3)]
    at = saved(folded, [Event(minute(1), "add", None, shoe(2))], others)
    reset = [
        Event(minute(70), "reset"),
        Event(minute(70), "add", None, shoe(4), number=1),
        Event(minute(71), "ready"),
    ]
    folded.export.write([Event(minute(65), "add", None, shoe(6)), *reset], hours(1, 2)[0])
    folded.export.write([Event(minute(66), "del", shoe(3))], hours(1, 2)[0], shard=1)
    assert folded.agree(at + HOUR, at) == [shoe(1), shoe(4)]


@pytest.mark.ci
def test_keys_lost_before_a_base_do_no_harm_later_ones_do(folded: Folded) -> None:
    """The base was exact: a reset behind them had made it so."""
    folded.export.shape = shape(key_change=KeyChange.NEW_ONLY)
    lost = Event(minute(2), "upd", None, shoe(2))
    resync = [
        Event(minute(3), "reset"),
        Event(minute(3), "add", None, shoe(3), number=1),
        Event(minute(3), "ready", number=2),
    ]
    at = saved(folded, [Event(minute(1), "add", None, shoe(1)), lost, *resync])
    folded.export.write([Event(minute(70), "add", None, shoe(4))], hours(1, 2)[0])
    assert folded.agree(at + HOUR, at) == [shoe(3), shoe(4)]
    later = [Event(minute(number), "upd", None, shoe(5)) for number in (130, 131)]
    folded.export.write(later, hours(2, 3)[0])
    words = f"2 updates changed a key .* event {later[0].ulid}: .*key_change='delete_insert'"
    with pytest.raises(FoldError, match=words) as refused:
        folded.rows(at + 2 * HOUR, at)
    assert refused.value.ulid == str(later[0].ulid)
    assert folded.agree(later[0].at, at) == [shoe(3), shoe(4)]


@pytest.mark.ci
def test_columns_that_changed_are_those_of_the_events(folded: Folded) -> None:
    """A wider type, a column that came, one that went, and one that was renamed, which is a new one."""
    folded.export.image = pa.schema(
        [("name", pa.string()), ("id", pa.int32()), ("price", pa.decimal128(5, 2))]
    )
    at = saved(folded, [Event(minute(1), "add", None, shoe(1)), Event(minute(2), "add", None, shoe(2))])
    folded.export.image = pa.schema(
        [("id", pa.int64()), ("price", pa.decimal128(9, 2)), ("name_2", pa.string()), ("size", pa.int16())]
    )
    columns = {"id": "id", "price": "price", "name": "name_2", "size": "size"}
    folded.export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, columns))
    new = {"id": 2, "price": shoe(2, price="1234567.25")["price"], "name_2": "clog", "size": 41}
    folded.export.write([Event(minute(70), "upd", {**new, "size": None}, new)], hours(1, 2)[0])
    price = shoe(1)["price"]
    assert folded.agree(at + HOUR, at) == [
        {"id": 1, "price": price, "name": None, "size": None},
        {"id": 2, "price": new["price"], "name": "clog", "size": 41},
    ]


@pytest.mark.ci
def test_a_key_in_other_bytes_replaces_the_row_of_the_base(folded: Folded) -> None:
    """In the same shard; from one shard to another nobody knows which came last."""
    folded.export.shape = reshaped(shape(), key_columns=("name",))
    at = saved(
        folded, [Event(minute(1), "add", None, shoe(1, "A"))], [Event(minute(2), "add", None, shoe(2, "b"))]
    )
    folded.export.write([Event(minute(70), "upd", shoe(1, "A"), shoe(1, "a"))], hours(1, 2)[0])
    folded.export.write([], hours(1, 2)[0], shard=1)
    assert folded.agree(at + HOUR, at) == [shoe(1, "a"), shoe(2, "b")]
    folded.export.write([Event(minute(130), "upd", shoe(2, "b"), shoe(2, "B"))], hours(2, 3)[0])
    folded.export.write([], hours(2, 3)[0], shard=1)
    for base in (at, BEGINNING):
        with pytest.raises(Exception, match="events are in several shards"):
            folded.rows(at + 2 * HOUR, base)


@pytest.mark.ci
def test_second_columns_are_of_the_base_too(folded: Folded) -> None:
    """Also where no later event has them."""
    folded.export.image = pa.schema(
        [("at", pa.timestamp("us")), ("at_100ns", pa.uint8()), ("note", pa.string())]
    )
    columns = {"at": "at", "note": "note"}
    folded.export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, columns), key_columns=("at",))
    rows = [{"at": datetime(2020, 1, 1), "at_100ns": ticks, "note": f"n{ticks}"} for ticks in (1, 2, 3)]
    at = saved(folded, [Event(minute(n), "add", None, row, number=n) for n, row in enumerate(rows)])
    folded.export.write([Event(minute(70), "del", rows[1])], hours(1, 2)[0])
    assert folded.agree(at + HOUR, at) == [rows[0], rows[2]]


@pytest.mark.ci
def test_a_column_with_the_shards_name_is_folded_as_ever(folded: Folded) -> None:
    """Such a state cannot be a base."""
    folded.export.image = pa.schema([("id", pa.int64()), ("changefeed_shard", pa.int64())])
    columns = {name: name for name in folded.export.image.names}
    folded.export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, columns))
    row = {"id": 1, "changefeed_shard": 5}
    at = saved(folded, [Event(minute(1), "add", None, row)])
    folded.export.write([], hours(1, 2)[0])
    assert folded.rows(at + HOUR, "newest") == [row]
    assert folded.save(at + HOUR).base is None


@pytest.mark.ci
def test_a_root_whose_path_looks_like_a_shards_is_none(spark: SparkSession, tmp_path: Path) -> None:
    """The last part of a path that does is the shard's."""
    folded = Folded(spark, tmp_path / "shard=7")
    path = saved(folded, [Event(minute(1), "add", None, shoe(1))], [Event(minute(1), "add", None, shoe(2))])
    assert folded.rows(path) == [shoe(1), shoe(2)]
    (state,) = Path(folded.states).glob(f"{TABLE}/changefeed_at=*/changefeed_attempt=*")
    written = spark.read.parquet(str(state)).collect()
    assert sorted((row["id"], row["changefeed_shard"]) for row in written) == [(1, 0), (2, 1)]
