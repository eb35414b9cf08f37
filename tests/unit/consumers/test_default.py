# SPDX-License-Identifier: Apache-2.0
"""The default consumer: its rows, and each of its options."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from airflow_changefeed.consumers.consumer import default_rows
from airflow_changefeed.consumers.settings import DefaultOptions
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.exceptions import ConsumerNotFoundError, InvalidArgumentError, LeaseLostError
from tests.unit.consumers.feeds import CAPTURE, NAME, PLAIN, Shop


def _rows(shop: Shop, count: int, feed: str = CAPTURE, **options: Any) -> list[dict[str, Any]]:
    rows = default_rows(
        shop.source, NAME, feed, DefaultOptions.from_json(json.dumps(options)), pace=shop.pace()
    )
    return list(islice(rows, count))


def test_an_update_gives_two_rows(shop: Shop) -> None:
    """With one id; our columns come first, then the table's."""
    shop.create()
    shop.insert("a")
    shop.connection.execute("update \"shop.t\" set data = 'b'")
    shop.connection.execute('delete from "shop.t"')
    rows = _rows(shop, 5, poll_timeout=0)
    assert [list(row) for row in rows] == [["changefeed_event", "changefeed_id", "id", "data"]] * 5
    assert [(row["changefeed_event"], row["id"], row["data"]) for row in rows] == [
        ("add", 4, "a"),
        ("old", 4, "a"),
        ("new", 4, "b"),
        ("del", 4, "b"),
        ("poll_timeout", None, None),
    ]
    assert rows[1]["changefeed_id"] == rows[2]["changefeed_id"] != rows[0]["changefeed_id"]


def test_a_row_is_consumed_when_the_next_one_is_asked_for(shop: Shop) -> None:
    """Both of an update together."""
    shop.create()
    shop.insert("a", "b")
    assert [row["data"] for row in _rows(shop, 1)] == ["a"]
    assert [row["data"] for row in _rows(shop, 2)] == ["a", "b"]
    assert [row["data"] for row in _rows(shop, 1)] == ["b"]


def test_metadata_are_columns_when_they_are_asked_for(shop: Shop) -> None:
    """Each for itself."""
    shop.create()
    shop.insert("a")
    (row,) = _rows(shop, 1, with_epoch=True, with_sequence=True, with_tid=True)
    assert list(row)[:5] == [
        "changefeed_event",
        "changefeed_id",
        "changefeed_epoch",
        "changefeed_sequence",
        "changefeed_tid",
    ]
    assert row["changefeed_sequence"] == 1
    assert "changefeed_tid" not in _rows(shop, 1, with_epoch=True)[0]


def test_a_batch_is_consumed_with_its_transaction(shop: Shop) -> None:
    """Not before its last row was acknowledged; a sentinel says where it ends."""
    shop.create()
    shop.insert("a", "b")
    shop.insert("c")
    given = {"batch_consume": True, "with_txn_sentinel": True, "poll_timeout": 0}
    assert len(_rows(shop, 3, **given)) == 3
    rows = _rows(shop, 6, **given)
    assert [row["data"] or row["changefeed_event"] for row in rows] == [
        "a",
        "b",
        "txn",
        "c",
        "txn",
        "poll_timeout",
    ]
    assert [row["changefeed_event"] for row in _rows(shop, 1, **given)] == ["poll_timeout"]


def test_timeouts_are_rows_and_it_goes_on(shop: Shop) -> None:
    """While another one holds the shards, and while nothing comes."""
    shop.create()
    shop.insert("a")
    with shop.consumer() as other:
        rows = default_rows(
            shop.source,
            NAME,
            CAPTURE,
            DefaultOptions(register_timeout=0, poll_timeout=1000),
            pace=shop.pace(),
        )
        assert [row["changefeed_event"] for row in islice(rows, 2)] == ["register_timeout"] * 2
        other.leave()
        assert [row["changefeed_event"] for row in islice(rows, 3)] == ["add"] + ["poll_timeout"] * 2
        shop.insert("b")
        assert next(rows)["data"] == "b"
        rows.close()


