# SPDX-License-Identifier: Apache-2.0
"""What a task's log says of an error that is the user's to mend: its message, once, and little else."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed import ChangefeedFoldOperator, ChangefeedSensor, ChangefeedVerifyOperator
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.version_compat import AirflowFailException
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import InProcessOperator, context
from tests.unit.airflow.test_operator import HOUR

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server", "database")]
NOWHERE = {"task_id": "t", "changefeed_conn_id": "nowhere"}
#: Each face, with what is wrong in its surroundings.
TASKS: dict[str, Callable[[str], Any]] = {
    "export": lambda path: InProcessOperator(feed=FEED, path=path, consumer=CONSUMER, **NOWHERE),
    "export of no feed": lambda path: InProcessOperator(
        task_id="t", feed="nyc.Weather", path=path, consumer=CONSUMER, local_below=9
    ),
    "consume": lambda path: ChangefeedConsumeOperator(feed=FEED, consumer="c", handler="no:f", task_id="t"),
    "verify": lambda path: ChangefeedVerifyOperator(feed=FEED, path=path, **NOWHERE),
    "fold": lambda path: ChangefeedFoldOperator(
        task_id="t", feed=FEED, path=path, output_path=path, conn_id="nowhere"
    ),
    "sensor": lambda path: ChangefeedSensor(feed=FEED, consumer=CONSUMER, timeout=5, **NOWHERE),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_error_of_the_users_is_told_once_and_short(tmp_path: Path, name: str) -> None:
    """With no chained cause, and at most three frames of ours; Airflow adds its own."""
    task = TASKS[name](str(tmp_path / "out"))
    with pytest.raises(AirflowFailException) as caught:
        task.execute(context(START, START + HOUR))
    text = "".join(traceback.format_exception(caught.value))
    assert text.count(str(caught.value).split(": ", 1)[1]) == 1
    assert text.count("Traceback (most recent call last)") == 1
    frames = [frame for frame in traceback.extract_tb(caught.tb) if "/airflow_changefeed/" in frame.filename]
    assert 1 <= len(frames) <= 3
