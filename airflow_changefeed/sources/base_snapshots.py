# SPDX-License-Identifier: Apache-2.0
"""The protocol of snapshots: reading a captured table in ranges of its key, while others write to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.values import shown
from airflow_changefeed.exceptions import InvalidArgumentError, SnapshotError

if TYPE_CHECKING:
    import pyarrow as pa

#: Seconds for which a snapshot that makes no progress holds back purges: a long weekend.
PROTECTED = 4 * 86_400.0
#: Path of a snapshot that records the rows as events.
INTO_FEED = ""
_BYTES = "hex"


@dataclass(frozen=True)
class KeyRange:
    """
    The rows whose key is in ``(after, upto]``, in the order of the database and its collations.

    :param after: :func:`key_text` of the last key before the range; None for the beginning of the table.
    :param upto: likewise of its last key; None for the end of the table.
    :raises InvalidArgumentError: one of them is not the text of a key.
    """

    after: str | None = None
    upto: str | None = None

    def __post_init__(self) -> None:
        for end in (self.after, self.upto):
            if end is not None:
                key_values(end)

    def __str__(self) -> str:
        return f"({self.after or 'the beginning'}, {self.upto or 'the end'}]"


def key_text(values: Sequence[Any]) -> str:
    """Write a key exactly, as JSON: whole numbers, floats, texts, and bytes as ``{"hex": "..."}``."""
    return json.dumps([{_BYTES: one.hex()} if isinstance(one, bytes) else one for one in values])


def key_values(text: str) -> tuple[Any, ...]:
    """
    Read what :func:`key_text` wrote.

    :raises InvalidArgumentError: it is something else.
    """
    try:
        found = json.loads(text)
        values = tuple(bytes.fromhex(one[_BYTES]) if isinstance(one, dict) else one for one in found)
        values = values if isinstance(found, list) else ((),)
    except (ValueError, TypeError, KeyError, RecursionError):
        values = ((),)
    if any(isinstance(one, (list, tuple)) for one in values):
        raise InvalidArgumentError(f"{shown(text)} is not the text of a key, a JSON list of its values")
    return values


def key_ranges(bounds: Sequence[str]) -> list[KeyRange]:
    """
    Return ranges that together are a table, whatever rows come and go: n bounds give n + 1 ranges.

    The first is open below, the last is open above, and each begins where the one before it ends.
    """
    return [KeyRange(after, upto) for after, upto in pairwise([None, *bounds, None])]


@dataclass(frozen=True)
class TableColumns:
    """
    What :meth:`SnapshotStore.stream_table` gives of a table.

    :param schema: the columns that inserts record, each followed by its second columns, in the types of the
        capture's events; behind them ``changefeed_shard`` (int64 or string). The columns are nullable.
    :param fields: the field of ``old`` and ``new`` for each column but the shard's.
    :param version: resource version of the capture: with another one, a column of the same name and type may
        be another one.
    """

    shape: CaptureShape
    schema: pa.Schema
    fields: Mapping[str, str]
    version: int


@dataclass(frozen=True)
class SnapshotClaim:
    """
    A snapshot that has begun and not ended; its feed is not purged from its begin on until it expires.

    :param token: names it, and its folder in the output.
    :param path: root of its output; ``INTO_FEED`` if the rows are recorded as events.
    :param begin: the feed was sealed until here before any row was read; or when the recording began.
    :param by: who began it.
    :param expires_at: without progress until then; by the database's clock.
    :param where: of the part that it reads; empty for the whole table.
    """

    feed: str
    table: str
    token: str
    path: str
    begin: datetime
    by: str
    expires_at: datetime
    where: str = ""

    def __str__(self) -> str:
        into = "its own events" if self.path == INTO_FEED else self.path
        begun = format_time(self.begin)
        part = f", of the rows where {self.where}," if self.where else ""
        what = f"snapshot of table {self.table!r} of feed {self.feed!r}{part} into {into}"
        return f"{what} that {self.by} began at {begun}"

    @property
    def give_up(self) -> str:
        """The command that gives it up."""
        return shell("snapshot give-up", "--feed", self.feed, "--table", self.table)

    @property
    def go_on(self) -> str:
        """What continues it, in words."""
        if self.path == INTO_FEED:
            return f"Continue it: {shell('capture resolve', self.feed, '--resync', '--note', '...')}"
        return "Take it again, which continues it"


def held_snapshot(claim: SnapshotClaim) -> SnapshotError:
    """Return the error that refuses a snapshot of a table because of another one."""
    return SnapshotError(
        f"the {claim} has not ended. {claim.go_on}; or give it up: {claim.give_up}",
        feed=claim.feed,
        table=claim.table,
        path=claim.path,
    )


class SnapshotStore(Protocol):
    """
    Reads captured tables, and remembers which snapshots of them have begun.

    ``feed`` is a capture and ``table`` one of its tables, by its name there; all methods raise
    CaptureNotFoundError (terminal) for a capture that does not exist.
    """

    def table_columns(self, feed: str, table: str) -> TableColumns:
        """
        Return what can be read of a table now.

        :raises FeedSetupError: the table cannot be read so that the events since then give its later states:
            a captured column is missing, or what could change a row leaves no event; names every reason.
        """

    def cut_table(self, feed: str, table: str, rows: int, *, where: str = "") -> list[str]:
        """
        Return the keys that cut a table into ranges of about so many rows, ascending; see ``key_ranges``.

        Cut by the database, in its own order; reads each key once, in short statements.

        :param rows: at least 1.
        :param where: conditions on the key: only rows for which they are true count, see
            :mod:`~airflow_changefeed.sources.key_conditions`. InvalidArgumentError (terminal) if they do not
            suit the key.
        """

    def stream_table(
        self, feed: str, table: str, range_: KeyRange, *, where: str = "", batch_rows: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """
        Stream committed rows of a range, as Arrow batches of :meth:`table_columns`, in one statement.

        Takes no lock that a writer waits for longer than for any reader of read committed.

        :param range_: of :meth:`cut_table`; InvalidArgumentError (terminal) if it is of another key.
        :param where: as for :meth:`cut_table`.
        :raises ReplicaBehindError: the secondary does not have the snapshot's begin yet.
        :raises SchemaChangedError: the table was changed meanwhile.

        :raises ColumnTypeError: a value cannot be exported unchanged; names the column.
        :raises FeedSetupError: as for :meth:`table_columns`.
        """

    def begin_snapshot(
        self,
        feed: str,
        table: str,
        *,
        token: str,
        path: str,
        begin: datetime,
        by: str,
        seconds: float,
        where: str = "",
    ) -> SnapshotClaim:
        """
        Remember that a snapshot has begun, unless one of the table has, and return the one that counts.

        A purge that runs at this moment may still remove events behind ``begin``; reading them then fails.

        :param token: at most 64 characters; a mark has at most 100, a path and ``where`` 4,000.
        :param seconds: until it expires if it makes no progress.
        """

    def marking(
        self, feed: str, table: str, *, token: str, mark: str, seconds: float
    ) -> AbstractContextManager[None]:
        """
        Run a block that reads a range, and write a mark at its end, which says that its rows are not lost.

        The mark is written at the primary, by a session that was opened before the block: where it is still
        there later, so is everything that was committed before the block read it. Renews the snapshot.

        :param mark: not used before.
        :raises SnapshotError: the snapshot was given up, or another one has begun.
        :raises SourceUnavailableError: the session was lost, and perhaps what was read.
        """

    def snapshot_marks(self, feed: str, table: str, *, token: str) -> set[str]:
        """Return the marks of a snapshot that are there."""

    def end_snapshot(self, feed: str, table: str, *, token: str) -> bool:
        """Forget a snapshot, which then holds back no purge; False if it is not there."""

    def snapshots(self, feed: str | None = None) -> list[SnapshotClaim]:
        """Return the snapshots that have begun and not ended, also those that have expired, by begin."""

    def order_bound(self, feed: str) -> int:
        """Return a number that is above the order numbers of all outbox rows committed until now."""

    def first_waiting(self, feed: str) -> int | None:
        """
        Return the lowest order number of the committed rows in the outbox; None if none wait.

        Skips rows that a drain holds; a seal waits for drains.
        """
