# SPDX-License-Identifier: Apache-2.0
"""The embedded source runs no code when a table is altered: it has one policy for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.core.capture import CaptureSpec, OnDdl, TableCapture
from airflow_changefeed.core.feed import FeedStorage
from airflow_changefeed.exceptions import CaptureNotFoundError, FeedSetupError
from tests.integration.contract.captures import AUTHOR, CaptureBench, set_up_author
from tests.integration.contract.engines import Engine, open_engine


@pytest.mark.parametrize("on_ddl", [OnDdl.EVOLVE, OnDdl.REFUSE])
def test_the_embedded_source_promises_nothing_that_it_cannot_keep(tmp_path: Path, on_ddl: OnDdl) -> None:
    """Nothing there runs when a table is altered: both are refused, when enabling and when refreshing."""
    with open_engine("sqlite", tmp_path) as engine:
        _refuses(engine, on_ddl)


def _refuses(engine: Engine, on_ddl: OnDdl) -> None:
    with pytest.raises(FeedSetupError, match=r"triggers on DDL.*Use 'pause'"):
        set_up_author(engine, on_ddl=on_ddl)
    with pytest.raises(CaptureNotFoundError):
        engine.source().capture("shop.author_changes")
    bench = CaptureBench(engine, engine.source())
    bench.enable(AUTHOR.name)
    with pytest.raises(FeedSetupError, match="triggers on DDL"):
        bench.source.refresh_capture(bench.name, on_ddl=on_ddl)
    assert bench.source.refresh_capture(bench.name, on_ddl=OnDdl.PAUSE).spec.on_ddl is OnDdl.PAUSE


def test_options_of_sql_server_alone_are_refused(tmp_path: Path) -> None:
    """An option without effect would be taken for one that works."""
    with open_engine("sqlite", tmp_path) as engine:
        with pytest.raises(FeedSetupError, match="not_for_replication is an option of SQL Server's triggers"):
            set_up_author(engine, not_for_replication=True)
        bench = CaptureBench(engine, engine.source())
        with pytest.raises(
            FeedSetupError, match=r"capture 'shop\.author_changes': filegroup and compression"
        ):
            bench.source.enable_capture(
                CaptureSpec((TableCapture(AUTHOR.name),)), storage=FeedStorage(compression="none")
            )
        with pytest.raises(FeedSetupError, match=r"feed 'shop\.author': filegroup and compression"):
            bench.source.set_up_feed(AUTHOR.name, storage=FeedStorage("FEEDS"))
        with pytest.raises(CaptureNotFoundError):
            bench.source.capture("shop.author_changes")
