# SPDX-License-Identifier: Apache-2.0
"""
What each procedure locks, and what stands for it in the model of the races (``tests/integration/model``).

The steps are those that :mod:`tests.tools.tsql.steps` reads from the T-SQL by Microsoft's compiler. Names of
files are below ``airflow_changefeed/sql/mssql``, without ``.sql``. Python holds the SQL that reads a range
for an export: the model's reader of a range is bound to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.tools.tsql.filled import OBJECT_ID


@dataclass(frozen=True)
class Row:
    """
    A step of a procedure.

    :param model: the steps that the model takes for it, by their labels up to the colon; none where the model
        leaves it out.
    :param remedies: those of the model that the step is a part of.
    :param is_new_shard: taken only where the shard has no state yet.
    :param is_followed: of a call, whether the model takes the steps of the called procedure there.
    """

    tsql: str
    model: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    is_new_shard: bool = False
    is_followed: bool = True


#: What every procedure begins with; and one that owns its transactions.
INSIDE = (Row("set xact_abort, nocount on"), Row("set transaction isolation level read committed"))
OUTSIDE = (INSIDE[0], Row("set implicit_transactions off"), INSIDE[1])
BEGIN, COMMIT, ROLLBACK = Row("begin transaction"), Row("commit", ("commits",)), Row("rollback")
_SHARD_LOCK = f"lock concat(N'changefeed/{OBJECT_ID}/', @shard_id)"
_FLOOR_LOCK = f"lock changefeed/{OBJECT_ID}/floor"
_COMMITTED = "with (readcommittedlock, readpast, rowlock)"
_TAKES = "with (forceseek, readcommittedlock, readpast, rowlock, updlock) by loop join"
_DELETES = "with (forceseek, readcommittedlock, readpast, rowlock) by loop join"
_UPDATE_LOCK = "with (rowlock, updlock)"

_ORDER_PAGE = (
    *INSIDE,
    Row("exec update_state", remedies=("state_before_delete",)),
    Row(f"select outbox {_TAKES}", ("takes outbox",), ("row_locks",)),
    Row("select feeds"),
    Row("exec update_state"),
)
_TAKEN = (
    Row(f"delete outbox {_DELETES}", ("deletes outbox",), ("row_locks", "state_before_delete")),
    ROLLBACK,
)
_PLANNED = (f"select outbox {_COMMITTED}", ("visits outbox",), ("row_locks",))

#: All that these procedures do, in the order of their text.
MODELLED: dict[str, tuple[Row, ...]] = {
    "feed/outbox/outbox.table": (
        # The order number: the model's writers draw it in a step of its own.
        Row("next value for sequence", remedies=("bound",)),
        Row("allow_page_locks = off", remedies=("row_locks",)),
    ),
    "feed/capture/outbox.table": (Row("allow_page_locks = off", remedies=("row_locks",)),),
    "feed/outbox/outbox_options.batch": (
        Row("alter outbox (lock_escalation = disable)", remedies=("row_locks",)),
    ),
    "feed/feed_write_lock.procedure": (
        *INSIDE,
        Row(
            f"{_SHARD_LOCK}: exclusive, of the transaction, for changefeed.users",
            ("locks shard",),
            ("plan_locked", "seal_waits"),
        ),
    ),
    "feed/lock_shard.procedure": (
        *INSIDE,
        Row("exec feed_write_lock", remedies=("plan_locked", "seal_waits")),
        Row("select state", ("reads state",)),
        Row(
            f"{_FLOOR_LOCK}: shared, of the transaction, for changefeed.users",
            ("locks floor",),
            ("floor_held",),
            is_new_shard=True,
        ),
    ),
    "feed/update_state.procedure": (
        *INSIDE,
        Row(f"select state {_UPDATE_LOCK}", ("reads state for update",)),
        # Held since lock_shard:T.
        Row(f"{_FLOOR_LOCK}: shared, of the transaction, for changefeed.users", remedies=("floor_held",)),
        Row("select feeds with (readcommittedlock)", ("reads feeds",), ("floor", "floor_held"), True),
        Row("insert state", ("inserts state",), ("floor", "state_before_delete"), True),
        Row("select feeds"),
        Row("update state", ("raises clock",)),
        ROLLBACK,
    ),
    "feed/outbox/plan_drain.procedure": (
        *INSIDE,
        Row(*_PLANNED),
        Row("select outbox with (forceseek, nolock)", ("looks at outbox",), ("whole",)),
        # The scans of an outbox of v2, until one finds nothing more.
        Row(f"select outbox {_COMMITTED}", remedies=("repeat",)),
    ),
    "feed/outbox/order_page.procedure": (*_ORDER_PAGE, Row("insert feed", ("inserts feed",)), *_TAKEN),
    "feed/capture/order_page.procedure": (
        *_ORDER_PAGE,
        Row("select state"),
        Row("update state"),
        Row("insert balance"),
        Row("select balance"),
        Row("update balance"),
        Row("insert feed", ("inserts feed",)),
        Row("select changes with (forceseek)"),
        # A transaction larger than any page: the model has none.
        Row("insert feed with (paglock)"),
        Row("select changes with (forceseek)"),
        *_TAKEN,
    ),
    "feed/outbox/drain_shard.procedure": (
        *INSIDE,
        # Nothing waits: nothing is done.
        Row(f"select outbox {_COMMITTED}", remedies=("row_locks",)),
        Row("next value for sequence", ("draws bound",), ("bound",)),
        BEGIN,
        Row("exec lock_shard", remedies=("plan_locked",)),
        Row("exec plan_drain", remedies=("plan_locked", "bound")),
        COMMIT,
        BEGIN,
        Row("exec lock_shard"),
        Row("exec order_page"),
        COMMIT,
        Row("exec flush_log", is_followed=False),
        ROLLBACK,
    ),
    "feed/outbox/seal_shard.procedure": (
        *INSIDE,
        BEGIN,
        Row("exec lock_shard", remedies=("seal_waits", "plan_locked")),
        Row("next value for sequence", ("draws bound",), ("bound",)),
        Row("exec plan_drain", remedies=("bound",)),
        Row("exec order_page"),
        Row("exec update_state"),
        COMMIT,
        ROLLBACK,
    ),
    "feed/serialized/seal_shard.procedure": (
        *INSIDE,
        BEGIN,
        Row("exec lock_shard", remedies=("seal_waits",)),
        Row("exec update_state"),
        COMMIT,
        ROLLBACK,
    ),
    "feed/serialized/lock.procedure": (
        *INSIDE,
        Row("exec lock_shard", remedies=("seal_waits",)),
        Row("exec update_state"),
        Row("update writer_locks with (rowlock)"),
        Row("insert writer_locks"),
        ROLLBACK,
    ),
    "feed/outbox/waiting_shards.function": (
        Row(f"select outbox {_COMMITTED}", ("lists outbox",), ("row_locks",)),
        Row(f"select outbox {_COMMITTED}", ("lists outbox",), ("row_locks",)),
    ),
    "feed/seal_feed.procedure": (
        *OUTSIDE,
        Row("exec waiting_shards"),
        Row("exec drain_shard"),
        # Of captures only.
        Row("exec check_capture", is_followed=False),
        BEGIN,
        Row(
            f"{_FLOOR_LOCK}: exclusive, of the transaction, for changefeed.users",
            ("locks floor",),
            ("floor_held",),
        ),
        Row("update feeds", ("reads feeds", "inserts feeds"), ("floor", "floor_first")),
        COMMIT,
        Row("select state with (readcommittedlock)", ("seeks state",), ("floor_first",)),
        # The model's seal does not look again (ADR 0005, "late, never lost").
        Row("exec waiting_shards", is_followed=False),
        # So that the seal of a shard, one transaction, has little to order.
        Row("exec drain_shard", is_followed=False),
        Row("exec seal_shard", remedies=("seal_waits",)),
        Row("exec flush_log", is_followed=False),
        Row("select feeds"),
        Row("select state"),
        Row("select feed"),
        ROLLBACK,
    ),
    "feed/check_purged.procedure": (*INSIDE, Row("select state", ("reads state",), ("check_after",))),
    "feed/check_cursor.procedure": (
        *INSIDE,
        Row("exec check_purged", remedies=("check_after",)),
        # Cursors beyond the end are no race.
        Row("exec check_beyond", is_followed=False),
    ),
    "feed/read_feed.procedure": (
        *OUTSIDE,
        Row("exec check_cursor"),
        Row("select state", ("reads state",), ("head_bound",)),
        Row("select feed", ("seeks feed",), ("head_bound", "check_after")),
        Row("exec drain_shard"),
        Row("exec check_cursor", remedies=("check_after",)),
        ROLLBACK,
    ),
    "feed/purge_feed.procedure": (
        *OUTSIDE,
        Row("select feeds"),
        Row("select feeds"),
        Row("select state"),
        BEGIN,
        Row(f"select state {_UPDATE_LOCK}", ("reads state for update",)),
        # What is kept for whom: the model purges up to where it is told.
        *(Row(f"select {table}") for table in ("consumers", *("consumer_settings",) * 2, "consumers")),
        Row("select snapshots"),
        Row(f"select feed {_COMMITTED}"),
        *(Row(f"select {table}") for table in (*("consumers",) * 3, "acknowledged")),
        Row(f"select feed {_COMMITTED}"),
        Row(f"select feed {_COMMITTED}"),
        Row("select consumers"),
        Row("update state", ("stores purged_upto",), ("purge_stored_first",)),
        Row("delete acknowledged"),
        Row("commit", ("commits",), ("purge_stored_first",)),
        Row("exec purge_shard", remedies=("purge_stored_first",)),
        ROLLBACK,
    ),
    # The model has no history. The whole feed is searched before the lock, what is newer with it.
    "feed/outbox/insert_history.procedure": (
        *OUTSIDE,
        *(Row(f"select {table}") for table in ("event", "stale_marks", "state", "feed")),
        BEGIN,
        Row("exec lock_shard"),
        Row("select state"),
        Row("select stale_marks"),
        Row("exec update_state"),
        *(Row(f"select {table}") for table in ("feeds", "state", "feed")),
        Row("select outbox with (readcommittedlock, readpast)"),
        Row("insert feed"),
        Row("select feed"),
        Row("insert stale_marks"),
        COMMIT,
        Row("select stale_marks"),
        ROLLBACK,
    ),
    "feed/outbox/purge_shard.procedure": (
        *INSIDE,
        Row("select feed"),
        Row(
            "delete feed",
            ("lists feed", "locks feed", "reads feed", "deletes feed", "commits"),
            ("purge_stored_first",),
        ),
    ),
}

_STATE, _CONSUMERS = f"select state {_UPDATE_LOCK}", "select consumers with (forceseek) by loop join"
_CONSUMER_LOCK = (
    "lock concat(N'changefeed/consumers/', @feed_id): exclusive, of the transaction, for changefeed.users"
)
#: Updates that change nothing: they lock the row.
_KEEPS = f"update consumers {_UPDATE_LOCK}"
_KEEPS_SETTINGS = f"update consumer_settings {_UPDATE_LOCK}"

#: Of consumers, which the model does not have (ADR 0005, "Locks"): all but reads without a hint.
CONSUMERS: dict[str, tuple[str, ...]] = {
    "install/lock_consumers.procedure": (_CONSUMER_LOCK,),
    "install/check_consumer.procedure": (_KEEPS, "exec check_owner"),
    "install/check_settings.procedure": (_KEEPS_SETTINGS, "exec check_owner"),
    # A purge and a new consumer lock the same row of state first.
    "feed/create_consumer.procedure": (
        *("begin transaction", "exec lock_consumers", _STATE, "exec check_owner", "exec begin_consumer"),
        *("insert consumer_settings", "commit"),
    ),
    "feed/begin_consumer.procedure": (
        *("begin transaction", _STATE, "exec check_beyond", "exec check_owner"),
        "select consumers with (holdlock, rowlock, updlock)",
        *("insert consumers", "update consumers", "exec note_change", "commit"),
    ),
    "feed/begin_shards.procedure": (
        *(
            "begin transaction",
            "exec lock_consumers",
            _STATE,
            "exec check_settings",
            "insert consumers",
            "commit",
        ),
    ),
    "feed/move_cursor.procedure": (
        *("begin transaction", _STATE, "exec check_consumer", "exec check_beyond", "exec check_purged"),
        *("update consumers", "exec note_change", "commit"),
    ),
    "feed/consume_events.procedure": (
        *("begin transaction", _KEEPS, "exec check_owner", "exec check_beyond"),
        *("update dead_letters", "insert dead_letters", "update dead_letters", "insert invocations"),
        *("update consumers", "commit"),
    ),
    "install/acquire_leases.procedure": (
        *("set implicit_transactions off", "exec find_feed", "exec check_consumer", "exec check_owner"),
        *("begin transaction", "exec check_settings", "exec check_consumer"),
        # Its own leases are waited for, those of others skipped.
        *("update consumers with (forceseek, rowlock) by loop join", _CONSUMERS),
        "next value for fencing_token",
        # Both skip what another transaction has only begun to change.
        f"select consumers {_TAKES}",
        "update consumers with (readcommittedlock, readpast, rowlock, updlock)",
        f"select consumers {_COMMITTED}",
        *("delete lease_waiters", "update lease_waiters", "insert lease_waiters", "commit"),
        *(_CONSUMERS, f"select consumers {_COMMITTED}", _CONSUMERS),
    ),
    "install/release_leases.procedure": (
        *("exec find_feed", "exec check_owner", "begin transaction", _KEEPS_SETTINGS),
        *("update consumers with (forceseek, rowlock) by loop join", "delete lease_waiters", "commit"),
    ),
    "install/lock_dead_letter.procedure": (
        *(
            "select dead_letters with (forceseek)",
            "exec check_owner",
            _KEEPS,
            f"update dead_letters {_UPDATE_LOCK}",
        ),
    ),
}


def _escalates_never(*tables: str) -> tuple[str, ...]:
    return tuple(f"alter {table} (lock_escalation = disable)" for table in tables)


def _by_rows(table: str) -> tuple[str, ...]:
    return "allow_page_locks = off", *_escalates_never(table)


_LOW = ("set deadlock_priority low",)
_IN_TURNS = (*_LOW, "set lock_timeout 2000")
_CHANGES = "select changes with (readcommittedlock)"
_OF_KEY = "select captured with (forceseek, readcommittedlock)"
_CHUNK = "select captured with (holdlock)"

#: Of all others: only hints, application locks, and settings of their own.
HINTS: dict[str, tuple[str, ...]] = {
    "feed/outbox/waiting_rows.function": (f"select outbox {_COMMITTED}",) * 2,
    "feed/capture/waiting_rows.function": (f"select outbox {_COMMITTED}",) * 2,
    "feed/outbox/inspect_outbox.procedure": (f"select outbox {_COMMITTED}",) * 2,
    "feed/poll_feed.procedure": (_CONSUMERS, f"select state {_COMMITTED}", f"select feed {_COMMITTED}"),
    "feed/overview.procedure": (
        *(
            f"select {table} {_COMMITTED}"
            for table in ("state", "feed", "state", "feed", "feed", "state", "state")
        ),
        *(f"select feed {_COMMITTED}",) * 4,
    ),
    "feed/capture/capture_unordered.procedure": (
        *("select balance with (nolock)", "select balance with (holdlock, tablock)"),
        *("select outbox with (nolock)", f"select outbox {_COMMITTED}"),
        "select changes with (nolock)",
    ),
    "feed/capture/compare_table.procedure": ("set lock_timeout 50",),
    "feed/capture/resolve_capture.procedure": _LOW,
    "feed/capture/record_rows.procedure": (*_LOW, "set lock_timeout 50"),
    "feed/capture/purge_shard.procedure": ("delete changes with (forceseek, rowlock)",),
    "capture/capture_rows.procedure": (
        "set transaction isolation level snapshot",
        *("select captured with (nolock)", "select captured with (holdlock, tablock)"),
    ),
    "capture/capture_snapshot.procedure": (
        *("set lock_timeout 2000", _CHUNK, *(f"{_CHUNK} by loop join",) * 2),
    ),
    # No scan of the outbox, as writers wait meanwhile: its shards are those of waiting_shards:T.
    "capture/capture_ddl.procedure": ("select state with (readcommittedlock)",),
    "capture/capture_insert.trigger": ("set nocount on", _CHANGES),
    "capture/capture_update.trigger": ("set nocount on", *(_CHANGES,) * 3, _OF_KEY, _CHANGES),
    "capture/capture_delete.trigger": ("set nocount on", *(_CHANGES,) * 2, _OF_KEY, _CHANGES),
    "install/check_server.batch": ("set noexec on",),
    "install/database_identity.batch": ("select database_identity with (holdlock, updlock)",),
    "install/consumers.batch": _by_rows("consumers"),
    "install/consumer_settings.batch": (
        *_by_rows("consumer_settings"),
        *_by_rows("lease_waiters"),
        *_by_rows("dead_letters"),
        *_escalates_never("invocations"),
    ),
    "install/writer_locks.batch": _by_rows("writer_locks"),
    "install/acknowledged.batch": _escalates_never("acknowledged"),
    "install/output_checks.batch": _escalates_never("output_checks"),
    "install/cursor_history.batch": _escalates_never("cursor_history"),
    "install/stale_marks.batch": _escalates_never("stale_marks"),
    "install/snapshots.batch": _escalates_never("snapshots", "snapshot_marks"),
    "feed/state_options.batch": _escalates_never("state"),
    "feed/outbox/feed_options.batch": _escalates_never("feed"),
    "install/list_consumers.procedure": ("select consumer_settings with (forceseek) by loop join",),
    "install/list_dead_letters.procedure": (
        *("select dead_letters with (forceseek)", "select dead_letters with (forceseek) by loop join"),
    ),
    "install/list_snapshots.procedure": ("select snapshots with (forceseek) by loop join",),
    "install/list_leases.procedure": (_CONSUMERS, "select lease_waiters with (forceseek) by loop join"),
    "install/record_check.procedure": (f"select consumers {_UPDATE_LOCK}",),
    "install/maintain_feeds.procedure": (
        *("set lock_timeout 60000", "select feeds with (index, readcommittedlock, readpast, rowlock)"),
    ),
    "install/note_schemas.procedure": (f"select feeds {_COMMITTED}", f"update feeds {_COMMITTED}"),
    "install/begin_snapshot.procedure": (f"update feeds {_UPDATE_LOCK}",),
    "install/drop_consumer.procedure": (_KEEPS_SETTINGS, _KEEPS) * 2,
    "install/lock_setup.procedure": (
        "lock changefeed/setup: exclusive, of the transaction, for changefeed.users",
    ),
    # Parts of what capture_snapshot becomes.
    "install/fill_chunks.procedure": ("text with (tablock, holdlock)", "text with (holdlock)"),
    "install/claim_recording.procedure": ("select snapshots with (holdlock, updlock)",),
    "install/enable_capture.procedure": _IN_TURNS,
    "install/evolve_captures.procedure": _LOW,
    "install/refresh_capture.procedure": _IN_TURNS,
    "install/upgrade.batch": ("set lock_timeout 60000",),
    "install/upgrade_captures.procedure": _IN_TURNS,
    "install/disable_capture.procedure": _IN_TURNS,
}


#: The temporary tables that callers make: a drain's plan, what users give, and what set-ups use.
SHARED_TABLES = {
    "feed/outbox/plan_drain.procedure": {"#plan"},
    "feed/outbox/order_page.procedure": {"#plan"},
    "feed/capture/order_page.procedure": {"#plan"},
    "feed/read_feed.procedure": {"#read"},
    "feed/outbox/insert_history.procedure": {"#history"},
    "capture/capture_ddl.procedure": {"#ddl_shards"},
    "install/fill_template.procedure": {"#tokens"},
    "install/fill_chunks.procedure": {"#tokens"},
}
