# SPDX-License-Identifier: Apache-2.0
"""EYES1: what review of the commands on quiet captures has found; it fails until it is mended."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.commands import Commands


def test_eyes1_a_seal_does_not_count_a_shard_without_events_as_one_with_events(
    commands: Commands, database: str
) -> None:
    """The shard of a capture is there from the start, and nobody has changed the table yet."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('create table "nyc.Plane" (tail text primary key not null, seats integer)')
    SqliteFeedSource(database).enable_capture(CaptureSpec((TableCapture("nyc.Plane"),)))
    (row,) = commands.rows("seal", "--feed", "nyc.Plane_changes")
    assert row["head"] is None
    assert "shards with events: 1" not in commands.err
