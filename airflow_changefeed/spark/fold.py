# SPDX-License-Identifier: Apache-2.0
"""
Folds the events of a capture into the table they were captured from, as it was at a sealed time.

Of each key the last event by ULID counts: a key never changes its shard, and a shard is in order. One pass
over the files, one group by key; what could make the result wrong is looked for before, in few columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import error_text
from airflow_changefeed.folding.inputs import NEW, OLD
from airflow_changefeed.folding.plan import RESOLVE, FoldSource, find_fold
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.spark.fold_events import CAPTURED_AT, SHARD, CapturedEvents
from airflow_changefeed.spark.read import check_times, ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Types that databases compare by their own rules: case, accents, trailing blanks and zeros.
_LOOSE = ("string", "large_string", "binary", "large_binary")
#: Placeholder of a ULID in an error that Spark formats.
_SOME_ULID = "<<ulid>>"
# Found only while the rows are read: why an event leaves the state unknown, and the remedy.
_BROKEN_CHAIN = (
    "changes a row that no earlier event has inserted, so events are missing. Export the capture from its "
    "beginning on"
)
_NULL_KEY = (
    "has null in a key column, and rows without a key cannot be distinguished. Declare the key columns "
    f"`not null`, and {RESOLVE}"
)
_MOVED_SHARD = (
    "is the first of a key whose events are in several shards, which have no order between them: the shard's "
    "expression distinguishes keys that the database treats as equal. Capture the table with a shard that "
    "is the same for them, for example a number"
)


def fold(
    spark: SparkSession,
    path: str,
    feed: str,
    *,
    at: datetime | None = None,
    table: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """
    Return a captured table as it was at a time, from the export of its capture in shape ``typed``.

    Finds its files, and looks for what makes the state unknowable, when it is called; the rows are read when
    the frame is computed. A change of a row that was never added shows only then, and fails the computation.

    :param path: root of the export, a local path or an fsspec URL.
    :param feed: the capture's name.
    :param at: feed time with a zone, exclusive: the state that the events before it have made. The complete
        units of each shard reach until there. None takes the end of their unbroken run.
    :param table: of the capture, as its spec names it; None where the capture has only one.
    :param storage_options: for the manifests, through fsspec; Spark reads the files by its own settings.
    :return: a row for each row of the table; its columns as they were captured, in the table's order.
    :raises FoldError: the events do not determine the state: a key change lost its old key, the capture
        leaves something out, or began later than the table and without a snapshot; says which.
    :raises NotExportedError: not all units until then are complete; names those that are missing; transient.
    :raises ManifestError: nothing was exported there, a manifest or file is damaged, or units overlap.
    :raises ColumnTypeError: Spark does not have a column's type.
    """
    return fold_source(spark, find_fold(ExportStore(path, feed, storage_options), at, table))


def fold_source(spark: SparkSession, source: FoldSource) -> DataFrame:
    """Return the state that a source's events give; see :func:`fold`."""
    for group in source.groups:
        check_times(spark, group.fields)
    if not source.groups:
        if source.unknown:
            raise source.refusal(source.unknown)
        return spark.createDataFrame([], ddl(source.kinds))
    found = _count_special(CapturedEvents(spark, source))
    resets = _last_resets(CapturedEvents(spark, source)) if found.resets or source.unknown else {}
    events = CapturedEvents(spark, source, resets)
    if found.lost_keys:
        _refuse_lost_keys(events)
    return _state(source, _changes(events, has_moved=found.moved > 0))


@dataclass(frozen=True)
class _SpecialEvents:
    """How many events need care: resets, updates without an old row, and those with a key of other bytes."""

    resets: int
    lost_keys: int
    moved: int


def _moving_keys(source: FoldSource) -> list[str]:
    """Return the key columns whose different values a database may treat as equal."""
    return [key for key in source.keys if str(source.kinds[key]) in _LOOSE]


def _has_moved(source: FoldSource) -> Column:
    """Whether an update has another key than the row before it: only by case or trailing blanks."""
    from pyspark.sql import functions

    old, new = functions.col(OLD), functions.col(NEW)
    differ = [old.getField(key) != new.getField(key) for key in _moving_keys(source)]
    return (functions.col("type") == "upd") & reduce(lambda one, other: one | other, differ)


def _count_special(events: CapturedEvents) -> _SpecialEvents:
    """Count the events that need care, in as few columns as possible; most folds find none."""
    from pyspark.sql import functions

    source, kind = events.source, functions.col("type")
    moving = _moving_keys(source)
    if not source.loses_keys and not moving:
        # Spark passes over files whose dictionary of types has no reset.
        return _SpecialEvents(events.read(["type"], [], []).where(kind == "reset").count(), 0, 0)
    frame = events.read(["type"], moving or source.keys[:1], moving)
    lost = functions.count_if((kind == "upd") & functions.col(OLD).isNull())
    moved = functions.count_if(_has_moved(source)) if moving else functions.lit(0)
    (row,) = frame.agg(functions.count_if(kind == "reset"), lost, moved).collect()
    return _SpecialEvents(*row)


