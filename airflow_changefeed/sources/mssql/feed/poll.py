# SPDX-License-Identifier: Apache-2.0
"""
Polls and overview of feeds in SQL Server: one query for all of them, including whether they exist.

Each feed's procedure is called with the caller's rights. The batch's text is constant, so that the server
plans it once; a failure in one feed ends only that feed's poll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.consumer import ConsumerPosition, FeedOverview, ShardOverview
from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.exceptions import ChangefeedError, LockTimeoutError, TransientError
from airflow_changefeed.sources.mssql.connection.errors import name_error, name_text
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase, may_pass
from airflow_changefeed.sources.mssql.connection.session import Record, Result, Session, as_records
from airflow_changefeed.sources.mssql.cursors import cursor_row
from airflow_changefeed.sources.mssql.feed.catalog import (
    call_feed,
    check_whole,
    load_feed,
    load_feeds,
    sections,
)
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.shared import (
    FeedPoll,
    as_time,
    as_time_or_none,
    as_ulid,
    check_overview,
    consumer_info,
    output_check,
    shard_status,
)

#: Maximum characters of a name in SQL Server.
_LONGEST = 128

#: Returns a row with the index of each feed that the login may poll, then its results or the error. After one
#: lock timeout the others do not wait, however many feeds are locked.
_LOOKS = """
set nocount on;
declare @calls table (
    place int not null primary key, called nvarchar(776) not null, names nvarchar(max) not null
);
insert into @calls (place, called, names)
select j.place, j.called, j.names from openjson(@asks)
with (place int '$.place', called nvarchar(776) '$.called', names nvarchar(max) '$.names' as json) as j;
declare @place int, @last int = -1, @called nvarchar(776), @names nvarchar(max), @call nvarchar(max);
while 1 = 1
begin
    set @place = null;
    select top (1) @place = c.place, @called = c.called, @names = c.names from @calls as c
    where c.place > @last order by c.place;
    if @place is null break;
    set @last = @place;
    if object_id(@called) is null continue;
    select @place as place;
    set @call = N'exec ' + @called + N' @consumers = @names';
    begin try
        exec sp_executesql @call, N'@names nvarchar(max)', @names = @names;
    end try
    begin catch
        select error_number() as number, error_message() as message;
        if error_number() = 1222 set lock_timeout 0;
    end catch;
end
"""


def poll(
    session: Session, schema: str, wanted: Mapping[str, Sequence[str]]
) -> dict[str, FeedPoll | Exception]:
    """
    Poll feeds, each for its consumers, in one query.

    A deadlock under the only feed is raised, so that the query is retried.

    :return: for each feed what was found; or FeedNotFoundError, which names those that there are,
        FeedSetupError where its event table was dropped, or the login must not see it, or another error.
    """
    try:
        found_sections = sections(session.execute(_batch(schema, wanted)))
    except Exception as error:
        if len(wanted) == 1 or isinstance(name_error(error), TransientError):
            if not isinstance(name_error(error), TransientError):
                # A missing feed is reported first, as in every other call.
                load_feed(session, schema, next(iter(wanted)))
            raise
        # Some errors end a batch despite try/catch; then poll each feed separately.
        return {feed: _alone(session, schema, feed, names) for feed, names in wanted.items()}
    found = {
        feed: _answer(session, schema, feed, names, found_sections.get(place))
        for place, (feed, names) in enumerate(wanted.items())
    }
    for one in found.values():
        if len(found) == 1 and isinstance(one, Exception) and may_pass(one):
            raise one
        if isinstance(one, LockTimeoutError):
            # Set again before the next query.
            session.lock_timeout_ms = None
    return found


def _batch(schema: str, wanted: Mapping[str, Sequence[str]]) -> str:
    asks = [
        {"place": place, "called": _procedure(schema, feed), "names": list(names)}
        for place, (feed, names) in enumerate(wanted.items())
        if len(_name(feed)) <= _LONGEST
    ]
    # No parameters: for those the driver would prepare and release a statement, a second round trip.
    return f"exec sp_executesql {literal(_LOOKS)}, N'@asks nvarchar(max)', @asks = {literal(_json(asks))}"


def _json(value: object) -> str:
    # Costs SQL Server nothing, and Babelfish does not decode JSON escapes.
    return json.dumps(value, ensure_ascii=False)


def _name(feed: str) -> str:
    return f"poll_feed:{feed}"


def _procedure(schema: str, feed: str) -> str:
    return f"{quote(schema)}.{quote(_name(feed))}"


def _alone(session: Session, schema: str, feed: str, names: Sequence[str]) -> FeedPoll | Exception:
    try:
        return poll(session, schema, {feed: names})[feed]
    except Exception as error:
        named = name_error(error, feed=feed)
        if isinstance(named, TransientError) or not isinstance(named, Exception):
            raise
        return named


def _answer(
    session: Session, schema: str, feed: str, names: Sequence[str], section: list[Result] | None
) -> FeedPoll | Exception:
    try:
        if section is None:
            load_feed(session, schema, feed)
            # If the login cannot see it, this raises the server's own error.
            section = session.execute(
                f"exec {_procedure(schema, feed)} @consumers = {literal(_json(list(names)))}"
            )
        if section[-1][0] == ["number", "message"]:
            ((number, message),) = section[-1][1]
            error = name_text(message, feed=feed) or TransientError(
                f"feed {feed!r}: {message} (error {number}): retry", feed=feed, number=number
            )
            if not isinstance(error, TransientError):
                load_feed(session, schema, feed)
            return error
        return _found(session, schema, feed, names, section)
    except Exception as error:
        named = name_error(error, feed=feed)
        if may_pass(named) or not isinstance(named, Exception):
            raise
        return named


def _found(session: Session, schema: str, feed: str, names: Sequence[str], section: list[Result]) -> FeedPoll:
    (_, ((name, at, has_table),)), (_, shards), (_, cursors) = section
    if name != feed or not has_table:
        load_feed(session, schema, feed)
    after: dict[str, dict[Any, Any]] = {}
    for place, shard, ulid in cursors:
        after.setdefault(names[place], {})[parse_shard(shard)] = as_ulid(ulid)
    # Sorted here, because SQL Server sorts UUIDs by their last bytes first.
    return FeedPoll(
        as_time(at),
        [
            (parse_shard(shard), as_ulid(head), bool(has_outbox))
            for shard, head, has_outbox, _ in sorted(shards)
        ],
        after,
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
                # Objects of an older version do not return it.
                as_ulid(row.get("first_event")),
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
