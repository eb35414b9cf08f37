# SPDX-License-Identifier: Apache-2.0
"""
Folds the events of a capture into the table they were captured from, as it was at a sealed time.

Of each key the last event by ULID counts: a key never changes its shard, and a shard is in order. One pass
over the files, one group by key; what could make the result wrong is looked for before, in few columns. Where
a base is there, only the events since its begin are read, and joined to its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import error_text, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.result import size_text
from airflow_changefeed.lake.current import VALID_FROM
from airflow_changefeed.lake.fold_plan import RESOLVE, FoldSource, FoldTask, find_fold
from airflow_changefeed.lake.inputs import NEW, OLD
from airflow_changefeed.lake.states import NEWEST, BaseChoice, State, StateStore
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import SHARD_COLUMN, ULID_COLUMN
from airflow_changefeed.spark.fold_events import (
    RECORDING,
    SHARD,
    CapturedEvents,
    RecordedRows,
    SpecialEvents,
    base_rows,
    base_values,
    count_special,
    is_in_part,
    moved_key,
    recorded_rows,
    refuse_lost_keys,
    refuse_unrecorded,
    same_keys,
    shard_type,
    ulid_time,
    versions,
)
from airflow_changefeed.spark.read import check_times, ddl, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


#: Of a tolerant fold: whether an event changed the row, though nothing had added it.
UNKNOWN = "changefeed_unknown"
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
    "is the first of a key whose events are in several shards, and shards have no common order: the "
    "shard's expression distinguishes keys that the database treats as equal. Capture the table with a "
    "shard that is the same for these keys, for example a number"
)


def fold(
    spark: SparkSession,
    path: str,
    feed: str,
    *,
    at: datetime | None = None,
    table: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    states: str | None = None,
    base: datetime | str = NEWEST,
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
    :param states: root of the states that ``ChangefeedFoldOperator`` has written, and of the snapshots of
        ``ChangefeedSnapshotOperator``; None looks in ``path``.
    :param base: what to start from, so that only later events are read: the ``newest`` state before the time
        or snapshot that is exact by then, if one exists; the time of a state, or the begin of a snapshot; or
        ``beginning`` to read all events. A snapshot of a part of the table is used only where its begin is
        given.
    :return: a row for each row of the table, or of the part that the snapshot has; its columns as they were
        captured, in the table's order.
    :raises FoldError: the events do not determine the state: a key change lost its old key, columns got
        values without events, the capture leaves something out, or began later than the table and without a
        snapshot; says which.
    :raises NotExportedError: not all units until then are complete; names those that are missing.
    :raises ManifestError: nothing was exported there, a manifest or file is damaged, or units overlap.
    :raises ColumnTypeError: Spark does not have a column's type.
    """
    bases = BaseChoice(path if states is None else states, base, storage_options)
    source = find_fold(ExportStore(path, feed, storage_options), at, table, bases)
    return fold_source(spark, source).select(*map(quoted, source.columns))


def fold_source(
    spark: SparkSession, source: FoldSource, *, is_tolerant: bool = False, with_times: bool = False
) -> DataFrame:
    """
    Return the state that a source's events give, and the shard of each row; see :func:`fold`.

    :param is_tolerant: whether a changed row that nothing has added is marked in a column more,
        ``changefeed_unknown``, instead of a failure; all but its key may be null.
    :param with_times: whether a column more, ``_valid_from``, has the time of the event that made the row as
        it is; null if unknown.
    """
    for group in source.groups:
        check_times(spark, group.fields)
    if source.base is not None:
        check_times(spark, source.base.kinds)
    if not source.groups:
        if source.unknown:
            raise source.refusal(source.unknown)
        if source.base is not None:
            rows = base_rows(spark, source, source.base, {})
            since = rows["base_since"] if with_times else None
            own = _output(source, base_values(source), rows["base_shard"], since)
            return rows.select(*own, *_known(is_tolerant))
        more = f", {SHARD_COLUMN} {shard_type(source)}" if source.has_shards else ""
        more += f", {VALID_FROM} timestamp" if with_times else ""
        return spark.createDataFrame([], ddl(source.kinds) + more).select("*", *_known(is_tolerant))
    events = CapturedEvents(spark, source)
    # Most folds find none: Spark plans that one while it counts.
    with ThreadPoolExecutor(1) as beside:
        counting = beside.submit(count_special, events)
        nothing = RecordedRows({}, "")
        folded = partial(_folded, is_tolerant=is_tolerant, with_times=with_times)
        plain = None if source.unknown else folded(events, nothing, has_moved=False)
        found = counting.result()
    if plain is not None and found == SpecialEvents(0, 0, 0, 0):
        return plain
    recorded = RecordedRows({}, "")
    if found.recordings or source.unknown:
        recorded = recorded_rows(events)
    events = CapturedEvents(spark, source, recorded.resets)
    if found.ddl:
        refuse_unrecorded(events)
    if found.lost_keys:
        refuse_lost_keys(events)
    return folded(events, recorded, has_moved=found.moved > 0)


