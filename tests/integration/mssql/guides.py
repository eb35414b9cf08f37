# SPDX-License-Identifier: Apache-2.0
"""The tables of mssql-changefeed's guides, and the statements that their examples share."""

from __future__ import annotations

from airflow_changefeed.core.ulid import Ulid
from tests.integration.mssql.server import Client, Rows

CREATE_READ = (
    "create table #read (ulid binary(16) not null, AggregateID bigint not null, Version int not null); "
)
#: The readme's boilerplate for server-side transactions.
SAFELY = (
    "set xact_abort on begin try begin transaction {} commit end try "
    "begin catch if @@trancount > 0 rollback; ;throw; end catch"
)


def set_up(client: Client) -> None:
    """Make the tables and feeds of the guides, by the statements of the guides."""
    client.results(
        "create table myservice.MyEvent (AggregateID bigint not null, Version int not null, "
        "ChosenShoeSize tinyint not null, primary key (AggregateID, Version))"
    )
    client.results("exec changefeed.setup_feed @table = 'myservice.MyEvent', @outbox = 1")
    client.results("create role service1; create role service2")
    client.results("alter role [changefeed.writers:myservice.MyEvent] add member service1")
    client.results("alter role [changefeed.readers:myservice.MyEvent] add member service2")
    # The guide of the other mode gives its table the same name.
    client.results(
        "create table myservice.ShoeEvent (Shard smallint not null, ULID binary(16) not null, "
        "UserID bigint not null, ChosenShoeSize tinyint not null, "
        "constraint pk_MyEvent primary key (Shard, ULID)) with (data_compression = page)"
    )
    client.results("exec [changefeed].setup_feed @table_name = 'myservice.ShoeEvent', @blocking = 1")
    client.results("alter role [changefeed.writers:myservice.ShoeEvent] add member service1")


def clean(client: Client) -> None:
    """Empty the tables and forget their order."""
    client.results("truncate table myservice.MyEvent; truncate table myservice.ShoeEvent")
    for feed in ("MyEvent", "ShoeEvent"):
        client.results(f"delete from [changefeed].[state:myservice.{feed}]")
    client.results("delete from [changefeed].[outbox:myservice.MyEvent]")
    client.results("delete from [changefeed].[feed:myservice.MyEvent]")


def time(ulid: bytes) -> str:
    """Return hour and minute of a ULID."""
    return f"{Ulid.of_bytes(ulid).time:%H:%M}"


def write(client: Client, shard: int, hint: str, aggregate: int, version: int) -> None:
    """Write an event as OUTBOX.md does."""
    client.results(
        f"insert into myservice.MyEvent (AggregateID, Version, ChosenShoeSize) "
        f"values ({aggregate}, {version}, 38); "
        "insert into [changefeed].[outbox:myservice.MyEvent] (shard_id, time_hint, AggregateID, Version) "
        f"values ({shard}, '{hint}', {aggregate}, {version});"
    )


def read(client: Client, cursor: bytes = b"\0", page_size: int = 100, shard: int = 0) -> Rows:
    """Read a page as OUTBOX.md does: ulid, AggregateID, Version, ChosenShoeSize."""
    # Dropped, as this connection goes on to the next page.
    return client.rows(
        "drop table if exists #read; " + CREATE_READ + f"declare @cursor binary(16) = 0x{cursor.hex()}; "
        f"exec changefeed.[read_feed:myservice.MyEvent] @shard_id = {shard}, @cursor = @cursor, "
        f"@pagesize = {page_size}; "
        "select r.ulid, e.AggregateID, e.Version, e.ChosenShoeSize "
        "from #read as r join myservice.MyEvent as e "
        "on r.AggregateID = e.AggregateID and r.Version = e.Version order by ulid"
    )
