# SPDX-License-Identifier: Apache-2.0
"""Events: their values are those of the database, exactly."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.consumers.event import events_of
from airflow_changefeed.consumers.page import EventColumns, EventPage, python_values
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, ulid_values
from tests.unit.consumers.feeds import CAPTURE, PLAIN, Shop

BIG = 2**63 - 1


@given(st.lists(st.integers(0, 2**128 - 1), max_size=20), st.integers(0, 20))
def test_ulids_are_decoded_as_python_ulid_does(numbers: list[int], begin: int) -> None:
    """Of a slice, too."""
    ulids = [Ulid.of_int(number) for number in numbers]
    column = pa.array([str(ulid) for ulid in ulids], type=pa.string()).slice(begin)
    assert ulid_values(column) == b"".join(ulid.bytes for ulid in ulids[begin:])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [BIG, -BIG - 1, None]),
        (pa.decimal128(38, 4), [Decimal("1.5000"), Decimal("-99999999999999999999999999999999.0001"), None]),
        (pa.binary(), [b"\x00\xff", b"", None]),
        (pa.string(), ["", "Grüße 🎈", None]),
        (pa.timestamp("us"), [datetime.max, datetime.min, None]),
        (pa.timestamp("ms"), [datetime(1969, 12, 31, 23, 59, 59, 999000), None]),
        (pa.timestamp("us", tz="UTC"), [datetime(2026, 3, 1, 12, tzinfo=timezone.utc), None]),
        (
            pa.timestamp("us", tz="+02:00"),
            [datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))), None],
        ),
        (pa.date32(), [date(1, 1, 1), None]),
        (pa.time64("us"), [time(23, 59, 59, 999999), None]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.1, -0.0, None]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a", None]),
    ],
)
def test_values_are_exact(kind: pa.DataType, values: list[Any]) -> None:
    """Of each type that a source gives, within rows, and of a slice."""
    column = pa.array(values, type=kind)
    assert python_values(column) == values
    assert python_values(column.slice(1)) == values[1:]
    if not pa.types.is_dictionary(kind):
        rows = pa.StructArray.from_arrays([column], names=["x"])
        assert python_values(rows.slice(1)) == [{"x": value} for value in values[1:]]


def test_rows_that_are_not_there_are_none() -> None:
    """Not rows of nulls."""
    kind = pa.struct([("x", pa.int64())])
    column = pa.array([{"x": 1}, None, {"x": None}], type=kind)
    assert python_values(column) == [{"x": 1}, None, {"x": None}]
    assert python_values(column.slice(1)) == [None, {"x": None}]
    assert python_values(pa.array([{}, None], type=pa.struct([]))) == [{}, None]


def test_an_event_of_a_capture_tells_what_was_recorded(shop: Shop) -> None:
    """Metadata only where it was asked for."""
    shop.create()
    shop.insert("a", user="anna")
    shop.connection.execute("update \"shop.t\" set data = 'b' where id = 4")
    shop.connection.execute('delete from "shop.t" where id = 4')
    events = []
    with shop.consumer(with_sequence=True, with_epoch=True, with_tid=True) as consumer:
        while event := consumer.poll():
            events.append(event)
            consumer.consume()
    add, update, delete = events
    assert (add.name, add.type, add.old, add.new) == ("shop.t", "add", None, {"id": 4, "data": "a"})
    assert (update.old, update.new) == ({"id": 4, "data": "a"}, {"id": 4, "data": "b"})
    assert (delete.type, delete.new) == ("del", None)
    assert [event.sequence for event in events] == [1, 2, 3]
    assert add.session_variables == {"user": "anna"}
    assert update.session_variables is None
    assert add.tid is not None
    assert update.tid is None
    assert add.epoch <= shop.source.now().timestamp()
    assert (add.feed, add.shard, add.row, add.is_snapshot, add.dead_letter) == (CAPTURE, 0, None, False, None)
    assert add.time == add.id.time


def test_metadata_that_was_not_asked_for_is_not_there(shop: Shop) -> None:
    """Nobody relies on it by chance."""
    shop.create()
    shop.insert("a")
    with shop.consumer() as consumer:
        event = consumer.get()
    assert (event.sequence, event.epoch, event.tid) == (None, None, None)


def test_an_event_of_a_plain_feed_is_its_row(shop: Shop) -> None:
    """With all columns of its table."""
    shop.create(feed=PLAIN)
    shop.order("a")
    with shop.consumer(feed=PLAIN) as consumer:
        event = consumer.get()
    assert event.row == {"id": 1, "data": "a", "price": 1.5}
    assert (event.name, event.type, event.old, event.new) == (PLAIN, "add", None, None)


def test_an_event_cannot_be_changed_and_travels(shop: Shop) -> None:
    """To another process, with its values."""
    shop.create()
    shop.insert("a", "b")
    with shop.consumer() as consumer:
        event = consumer.get()
    with pytest.raises(AttributeError):
        event.extra = 1
    other = pickle.loads(pickle.dumps(event))  # noqa: S301 - our own
    assert other == event
    assert hash(other) == hash(event)
    assert other.new == event.new
    assert event != "a"
    assert str(event.id) in repr(event)


def test_events_are_made_without_pandas() -> None:
    """Which takes a second to load."""
    code = (
        "import sys, datetime, pyarrow as pa\n"
        "from airflow_changefeed.consumers.event import events_of\n"
        "from airflow_changefeed.consumers.page import EventColumns, EventPage\n"
        "from airflow_changefeed.sources.arrow import ULID_FIELD, TIME_FIELD, byte_strings, ulid_times\n"
        "import numpy as np\n"
        "raw = np.zeros((1, 16), dtype=np.uint8)\n"
        "texts = byte_strings(['0' * 26], pa.string())\n"
        "batch = pa.RecordBatch.from_arrays([texts, ulid_times(raw), ulid_times(raw)], "
        "schema=pa.schema([ULID_FIELD, TIME_FIELD, pa.field('at', TIME_FIELD.type)]))\n"
        "page = EventPage('f', 0, EventColumns(False, ('f',), ('at',)), batch)\n"
        "(event,) = events_of(page)\n"
        "print(event.row['at'].isoformat(), event.id.bytes.hex(), 'pandas' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1970-01-01T00:00:00+00:00", "0" * 32, "False"]


def test_a_page_gives_its_events_in_order() -> None:
    """With its last ULID."""
    ulids = [Ulid.of_int(number) for number in (1, 2**127, 2**128 - 1)]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([str(ulid) for ulid in ulids]),
            pa.array([0, 1, 2], type=pa.timestamp("ms", tz="UTC")),
            pa.array([1, 2, 3]),
        ],
        schema=pa.schema([ULID_FIELD, TIME_FIELD, pa.field("n", pa.int64())]),
    )
    page = EventPage("feed", 7, EventColumns(False, ("feed",), ("n",)), batch)
    assert [event.id for event in events_of(page)] == ulids
    assert [event.row for event in events_of(page)] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (page.last, len(page)) == (ulids[-1], 3)
