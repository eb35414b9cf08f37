# SPDX-License-Identifier: Apache-2.0
"""The consumers, triggers and batches of Comdb2's manual, on every engine; and what holds them together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice, takewhile
from typing import Any

import pytest

from airflow_changefeed.consumers.consumer import Consumer, default_rows
from airflow_changefeed.consumers.event import Batch, FeedEvent
from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import DefaultOptions, create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.exceptions import InvalidArgumentError, LeaseLostError, PoisonError
from tests.integration.contract.bench import Bench
from tests.integration.contract.captures import CaptureBench
from tests.integration.contract.consumer_data import BATCHES, COUNTED, NAME, begun, data_batches
from tests.integration.contract.engines import Engine, Table

AUDIT = Table(
    "shop.audit",
    COUNTED,
    (("type", "text"), ("tbl", "text"), *((name, "integer") for name in ("i", "j", "old_i", "old_j"))),
)


def _written(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return f"{value:.6f}" if isinstance(value, float) else value


def test_watch_is_given_every_change(engine: Engine) -> None:
    """A value of every kind: new columns, and old ones by another name, null where there is no such row."""
    kinds = (("i", "integer"), ("d", "double"), ("c", "text"), ("b", "bytes"), ("t", "time"))
    bench = begun(engine, Table("shop.t", COUNTED, kinds), "shop.watch")
    dead, code = ("x'deadbeef'", "x'600dc0de'") if engine.name == "sqlite" else ("0xdeadbeef", "0x600dc0de")
    values = f"1, 22.0/7, 'hello', {dead}, '2019-12-19T20:08:38.418'"
    bench.run(f'insert into "shop.t" (i, d, c, b, t) values ({values})')
    bench.run(f'update "shop.t" set i = cast(i + d as integer), d = d + i, b = {code}')
    bench.run('delete from "shop.t"')

    def watch() -> Iterator[dict[str, Any]]:
        with Consumer(bench.source, NAME, "shop.watch") as consumer:
            for change in consumer:
                old = {f"old_{name}": value for name, value in (change.old or {}).items()}
                yield {"tbl": change.name, "type": change.type, **(change.new or {}), **old}

    with closing(watch()) as changes:
        rows = [{name: _written(value) for name, value in row.items()} for row in islice(changes, 3)]
    time = "2019-12-19T20:08:38.418"
    first = {"i": 1, "d": "3.142857", "c": "hello", "b": b"\xde\xad\xbe\xef", "t": time}
    second = {"i": 4, "d": "4.142857", "c": "hello", "b": b"\x60\x0d\xc0\xde", "t": time}
    was_first, was_second = ({f"old_{n}": v for n, v in row.items()} for row in (first, second))
    assert rows == [
        {"tbl": "shop.t", "type": "add", **first},
        {"tbl": "shop.t", "type": "upd", **second, **was_first},
        {"tbl": "shop.t", "type": "del", **was_second},
    ]
    with Consumer(bench.source, NAME, "shop.watch") as consumer:
        # Nobody asked for what comes after the last one.
        assert consumer.get().type == "del"


def _audited(engine: Engine) -> CaptureBench:
    table = Table("shop.t", COUNTED, (("i", "integer"), ("j", "integer")))
    bench = begun(engine, table, "shop.audited")
    engine.create_table(AUDIT)
    bench.run('insert into "shop.t" (i, j) values (1, 1), (1, 2), (1, 3), (1, 4)')
    bench.run('update "shop.t" set i = j where j % 2 = 0')
    bench.run('delete from "shop.t" where i % 2 <> 0')
    return bench


class Audit:
    """The manual's trigger: writes each change, in the transaction that consumes it."""

    def __init__(self, engine: Engine) -> None:
        self.name = '"shop.audit"' if engine.name == "sqlite" else "[shop].[audit]"

    def __call__(self, event: FeedEvent, connection: Any) -> None:
        row = dict(event.new or {}) | {f"old_{name}": value for name, value in (event.old or {}).items()}
        row |= {"type": event.type, "tbl": event.name}
        given = {name: value for name, value in row.items() if value is not None}
        marks = ", ".join("?" * len(given))
        with closing(connection.cursor()) as cursor:
            cursor.execute(
                f"insert into {self.name} ({', '.join(given)}) values ({marks})", tuple(given.values())
            )