def _folded(
    events: CapturedEvents, recorded: RecordedRows, *, is_tolerant: bool, with_times: bool, has_moved: bool
) -> DataFrame:
    """Return the state that events give, when all that can make it unknown was looked for."""
    source = events.source
    own = changes(events, has_moved=has_moved, is_whole=with_times)
    ends = _ends(source, versions(own, len(source.keys)) if with_times else own, has_moved=has_moved)
    exact_from = _exact_from(source, recorded)
    if source.base is None:
        return _rows(source, ends, _is_expected(exact_from), is_tolerant)
    rows = base_rows(events.spark, source, source.base, recorded.resets)
    return _onto_base(source, rows, ends, exact_from, is_tolerant)


def _exact_from(source: FoldSource, recorded: RecordedRows) -> str:
    """
    Return from which ULID on events are of keys that something has added.

    While a snapshot was read, a row may have been elsewhere than where it was looked for. While rows were
    recorded, changes of one may come before it.
    """
    base = source.base
    exact_from = str(Ulid.floor(base.exact_from)) if base is not None and base.is_approximate else ""
    return max(exact_from, recorded.ready)


def changes(events: CapturedEvents, *, has_moved: bool, is_whole: bool = False) -> DataFrame:
    """
    Return an event a row: ULID, shard, key, whether it adds the row, and the row behind it, null for a
    delete.

    :param has_moved: whether keys have changed to others that the database takes for the same.
    :param is_whole: whether to add the row before it, its type, and whether it recorded a row that was there.
    """
    from pyspark.sql import functions

    source, kind = events.source, functions.col("type")
    columns = list(source.columns)
    own = [ULID_COLUMN, "type", *(["is_snapshot"] if is_whole else [])]
    frame = events.read(own, columns if is_whole else source.keys, columns, by_shard=True)
    # Changed columns are in the events' own.
    frame = frame.where(~kind.isin(*RECORDING, "ddl"))
    old, new = functions.col(OLD), functions.col(NEW)
    keys = event_keys(source)
    if source.base is not None and source.base.where:
        frame = frame.where(is_in_part(source, source.base, keys))
    adds = (kind == "add") | moved_key(source) if has_moved else kind == "add"
    more = [OLD, "type", "is_snapshot"] if is_whole else []
    changes = frame.select(ULID_COLUMN, SHARD, *numbered(keys), adds.alias("adds"), NEW, *more)
    if not has_moved:
        return changes
    keys = [old.getField(key) for key in source.keys]
    nothing = functions.when(functions.lit(False), new).alias(NEW)
    left = frame.where(moved_key(source))
    return changes.unionByName(
        left.select(ULID_COLUMN, SHARD, *numbered(keys), functions.lit(False).alias("adds"), nothing, *more)
    )


def event_keys(source: FoldSource) -> list[Column]:
    """Return the key of an event's row: behind the event, or of a delete before it."""
    from pyspark.sql import functions

    old, new = functions.col(OLD), functions.col(NEW)
    # Not coalesce: a null in the new key is not the old key.
    return [
        functions.when(new.isNotNull(), new.getField(key)).otherwise(old.getField(key)) for key in source.keys
    ]


