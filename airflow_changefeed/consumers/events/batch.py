# SPDX-License-Identifier: Apache-2.0
"""What is consumed together: so many events, those of some seconds, or those of one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_changefeed.exceptions import InvalidArgumentError

#: Events that one batch by number or seconds may hold: they are in memory, and one transaction consumes
#: them.
MAX_BATCH = 100_000
_MAX_SECONDS = 86_400.0


@dataclass(frozen=True)
class Batch:
    """
    What is handled and consumed together; always events of one shard, in order.

    :param events: so many at most, 1 to 100_000.
    :param seconds: how long to wait for more after the first one, 0 to 86,400. With 0 a batch is what is
        there, as soon as anything is.
    :param transaction: all events that one transaction made in the shard, however many; only for a capture.
        An event whose transaction is not known is a batch by itself.
    :raises InvalidArgumentError: all that is wrong with it.
    """

    events: int = MAX_BATCH
    seconds: float = 0.0
    transaction: bool = False

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.events <= MAX_BATCH:
            problems.append(f"events must be 1 to {MAX_BATCH}, not {self.events}")
        if not 0 <= self.seconds <= _MAX_SECONDS:
            problems.append(f"seconds must be 0 to {_MAX_SECONDS:.0f}, not {self.seconds}")
        if self.transaction and (self.events != MAX_BATCH or self.seconds):
            problems.append(
                "a batch by transaction has neither events nor seconds: it is as large as that is"
            )
        InvalidArgumentError.collect("batch", problems)


#: One event at a time.
ONE = Batch(events=1)
