# SPDX-License-Identifier: Apache-2.0
"""
The protocols of captures and of snapshots: record the changes of any table, and read it meanwhile.

The database evaluates conditions on a key when it reads rows, and Spark when it folds events. So only
comparisons are taken that have one meaning in both: of whole numbers, decimals and dates. Texts are compared
by collations, which Spark does not know; floats and times are not always stored as they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from airflow_changefeed.core.capture import CaptureGap, CaptureInfo, CaptureShape, CaptureSpec, OnDdl
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import FeedStorage
from airflow_changefeed.core.values import format_time, shown
from airflow_changefeed.exceptions import InvalidArgumentError, SnapshotError

if TYPE_CHECKING:
    import pyarrow as pa


class CaptureControl(Protocol):
    """
    Records the changes of any table, in the transaction that makes them.

    A capture's events are a feed with its name, which is read like any other. ``FeedReader.schema`` and
    ``stream`` return ``changefeed_ulid``, ``changefeed_time``, then:

    - ``name``: of the table, as the capture's spec has it. ``type``: ``add``, ``upd``, ``del``, or ``reset``,
      after which all rows of the table follow as ``add`` with ``is_snapshot``, with their changes among them;
      ``ready`` once all have followed; or ``ddl`` where the captured
      columns have changed.
    - ``is_snapshot``: whether the row already existed and was recorded by a snapshot or resync, or once more
      behind a merge that replaced the row of its key.
    - ``tid``: number of the transaction; null if unknown. It groups neighbouring events; numbers are
      eventually reused.
    - ``sequence``: the event's number in the shard, from 1 without gaps; only if the capture is with
      sequence.
    - ``epoch``: seconds since 1970 when the statement ran. ``captured_at``: the same, in milliseconds, UTC.
    - ``session_variables``: JSON object of those set, null without any. ``trace_context``: text.
    - ``ddl``: JSON object of ``statement`` (text or null), ``before`` and ``after`` (arrays of ``name`` and
      ``type``), ``by`` (text or null) and ``unrecorded`` (array of fields of ``old`` and ``new`` whose values
      in older rows no event has); null unless the type is ``ddl``.
    - ``old``, ``new``: structs of the captured columns; null if there is no such row.

    The schema's metadata contains the capture's :class:`~airflow_changefeed.core.capture.CaptureShape`.

    A capture has the resource version of its feed. It grows with each change: enabling, disabling,
    refreshing, resolving, an upgrade, and a change of a captured table's columns. A call that names an
    outdated version is refused (StaleVersionError, which carries the current one; nothing was changed;
    terminal); None skips the check.
    """

    def enable_capture(
        self,
        spec: CaptureSpec,
        *,
        record_rows: bool = False,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        """
        Record changes from now on, of all tables of the capture or none.

        Idempotent for the same spec. A disabled capture is enabled again; changes made meanwhile are a gap.

        :param record_rows: also record the existing rows as ``add`` events, in short transactions behind the
            one that enables; a call that was interrupted is repeated, and continues.
        :param storage: of the tables of a new capture, as for ``set_up_feed``; its compression is that of the
            table of events.
        :raises SnapshotError: ``record_rows``, and a snapshot of a table runs into an output.
        :raises FeedSetupError: a table cannot be captured as requested, or the capture exists with
            another spec; names every reason; nothing was changed.
        """

    def disable_capture(self, name: str, *, resource_version: int | None = None) -> None:
        """
        Stop recording. The feed stays, so that it can be exported to its end; ``drop_feed`` drops everything.

        :raises CaptureNotFoundError: it does not exist; names the existing captures.
        """

    def refresh_capture(
        self,
        name: str,
        *,
        without: Sequence[str] = (),
        on_ddl: OnDdl | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        """
        Capture the tables' current columns. Events already recorded keep theirs.

        For an operation with chosen columns, only dropped columns are removed. If the columns, their types or
        the key have changed, a ``ddl`` event is recorded in each shard that has events.

        :param without: columns to stop capturing, so that they can be dropped or altered.
        :param on_ddl: another policy for changes of columns; None keeps the present one.
        :raises FeedSetupError: a column's type is incompatible with the recorded values, or cannot be
            exported.
        """

    def captures(self) -> list[CaptureInfo]:
        """Return all captures, by name."""

    def capture(self, name: str) -> CaptureInfo:
        """
        Return one capture.

        :raises CaptureNotFoundError: it does not exist; names the existing captures.
        """

    def check_capture(self, name: str) -> list[CaptureGap]:
        """
        Check for unrecorded changes, as each seal does, and return the open gaps.

        ``seal`` raises CaptureGapError (terminal) while a gap is open.
        """

    def resolve_capture(
        self, name: str, *, note: str, by: str, resync: bool = False, resource_version: int | None = None
    ) -> CaptureInfo:
        """
        Close the open gaps, after a person has checked them.

        :param note: what was done about them.
        :param resync: record a ``reset`` and all current rows of each affected table, in short transactions,
            so that a fold of the events is correct from ``ready`` on. Without an open gap, continues what
            was interrupted, or does so for all tables, for example after adding a column that already has
            values.
        :raises SnapshotError: ``resync``, and a snapshot of a table runs into an output.
        :raises LockTimeoutError: the table is changed all the time, so its rows cannot be counted or
            recorded.
        """

    def capture_gaps(self, name: str) -> list[CaptureGap]:
        """Return all gaps of a capture, open or resolved, by number."""


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
        raise InvalidArgumentError(f"{shown(text)} is not a key; expected a JSON list of the key's values")
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
            return (
                f"Continue the recording: {shell('capture resolve', self.feed, '--resync', '--note', '...')}"
            )
        return "Take the snapshot again, which continues it"


def held_snapshot(claim: SnapshotClaim) -> SnapshotError:
    """Return the error that refuses a snapshot of a table because of another one."""
    return SnapshotError(
        f"the {claim} has not ended. {claim.go_on}; or give up the snapshot: {claim.give_up}",
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
            :mod:`~airflow_changefeed.sources.base_capture`. InvalidArgumentError (terminal) if they do not
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


_NAME = re.compile(r"[^\W\d]\w*")
_CONDITION = re.compile(
    rf"""\s*({_NAME.pattern}|"(?:[^"]|"")+"|\[(?:[^\]]|\]\])+\])"""
    r"""\s*([<>]=|[<>=])\s*([+-]?[0-9]+(?:\.[0-9]+)?|'[0-9]{4}-[0-9]{2}-[0-9]{2}')(?:\s+and\s+(?=\S)|\s*$)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class KeyCondition:
    """
    A comparison of a key column with a value.

    :param operator: ``=``, ``<``, ``<=``, ``>`` or ``>=``, which databases, Spark and Python write alike.
    """

    column: str
    operator: str
    value: int | Decimal | date


def normal_where(where: str) -> str:
    """
    Return conditions in one spelling, so that equal ones can be compared.

    :param where: ``column op value``, joined by ``and``; empty for all rows. A column may be in double quotes
        or brackets, a date is in single quotes.
    :raises InvalidArgumentError: it is something else.
    """
    parts = (f"{_quoted(column)} {operator} {value}" for column, operator, value in _parsed(where))
    return " and ".join(parts)


def key_conditions(
    where: str, keys: Sequence[str], kinds: Mapping[str, pa.DataType]
) -> tuple[KeyCondition, ...]:
    """
    Read conditions with the values of the columns' types.

    :param keys: names of the key columns.
    :param kinds: Arrow type of each column.
    :raises InvalidArgumentError: a column is not in the key or cannot be compared so, or a value is not of
        its type; names every reason.
    """
    found, problems = [], []
    for column, operator, text in _parsed(where):
        if column not in keys:
            problems.append(
                f"{column!r} is not a key column; the key columns are {', '.join(map(repr, keys))}"
            )
        elif not _is_comparable(kinds[column]):
            problems.append(
                f"column {column!r} of type {kinds[column]} cannot be used: the database and Spark "
                "compare only whole numbers, decimals and dates in the same way. Choose another key "
                "column"
            )
        else:
            value = _value(text, kinds[column])
            if value is None:
                problems.append(f"{text} is not a value of column {column!r} of type {kinds[column]}")
            else:
                found.append(KeyCondition(column, operator, value))
    InvalidArgumentError.collect("where", problems)
    return tuple(found)


def _parsed(where: str) -> list[tuple[str, str, str]]:
    found, place = [], 0
    while place < len(where):
        match = _CONDITION.match(where, place)
        if match is None:
            raise InvalidArgumentError(
                f"where {where!r} cannot be read; expected comparisons (=, <, <=, >, >=) of key columns with "
                "numbers or dates, joined by and, for example: customer_id >= 100 and customer_id < 200"
            )
        column, operator, value = match.groups()
        if column[0] in '"[':
            end = column[-1]
            column = column[1:-1].replace(end * 2, end)
        found.append((column, operator, value))
        place = match.end()
    return found


def _quoted(column: str) -> str:
    return column if _NAME.fullmatch(column) else '"' + column.replace('"', '""') + '"'


def _is_comparable(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_date32(kind))


def _value(text: str, kind: pa.DataType) -> int | Decimal | date | None:
    """Return the value that a text is in a type; None if it is none exactly."""
    import pyarrow as pa

    value: int | Decimal | date
    try:
        if pa.types.is_date32(kind):
            # Only what is in quotes.
            value = date.fromisoformat(text.strip("'") if text[0] == "'" else "")
        elif pa.types.is_decimal(kind):
            value = Decimal(text)
        else:
            value = int(text)
        pa.scalar(value, kind)
    except (ValueError, ArithmeticError):
        return None
    return value