def numbered(columns: Sequence[Column]) -> list[Column]:
    """Number the columns of keys, so that none collides with the table's own."""
    return [column.alias(f"key{number}") for number, column in enumerate(columns)]


def _ends(source: FoldSource, changes: DataFrame, *, has_moved: bool) -> DataFrame:
    """
    Return each changed key with the row after its last change, and its first change.

    The computation fails for a null key, and for a key whose events are in several shards.
    """
    from pyspark.sql import functions

    keys = [f"key{number}" for number in range(len(source.keys))]
    ends = changes.groupBy(*keys).agg(
        functions.max_by(NEW, ULID_COLUMN).alias("row"),
        functions.max_by(SHARD, ULID_COLUMN).alias(SHARD),
        functions.min(functions.struct(ULID_COLUMN, "adds")).alias("first"),
        # A key in other bytes may have another shard, and two shards have no order between them.
        *([functions.count_distinct(SHARD).alias("shards")] if has_moved else []),
        *([functions.max_by("since", ULID_COLUMN).alias("since")] if "since" in changes.columns else []),
    )
    own = keys[: len(source.shape.tables[source.table].key_columns)]
    is_null = reduce(lambda one, other: one | other, (functions.col(key).isNull() for key in own))
    is_known = functions.when(is_null, failure(source, _NULL_KEY, _first_event()))
    if has_moved:
        is_known = is_known.when(functions.col("shards") > 1, failure(source, _MOVED_SHARD, _first_event()))
    return ends.where(is_known.otherwise(functions.lit(True)))


def _is_expected(exact_from: str) -> Column:
    """Whether the first event of a key that was not there may be as it is: as a rule, it adds the row."""
    from pyspark.sql import functions

    first = functions.col("first")
    adds = first.getField("adds")
    return adds | (first.getField(ULID_COLUMN) < exact_from) if exact_from else adds


def _onto_base(
    source: FoldSource, base: DataFrame, ends: DataFrame, exact_from: str, is_tolerant: bool
) -> DataFrame:
    """
    Return the base's rows that did not change, and what the changes have left.

    Joined, not grouped, as a base is mostly much longer than its changes: Spark sends those to its rows. A
    row of a snapshot may be there twice, or in another place, if it changed while it was read; so all rows of
    changed keys come from the changes.
    """
    from pyspark.sql import functions

    columns = base_values(source)
    own_keys = [columns[name] for name in source.keys]
    keys = [functions.col(f"key{number}") for number in range(len(own_keys))]
    same = same_keys(source)
    kept = base.join(ends.select(*keys), same, "left_anti")
    # First the keys that are in both, in few columns: the rest would send the whole base to the changes.
    known = base.select(*own_keys, "base_shard").join(ends.select(*keys), same, "left_semi")
    if source.base is not None and source.base.is_approximate:
        known = known.groupBy(*own_keys).agg(functions.min("base_shard").alias("base_shard"))
    # Not an anti-join: Spark would look for keys that nothing has added before it joins.
    is_known = functions.col("base_shard").isNotNull()
    ends = ends.join(known, same, "left")
    if "shards" in ends.columns:
        moved = is_known & (functions.col("base_shard").cast("string") != functions.col(SHARD))
        stays = functions.when(moved, failure(source, _MOVED_SHARD, _first_event()))
        ends = ends.where(stays.otherwise(functions.lit(True)))
    left = _rows(source, ends, is_known | _is_expected(exact_from), is_tolerant)
    since = functions.col("base_since") if "since" in ends.columns else None
    own = _output(source, columns, functions.col("base_shard"), since)
    return kept.select(*own, *_known(is_tolerant)).unionByName(left)


