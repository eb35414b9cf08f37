# SPDX-License-Identifier: Apache-2.0
"""Breaks of the source for SQL Server; most need a server to be noticed, those of locks its compiler."""

from __future__ import annotations

from collections.abc import Mapping

from tests.mutation.breaks import Break

_CONTRACT = "tests/integration/contract"
_LOST = f"{_CONTRACT}/test_consumer_examples.py::test_whoever_lost_its_shard_writes_nothing"
_MAPPING = "tests/unit/sources/test_mssql_mapping.py::test_what_the_driver_gives_arrives_in_parquet"
_FREE = "c.fencing_token < @token and ("
_LOCKS = "tests/tsql/test_model.py"
_LOCK_SHARD = (
    "        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;\n"
)


def _tsql(
    name: str, promise: str, file: str, changes: Mapping[str, str], *tests: str, says: str = ""
) -> Break:
    """Return a break of a file of T-SQL, which a server must execute."""
    return Break(name, promise, f"sql/mssql/{file}.sql", "", changes, tests, says, needs_server=True)


def _lock(name: str, promise: str, file: str, changes: Mapping[str, str], says: str) -> Break:
    """Return a break of what T-SQL locks, which Microsoft's compiler reads there; no server is needed."""
    return Break(name, promise, f"sql/mssql/{file}.sql", "", changes, (_LOCKS,), says)


