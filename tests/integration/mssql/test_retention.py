# SPDX-License-Identifier: Apache-2.0
"""What a purge in T-SQL may be told: until when consumers hold events back."""

from __future__ import annotations

from tests.integration.mssql.server import Client

FEED = "myservice.Retained"
PURGE = f"exec changefeed.[purge_feed:{FEED}] @before = '2020-12-01'"


def test_a_consumer_holds_nothing_back_that_is_older_than_it_may(client: Client) -> None:
    """Every reader may make one; none can stop purges for ever, and who still needed an event is told."""
    client.results(f"create table {FEED} (id int not null primary key)")
    client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
    for number, hint in enumerate(("2020-01-01", "2020-06-01", "2020-09-01")):
        client.results(
            f"insert into [changefeed].[outbox:{FEED}] (time_hint, id) values ('{hint}', {number}); "
            f"exec changefeed.[drain_feed:{FEED}]"
        )
    client.results(f"exec changefeed.[seal_feed:{FEED}] @until = '2021-01-01'")
    client.results(f"exec changefeed.[begin_consumer:{FEED}] N'idle', 0, 0x00, N'a reader'")

    def purge(until: str | None = None) -> int:
        limit = "" if until is None else f", @consumers_until = '{until}'"
        would = client.rows(f"{PURGE}, @dry_run = 1{limit}")[0][1]
        rows = client.rows(PURGE + limit)[0][1]
        assert would == rows
        return int(rows)

    assert purge() == 0
    assert purge("2020-03-01") == 1
    assert purge("2020-03-01") == 0
    assert purge() == 0
    client.fails(
        77104,
        "create table #read (ulid binary(16) not null, id int not null); "
        f"exec changefeed.[read_feed:{FEED}] @shard_id = 0, @cursor = 0x00",
    )
    # Never beyond what was asked for.
    assert purge("2030-01-01") == 2
    client.results(f"exec changefeed.drop_consumer N'{FEED}', N'idle'")
    assert purge() == 0
