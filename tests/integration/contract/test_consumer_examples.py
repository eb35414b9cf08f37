# SPDX-License-Identifier: Apache-2.0
"""The consumers, triggers and batches of Comdb2's manual, on every engine; and what holds them together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from itertools import islice
from typing import Any

import pytest

from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.event import Batch, FeedEvent
from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.exceptions import LeaseLostError, PoisonError
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