MSSQL = (
    # ---- order
    _tsql(
        "tsql_orders_a_transaction_backwards",
        "Order",
        "feed/outbox/order_page.procedure",
        {
            "row_number() over (order by q.changefeed_highest, q.order_sequence)": (
                "row_number() over (order by q.changefeed_highest desc, q.order_sequence desc)"
            ),
        },
        f"{_CONTRACT}/test_order.py::test_one_transactions_events_keep_their_order",
    ),
    _tsql(
        "tsql_takes_any_hint_of_an_outbox",
        "Order",
        "feed/outbox/order_page.procedure",
        {"update @taken set time_hint = @now where time_hint > @latest;": ""},
        f"{_CONTRACT}/test_time.py::test_a_hint_beyond_the_tolerance_takes_the_present_and_poisons_nothing",
    ),
    _tsql(
        "tsql_takes_any_hint_of_serialized_writers",
        "Order",
        "feed/update_state.procedure",
        {
            "if @time_hint is null or @time_hint > dateadd(minute, @tolerance / 60000, ": (
                "if @time_hint is null or '1970-01-01' > dateadd(minute, @tolerance / 60000, "
            ),
        },
        f"{_CONTRACT}/test_time.py::test_a_hint_beyond_the_tolerance_takes_the_present_and_poisons_nothing",
    ),
    _lock(
        "tsql_takes_rows_of_the_outbox_without_keeping_them",
        "Order",
        "feed/outbox/order_page.procedure",
        {"with (updlock, rowlock, readpast": "with (rowlock, readpast"},
        says="takes outbox",
    ),
    _lock(
        "tsql_looks_past_locked_rows_for_torn_transactions",
        "Order",
        "feed/outbox/plan_drain.procedure",
        {"with (nolock, forceseek)": "with (readpast, forceseek)"},
        says="whole: R6",
    ),
    _lock(
        "tsql_plans_a_drain_without_the_lock_of_its_shard",
        "Order",
        "feed/outbox/drain_shard.procedure",
        {
            f"{_LOCK_SHARD}        exec <<schema>>.[plan_drain": "        exec <<schema>>.[plan_drain",
        },
        says="plan_locked",
    ),
    _lock(
        "tsql_lets_an_outbox_be_locked_by_pages",
        "Order",
        "feed/outbox/outbox.table",
        {"allow_page_locks = off": "allow_page_locks = on"},
        says="row_locks: R2",
    ),
    # ---- seal
    _lock(
        "tsql_reads_the_floor_of_a_version",
        "Seal",
        "feed/update_state.procedure",
        {"[feeds] as f with (readcommittedlock) where": "[feeds] as f where"},
        says="floor: R7",
    ),
    _lock(
        "tsql_lists_the_shards_of_a_version",
        "Seal",
        "feed/seal_feed.procedure",
        {"as s with (readcommittedlock);": "as s;"},
        says="floor_first: R7",
    ),
    _tsql(
        "tsql_seals_with_a_shared_lock_of_the_floor",
        "Seal",
        "feed/seal_feed.procedure",
        {"@LockMode = N'Exclusive'": "@LockMode = N'Shared'"},
        "tests/integration/mssql/test_waiting.py::test_a_seal_waits_for_a_writer_that_makes_a_new_shard",
    ),
    _tsql(
        "tsql_seals_without_raising_the_clocks",
        "Seal",
        "feed/outbox/seal_shard.procedure",
        {"@time_hint = @until": "@time_hint = '1970-01-01'"},
        f"{_CONTRACT}/test_seal.py::test_a_late_hint_lands_above_the_seal",
    ),
    _tsql(
        "tsql_seals_without_a_floor_for_new_shards",
        "Seal",
        "feed/seal_feed.procedure",
        {"set floor_time = @until where": "set floor_time = floor_time where"},
        f"{_CONTRACT}/test_seal.py::test_a_shard_first_used_after_a_seal_starts_above_it",
    ),
    # ---- windows, and what of them may go
    _tsql(
        "tsql_takes_history_above_the_seal",
        "Windows",
        "feed/outbox/insert_history.procedure",
        {"if @latest >= @floor": "if 1 = 0"},
        f"{_CONTRACT}/test_history.py::test_history_at_or_above_the_seal_is_refused",
    ),
    _tsql(
        "tsql_takes_history_of_before_a_purge",
        "Windows",
        "feed/outbox/insert_history.procedure",
        {"if <<schema>>.[floor_ulid](@earliest) <= @purged and": "if 1 = 0 and"},
        f"{_CONTRACT}/test_history.py::test_history_below_what_was_purged_is_refused",
    ),
    _tsql(
        "tsql_purges_past_the_seal",
        "Completeness",
        "feed/purge_feed.procedure",
        {"if @bound < @wanted set @wanted = @bound;": ""},
        f"{_CONTRACT}/test_purge.py::test_an_unsealed_window_is_never_purged",
    ),
    _tsql(
        "tsql_purges_past_acks",
        "Completeness",
        "feed/purge_feed.procedure",
        {"if @ack < @bound set @bound = @ack;": ""},
        f"{_CONTRACT}/test_purge.py::test_the_lowest_ack_holds_the_purge_back",
    ),
    # ---- cursor
    _tsql(
        "tsql_consumes_without_the_fence",
        "Cursor",
        "feed/consume_events.procedure",
        {
            "if @token <> @fencing_token or @holder is null or @fencing_token is null": "if 1 = 0",
            "if @version <> @expected_version": "if 1 = 0",
            "and fencing_token = @fencing_token and lease_holder is not null;": ";",
        },
        _LOST,
        says="DID NOT RAISE",
    ),
    _tsql(
        "tsql_moves_a_cursor_without_a_lease",
        "Cursor",
        "feed/move_cursor.procedure",
        {
            "if @fencing_token is null or @token <> @fencing_token or @expires is null or @expires <= @now": (
                "if 1 = 0"
            ),
        },
        f"{_CONTRACT}/test_cursors.py::test_a_move_without_a_lease_is_refused",
        says="DID NOT RAISE",
    ),
    _tsql(
        "tsql_moves_a_cursor_without_a_version_check",
        "Cursor",
        "feed/move_cursor.procedure",
        {"if @version <> @expected_version": "if 1 = 0"},
        f"{_CONTRACT}/test_people.py::test_of_two_moves_of_one_cursor_the_second_is_refused",
        says="DID NOT RAISE",
    ),
    _tsql(
        "tsql_takes_live_leases_for_free",
        "Cursor",
        "install/acquire_leases.procedure",
        {
            f"= a.shard\n        where {_FREE}": f"= a.shard\n        where {_FREE}1 = 1 or ",
            f"            and {_FREE}": f"            and {_FREE}1 = 1 or ",
        },
        f"{_CONTRACT}/test_leases.py::test_a_lease_is_exclusive",
    ),
    Break(
        "work_before_consume_events",
        "Cursor",
        "sources/mssql/consumer_session.py",
        "MssqlConsumerSession.consume",
        {
            "        session = self._working()\n": (
                "        self._working().rows(_COMMIT.format(transaction_id=self._transaction_id))\n"
                "        self._transaction_id = self._begin()\n"
                "        session = self._working()\n"
            ),
        },
        (_LOST,),
        says=r"assert \[\(.*== \[\]",
        needs_server=True,
    ),
    _lock(
        "tsql_begins_a_consumer_without_the_range_of_its_row",
        "Cursor",
        "feed/begin_consumer.procedure",
        {"with (updlock, holdlock, rowlock)": "with (updlock, rowlock)"},
        says="begin_consumer",
    ),
    _lock(
        "tsql_claims_leases_without_keeping_their_rows",
        "Cursor",
        "install/acquire_leases.procedure",
        {"(rowlock, updlock, readpast, readcommittedlock)": "(rowlock, readpast, readcommittedlock)"},
        says="acquire_leases",
    ),
    _tsql(
        "tsql_takes_the_floor_for_the_seal_of_each_shard",
        "Completeness",
        "feed/shards.procedure",
        {
            "then case when k.time < @floor then k.time else @floor end end as": "then @floor end as",
        },
        "tests/integration/mssql/test_retention.py::test_a_seal_that_stopped_half_way_promises_nothing",
    ),
    # ---- nothing silent
    _lock(
        "tsql_purges_without_the_lock_that_a_new_consumer_takes",
        "Nothing silent",
        "feed/purge_feed.procedure",
        {
            "as s with (updlock, rowlock)\n            where s.shard_id = @shard;": (
                "as s\n            where s.shard_id = @shard;"
            )
        },
        says="reads state for update",
    ),
    _tsql(
        "tsql_keeps_nothing_for_a_beginning",
        "Nothing silent",
        "feed/purge_feed.procedure",
        {"if @bound < @start set @start = @bound;": "set @start = null;"},
        f"{_CONTRACT}/test_beginnings.py::test_what_lies_before_a_beginning_that_nobody_chose_is_kept",
    ),
    _tsql(
        "tsql_forgets_what_a_dropped_consumer_acknowledged",
        "Nothing silent",
        "install/drop_consumer.procedure",
        {"while exists (select 1 from @kept as k where k.place = @place)": "while 1 = 0"},
        f"{_CONTRACT}/test_beginnings.py::test_what_a_dropped_consumer_had_acknowledged_goes",
    ),
    # ---- base: what a capture has missed
    _tsql(
        "tsql_does_not_compare_a_table_with_what_was_recorded",
        "Base",
        "feed/capture/check_capture.procedure",
        {"else if @rows <> @expected": "else if 1 = 0"},
        f"{_CONTRACT}/test_capture_gaps.py"
        "::test_changes_that_passed_unseen_stop_the_seal_until_they_are_resolved",
    ),
    _tsql(
        "tsql_seals_behind_an_open_gap",
        "Base",
        "feed/capture/check_capture.procedure",
        {
            "if @reason is not null\n        begin\n            set @message": (
                "if 1 = 0\n        begin\n            set @message"
            ),
        },
        f"{_CONTRACT}/test_capture_gaps.py"
        "::test_changes_that_passed_unseen_stop_the_seal_until_they_are_resolved",
    ),
    _tsql(
        "tsql_takes_the_servers_number_of_rows_for_proof",
        "Base",
        "feed/capture/compare_table.procedure",
        {"else if @counted is null select @catalog": "else if 1 = 1 return; else select @catalog"},
        "tests/integration/mssql/test_capture_sql.py::test_a_number_of_the_servers_that_is_off_is_no_gap",
    ),
    _tsql(
        "tsql_takes_a_difference_for_the_new_base",
        "Base",
        "feed/capture/compare_table.procedure",
        {"if @counted = isnull(@base, @base_catalog) set": "if 1 = 1 set"},
        "tests/integration/mssql/test_capture_sql.py::test_a_number_of_the_servers_excuses_no_lost_row",
    ),
    # ---- recorded rows
    _tsql(
        "tsql_does_not_say_that_all_rows_are_recorded",
        "Recorded rows",
        "feed/capture/record_rows.procedure",
        {"exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'ready';": ""},
        f"{_CONTRACT}/test_recording.py::test_rows_follow_a_reset_and_an_event_says_when_all_have",
    ),
    _tsql(
        "tsql_records_rows_again_without_a_reset",
        "Recorded rows",
        "feed/capture/resolve_capture.procedure",
        {"exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'reset';": ""},
        f"{_CONTRACT}/test_recording.py::test_an_empty_table_has_nothing_to_record",
    ),
    # ---- types: what the driver gives is known without a server
    Break(
        "times_lose_their_seventh_digit",
        "Types",
        "sources/mssql/feed/mapping.py",
        "parts",
        {"own if found.length <= _MICRO_DIGITS else (*own, _TICKS)": "own"},
        (_MAPPING,),
    ),
    Break(
        "decimals_lose_their_scale",
        "Types",
        "sources/mssql/feed/mapping.py",
        "parts",
        {"pa.decimal128(found.length, found.scale)": "pa.decimal128(found.length, 0)"},
        (_MAPPING,),
    ),
)