def test_one_who_does_not_ask_in_time_loses(shop: Shop) -> None:
    """To one who waits; its last event comes again there."""
    shop.create()
    shop.insert("a")
    rows = default_rows(shop.source, NAME, CAPTURE, DefaultOptions(emit_timeout=3000), pace=shop.pace())
    assert next(rows)["data"] == "a"
    shop.clock.advance(4.0)
    with shop.consumer() as other:
        assert other.get().new["data"] == "a"
        with pytest.raises(LeaseLostError):
            next(rows)


def test_an_event_of_a_plain_feed_is_an_add(shop: Shop) -> None:
    """What it does not know is refused when the rows are asked for."""
    shop.create(feed=PLAIN)
    shop.order("a")
    (row,) = _rows(shop, 1, PLAIN)
    assert (row["changefeed_event"], row["data"]) == ("add", "a")
    for option in ("with_tid", "with_epoch", "with_sequence", "batch_consume"):
        with pytest.raises(InvalidArgumentError, match="plain outbox"):
            default_rows(shop.source, NAME, PLAIN, DefaultOptions(**{option: True}))


def test_a_capture_of_several_tables_tells_the_table(shop: Shop) -> None:
    """Where there is one alone, nobody needs it."""
    shop.connection.execute('create table "shop.u" (id integer primary key, other text)')
    shop.source.enable_capture(
        CaptureSpec((TableCapture("shop.t"), TableCapture("shop.u")), name="shop.both")
    )
    shop.create(feed="shop.both")
    shop.connection.execute("insert into \"shop.u\" values (1, 'x')")
    (row,) = _rows(shop, 1, "shop.both")
    assert (row["changefeed_table"], row["other"], row["data"]) == ("shop.u", "x", None)


def test_a_reset_is_a_row_without_values(shop: Shop) -> None:
    """Whoever folds the rows must know of it."""
    shop.create()
    shop.insert("a")
    shop.source.drain(CAPTURE)
    shop.source.resolve_capture(CAPTURE, note="test", by="test", resync=True)
    rows = [row for row in _rows(shop, 20, poll_timeout=0) if row["changefeed_event"] != "poll_timeout"]
    assert [row["changefeed_event"] for row in rows if row["data"] is None][:1] == ["reset"]
    assert [row["data"] for row in rows if row["changefeed_event"] == "add"] == ["a", "a"]


def test_it_ends_when_it_is_told_to(shop: Shop) -> None:
    """And gives its shards back."""
    shop.create()
    shop.insert("a")
    rows = default_rows(
        shop.source, NAME, CAPTURE, should_stop=lambda: shop.clock.waits > 2, pace=shop.pace()
    )
    assert len(list(rows)) == 1
    assert all(one.holder is None for one in shop.source.leases(CAPTURE))


def test_unknown_consumers_are_refused_before_the_first_row(shop: Shop) -> None:
    """Not when somebody waits for it already."""
    with pytest.raises(ConsumerNotFoundError):
        default_rows(shop.source, NAME, CAPTURE)


def test_all_that_is_wrong_with_the_options_is_told_at_once() -> None:
    """Unknown names and wrong types."""
    text = '{"with_tid": 1, "poll_timeout": "2000", "emit_timeout": 0, "emit_timeuot": 5, "with_epoch": null}'
    with pytest.raises(InvalidArgumentError) as caught:
        DefaultOptions.from_json(text)
    for name in ("with_tid", "poll_timeout", "emit_timeout", "'emit_timeuot'", "with_epoch"):
        assert name in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"with_txn_sentinel": true}', '{"emit_timeout": null}', '{"register_timeout": -1}'],
)
def test_options_that_mean_nothing_are_refused(text: str) -> None:
    """As no JSON, or none that is allowed."""
    with pytest.raises(InvalidArgumentError):
        DefaultOptions.from_json(text)


def test_times_are_milliseconds_of_any_kind() -> None:
    """Whole or not; None waits for ever."""
    options = DefaultOptions.from_json('{"poll_timeout": 0.5, "register_timeout": null, "emit_timeout": 1}')
    assert (options.poll_timeout, options.register_timeout, options.emit_timeout) == (0.5, None, 1)
