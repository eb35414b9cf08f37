# SPDX-License-Identifier: Apache-2.0
"""Runs without a window export batches, which are repeated by putting the cursor back."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.hooks.changefeed import AirflowVariables, ChangefeedHook
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START, insert
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, exported, operator, path, places

__all__ = ["path"]  # a fixture
pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]


def test_batches_are_exported_again_when_the_cursor_is_put_back(database: str, path: str) -> None:
    """Each as it was cut, also with history that was inserted since; then what is new."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    task.execute(context())
    insert(database, range(36, 42), START)
    task.execute(context())
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('insert into "nyc.Flight" values (42, ?)', ("JFK",))
        connection.commit()
    source = SqliteFeedSource(database)
    source.insert_history(FEED, 0, [(START + HOUR, (42,))], reason="late")
    insert(database, range(43, 45), START)
    document = json.loads(AirflowVariables().get(KEY) or "")
    for shard in document["shards"].values():
        shard["ulid"] = str(Ulid.MIN)
    AirflowVariables().set(KEY, json.dumps(document))
    ChangefeedHook().adopt(CONSUMER, FEED)
    result = task.execute(context())
    assert (result["units"], result["rows"]) == (6, 45)
    assert exported(path) == list(range(45))
    assert verify_export(path, FEED, source=source).faults == []


def test_a_batch_into_an_output_of_windows_is_refused(database: str, path: str) -> None:
    """By its claim, which has the task's unit; nothing is written or moved, and no retry would help."""
    operator(path, local_below=1000).execute(context(START, START + HOUR))
    assert ExportStore(path, FEED).claimed().unit == HOUR
    before = (exported(path), places(database))
    with pytest.raises(AirflowFailException, match="by windows, and batches were requested"):
        operator(path, unit=None, mode="batch", local_below=1000).execute(context())
    assert (exported(path), places(database)) == before
