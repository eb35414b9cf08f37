# SPDX-License-Identifier: Apache-2.0
"""A shop whose changes people have to look after: a gap in its capture, and mails that could not be sent."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from airflow_changefeed.consumers.begin import create_consumer
from airflow_changefeed.consumers.handlers.attempt import Backoff
from airflow_changefeed.consumers.handlers.run import run_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.sources.sqlite import SqliteFeedSource

CAPTURE, MAILER = "shop.Order_changes", "mailer"


def make_shop(path: Path) -> None:
    """Make its database: a capture that a change has passed unseen, and a consumer with two dead letters."""
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        closing(SqliteFeedSource(str(path))) as source,
    ):
        connection.execute('create table "shop.Order" (id integer primary key, status text)')
        source.enable_capture(CaptureSpec((TableCapture("shop.Order"),), name=CAPTURE))
        for number in range(5):
            connection.execute("insert into \"shop.Order\" values (?, 'paid')", (number,))
        source.drain(CAPTURE)
        spec = ConsumerSpec(MAILER, CAPTURE, max_attempts=1, on_poison=OnPoison.PARK)
        create_consumer(source, spec, Beginning.EARLIEST, by="ann")
        run_consumer(source, MAILER, CAPTURE, _refuse, max_events=2, backoff=Backoff(first=0, longest=0))
        triggers = connection.execute("select name from sqlite_master where type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f'drop trigger "{name}"')
        connection.execute("insert into \"shop.Order\" values (99, 'lost')")
        with suppress(CaptureGapError):
            source.seal(CAPTURE, source.now())


def _refuse(event: object, connection: object) -> None:
    raise ValueError("the mail server knows no such address")
