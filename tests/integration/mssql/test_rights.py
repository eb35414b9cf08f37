# SPDX-License-Identifier: Apache-2.0
"""
Least privilege: what the members of each role may do, asked of the server by logins that are nothing else.

What a role reaches through a procedure is the procedure's, by ownership chaining; so it is the rights
themselves that are compared here, and beside them what needs no chain.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import mssql_python
import pytest

from airflow_changefeed.exceptions import PermissionDeniedError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.errors import thrown
from tests.integration.mssql.server import Client, Database

OUTBOX, SERIALIZED = "myservice.Outbox", "myservice.Serialized"
GUARDED = "myservice.Guarded"
UNTIL = datetime(2020, 1, 1, tzinfo=timezone.utc)
READ = {
    ("EXECUTE", name)
    for name in (
        "read_feed", "poll_feed", "shards", "inspect_outbox", "shard_bounds", "count_feed", "split_feed",
        "begin_consumer", "move_cursor", "create_consumer", "begin_shards", "consume_events", "overview",
    )
} | {("SELECT", "feed")}  # fmt: skip
OPERATE = READ | {("EXECUTE", name) for name in ("drain_feed", "seal_feed", "purge_feed", "insert_history")}
#: Procedures common to all feeds, which check the right of their caller on the feed themselves.
COMMON = {
    "list_cursors", "list_cursor_history", "list_consumers", "list_invocations", "list_dead_letters",
    "list_stale_marks", "next_attempt", "change_consumer", "drop_consumer", "log_attempt",
    "purge_invocations", "resolve_dead_letter", "park_again", "acquire_leases", "release_leases",
    "revoke_lease", "list_leases", "list_snapshots", "list_snapshot_marks", "begin_snapshot",
    "mark_snapshot", "end_snapshot", "maintain_feeds", "record_check",
}  # fmt: skip
#: The list of feeds, and views that show what their caller may read.
SEEN = {"feeds", *(f"readable_capture{what}" for what in ("s", "_tables", "_columns", "_gaps"))}
RIGHTS = {
    (OUTBOX, "readers"): READ,
    (OUTBOX, "writers"): {("INSERT", "outbox")},
    (OUTBOX, "operators"): OPERATE,
    (OUTBOX, "role"): READ | {("INSERT", "outbox")},
    (OUTBOX, "nobody"): set(),
    (SERIALIZED, "readers"): READ,
    (SERIALIZED, "writers"): {("EXECUTE", "lock"), ("EXECUTE", "lock_feed")},
    (SERIALIZED, "operators"): OPERATE,
    (SERIALIZED, "role"): READ | {("EXECUTE", "lock"), ("EXECUTE", "lock_feed")},
    (SERIALIZED, "nobody"): set(),
}
#: What is asked of each type of object.
_ASKED = {"P": ["EXECUTE"], "U": ["SELECT", "INSERT", "UPDATE", "DELETE"], "V": ["SELECT"]}


def _user(table: str, role: str) -> str:
    return f"{role}_{table[10:].lower()}_{os.getpid()}"


@pytest.fixture(scope="module")
def feeds(database: Database) -> Iterator[dict[str, Database]]:
    """Set up a feed of each kind and a login for each role; give the database as each of them sees it."""
    password = f"Aa1!{secrets.token_hex(12)}"
    seen = {}
    with database.client() as client:
        client.results(f"create table {OUTBOX} (EventID int not null primary key)")
        client.results(f"create table {SERIALIZED} (EventID binary(16) not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{OUTBOX}', @outbox = 1")
        client.results(f"exec changefeed.setup_feed N'{SERIALIZED}', @blocking = 1")
        try:
            for table, role in RIGHTS:
                user = _user(table, role)
                client.results(f"create login {user} with password = '{password}'")
                seen[user] = Database(database.description | {"user": user, "password": password}, 1)
                client.results(f"create user {user} for login {user}")
                if role != "nobody":
                    name = f"role:{table}" if role == "role" else f"changefeed.{role}:{table}"
                    client.results(f"alter role [{name}] add member {user}")
            yield seen
        finally:
            for user in seen:
                client.results(f"drop user {user}")
                client.results(f"drop login {user}")


@contextmanager
def _as(feeds: dict[str, Database], table: str, role: str) -> Iterator[Client]:
    with feeds[_user(table, role)].client() as client:
        yield client


@pytest.mark.parametrize(("table", "role"), RIGHTS, ids=lambda value: value.rpartition(".")[2])
def test_rights_of_each_role(database: Database, feeds: dict[str, Database], table: str, role: str) -> None:
    """A member has the rights that its role needs, and no other on any object of the feed."""
    with database.client() as client:
        objects = client.rows(
            "select name, rtrim(type) from sys.objects "
            f"where schema_id = schema_id('changefeed') and lower(name) like lower(N'%:{table}')"
        )
    # Constraints have names of their own.
    asked = [(right, name.partition(":")[0]) for name, kind in objects for right in _ASKED.get(kind, [])]
    assert len(asked) > 30
    with _as(feeds, table, role) as client:
        answers = ", ".join(
            f"has_perms_by_name(N'[changefeed].[{name}:{table}]', 'OBJECT', '{right}')"
            for right, name in asked
        )
        found = dict(zip(asked, client.rows(f"select {answers}")[0], strict=True))
    assert {right for right, may in found.items() if may} == RIGHTS[table, role]


@pytest.mark.parametrize(("table", "role"), RIGHTS, ids=lambda value: value.rpartition(".")[2])
def test_rights_on_what_is_common_to_all_feeds(
    database: Database, feeds: dict[str, Database], table: str, role: str
) -> None:
    """Members of any feed's role may call the common procedures, and touch no table by themselves."""
    with database.client() as client:
        objects = client.rows(
            "select name, rtrim(type) from sys.objects "
            # The last one is of tests/integration/babelfish.py.
            "where schema_id = schema_id('changefeed') and name not like N'%:%' "
            "and name <> 'declared_columns'"
        )
    asked = [(right, name) for name, kind in objects for right in _ASKED.get(kind, [])]
    with _as(feeds, table, role) as client:
        answers = ", ".join(
            f"has_perms_by_name(N'[changefeed].[{name}]', 'OBJECT', '{right}')" for right, name in asked
        )
        found = dict(zip(asked, client.rows(f"select {answers}")[0], strict=True))
    may = {right for right, is_given in found.items() if is_given}
    everybody = {("EXECUTE", "note_schemas"), ("SELECT", "database_identity"), ("SELECT", "table_columns")}
    of_users = {("EXECUTE", name) for name in COMMON} | {("SELECT", name) for name in SEEN}
    assert may == everybody | (set() if role == "nobody" else of_users)


