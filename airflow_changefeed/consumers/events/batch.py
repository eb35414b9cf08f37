# SPDX-License-Identifier: Apache-2.0
"""What is consumed together: a number of events, those of a few seconds, or those of one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_changefeed.core.values import number, read_values, whole
from airflow_changefeed.exceptions import InvalidArgumentError

#: Maximum events in a batch by number or seconds: they are held in memory and consumed in one transaction.
MAX_BATCH = 100_000


@dataclass(frozen=True)
class Batch:
    """
    What is handled and consumed together: always events of one shard, in order.

    :param events: maximum number, 1 to 100_000.
    :param seconds: how long to wait for more after the first one, 0 to 86,400. With 0 a batch is whatever
        is available as soon as anything is.
    :param transaction: all events of one transaction in the shard, however many; captures only. An event
        whose transaction is unknown is a batch by itself.
    :raises InvalidArgumentError: names every problem.
    """

    events: int = MAX_BATCH
    seconds: float = 0.0
    transaction: bool = False

    def __post_init__(self) -> None:
        problems = read_values(self, {"events": whole(1, MAX_BATCH), "seconds": number(0, 86_400)})
        if self.transaction and (self.events != MAX_BATCH or self.seconds):
            problems.append(
                "a batch by transaction takes no events or seconds; it holds the whole transaction"
            )
        InvalidArgumentError.collect("batch", problems)


#: One event at a time.
ONE = Batch(events=1)
