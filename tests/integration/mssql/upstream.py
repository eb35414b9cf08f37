# SPDX-License-Identifier: Apache-2.0
"""A database of mssql-changefeed v2."""

from __future__ import annotations

import mssql_python

from tests.integration.mssql.server import Client, filled

#: In the outbox mode, and in the blocking mode as in upstream's tests; and one that is not written to.
OUTBOX, BLOCKING, DOTTED = "myservice.MyEvent", "myservice.TestSerializeWriters", "myservice.Dotted"
#: Where a server refuses a sequence with a dot in its name, writers draw from one without.
_PROBE = "create sequence [changefeed].[probe:a.b] as bigint; select next value for [changefeed].[probe:a.b]"


def make_v2(client: Client, cache: int) -> None:
    """Make what an upstream v2 database has: two feeds in use, with members in their roles."""
    client.script(filled("upstream_v2_setup.sql"))
    for table in (OUTBOX, DOTTED):
        client.results(
            f"create table {table} (AggregateID bigint not null, Version int not null, "
            "ChosenShoeSize tinyint, "
            "primary key (AggregateID, Version))"
        )
    client.results(f"create table {BLOCKING} (EventID binary(16) primary key, Data varchar(max) not null)")
    has_dots = True
    try:
        client.results(_PROBE)
    except mssql_python.Error:
        has_dots = False
    for table in (OUTBOX, BLOCKING):
        object_id = str(client.value(f"select object_id('{table}')"))
        sequence = f"sequence:{table}" if has_dots else "sequence_of_v2"
        tokens = {"name": table, "object_id": object_id, "sequence": sequence, "cache": f"cache {cache}"}
        client.script(filled("upstream_v2.sql", **tokens))
        client.script(filled(f"upstream_v2_{'outbox' if table == OUTBOX else 'blocking'}.sql", **tokens))
        for role in ("readers", "writers"):
            if table == OUTBOX or role == "writers":
                client.results(f"create role [{role} of {table}]")
                client.results(f"alter role [changefeed.{role}:{table}] add member [{role} of {table}]")


def make_blocking(client: Client, table: str) -> None:
    """Make what a feed of v2 in blocking mode has, over a table that is there, with a clock below zero."""
    object_id = str(client.value(f"select object_id(N'{table}')"))
    tokens = {"name": table, "object_id": object_id}
    client.script(filled("upstream_v2.sql", **tokens))
    client.script(filled("upstream_v2_blocking.sql", **tokens))
    make_negative(client, table)


def make_negative(client: Client, table: str) -> None:
    """Let a feed's shard 0 have the clock of an hour ago and a negative ``ulid_low``, as half of v2's are."""
    client.results(
        "declare @time datetime2(3) = dateadd(hour, -1, sysutcdatetime()); "
        f"insert into [changefeed].[state:{table}] (shard_id, time, ulid_high, ulid_low) values (0, @time, "
        "convert(binary(8), convert(binary(6), datediff_big(millisecond, '1970-01-01', @time)) + 0xfffe), "
        "-9000000000000000000)"
    )


def make_dotted(client: Client) -> None:
    """Make what tells a feed of v2 with its own sequence; some servers cannot draw from such a one."""
    tokens = {"name": DOTTED, "object_id": str(client.value(f"select object_id('{DOTTED}')"))}
    client.script(filled("upstream_v2.sql", **tokens))
    client.results(f"create sequence [changefeed].[sequence:{DOTTED}] as bigint start with 1 increment by 1")
    client.results(
        f"create table [changefeed].[outbox:{DOTTED}] (shard_id int not null, "
        "order_sequence bigint not null, "
        "time_hint datetime2(3) not null, AggregateID bigint not null, Version int not null, "
        f"constraint [pk:outbox:{DOTTED}] primary key (shard_id, order_sequence))"
    )
