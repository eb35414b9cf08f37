# SPDX-License-Identifier: Apache-2.0
"""A stream goes on where it was when its connection is lost, and waits for a secondary that lags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ReplicaBehindError,
    SchemaChangedError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.mssql.captured import AT, Captured, HandMade
from tests.integration.mssql.line import Line
from tests.integration.mssql.server import Client, Database

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
FEED, CHANGING = "myservice.Resumed", "myservice.ResumedAndChanged"
CAPTURE = "myservice.Resumed_changes"
ROWS, BATCH = 3_000, 100
#: Fewer attempts than the cuts below: each batch counts them anew.
AT_ONCE = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
CUTS = 3


def _make(client: Client, feed: str) -> None:
    # Long rows, so that the answer is not in the driver's buffers before the line is cut.
    client.results(f"create table {feed} (k int not null primary key, v varchar(900) null)")
    client.results(f"exec changefeed.setup_feed N'{feed}', @outbox = 1")
    numbers = "with d as (select 0 as n union all select n + 1 from d where n < 9) "
    digits = "from d a cross join d b cross join d c cross join d e"
    client.results(
        f"{numbers}insert into {feed} (k, v) select k, replicate('x', 900) from "
        f"(select a.n + 10 * b.n + 100 * c.n + 1000 * e.n as k {digits}) t where k < {ROWS}"
    )
    client.results(f"insert into [changefeed].[outbox:{feed}] (k) select k from {feed} order by k")


@pytest.fixture(scope="module")
def sealed(database: Database) -> Iterator[MssqlFeedSource]:
    """Two feeds with a few thousand long rows, sealed."""
    with database.client() as client:
        for feed in (FEED, CHANGING):
            _make(client, feed)
    with closing(MssqlFeedSource(**database.description | {"lock_timeout": 20})) as source:
        for feed in (FEED, CHANGING):
            source.seal(feed, source.now())
        yield source


@pytest.fixture(autouse=True)
def _no_pauses(distant: MssqlFeedSource) -> None:
    """Let the distant source try again at once."""
    distant.database.retry = AT_ONCE


def _ulids(source: MssqlFeedSource) -> list[str]:
    batches = source.stream(FEED, 0, ALL)
    return [ulid for batch in batches for ulid in batch.column("changefeed_ulid").to_pylist()]


def test_a_stream_goes_on_after_its_connection_was_lost_again_and_again(
    sealed: MssqlFeedSource, distant: MssqlFeedSource, line: Line
) -> None:
    """Every event once and in order, though the line is cut more often than a call is tried again."""
    found: list[str] = []
    for number, batch in enumerate(distant.stream(FEED, 0, ALL, batch_rows=BATCH)):
        assert batch.num_rows <= BATCH
        found += batch.column("changefeed_ulid").to_pylist()
        if number % 8 == 0 and number // 8 < CUTS:
            line.cut()
    assert AT_ONCE.attempts < CUTS
    assert found == _ulids(sealed)
    assert len(set(found)) == ROWS


def test_a_stream_of_a_capture_goes_on_likewise(
    database: Database, sealed: MssqlFeedSource, distant: MssqlFeedSource, line: Line
) -> None:
    """With both rows of each event."""
    columns = {"k": ("k", "int"), "v": ("v", "varchar(900)")}
    with database.client() as client:
        capture = HandMade(client, CAPTURE, [Captured(FEED, columns, keys=("k",))]).make()
        for image in (0, 1):
            client.results(
                f"insert into {capture.full} (changefeed_statement, changefeed_row, changefeed_image, "
                "changefeed_shard, changefeed_table, changefeed_op, changefeed_at, k, v) "
                f"select k, 1, {image}, 0, 0, 'u', '{AT}', k + {image}, v from {FEED}"
            )
        client.results(
            f"insert into [changefeed].[outbox:{CAPTURE}] (changefeed_statement, changefeed_row) "
            f"select k, 1 from {FEED} order by k"
        )
    sealed.seal(CAPTURE, sealed.now())
    found: list[tuple[int, int]] = []
    for number, batch in enumerate(distant.stream(CAPTURE, 0, ALL, batch_rows=BATCH)):
        rows = zip(batch.column("old").to_pylist(), batch.column("new").to_pylist(), strict=True)
        found += [(old["k"], new["k"]) for old, new in rows]
        if number % 8 == 0 and number // 8 < CUTS:
            line.cut()
    assert found == [(k, k + 1) for k in range(ROWS)]


def test_a_stream_that_gets_nowhere_gives_up(
    sealed: MssqlFeedSource, distant: MssqlFeedSource, line: Line
) -> None:
    """As transient, after as many attempts as the policy has without a batch between."""
    stream = distant.stream(FEED, 0, ALL, batch_rows=BATCH)
    assert next(stream).num_rows == BATCH
    line.close()
    with pytest.raises(SourceUnavailableError) as caught:
        list(stream)
    assert caught.value.transient


def test_a_table_that_was_changed_before_a_stream_goes_on_is_not_mixed(
    database: Database, sealed: MssqlFeedSource, distant: MssqlFeedSource, line: Line
) -> None:
    """The retry of the whole window reads it with its new columns."""
    stream = distant.stream(CHANGING, 0, ALL, batch_rows=BATCH)
    assert next(stream).num_rows == BATCH
    line.cut()
    with database.client() as client:
        client.results(f"alter table {CHANGING} add w int null")
    with pytest.raises(SchemaChangedError, match="'w' was missing, is int32") as caught:
        list(stream)
    assert caught.value.transient


def test_a_secondary_that_lags_is_waited_for(database: Database, sealed: MssqlFeedSource) -> None:
    """
    What it has not seen sealed is not read; when it has, all of it is.

    The server has no secondary: what lags is the seal itself, as a secondary's connection would see it.
    """
    end = sealed.now()
    range_ = UlidRange(Ulid.MIN, Ulid.floor(end).previous())
    replica = MssqlFeedSource(**database.description | {"lock_timeout": 20, "read_only_replica": True})
    with closing(replica):
        replica.database.retry = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
        with pytest.raises(
            ReplicaBehindError, match="the secondary has replicated the feed only up to"
        ) as caught:
            list(replica.stream(FEED, 0, range_))
        assert caught.value.transient
        sealed.seal(FEED, end)
        assert sum(batch.num_rows for batch in replica.stream(FEED, 0, range_)) == ROWS


def test_what_is_not_sealed_is_read_at_the_primary_only(database: Database, sealed: MssqlFeedSource) -> None:
    """A secondary cannot tell that nothing more comes."""
    far = UlidRange(Ulid.MIN, Ulid.floor(datetime(2999, 1, 1, tzinfo=timezone.utc)))
    assert sum(batch.num_rows for batch in sealed.stream(FEED, 0, far)) == ROWS
    with closing(MssqlFeedSource(**database.description | {"read_only_replica": True})) as replica:
        replica.database.retry = RetryPolicy(attempts=1)
        with pytest.raises(ReplicaBehindError, match="can be read only from the primary"):
            list(replica.stream(FEED, 0, far))
