# SPDX-License-Identifier: Apache-2.0
"""Overview of feeds, in SQL Server: one query for all of them, after those that list the feeds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.consumer import ConsumerPosition, FeedOverview, ShardOverview
from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.exceptions import ChangefeedError
from airflow_changefeed.sources.messages import check_overview
from airflow_changefeed.sources.mssql.connection.errors import name_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.retry import may_pass
from airflow_changefeed.sources.mssql.connection.session import Record, Session, as_records
from airflow_changefeed.sources.mssql.consumers.cursors import cursor_row
from airflow_changefeed.sources.mssql.feed.calls import call_feed, sections
from airflow_changefeed.sources.mssql.feed.catalog import check_whole, load_feed, load_feeds
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import literal
from airflow_changefeed.sources.rows import (
    as_time_or_none,
    as_ulid,
    consumer_info,
    output_check,
    shard_status,
)

#: Returns a row with the index of each feed that the login may read, then the results of its procedure; after
#: one that fails, a row in a column of its own. The text is constant, so that the server plans it once.
_OVERVIEWS = """
set nocount on;
declare @calls table (place int not null primary key, called nvarchar(776) not null, is_named bit not null);
insert into @calls (place, called, is_named)
select j.place, j.called, j.is_named from openjson(@asks)
with (place int '$.place', called nvarchar(776) '$.called', is_named bit '$.is_named') as j;
declare @place int, @last int = -1, @called nvarchar(776), @is_named bit, @call nvarchar(max);
while 1 = 1
begin
    set @place = null;
    select top (1) @place = c.place, @called = c.called, @is_named = c.is_named from @calls as c
    where c.place > @last order by c.place;
    if @place is null break;
    set @last = @place;
    if @is_named = 0 and isnull(has_perms_by_name(@called, 'OBJECT', 'EXECUTE'), 0) = 0 continue;
    select @place as place;
    set @call = N'exec ' + @called + N' @first_shard = @first, @shards = @most';
    begin try
        exec sp_executesql @call, N'@first int, @most int', @first = @first, @most = @most;
    end try
    begin catch
        select @place as failed;
    end catch;
end
"""


class MssqlOverview:
    """The part of the source that gives overviews."""

    database: MssqlDatabase

    def overview(
        self, feeds: Sequence[str] | None = None, *, first_shard: int = 0, shards: int = 1_000
    ) -> list[FeedOverview]:
        check_overview(first_shard, shards)

        def question(session: Session) -> list[FeedOverview]:
            found = self._found(session, feeds)
            if not found:
                return []
            asks = [
                {"place": place, "called": feed.object("overview"), "is_named": feeds is not None}
                for place, feed in enumerate(found)
                if _can_be_read(feed)
            ]
            # No parameters: for those the driver would prepare and release a statement.
            results = session.execute(
                f"exec sp_executesql {literal(_OVERVIEWS)}, N'@asks nvarchar(max), @first int, @most int', "
                f"@asks = {literal(json.dumps(asks, ensure_ascii=False))}, "
                f"@first = {min(first_shard, 2**31 - 1)}, @most = {shards}"
            )
            answers = sections(results)
            return [
                _overview(feed, *map(as_records, answers[place]))
                if place in answers and answers[place][-1][0] != ["failed"]
                else _again(session, feed, first_shard, shards)
                for place, feed in enumerate(found)
                if place in answers or not _can_be_read(feed)
            ]

        return self.database.ask(question)

    def _found(self, session: Session, feeds: Sequence[str] | None) -> list[MssqlFeed]:
        """Return the requested feeds, detecting table changes."""
        schema = self.database.schema
        if feeds is not None and len(feeds) == 1:
            return [
                load_feed(session, schema, feed, is_fresh=True, is_noted=True, is_whole=False)
                for feed in feeds
            ]
        known = {feed.name: feed for feed in load_feeds(session, schema, is_noted=True) or []}
        if feeds is None:
            return list(known.values())
        return [known.get(feed) or load_feed(session, schema, feed, is_whole=False) for feed in feeds]


def _can_be_read(feed: MssqlFeed) -> bool:
    """Whether the table with its events exists; for serialized writers it is the user's own."""
    return not feed.is_serialized or feed.table is not None


def _again(session: Session, feed: MssqlFeed, first_shard: int, shards: int) -> FeedOverview:
    """Return a feed that failed among others: alone it has its own error, unless that has passed."""
    try:
        if not _can_be_read(feed):
            check_whole(feed)
        arguments = {"first_shard": min(first_shard, 2**31 - 1), "shards": shards}
        return _overview(feed, *call_feed(session, feed, "overview", arguments))
    except Exception as error:
        problem = name_error(error, feed=feed.name)
        if not isinstance(problem, ChangefeedError) or may_pass(problem):
            raise
        return FeedOverview(feed.info, (), 0, gaps=_gaps(feed), problem=problem)


def _overview(
    feed: MssqlFeed,
    counts: list[Record],
    shards: list[Record],
    cursors: list[Record],
    consumers: list[Record],
    checks: list[Record],
) -> FeedOverview:
    positions: dict[Shard, list[ConsumerPosition]] = {}
    for row in cursors:
        position = ConsumerPosition(
            cursor_row(feed.name, row),
            int(row["behind"]),
            as_ulid(row["next_event"]),
            int(row["before_rows"]),
            as_ulid(row["before_from"]),
        )
        positions.setdefault(position.row.shard, []).append(position)
    statuses = [(shard_status(parse_shard(row["shard_id"]), row), row) for row in shards]
    return FeedOverview(
        feed.info,
        tuple(
            ShardOverview(
                status,
                int(row["waiting"]),
                as_time_or_none(row["waiting_since"]),
                tuple(positions.get(status.shard, ())),
            )
            for status, row in statuses
        ),
        int(counts[0]["shard_count"]),
        tuple(consumer_info(row) for row in consumers),
        _gaps(feed),
        tuple(output_check(feed.name, row) for row in checks),
    )


def _gaps(feed: MssqlFeed) -> tuple[CaptureGap, ...] | None:
    return None if feed.capture is None else feed.capture.gaps
