# SPDX-License-Identifier: Apache-2.0
"""
The movers of a race for one cursor: each a process of its own, each moves it once, by one event.

As in ``workers.py``: :func:`main` reads its job, says that it is ready, and waits for a byte to begin.
"""

from __future__ import annotations

import pickle
import random
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.moves import move_to, plan_moves
from airflow_changefeed.exceptions import InvalidArgumentError, StaleVersionError, TransientError
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource
from tests.integration.contract.workers import receive, rest, step
from tests.unit.export.consumers import SharedVariables

CONSUMER = "warehouse"
#: Seconds that a mover rests after it was refused, at most; twice as long each time, as fifty that do not
#: would keep each other busy for ever on a slow server.
PAUSE, LONGEST_PAUSE = 2.0, 60.0


@dataclass(frozen=True)
class MoverJob:
    """
    What a process does.

    :param description: of the source.
    :param variables: file of the Variables that all share.
    :param places: where the cursor stands at first, and the events that it is moved to, one after the other.
    """

    number: int
    description: dict[str, Any]
    feed: str
    variables: str
    places: tuple[str, ...]


def move_once(job: MoverJob, source: FeedSource) -> None:
    """Read, change, write; once more as long as it is refused."""
    variables = SharedVariables(job.variables)
    dice = random.Random(job.number)
    pause = PAUSE
    while True:
        (row,) = source.cursors(job.feed, CONSUMER)
        target = Ulid.parse_text(job.places[job.places.index(str(row.ulid)) + 1])
        try:
            moves = plan_moves(source, CONSUMER, job.feed, target)
            move_to(
                source,
                variables,
                CONSUMER,
                job.feed,
                moves,
                versions={row.shard: row.resource_version},
                by=f"mover {job.number}",
                why="set: to the next event",
            )
            return
        except (StaleVersionError, TransientError, InvalidArgumentError):
            # The latter says that somebody else has moved it there just now.
            rest(dice.uniform(0, pause))
            pause = min(2 * pause, LONGEST_PAUSE)


def main() -> None:
    """Do the job that stands on the input."""
    job: MoverJob = pickle.loads(receive(int.from_bytes(receive(8), "big")))  # noqa: S301 - of the race
    with closing(open_source(job.description)) as source:
        source.cursors(job.feed, CONSUMER)  # Some servers need seconds for the first statement.
        step()
        receive(1)
        move_once(job, source)
        step()
