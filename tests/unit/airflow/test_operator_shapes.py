# SPDX-License-Identifier: Apache-2.0
"""The operator's argument ``shape``: for a capture's events only, and in every unit of the run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.exports import verify
from tests.unit.airflow.conftest import START
from tests.unit.airflow.fakes import InProcessOperator, context
from tests.unit.airflow.test_operator import HOUR

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
NAME, READER = "orders_changes", "shapes"


@pytest.mark.parametrize("local_below", [0, 100])
def test_a_capture_is_exported_in_its_shape(database: str, tmp_path: Path, local_below: int) -> None:
    """Here and by the job; a window without events has the shape's columns, too."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("create table orders (id integer primary key, note text)")
        with closing(SqliteFeedSource(database)) as source:
            source.enable_capture(CaptureSpec((TableCapture("orders"),), name=NAME))
        connection.execute("insert into orders values (1, 'a'), (2, null)")
        connection.execute("update orders set note = 'b' where id = 1")
    store = ExportStore(str(tmp_path / "out"), NAME)
    export = InProcessOperator(
        task_id="export",
        feed=NAME,
        path=store.path,
        consumer=READER,
        mode="batch",
        shape="debezium",
        local_below=local_below,
    )
    assert export.execute(context())["rows"] == 3
    assert verify(store) == []
    found = export_dataset(store.path, NAME).to_table().sort_by("changefeed_ulid").to_pylist()
    assert [each["key"] for each in found] == ['{"id":1}', '{"id":2}', '{"id":1}']
    values = [json.loads(each["value"]) for each in found]
    assert [(each["op"], each["before"], each["after"]) for each in values] == [
        ("c", None, {"id": 1, "note": "a"}),
        ("c", None, {"id": 2, "note": None}),
        ("u", {"id": 1, "note": "a"}, {"id": 1, "note": "b"}),
    ]
    idle = ExportStore(str(tmp_path / "idle"), NAME)
    export.path = idle.path
    assert export.execute(context(START, START + HOUR))["rows"] == 0
    assert {tuple(manifest.columns) for each in (store, idle) for manifest in each.list()} == {
        ("changefeed_ulid", "changefeed_time", "key", "value")
    }
