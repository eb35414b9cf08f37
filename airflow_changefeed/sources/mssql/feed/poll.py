# SPDX-License-Identifier: Apache-2.0
"""
Polls of feeds in SQL Server: one query for all of them, including whether they exist.

Each feed's procedure is called with the caller's rights. The batch's text is constant, so that the server
plans it once; a failure in one feed ends only that feed's poll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_changefeed.core.feed import parse_shard
from airflow_changefeed.exceptions import LockTimeoutError, TransientError
from airflow_changefeed.sources.mssql.connection.errors import name_error, name_text
from airflow_changefeed.sources.mssql.connection.retry import may_pass
from airflow_changefeed.sources.mssql.connection.session import Result, Session
from airflow_changefeed.sources.mssql.feed.calls import sections
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sources.polls import FeedPoll
from airflow_changefeed.sources.rows import as_time, as_ulid

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