AUDITED = [
    ("add", "shop.t", 1, 1, None, None),
    ("add", "shop.t", 1, 2, None, None),
    ("add", "shop.t", 1, 3, None, None),
    ("add", "shop.t", 1, 4, None, None),
    ("upd", "shop.t", 2, 2, 1, 2),
    ("upd", "shop.t", 4, 4, 1, 4),
    ("del", "shop.t", None, None, 1, 1),
    ("del", "shop.t", None, None, 1, 3),
]


def _audit(engine: Engine) -> list[tuple[Any, ...]]:
    return engine.rows('select type, tbl, i, j, old_i, old_j from "shop.audit" order by n')


def test_the_audit_trigger_logs_every_change(engine: Engine) -> None:
    """Eight events, in their order."""
    bench = _audited(engine)
    done = run_consumer(bench.source, NAME, "shop.audited", Audit(engine), at_head=True)
    assert done.events == 8
    assert _audit(engine) == AUDITED


def test_a_trigger_that_fails_has_written_nothing(engine: Engine) -> None:
    """Its work and its consumption are one, wherever it fails; done again, all of it is there once."""
    bench = _audited(engine)
    audit, seen = Audit(engine), []

    def fails(event: FeedEvent, connection: Any) -> None:
        audit(event, connection)
        seen.append(event.id)
        if event.type == "upd":
            raise ValueError("no updates")

    with pytest.raises(PoisonError, match="no updates"):
        run_consumer(bench.source, NAME, "shop.audited", fails, at_head=True)
    assert _audit(engine) == AUDITED[:4]
    assert len(seen) == 6
    assert seen[4] == seen[5]
    run_consumer(bench.source, NAME, "shop.audited", audit, at_head=True)
    assert _audit(engine) == AUDITED


def test_whoever_lost_its_shard_writes_nothing(engine: Engine) -> None:
    """What it wrote before it knew is rolled back with its consumption."""
    bench = _audited(engine)
    with Consumer(bench.source, NAME, "shop.audited", emit_timeout=0.5) as first:
        event = first.get()
        with Consumer(bench.source, NAME, "shop.audited", register_timeout=30.0) as second:
            assert second.get() == event
            with pytest.raises(LeaseLostError), first.transaction() as connection:  # noqa: PT012 - at its end
                Audit(engine)(event, connection)
                first.consume()
            second.consume()
    assert _audit(engine) == []


def test_events_can_be_emitted_audited_and_consumed_as_one(engine: Engine) -> None:
    """The hand-over lies within the transaction."""
    bench = _audited(engine)
    emitted = []
    with Consumer(bench.source, NAME, "shop.audited") as consumer:
        while change := consumer.poll():
            with consumer.transaction() as connection:
                Audit(engine)(change, connection)
                emitted.append(change.type)
                consumer.consume()
    assert emitted == [kind for kind, *_ in AUDITED]
    assert _audit(engine) == AUDITED


def _consume_a_txn(consumer: Consumer) -> Iterator[str]:
    """Yield the events of a transaction, as the manual's procedure does."""
    tid = consumer.get().tid
    while True:
        event = consumer.poll()
        if event is None or event.tid != tid:
            return
        yield event.new["data"]
        consumer.next()


def test_a_procedure_consumes_what_one_transaction_made(engine: Engine) -> None:
    """With a sentinel at each boundary."""
    bench = data_batches(engine)
    emitted = []
    with Consumer(bench.source, NAME, "shop.batch", with_tid=True) as consumer:
        for _ in BATCHES:
            consumer.begin()
            emitted.append([*_consume_a_txn(consumer), "--sentinel--"])
            consumer.commit()
        assert consumer.poll() is None
    assert emitted == [[*texts, "--sentinel--"] for texts in BATCHES]


def test_a_batch_is_what_one_transaction_made(engine: Engine) -> None:
    """A handler gets all of it at once."""
    bench = data_batches(engine)
    seen = []
    run_consumer(
        bench.source,
        NAME,
        "shop.batch",
        lambda events, connection: seen.append([event.new["data"] for event in events]),
        batch=Batch(transaction=True),
        at_head=True,
    )
    assert seen == BATCHES


def _rows(bench: CaptureBench, count: int, **options: Any) -> list[dict[str, Any]]:
    given = DefaultOptions.from_json(json.dumps(options))
    with closing(default_rows(bench.source, NAME, bench.name, given)) as rows:
        return list(islice(rows, count))


def test_the_default_consumer_shows_boundaries(engine: Engine) -> None:
    """The manual's output, with its option for sentinels."""
    bench = data_batches(engine)
    rows = _rows(bench, 14, batch_consume=True, with_txn_sentinel=True)
    assert [row["data"] or row["changefeed_event"] for row in rows] == [
        text for texts in BATCHES for text in (*texts, "txn")
    ]


