# SPDX-License-Identifier: Apache-2.0
"""
Captures that leave out what replication changes.

No replication agent runs here: what is seen is that the triggers have the option, and what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_changefeed.exceptions import FeedSetupError, FoldError
from airflow_changefeed.lake.inputs import foldable_table
from tests.integration.contract.captures import AUTHOR, CaptureBench, set_up_author
from tests.integration.contract.engines import Engine, open_engine

TRIGGERS = (
    "select count(*) from sys.triggers as t inner join sys.sql_modules as m on m.object_id = t.object_id "
    "where t.name like 'capture[_]%' and m.definition like '% not for replication%as%begin%'"
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Give the server with an empty database."""
    with open_engine("mssql", tmp_path) as engine:
        yield engine


def _triggers(bench: CaptureBench) -> int:
    ((count,),) = bench.engine.rows(TRIGGERS)
    return int(count)


def test_the_triggers_have_the_option_as_long_as_the_capture(engine: Engine) -> None:
    """After a refresh, an upgrade, and when the capture was disabled; other writers' changes are recorded."""
    bench = set_up_author(engine, not_for_replication=True)
    assert _triggers(bench) == 3
    bench.run("insert into \"shop.author\" (id, name) values (1, 'one')")
    bench.run("update [changefeed].[captures] set version = 'old'")
    bench.run("exec [changefeed].[upgrade_captures]")
    assert _triggers(bench) == 3
    assert bench.source.refresh_capture(bench.name).spec.not_for_replication
    bench.source.disable_capture(bench.name)
    assert _triggers(bench) == 0
    info = bench.enable(AUTHOR.name, not_for_replication=True)
    assert _triggers(bench) == 3
    assert info.spec.not_for_replication
    assert [change.type for change in bench.events()] == ["add"]


def test_a_capture_keeps_the_choice(engine: Engine) -> None:
    """It says of which events the readers' history consists."""
    bench = set_up_author(engine)
    assert _triggers(bench) == 0
    with pytest.raises(FeedSetupError, match="already exists, with other settings"):
        bench.enable(AUTHOR.name, not_for_replication=True)
    assert not bench.source.capture(bench.name).spec.not_for_replication


def test_its_events_are_not_all_changes(engine: Engine) -> None:
    """Its rows are not counted against them, and it is not folded, although the table was empty at first."""
    bench = set_up_author(engine, not_for_replication=True)
    info = bench.source.capture(bench.name)
    assert not info.shape.tables[AUTHOR.name].is_whole
    with pytest.raises(FoldError, match="does not capture changes by replication"):
        foldable_table(info.shape, None)
    assert engine.rows("select base_rows from [changefeed].[capture_tables]") == [(None,)]
    bench.run("insert into \"shop.author\" (id, name) values (1, 'one')")
    assert bench.source.check_capture(bench.name) == []
