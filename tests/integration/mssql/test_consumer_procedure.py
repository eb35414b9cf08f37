# SPDX-License-Identifier: Apache-2.0
"""A T-SQL procedure as the handler of a consumer: what it gets, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.exceptions import PoisonError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.mssql.server import Client, Database

PLAIN, CAPTURE, NAME = "myservice.MyEvent", "myservice.Orders_changes", "audit"
_TABLES = """
create table myservice.MyEvent (EventID int not null primary key, Payload nvarchar(100));
create table myservice.Orders (ID int not null primary key, Amount decimal(38, 4), Note nvarchar(100));
create table myservice.Audit (
    n int identity primary key, said nvarchar(100), new nvarchar(max),
    tid bigint, sequence bigint, epoch bigint
)
"""
_CAPTURED = """
create procedure myservice.[on change]
    @feed nvarchar(257), @shard nvarchar(36), @id char(26), @name nvarchar(257), @type nvarchar(10),
    @old nvarchar(max), @new nvarchar(max), @tid bigint, @sequence bigint, @epoch bigint
as
begin
    insert into myservice.Audit (said, new, tid, sequence, epoch)
    values (@type + N' ' + @name + N' ' + @shard, coalesce(@new, @old), @tid, @sequence, @epoch)
    if @new like N'%bad%' return 1
    select N'a result of its own' as said
    return 0
end
"""
_PLAIN = """
create procedure myservice.on_event
    @feed nvarchar(257), @shard nvarchar(36), @id char(26), @event nvarchar(max)
as
begin
    insert into myservice.Audit (said, new) values (@feed + N' ' + @shard, @event)
    return 0
end
"""


@pytest.fixture(scope="module")
def source(database: Database) -> Iterator[MssqlFeedSource]:
    """Set up a feed and a capture, each with a procedure and a consumer."""
    with database.client() as client:
        for batch in (_TABLES, _CAPTURED, _PLAIN, f"exec changefeed.setup_feed N'{PLAIN}', @outbox = 1"):
            client.results(batch)
    with database.source() as source:
        spec = CaptureSpec((TableCapture("myservice.Orders"),), with_sequence=True, guard_schema=False)
        source.enable_capture(spec)
        for feed in (PLAIN, CAPTURE):
            create_consumer(source, ConsumerSpec(NAME, feed, max_attempts=1), by="test")
        yield source


def test_a_procedure_runs_in_the_transaction_that_consumes(source: MssqlFeedSource, client: Client) -> None:
    """With the event as JSON, exactly; what returns something else than 0 has written nothing."""
    amount = "12345678901234567890123456789012.3400"
    client.results(f"insert into myservice.Orders values (1, {amount}, N'good \"ü\"'), (2, null, N'bad')")
    handler = "procedure:[myservice].[on change]"
    with pytest.raises(PoisonError, match="returned 1"):
        run_consumer(source, NAME, CAPTURE, handler, at_head=True)
    ((said, new, tid, sequence, epoch),) = client.rows(
        "select said, new, tid, sequence, epoch from myservice.Audit order by n"
    )
    assert (said, sequence) == ("add myservice.Orders 0", 1)
    assert amount in new
    assert json.loads(new)["Note"] == 'good "ü"'
    assert None not in (tid, epoch)
    client.results("delete from myservice.Audit")


def test_a_procedure_gets_the_row_of_a_plain_feed(source: MssqlFeedSource, client: Client) -> None:
    """As JSON."""
    client.results("insert into myservice.MyEvent values (7, N'x')")
    client.results(f"insert into [changefeed].[outbox:{PLAIN}] (EventID) values (7)")
    done = run_consumer(source, NAME, PLAIN, "procedure:myservice.on_event", at_head=True)
    assert done.events == 1
    ((said, event),) = client.rows("select said, new from myservice.Audit order by n")
    assert (said, json.loads(event)) == (f"{PLAIN} 0", {"EventID": 7, "Payload": "x"})
    client.results("delete from myservice.Audit")
