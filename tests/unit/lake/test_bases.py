# SPDX-License-Identifier: Apache-2.0
"""Why a fold cannot start from a state although the table still has its name: the capture is another one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import CaptureShape, Operation
from airflow_changefeed.exceptions import FoldError
from airflow_changefeed.lake.fold_plan import find_fold
from airflow_changefeed.lake.states import BaseChoice, StateStore, new_attempt
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event, reshaped, shape
from tests.unit.export.flights import START, hours

HOUR = timedelta(hours=1)


def of_columns(*names: str, **more: Any) -> CaptureShape:
    """Return the shape of a capture of some columns."""
    return reshaped(shape(), columns={each: {name: name for name in names} for each in Operation}, **more)


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([shape(begun_at=START), shape(begun_at=START + HOUR)], "the capture was recreated since"),
        (
            [of_columns("id", "name"), of_columns("id", "name", "price", key_columns=("id", "price"))],
            "the table's key has changed since",
        ),
        ([shape(), of_columns("id", "name"), shape()], "it does not have 'price'"),
    ],
    ids=["recreated", "another key", "a column that was not captured for a while"],
)
def test_a_state_of_another_capture_is_no_base(tmp_path: Path, shapes: list[CaptureShape], why: str) -> None:
    """Each shape is that of an hour, and the state is of the end of the last but one."""
    export, at = CapturedExport.create(tmp_path / "out"), START + (len(shapes) - 1) * HOUR
    for hour, known in enumerate(shapes):
        export.shape = known
        if START + hour * HOUR == at:
            states, attempt = (
                StateStore(str(tmp_path), CAPTURE, TABLE, database=export.store.database()),
                new_attempt(),
            )
            states.claim()
            with states.files.writer(f"{states.writing(at, attempt)}/part-0.parquet") as file:
                pq.write_table(pa.table({"id": pa.array([], pa.int64())}), file)
            states.commit(at, attempt, find_fold(export.store, at).base_facts())
        export.write(
            [Event(START + (hour + 0.5) * HOUR, "add", None, {"id": hour})], hours(hour, hour + 1)[0]
        )
    with pytest.raises(FoldError, match=f"cannot be its base: .*{why}"):
        find_fold(export.store, at + HOUR, bases=BaseChoice(str(tmp_path), at))