def test_a_batch_of_the_default_consumer_is_consumed_whole(engine: Engine) -> None:
    """A client that leaves in the middle of a transaction gets all of it again."""
    bench = data_batches(engine)
    assert [row["data"] for row in _rows(bench, 3, batch_consume=True)] == ["first", "second", "third"]
    assert [row["data"] for row in _rows(bench, 2, batch_consume=True)] == ["second", "third"]


def test_the_default_consumer_consumes_row_by_row(engine: Engine) -> None:
    """An event when the row behind it is asked for; two rows for an update."""
    bench = data_batches(engine)
    assert [row["data"] for row in _rows(bench, 2)] == ["first", "second"]
    assert [row["data"] for row in _rows(bench, 1)] == ["second"]
    bench.run("update \"shop.t\" set data = '2nd' where data = 'second'")
    bench.run("delete from \"shop.t\" where data = '2nd'")
    rows = _rows(bench, 13, poll_timeout=0)[9:]
    told = [(row["changefeed_event"], row["data"]) for row in rows]
    assert told == [("old", "second"), ("new", "2nd"), ("del", "2nd"), ("poll_timeout", None)]
    assert rows[0]["changefeed_id"] == rows[1]["changefeed_id"]


def test_the_default_consumer_tells_metadata(engine: Engine) -> None:
    """Epoch, sequence and transaction, each where it was asked for."""
    bench = data_batches(engine, with_sequence=True)
    rows = _rows(bench, 10, with_epoch=True, with_sequence=True, with_tid=True)
    assert [row["changefeed_sequence"] for row in rows] == list(range(1, 11))
    tids = [row["changefeed_tid"] for row in rows]
    assert [tids.count(tid) for tid in dict.fromkeys(tids)] == [1, 2, 2, 5]
    assert all(0 <= bench.source.now().timestamp() - row["changefeed_epoch"] < 3600 for row in rows)
    for name in ("epoch", "sequence", "tid"):
        (row,) = _rows(bench, 1, **{f"with_{name}": True})
        assert [key for key in row if key.startswith("changefeed_")][2:] == [f"changefeed_{name}"]


def test_the_default_consumer_tells_that_nothing_came(engine: Engine) -> None:
    """Neither a shard nor an event, in time; and goes on."""
    bench = data_batches(engine)
    with Consumer(bench.source, NAME, bench.name) as other:
        rows = _rows(bench, 2, register_timeout=1)
        assert [row["changefeed_event"] for row in rows] == ["register_timeout"] * 2
        given = DefaultOptions(register_timeout=1, poll_timeout=1)
        with closing(default_rows(bench.source, NAME, bench.name, given)) as mine:
            assert next(mine)["changefeed_event"] == "register_timeout"
            other.leave()
            found = takewhile(lambda row: row["changefeed_event"] != "poll_timeout", mine)
            told = [row["data"] for row in found if row["changefeed_event"] != "register_timeout"]
            assert next(mine)["changefeed_event"] == "poll_timeout"
    assert told == [text for texts in BATCHES for text in texts]


def test_the_default_consumer_gives_way_after_its_emit_timeout(engine: Engine) -> None:
    """To one who waits; it learns of it when it asks for the next row."""
    bench = data_batches(engine)
    given = DefaultOptions(emit_timeout=500)
    with closing(default_rows(bench.source, NAME, bench.name, given)) as rows:
        assert next(rows)["data"] == "first"
        with Consumer(bench.source, NAME, bench.name, register_timeout=30.0) as other:
            assert other.get().new["data"] == "first"
            with pytest.raises(LeaseLostError):
                next(rows)


def test_a_plain_feed_knows_no_transactions(bench: Bench) -> None:
    """Which is said before anything is consumed; its events are adds."""
    bench.write(2, Payload="x")
    create_consumer(bench.source, ConsumerSpec(NAME, bench.feed, on_poison=OnPoison.PARK), by="test")
    with pytest.raises(InvalidArgumentError, match="plain outbox"):
        default_rows(bench.source, NAME, bench.feed, DefaultOptions(batch_consume=True, with_tid=True))
    with closing(default_rows(bench.source, NAME, bench.feed)) as rows:
        told = [(row["changefeed_event"], row["EventID"], row["Payload"]) for row in islice(rows, 2)]
    assert told == [("add", 1, "x"), ("add", 2, "x")]