@pytest.mark.parametrize("role", ["readers", "operators", "role"])
def test_who_reads_may_select_the_feed(feeds: dict[str, Database], role: str) -> None:
    """The feed and the list of feeds are read directly, too."""
    with _as(feeds, OUTBOX, role) as client:
        assert client.rows(f"select ulid, EventID from [changefeed].[feed:{OUTBOX}]") == []
        assert (OUTBOX,) in client.rows("select name from [changefeed].[feeds]")


FORBIDDEN = {
    "writer reads": (OUTBOX, "writers", f"select * from [changefeed].[feed:{OUTBOX}]"),
    "writer looks into the outbox": (OUTBOX, "writers", f"select * from [changefeed].[outbox:{OUTBOX}]"),
    "writer seals": (OUTBOX, "writers", f"exec [changefeed].[seal_feed:{OUTBOX}] '2020-01-01'"),
    "writer moves a cursor": (
        OUTBOX,
        "writers",
        f"exec [changefeed].[begin_consumer:{OUTBOX}] N'export', 0, 0x, N'x'",
    ),
    "reader writes": (OUTBOX, "readers", f"insert into [changefeed].[outbox:{OUTBOX}] (EventID) values (1)"),
    "reader seals": (OUTBOX, "readers", f"exec [changefeed].[seal_feed:{OUTBOX}] '2020-01-01'"),
    "reader purges": (OUTBOX, "readers", f"exec [changefeed].[purge_feed:{OUTBOX}] @before = '2020-01-01'"),
    "reader changes the feed": (OUTBOX, "readers", f"delete from [changefeed].[feed:{OUTBOX}]"),
    "reader changes cursors": (OUTBOX, "readers", "delete from [changefeed].[consumers]"),
    "reader locks": (SERIALIZED, "readers", f"begin transaction; exec [changefeed].[lock:{SERIALIZED}]"),
    "operator writes": (
        OUTBOX,
        "operators",
        f"insert into [changefeed].[outbox:{OUTBOX}] (EventID) values (1)",
    ),
    "writer changes the clock": (
        SERIALIZED,
        "writers",
        f"update [changefeed].[state:{SERIALIZED}] set ulid_low = 0",
    ),
    "operator changes the clock": (
        OUTBOX,
        "operators",
        f"update [changefeed].[state:{OUTBOX}] set ulid_low = 0",
    ),
    "operator sets up": (OUTBOX, "operators", f"exec [changefeed].[setup_feed] N'{OUTBOX}', @outbox = 1"),
    "nobody reads": (OUTBOX, "nobody", f"select * from [changefeed].[feed:{OUTBOX}]"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_the_others_are_refused(feeds: dict[str, Database], case: str) -> None:
    """Nobody can do what another role is for."""
    table, role, sql = FORBIDDEN[case]
    with _as(feeds, table, role) as client:
        client.refuses(sql, "(?i)permission")


ZERO = "0x" + "00" * 16
#: What changes a consumer: called by somebody who did not begin it.
CHANGES = {
    "begin_consumer": f"N'export', 1, {ZERO}, N'stranger'",
    "begin_shards": "N'mailer', N'[0]', 1000",
    "acquire_leases": f"N'{OUTBOX}', N'mailer', N'[0]', N'stranger', 60",
    "acquire_leases of an export": f"N'{OUTBOX}', N'export', N'[0]', N'stranger', 60, @all_or_none = 1",
    "release_leases": f"N'{OUTBOX}', N'export', N'{{\"0\": 1}}', N'stranger'",
    "revoke_lease": f"N'{OUTBOX}', N'export', N'0', 1",
    "move_cursor": (
        f"N'export', 0, {ZERO}, {ZERO}, @expected_version = 1, @fencing_token = 1, @by = N'x', @is_rewind = 1"
    ),
    "create_consumer": "N'mailer'",
    "change_consumer": f"N'{OUTBOX}', N'mailer', N'{{\"max_attempts\": 1}}'",
    "drop_consumer": f"N'{OUTBOX}', N'mailer'",
}


@pytest.fixture(scope="module")
def owned(database: Database, feeds: dict[str, Database]) -> Iterator[None]:
    """Begin consumers of an export and of events, by a reader."""
    with database.client() as client:
        # Who owns a consumer is asked whatever rights there are. Those are tested above, and not every server
        # lets procedures use what their caller may not.
        things = client.rows(
            "select name, rtrim(type) from sys.objects where schema_id = schema_id('changefeed')"
        )
        rights = [
            (right, name) for name, kind in things for right in {**_ASKED, "FN": ["EXECUTE"]}.get(kind, [])
        ]
        for right, name in rights:
            client.results(f"grant {right} on [changefeed].[{name}] to public")
        with _as(feeds, OUTBOX, "readers") as reader:
            reader.results(f"exec [changefeed].[begin_consumer:{OUTBOX}] N'export', 0, {ZERO}, N'owner'")
            reader.results(f"exec [changefeed].[create_consumer:{OUTBOX}] N'mailer'")
        yield
        for right, name in rights:
            client.results(f"revoke {right} on [changefeed].[{name}] from public")


@pytest.mark.parametrize("case", CHANGES)
def test_a_consumer_is_changed_by_who_began_it_and_by_operators_alone(
    feeds: dict[str, Database], owned: None, case: str
) -> None:
    """A stranger with the right to read is refused, told whose it is, and changes nothing; others are not."""
    procedure = case.partition(" ")[0]
    name = procedure if procedure in COMMON else f"{procedure}:{OUTBOX}"
    call = f"exec [changefeed].[{name}] {CHANGES[case]}"
    with _as(feeds, OUTBOX, "role") as stranger:
        before = stranger.rows(f"exec [changefeed].[list_cursors] N'{OUTBOX}'")
        stranger.fails(77135, call, _user(OUTBOX, "readers"))
        assert stranger.rows(f"exec [changefeed].[list_cursors] N'{OUTBOX}'") == before
    with _as(feeds, OUTBOX, "operators") as operator:
        # It may say something else, as of a lease that nobody holds.
        assert _number(operator, call) != 77135


def _number(client: Client, call: str) -> int | None:
    try:
        client.results(call)
    except mssql_python.Error as problem:
        found = thrown(problem)
        return found[0] if found else None
    return None


@pytest.fixture(scope="module")
def stranger(database: Database) -> Iterator[MssqlFeedSource]:
    """Set up a feed, and a login that may see the database and the event table's key, and nothing else."""
    with database.client() as client:
        client.results(f"create table {GUARDED} (EventID int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{GUARDED}', @outbox = 1")
    with database.login(f"grant select on {GUARDED} to {{user}}") as seen, seen.source() as source:
        yield source


def test_a_missing_permission_names_the_object_and_the_role(
    stranger: MssqlFeedSource, client: Client
) -> None:
    """Of the first object that is in the way."""
    user = stranger.database.server.user
    with pytest.raises(PermissionDeniedError, match=r"feeds.*changefeed\.readers:"):
        stranger.seal(GUARDED, UNTIL)
    client.results(f"alter role [changefeed.readers:{GUARDED}] add member {user}")
    with pytest.raises(
        PermissionDeniedError, match=r"(?i)seal_feed.*alter role \[changefeed\.operators:myservice\.guarded\]"
    ):
        stranger.seal(GUARDED, UNTIL)
