# SPDX-License-Identifier: Apache-2.0
"""An event that cannot be read stops neither those before it nor other shards, and is parked."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_changefeed.consumers import run
from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.run import Backoff, Run, run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec, DeadLetterState, OnPoison, Outcome
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import MissingEventError, PoisonError
from tests.integration.contract.bench import Bench
from tests.integration.contract.captures import CAPTURE, set_up_author
from tests.integration.contract.engines import Engine

NAME = "billing"
SOON = Backoff(first=0.0, longest=0.0)


def _ready(bench: Bench, **settings: Any) -> None:
    """Write five events into shard 0, of which the third's row is gone, two into shard 1, and a consumer."""
    spec = ConsumerSpec(NAME, bench.feed, **{"max_attempts": 2, "on_poison": OnPoison.PARK, **settings})
    create_consumer(bench.source, spec, by="test")
    keys = bench.write(5)
    bench.write(2, shard=1)
    bench.source.drain(bench.feed)
    bench.engine.delete_row(bench.table, keys[2])


def _consume(bench: Bench, **options: Any) -> tuple[Run, list[int]]:
    seen: list[int] = []
    given = {"at_head": True, "backoff": SOON, "register_timeout": 0.0, **options}
    key = bench.table.keys[0][0]
    done = run_consumer(bench.source, NAME, bench.feed, lambda event, _: seen.append(event.row[key]), **given)
    return done, seen


def _restore(bench: Bench) -> None:
    with bench.transaction() as writer:
        writer.insert_row(bench.table.key(3), {})
        writer.commit()


def test_it_is_parked_with_its_key_and_delivered_once_it_can_be_read(bench: Bench) -> None:
    """A retry before that parks it again."""
    _ready(bench)
    done, seen = _consume(bench)
    assert (done.events, done.failures, done.parked, sorted(seen)) == (6, 2, 1, [1, 2, 4, 5, 6, 7])
    (letter,) = bench.source.dead_letters(bench.feed)
    assert letter.ulid == bench.events()[2].ulid
    assert letter.reason.startswith(f"MissingEventError: event {letter.ulid} of shard 0, table")
    assert "(EventID = 3), cannot be read" in letter.reason
    bench.source.resolve_dead_letter(letter.number, DeadLetterState.RETRY, by="anna")
    assert _consume(bench)[0].parked == 1
    _restore(bench)
    bench.source.resolve_dead_letter(letter.number, DeadLetterState.RETRY, by="anna")
    done, seen = _consume(bench)
    assert (done.events, seen, bench.source.dead_letters(bench.feed)) == (1, [3], [])


def test_a_value_is_parked_as_a_row_that_is_gone(bench: Bench) -> None:
    """Where the engine's columns can hold one that cannot be exported."""
    _ready(bench)
    _restore(bench)
    column = bench.engine.put_misfit(bench.table, bench.table.key(2))
    if column is None:
        pytest.skip("this engine's columns hold nothing of another type")
    done, seen = _consume(bench)
    assert (done.parked, sorted(seen)) == (1, [1, 3, 4, 5, 6, 7])
    reason = bench.source.dead_letters(bench.feed)[0].reason
    assert "(EventID = 2), cannot be read" in reason
    assert f"column '{column}'" in reason


def test_a_consumer_that_does_not_park_stops_there_after_the_other_shards(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its attempts counted over restarts, by a handler or by hand."""
    # However slowly others are read, it is not tried a third time before they are.
    monkeypatch.setattr(run, "_STOPPED", 3600.0)
    _ready(bench, on_poison=OnPoison.STOP)
    with pytest.raises(PoisonError, match="failed 2 times, last with MissingEventError"):
        _consume(bench)
    with Consumer(bench.source, NAME, bench.feed, register_timeout=0.0) as consumer:
        with pytest.raises(MissingEventError, match=r"\(EventID = 3\), cannot be read"):
            consumer.get()
        assert consumer.shards == [0, 1]
    with pytest.raises(PoisonError, match="failed 4 times"):
        _consume(bench)
    places = {row.shard: row.ulid for row in bench.source.cursors(bench.feed, NAME)}
    assert places == {0: bench.events()[1].ulid, 1: bench.events(1)[-1].ulid}
    failed = [
        entry.attempt.number
        for entry in bench.source.invocations(bench.feed, NAME)
        if entry.attempt.outcome is Outcome.FAILED
    ]
    assert failed == [4, 3, 2, 1]


def test_a_captured_event_of_which_nothing_is_left_is_parked(engine: Engine) -> None:
    """With its place alone."""
    bench = set_up_author(engine)
    create_consumer(
        bench.source, ConsumerSpec(NAME, CAPTURE, max_attempts=1, on_poison=OnPoison.PARK), by="test"
    )
    for number in (1, 2, 3):
        bench.run(("insert into \"shop.author\" (id, name) values (?, 'x')", number))
    second = bench.events()[1]
    columns = {"sqlite": "new_id", "mssql": "id"}
    bench.run(f'delete from "{CAPTURE}" where {columns[engine.name]} = 2')
    seen: list[int] = []
    done = run_consumer(
        bench.source,
        NAME,
        CAPTURE,
        lambda event, _: seen.append(event.new["id"]),
        at_head=True,
        register_timeout=0.0,
    )
    assert (done.parked, seen) == (1, [1, 3])
    (letter,) = bench.source.dead_letters(CAPTURE)
    assert (str(letter.ulid), letter.reason.split(":")[0]) == (second.ulid, "MissingEventError")


def test_only_what_is_asked_for_is_read_of_a_row(bench: Bench) -> None:
    """The other columns are null, and a value there does not matter."""
    bench.write(2, Payload="a", Quantity=1)
    bench.events()
    bench.engine.put_misfit(bench.table, bench.table.key(2))
    range_ = UlidRange(Ulid.MIN, Ulid.MAX)
    for columns, payload in (({"EventID", "Payload"}, "a"), ({"EventID"}, None)):
        (batch,) = bench.source.stream(bench.feed, 0, range_, columns=columns)
        assert batch.schema == bench.source.schema(bench.feed)
        assert batch.column("EventID").to_pylist() == [1, 2]
        assert batch.column("Payload").to_pylist() == [payload] * 2
        assert batch.column("Quantity").to_pylist() == [None] * 2
    (batch,) = bench.source.stream(bench.feed, 0, range_, columns=())
    assert batch.num_rows == 2


def test_a_capture_tells_what_it_knows_without_the_values(engine: Engine) -> None:
    """Type, table and transaction of an event whose rows are not read."""
    bench = set_up_author(engine)
    bench.run("insert into \"shop.author\" (id, name) values (1, 'x')")
    whole = bench.events()[0]
    for columns, new in (({"id"}, {"id": 1, "name": None}), (set[str](), {"id": None, "name": None})):
        (batch,) = bench.source.stream(CAPTURE, 0, UlidRange(Ulid.MIN, Ulid.MAX), columns=columns)
        (event,) = batch.to_pylist()
        assert (event["type"], event["name"], event["tid"]) == (whole.type, whole.table, whole.tid)
        assert event["new"] == new
