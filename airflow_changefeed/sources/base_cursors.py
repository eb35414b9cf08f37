# SPDX-License-Identifier: Apache-2.0
"""The protocol of cursors: the positions of consumers, and who may move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_changefeed.core.consumer import OutputCheck
from airflow_changefeed.core.cursor import Began, CursorChange, CursorRow, Frontier
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid


@dataclass(frozen=True)
class CursorMove:
    """
    A compare-and-set change of one cursor row.

    :param frontier: the row's new frontier.
    :param expected_version: the expected resource version.
    :param fencing_token: the mover's token; an older one is refused.
    :param ack: inclusive; what the consumer no longer needs. None leaves it unchanged; it never goes
        back.
    :param is_rewind: a manual move, which may go back: ``ack`` then also moves back, so that no purge
        removes what the consumer will read again. Refused below what was purged.
    :param began: how the beginning came about; None keeps it.
    """

    shard: Shard
    frontier: Frontier
    expected_version: int
    fencing_token: int
    ack: Ulid | None = None
    is_rewind: bool = False
    began: Began | None = None


class CursorStore(Protocol):
    """One row per consumer, feed and shard, changed by compare-and-set only (Hasura's resourceVersion)."""

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        """Return the rows of a feed, of one consumer or of all."""

    def begin_consumer(
        self,
        consumer: str,
        feed: str,
        starts: Mapping[Shard, Ulid],
        *,
        by: str,
        why: str | None = None,
        began: Began = Began.IMPLIED,
    ) -> list[CursorRow]:
        """
        Ensure that an export has a row for each shard.

        :param starts: where the consumer begins, exclusive. An existing row keeps its position, except
            that one which has completed nothing yet may begin earlier (``Frontier.begin_at``).
        :param began: how the beginnings of new rows come about; existing ones keep theirs.
        :return: all rows of the consumer and feed.
        """

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str, why: str | None = None
    ) -> list[CursorRow]:
        """
        Change rows in one transaction, all or none; each change increments the row's resource version.

        Each change is recorded in the history, in the same transaction.

        :param why: what was done and a person's comment, at most 2,000 characters; None for a program's
            regular moves.
        :return: all rows of the consumer and feed, after the change.
        :raises StaleVersionError: a row was changed since it was read; carries the current row.
        :raises LeaseLostError: a fencing token is not the newest, or its lease expired.
        :raises CursorBeyondFeedError: a frontier is beyond the shard's high-water time.
        :raises PurgedError: a rewind goes below what was purged.
        """

    def history(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[CursorChange]:
        """
        Return the newest changes of a consumer's cursors, newest first.

        The newest ``KEPT_CHANGES`` of each shard are kept. A consumer's own steps are in its invocation log;
        its history has only manual changes.

        :param shard: None for all.
        """

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        """
        Drop a consumer's rows, history, settings and output check; it no longer holds back purges.

        The ranges that it has acknowledged are remembered: a purge does not hold their events for a consumer
        that began after them (``FeedControl.purge``).

        :param resource_version: expected version: for a consumer that of its settings, for an export the
            sum of its rows'. None skips the check.
        :raises StaleVersionError: it was changed since; nothing was dropped.
        """

    def record_check(self, check: OutputCheck) -> None:
        """
        Record what a look at the files of an export's output found; overviews have it.

        The newest of each consumer and feed is kept; nothing is recorded for a consumer without a row.
        Whoever may read the feed may record. No resource version grows.

        :param check: ``checked_at`` is taken down to the database's clock.
        """