def _last_resets(events: CapturedEvents) -> dict[Shard, str]:
    """
    Return the ULID of each shard's last reset.

    A reset makes known what was not: it is written into every shard that there is, and the rows behind it.
    A shard without one has begun later, or its rows are unknown still.
    """
    from pyspark.sql import functions

    source, is_reset = events.source, functions.col("type") == "reset"
    if source.known_from is not None:
        is_reset &= functions.col(ULID_COLUMN) >= str(Ulid.floor(source.known_from))
    columns = [ULID_COLUMN, "type", CAPTURED_AT] if source.unknown else [ULID_COLUMN, "type"]
    frame = events.read(columns, [], [], by_shard=True)
    found = [functions.max(functions.when(is_reset, functions.col(ULID_COLUMN))).alias("reset")]
    if source.unknown:
        time = functions.unix_millis(CAPTURED_AT)
        found += [
            functions.min(functions.when(is_reset, time)).alias("known"),
            functions.min(time).alias("begun"),
        ]
    else:
        frame = frame.where(is_reset)
    rows = frame.groupBy(SHARD).agg(*found).collect()
    if source.unknown:
        since = min((row["known"] for row in rows if row["reset"]), default=None)
        left = [row[SHARD] for row in rows if not row["reset"] and (since is None or row["begun"] < since)]
        if since is None or left:
            raise source.refusal(source.unknown, shards=left)
    return {parse_shard(row[SHARD]): row["reset"] for row in rows if row["reset"]}


def _refuse_lost_keys(events: CapturedEvents) -> None:
    """
    Refuse updates whose old row is not known: the key that it had stays in the table forever.

    :raises FoldError: there are any behind the last resets.
    """
    from pyspark.sql import functions

    source = events.source
    frame = events.read([ULID_COLUMN, "type"], source.keys[:1], [])
    frame = frame.where((functions.col("type") == "upd") & functions.col(OLD).isNull())
    (row,) = frame.agg(
        functions.min(ULID_COLUMN).alias("first"), functions.count("*").alias("rows")
    ).collect()
    if row["rows"]:
        raise source.refusal(
            f"{row['rows']} updates changed a key without the old one, the first of them event "
            f"{row['first']}: enable the capture with key_change='delete_insert', and {RESOLVE}",
            ulid=row["first"],
        )


def _changes(events: CapturedEvents, *, has_moved: bool) -> DataFrame:
    """
    Return an event a row: ULID, key, whether it adds the row, and the row behind it, null for a delete.

    :param has_moved: whether keys have changed to others that the database takes for the same.
    """
    from pyspark.sql import functions

    source, kind = events.source, functions.col("type")
    # A key in other bytes may have another shard, and two shards have no order between them.
    shards = {file.manifest.unit.shard for group in source.groups for file in group.files}
    by_shard = has_moved and len(shards) > 1
    frame = events.read([ULID_COLUMN, "type"], source.keys, list(source.columns), by_shard=by_shard)
    frame = frame.where(kind != "reset")
    old, new = functions.col(OLD), functions.col(NEW)
    adds = (kind == "add") | _has_moved(source) if has_moved else kind == "add"
    # Not coalesce: a null in the new key is not the old key.
    keys = [
        functions.when(new.isNotNull(), new.getField(key)).otherwise(old.getField(key)) for key in source.keys
    ]
    shard = [SHARD] if by_shard else []
    changes = frame.select(ULID_COLUMN, *shard, *_numbered(keys), adds.alias("adds"), NEW)
    if not has_moved:
        return changes
    keys = [old.getField(key) for key in source.keys]
    nothing = functions.when(functions.lit(False), new).alias(NEW)
    left = frame.where(_has_moved(source))
    return changes.unionByName(
        left.select(ULID_COLUMN, *shard, *_numbered(keys), functions.lit(False).alias("adds"), nothing)
    )


def _numbered(columns: Sequence[Column]) -> list[Column]:
    """Number columns, so that none collides with the table's own."""
    return [column.alias(f"key{number}") for number, column in enumerate(columns)]


def _state(source: FoldSource, changes: DataFrame) -> DataFrame:
    """Return the row after each key's last change; the computation fails if it is not known."""
    from pyspark.sql import functions

    keys = [f"key{number}" for number in range(len(source.keys))]
    ends = changes.groupBy(*keys).agg(
        functions.max_by(NEW, ULID_COLUMN).alias("row"),
        functions.min(functions.struct(ULID_COLUMN, "adds")).alias("first"),
        *([functions.count_distinct(SHARD).alias("shards")] if SHARD in changes.columns else []),
    )
    row, first = functions.col("row"), functions.col("first")

    def fails(why: str) -> Column:
        return _failure(source, first.getField(ULID_COLUMN), why)

    own = keys[: len(source.shape.tables[source.table].key_columns)]
    is_null = reduce(lambda one, other: one | other, (functions.col(key).isNull() for key in own))
    there = functions.when(is_null, fails(_NULL_KEY))
    if "shards" in ends.columns:
        there = there.when(functions.col("shards") > 1, fails(_MOVED_SHARD))
    there = there.when(first.getField("adds"), row.isNotNull()).otherwise(fails(_BROKEN_CHAIN))
    return ends.where(there).select(*(row.getField(name).alias(name) for name in source.columns))


def _failure(source: FoldSource, ulid: Column, why: str) -> Column:
    """Return a column that fails the computation with our error in Spark's text."""
    from pyspark.sql import functions

    error = source.refusal(f"event {_SOME_ULID} {why}")
    before, _, behind = error_text(error).partition(_SOME_ULID)
    text = functions.concat(functions.lit(before), ulid, functions.lit(behind))
    return functions.raise_error(text).cast("boolean")
