# SPDX-License-Identifier: Apache-2.0
"""The embedded source runs no code when a table is altered: it has one policy for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.core.capture import OnDdl
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
