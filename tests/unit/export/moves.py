# SPDX-License-Identifier: Apache-2.0
"""Planning and making moves of the tests' consumer."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_changefeed.core.consumer import Position
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.moves import PlannedMove, move_to, plan_moves
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.export.consumers import CONSUMER, FEED, Variables

FAR = Ulid.floor(datetime(2099, 1, 1, tzinfo=timezone.utc))


def plan(
    source: SqliteFeedSource, to: Position, *shards: int, output: ExportStore | None = None
) -> list[PlannedMove]:
    """Plan a move of the consumer's cursors."""
    return plan_moves(source, CONSUMER, FEED, to, shards or None, () if output is None else [output])


def move(
    source: SqliteFeedSource, variables: Variables, moves: list[PlannedMove], **more: Any
) -> list[CursorRow]:
    """Make it."""
    return move_to(source, variables, CONSUMER, FEED, moves, by="anna", **{"timeout": 0.1, **more})
