# SPDX-License-Identifier: Apache-2.0
"""Cursors of an export that commands are about, and what Airflow says of them."""

from __future__ import annotations

import io
import json
import sys
from datetime import timedelta
from typing import Any

import pytest
from airflow.models import Variable

from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors import cursors
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START

HOUR = timedelta(hours=1)
OF = (CONSUMER, "--feed", FEED)


def window(number: int) -> Window:
    """Return an hour of the feed."""
    return Window(START + number * HOUR, START + (number + 1) * HOUR)


def end_of(number: int) -> str:
    """Where the cursor stands after an hour."""
    return str(window(number).range.upto)


def export(source: SqliteFeedSource, *numbers: int) -> None:
    """Say that hours are exported, as the operator does."""
    begin = dict.fromkeys((0, 1), window(0).range.after)
    source.begin_consumer(CONSUMER, FEED, begin, by="a run")
    done = {shard: [window(number).range for number in numbers] for shard in (0, 1)}
    cursors.advance(source, AirflowVariables(), CONSUMER, FEED, done, by="a run")


def at(source: SqliteFeedSource) -> list[str]:
    """Return where the consumer stands."""
    return [str(row.ulid) for row in source.cursors(FEED, CONSUMER)]


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let a person answer; nobody where there is not a text."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def published() -> dict[str, Any]:
    """Read the Variable."""
    found: dict[str, Any] = json.loads(Variable.get(KEY))
    return found


def edit(shard: str, **values: object) -> None:
    """Change the Variable in Airflow's UI."""
    content = published()
    content["shards"][shard].update(values)
    Variable.set(KEY, json.dumps(content))


def assert_published(source: SqliteFeedSource) -> None:
    """Check that the Variable says what the rows say."""
    rows = source.cursors(FEED, CONSUMER)
    assert Variable.get(KEY) == CursorDocument.of_rows(source.identity(), CONSUMER, FEED, rows).to_json()