def _rows(source: FoldSource, ends: DataFrame, is_expected: Column, is_tolerant: bool) -> DataFrame:
    """Return the rows that changes have left; an unexpected key fails the computation, unless tolerant."""
    from pyspark.sql import functions

    row = functions.col("row")
    broken = functions.lit(True) if is_tolerant else failure(source, _BROKEN_CHAIN, _first_event())
    there = ends.where(functions.when(is_expected, row.isNotNull()).otherwise(broken))
    values = {name: row.getField(name) for name in source.columns}
    since = ulid_time(functions.col("since")) if "since" in ends.columns else None
    if not is_tolerant:
        return there.select(*_output(source, values, functions.col(SHARD), since))
    for number, name in enumerate(source.keys):
        values[name] = functions.coalesce(values[name], functions.col(f"key{number}"))
    own = _output(source, values, functions.col(SHARD), since)
    return there.select(*own, (~is_expected).alias(UNKNOWN))


def _known(is_tolerant: bool) -> list[Column]:
    """Return the column that a tolerant fold has more, of rows that are known."""
    from pyspark.sql import functions

    return [functions.lit(False).alias(UNKNOWN)] if is_tolerant else []


def _output(
    source: FoldSource, values: Mapping[str, Column], shard: Column, since: Column | None = None
) -> list[Column]:
    columns = [value.alias(name) for name, value in values.items()]
    if source.has_shards:
        columns.append(shard.cast(shard_type(source)).alias(SHARD_COLUMN))
    if since is not None:
        columns.append(since.alias(VALID_FROM))
    return columns


def failure(source: FoldSource, why: str, ulid: Column) -> Column:
    """Return a column that fails the computation with our error, which names an event."""
    from pyspark.sql import functions

    error = source.refusal(f"event {_SOME_ULID} {why}")
    before, _, behind = error_text(error).partition(_SOME_ULID)
    text = functions.concat(functions.lit(before), ulid, functions.lit(behind))
    return functions.raise_error(text).cast("boolean")


def _first_event() -> Column:
    from pyspark.sql import functions

    return functions.col("first").getField(ULID_COLUMN)


#: Events of a partition when they are grouped by key.
_PARTITION_ROWS = 100_000
#: Settings of the session so that all types of a table are read and written unchanged.
SETTINGS = {
    "spark.sql.timeType.enabled": "true",
    # Few readers know Spark's default, and it cannot hold all times.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark before 4.0 refuses to write days before 1582 otherwise.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


def run_fold(
    spark: Callable[[], SparkSession],
    task: FoldTask,
    connection: JobConnection,
    report: Callable[[str], None],
) -> State:
    """Fold, write the state, and let it count."""
    options = connection.storage_options
    bases = BaseChoice(task.output, task.base, options)
    source = find_fold(ExportStore(task.path, task.feed, options), task.at, task.table, bases)
    if source.base is not None and source.base.where:
        raise source.refusal(
            f"{source.base.what} has only a part of the table, and a state needs the whole table. "
            "Choose another base, or fold the part with airflow_changefeed.fold and write it elsewhere"
        )
    output = StateStore(task.output, task.feed, source.table, options, database=source.store.database())
    output.claim()
    since = "the beginning" if source.base is None else source.base.what
    events = sum(file.facts.rows for group in source.groups for file in group.files)
    report(
        f"changefeed fold: table {source.table} of feed {task.feed} at {format_time(source.at)}: "
        f"{counted(events, 'event')} since {since}"
    )
    running = spark()
    try:
        with session_settings(running, {**SETTINGS, **partitions(running, source)}):
            frame = fold_source(running, source)
            url = output.files.url(output.writing(source.at, task.attempt))
            frame.write.option("compression", "zstd").parquet(url)
            state = output.commit(source.at, task.attempt, source.base_facts())
    except Exception as error:
        output.discard(source.at, task.attempt)
        raise own_error(error) from error
    report(f"changefeed done: {counted(state.rows, 'row')}, {size_text(state.bytes)}, in {state.path}")
    return state


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, setting in before.items():
            if setting is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, setting)


def partitions(spark: SparkSession, source: FoldSource) -> dict[str, str]:
    """Return a setting of fewer partitions where there are few events: each costs more than some rows."""
    name = "spark.sql.shuffle.partitions"
    wanted = 1 + sum(file.facts.rows for group in source.groups for file in group.files) // _PARTITION_ROWS
    return {name: str(wanted)} if wanted < int(spark.conf.get(name, "200") or 200) else {}
