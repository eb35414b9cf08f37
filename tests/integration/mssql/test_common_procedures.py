# SPDX-License-Identifier: Apache-2.0
"""The procedures common to all feeds: each works on the feed that it names only for those who may read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_changefeed.sources.mssql.feed.feed import parameter_types
from airflow_changefeed.sources.mssql.rights import granted
from tests.integration.mssql.server import Client, Database

#: As many characters, so that only the name differs between messages.
OURS, OTHER, MISSING = "myservice.Ours", "myservice.Kept", "myservice.Gone"
COMMON = sorted(
    right.object
    for right in granted("install/grants.batch")
    if right.permission == "EXECUTE" and "feed" in parameter_types(right.object)
)
#: What SQL Server's procedures reach by ownership chaining, which Babelfish does not have.
CHAINED = (
    "execute on changefeed.find_feed",
    "execute on changefeed.quoted",
    "select on changefeed.readable_feeds",
    "select on changefeed.feeds",
    "select on changefeed.consumers",
    "select on changefeed.consumer_settings",
)


@pytest.fixture(scope="module")
def reader(database: Database) -> Iterator[Client]:
    """Set up two feeds and connect as a reader of one."""
    with database.client() as client:
        for table in (OURS, OTHER):
            client.results(f"create table {table} (id int not null primary key)")
            client.results(f"exec changefeed.setup_feed N'{table}', @outbox = 1")
        for right in CHAINED if client.is_babelfish else ():
            client.results(f"grant {right} to [changefeed.users]")
    member = f"alter role [changefeed.readers:{OURS}] add member {{user}}"
    with database.login(member) as seen, seen.client() as connected:
        yield connected


def _call(procedure: str, feed: str) -> str:
    """Return a call of which only the feed is given."""
    others = "".join(f", @{name} = null" for name in parameter_types(procedure) if name != "feed")
    return f"exec changefeed.[{procedure}] @feed = N'{feed}'{others}"


def test_a_reader_works_on_its_own_feed(reader: Client) -> None:
    """The name counts as the database compares names, as for the feed's own procedures."""
    assert reader.results(f"exec changefeed.list_cursors @feed = N'{OURS}'") == [[]]


def test_a_look_at_all_feeds_shows_those_that_the_caller_may_read(client: Client, reader: Client) -> None:
    """In one statement, however many feeds there are."""
    for feed in (OURS, OTHER):
        client.results(f"exec changefeed.[create_consumer:{feed}] N'mailer'")
    every = "exec changefeed.list_consumers"
    assert [row[0] for row in client.rows(every)] == [OTHER, OURS]
    assert [row[0] for row in reader.rows(every)] == [OURS]


@pytest.mark.parametrize("procedure", COMMON)
def test_another_feed_is_refused_like_a_missing_one(reader: Client, procedure: str) -> None:
    """A reader of one feed learns nothing of another, not even that it exists."""
    other = reader.fails(77106, _call(procedure, OTHER), OTHER)
    missing = reader.fails(77106, _call(procedure, MISSING), MISSING)
    assert other.replace(OTHER, MISSING) == missing


@pytest.mark.parametrize("procedure", COMMON)
def test_a_feed_that_was_not_upgraded_is_refused(client: Client, reader: Client, procedure: str) -> None:
    """With the reason, and with what to do."""
    problem = f"update changefeed.feeds set upgrade_problem = ? where name = N'{OURS}'"
    client.results(problem, "changefeed 77119: another key")
    try:
        reader.fails(77117, _call(procedure, OURS), OURS, "could not be upgraded", "77119", "upgrade_feed")
    finally:
        client.results(problem, None)


def test_an_import_that_made_all_objects_anew_is_mended(client: Client, reader: Client) -> None:
    """Numbers of tables and grants, by ``upgrade_feeds``; here a number became that of a procedure."""
    procedure = f"[changefeed].[read_feed:{OURS}]"
    client.results(f"revoke execute on {procedure} from [changefeed.readers:{OURS}]")
    client.results(
        f"update changefeed.feeds set object_id = object_id(N'{procedure}') where name = N'{OURS}'"
    )
    listed = f"exec changefeed.list_cursors @feed = N'{OURS}'"
    reader.fails(77106, listed, OURS)
    client.results("exec changefeed.upgrade_feeds")
    same = (
        f"select count(*) from changefeed.feeds where name = N'{OURS}' and object_id = object_id(N'{OURS}')"
    )
    assert client.value(same) == 1
    assert reader.results(listed) == [[]]


def test_who_lost_the_right_to_read_the_feed_is_refused(client: Client, reader: Client) -> None:
    """Rights are given and denied on the feed's own procedure; being a reader of some feed is not enough."""
    right = f"execute on [changefeed].[read_feed:{OURS}]"
    role = f"[changefeed.readers:{OURS}]"
    client.results(f"revoke {right} from {role}" if client.is_babelfish else f"deny {right} to {role}")
    try:
        reader.fails(77106, f"exec changefeed.list_cursors @feed = N'{OURS}'", OURS)
    finally:
        client.results(f"grant {right} to {role}")
