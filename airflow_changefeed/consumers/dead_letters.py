# SPDX-License-Identifier: Apache-2.0
"""Dead letters whose events were purged, so that nobody can read them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_changefeed.core.consumer import DeadLetter
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import PurgedError

if TYPE_CHECKING:
    from airflow_changefeed.sources.base import FeedReader


def check_events(source: FeedReader, dead_letters: Sequence[DeadLetter]) -> None:
    """
    Refuse to retry dead letters whose events were purged: the retry would stop their consumer.

    :raises PurgedError: names the first.
    """
    for feed in dict.fromkeys(one.feed for one in dead_letters):
        purged = {status.shard: status.purged_upto for status in source.shards(feed)}
        for one in dead_letters:
            if one.feed == feed and one.ulid <= purged.get(one.shard, Ulid.MIN):
                raise purged_error(one)


def purged_error(dead_letter: DeadLetter) -> PurgedError:
    """Return the error of a dead letter that cannot be retried, with the remedy."""
    return PurgedError(
        f"dead letter {dead_letter.number} of consumer {dead_letter.consumer!r} of feed {dead_letter.feed!r} "
        f"cannot be retried, because its event {dead_letter.ulid} was purged. Drop it: "
        f"{shell('dead-letters drop', str(dead_letter.number), '--note', '...')}",
        consumer=dead_letter.consumer,
        feed=dead_letter.feed,
        shard=dead_letter.shard,
        number=dead_letter.number,
    )
