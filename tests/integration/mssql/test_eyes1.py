# SPDX-License-Identifier: Apache-2.0
"""EYES1: what review of the shards of captures has found; it fails until it is mended."""

from __future__ import annotations

import pytest

from tests.integration.mssql.server import Database

QUIETLY = "@guard_schema = 0"


def test_eyes1_the_remedy_of_a_held_shard_is_one_that_enable_capture_has(database: Database) -> None:
    """It has no @lock_timeout; and a drain that takes longer than two seconds is nothing to give up for."""
    with database.client() as client, database.client() as other:
        for name in ("T1", "T2"):
            client.results(f"create table myservice.{name} (id int not null primary key, v int null)")
        call = f"exec changefeed.enable_capture @capture = N'myservice.C1', {QUIETLY}"
        client.results(f"{call}, @table = N'myservice.T1', @shard = N'id % 2'")
        other.results(
            "begin transaction; declare @result int; exec changefeed.[feed_write_lock:myservice.C1] "
            "@shard_id = 7, @lock_timeout = 0, @lock_result = @result output; select @result"
        )
        try:
            with pytest.raises(Exception, match="shard 7: no lock within") as caught:
                client.results(f"{call}, @table = N'myservice.T2', @shard = N'7'")
        finally:
            other.results("rollback")
        assert "@lock_timeout" not in str(caught.value)
