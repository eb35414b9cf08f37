# SPDX-License-Identifier: Apache-2.0
"""More breaks of the embedded source, of cursors and consumers, and of what is said of them."""

from __future__ import annotations

from tests.mutation.breaks import Break

CURSORS = (
    Break(
        "events_of_a_transaction_get_the_times_of_their_statements",
        "Order",
        "sources/sqlite/capture/drain.py",
        "move_captured",
        {"max(hint, time_ms) if is_known else hint": "hint"},
        (
            (
                "tests/integration/contract/test_capture_transactions.py"
                "::test_a_seal_never_splits_a_transaction"
            ),
        ),
    ),
    Break(
        "rows_go_before_the_purge_is_recorded",
        "Completeness",
        "sources/sqlite/feed/control.py",
        "SqliteControl._purge",
        {
            "            tables.execute(\n": ("            later = lambda: tables.execute(\n"),
            "return replace(found, rows=self._delete_upto(": "found = replace(found, rows=self._delete_upto(",
            "value, bound, batch))": ("value, bound, batch))\n        later()\n        return found"),
        },
        ("tests/unit/sources/test_sqlite_races.py::test_a_purge_is_recorded_before_the_first_row_goes",),
    ),
    Break(
        "history_where_some_was_purged",
        "Completeness",
        "sources/sqlite/feed/history.py",
        "_problems",
        {"and any(Ulid.floor_milliseconds(ms) <= purged": "and all(Ulid.floor_milliseconds(ms) <= purged"},
        ("tests/integration/contract/test_history.py::test_history_of_which_a_part_was_purged_is_refused",),
    ),
    Break(
        "a_purge_takes_the_context_of_what_stays",
        "Completeness",
        "sources/sqlite/capture/drain.py",
        "purge_captured",
        {"select min(changefeed_event)": "select max(changefeed_event)"},
        ("tests/unit/sources/test_sqlite_capture.py::test_a_purge_removes_the_captured_rows_too",),
    ),
    Break(
        "a_dead_letter_that_waits_for_its_retry_holds_nothing",
        "Completeness",
        "sources/sqlite/consumer_session.py",
        "ack_of",
        {"also=_IS_OPEN": "also=\"state = 'parked'\""},
        (
            (
                "tests/integration/contract/test_dead_letters.py"
                "::test_a_letter_that_is_to_be_tried_again_holds_the_ack_and_the_purge"
            ),
        ),
    ),
    Break(
        "a_purge_during_a_bulk_read_is_not_noticed",
        "Completeness",
        "sources/sqlite/feed/reader.py",
        "SqliteReader.stream",
        {"                    ask(connection)\n": "                    pass\n"},
        ("tests/unit/sources/test_sqlite_races.py::test_a_bulk_read_that_a_purge_came_upon_fails",),
    ),
    Break(
        "an_ack_stays_where_the_cursor_goes_back",
        "Cursor",
        "sources/sqlite/cursors.py",
        "_ack",
        {"min(row.ack, move.frontier.upto)": "row.ack"},
        (
            (
                "tests/integration/contract/test_cursor_history.py"
                "::test_a_rewind_without_an_ack_takes_the_ack_back_to_the_cursor"
            ),
        ),
    ),
    Break(
        "rows_are_read_before_the_variable",
        "Cursor",
        "cursors/cursors.py",
        "compare",
        {
            "    text = variables.get(key)\n": (
                "    rows, text = source.cursors(feed, consumer), variables.get(key)\n"
            ),
            "    rows = source.cursors(feed, consumer)\n": "",
        },
        (
            (
                "tests/unit/export/test_cursors.py"
                "::test_a_move_between_the_looks_at_variable_and_rows_is_no_edit"
            ),
        ),
    ),
    Break(
        "adopted_whatever_has_changed",
        "Cursor",
        "cursors/recovery.py",
        "adopt.attempt",
        {("if row.shard in wanted and seen != row.resource_version:"): "if False:"},
        (
            (
                "tests/unit/export/test_recovery.py"
                "::test_adopt_moves_nothing_that_has_changed_since_it_was_seen"
            ),
        ),
    ),
    Break(
        "a_cursor_at_the_purge_is_not_adopted",
        "Cursor",
        "cursors/recovery.py",
        "_check_reachable",
        {"if cursor.ulid < status.purged_upto:": "if cursor.ulid <= status.purged_upto:"},
        ("tests/unit/export/test_recovery.py::test_adopt_takes_the_place_up_to_which_all_was_purged",),
    ),
    Break(
        "at_its_start_a_frontier_forgets_what_was_before",
        "Cursor",
        "core/cursor.py",
        "Frontier.moved_to",
        {"if ulid < self.start:": "if ulid <= self.start:"},
        (
            (
                "tests/unit/core/test_frontier.py"
                "::test_a_cursor_that_goes_back_to_its_beginning_keeps_what_was_backfilled_before_it"
            ),
        ),
    ),
    Break(
        "a_failed_transaction_is_parked_again_after_a_lost_lease",
        "Cursor",
        "consumers/run.py",
        "HandlerAttempt._poisoned",
        {("if [event.id for event in got] != [event.id for event in events]:"): "if False:"},
        (
            (
                "tests/unit/consumers/test_run.py"
                "::test_what_follows_an_event_that_another_has_handled_is_not_parked_for_it"
            ),
        ),
    ),
    Break(
        "a_variable_of_another_database_is_ours",
        "Cursor",
        "doctor/airflow.py",
        "published",
        {("if all(each) and variable_key(database, *each) == key:"): "if all(each):"},
        ("tests/unit/export/test_doctor.py::test_a_variable_is_that_of_its_key_whatever_its_value_says",),
    ),
    Break(
        "a_revoked_lease_is_renewed",
        "Cursor",
        "sources/sqlite/consumers.py",
        "_Request.change",
        {', "lease_holder": self.holder}': "}"},
        ("tests/integration/contract/test_leases.py::test_extending_keeps_a_token_and_takes_nothing",),
    ),
    Break(
        "versions_of_a_consumer_begin_again",
        "Cursor",
        "sources/sqlite/cursors.py",
        "first_version",
        {"return max(dropped, default=0) + 1": "return 1"},
        (
            (
                "tests/integration/contract/test_consumer_versions.py"
                "::test_no_version_comes_again_with_another_consumer_of_the_name"
            ),
        ),
    ),
    Break(
        "a_purged_shard_that_was_not_begun_is_complete",
        "Nothing silent",
        "core/completeness.py",
        "of_overview",
        {("            has_events |= settings.begin < shard.status.purged_upto\n"): ""},
        (
            (
                "tests/unit/core/test_completeness.py"
                "::test_in_a_shard_without_its_cursor_a_consumer_has_nothing_unless_there_was_never_an_event"
            ),
        ),
    ),
    Break(
        "a_trigger_on_a_table_in_other_case_is_not_seen",
        "Nothing silent",
        "sources/sqlite/capture/gaps.py",
        "_overtaken",
        {"tbl_name = ?1 collate nocase ": "tbl_name = ?1 "},
        (
            (
                "tests/unit/sources/test_sqlite_capture_triggers.py"
                "::test_a_newer_trigger_that_raises_ignore_is_a_gap"
            ),
        ),
    ),
    Break(
        "lost_leases_count_as_failures",
        "Nothing silent",
        "consumers/event.py",
        "Attempts._load",
        {"if attempt.outcome is Outcome.FAILED:": "if attempt.outcome is not Outcome.CONSUMED:"},
        ("tests/unit/consumers/test_run.py::test_a_lease_that_was_lost_counts_as_no_failure",),
    ),
    Break(
        "a_lost_consumer_without_a_row_is_well",
        "Nothing silent",
        "doctor/cursors.py",
        "_positions",
        {"info.begin < status.purged_upto:": "False:"},
        (
            (
                "tests/unit/export/test_doctor.py"
                "::test_what_a_consumer_of_events_lost_and_what_a_dead_letter_holds"
            ),
        ),
    ),
    Break(
        "dead_letters_make_a_consumer_idle",
        "Nothing silent",
        "doctor/cursors.py",
        "_idle",
        {"                ack = row.ulid\n": "                pass\n"},
        (
            (
                "tests/unit/export/test_doctor.py"
                "::test_what_a_consumer_of_events_lost_and_what_a_dead_letter_holds"
            ),
        ),
    ),
    Break(
        "feeds_that_cannot_be_read_are_fresh",
        "Nothing silent",
        "doctor/freshness.py",
        "Freshness.check",
        {"if self.late or self.errors:": "if self.late:"},
        (
            (
                "tests/unit/airflow/test_freshness.py"
                "::test_several_feeds_that_cannot_be_read_are_an_error_though_none_is_late"
            ),
        ),
    ),
    Break(
        "an_older_look_at_the_files_replaces_a_newer_one",
        "Nothing silent",
        "sources/sqlite/cursors.py",
        "SqliteCursors.record_check",
        {'"checked_at <="': '"checked_at <>"'},
        ("tests/integration/contract/test_beginnings.py::test_the_newest_look_at_an_output_is_kept",),
    ),
    Break(
        "a_poll_remembers_a_table_that_was_replaced",
        "Nothing silent",
        "sources/sqlite/feed/reader.py",
        "_query",
        {" or definition not in (None, rows[0][0])": ""},
        ("tests/unit/sources/test_sqlite_poll.py::test_a_column_that_comes_later_counts",),
    ),
    Break(
        "an_outage_counts_as_a_failure",
        "Nothing silent",
        "consumers/run.py",
        "HandlerAttempt._is_to_blame",
        {("return error is self._raised or not isinstance(error, SourceUnavailableError)"): "return True"},
        (
            (
                "tests/unit/consumers/test_adversity.py"
                "::test_a_database_that_goes_away_in_the_work_blames_no_event"
            ),
        ),
    ),
    Break(
        "missing_files_are_no_warning",
        "Nothing silent",
        "doctor/freshness.py",
        "_freshness",
        {"if files is not None and files.missing:": "if False:"},
        (
            (
                "tests/unit/airflow/test_missing_everywhere.py"
                "::test_a_window_that_is_gone_is_missing_in_all_faces"
            ),
        ),
    ),
    Break(
        "an_expired_snapshot_holds_purges",
        "Base",
        "sources/sqlite/feed/control.py",
        "_purge_bound",
        {"and expires_ms > ?": "and ? > 0"},
        ("tests/integration/contract/test_snapshots.py::test_a_snapshot_that_expired_holds_no_purge_back",),
    ),
    Break(
        "only_the_shard_of_the_first_row_is_reset",
        "Recorded rows",
        "sources/sqlite/capture/record.py",
        "_shards_with_events",
        {" union select id from ({tables.waiting_shards})": ""},
        ("tests/integration/contract/test_recording.py::test_each_shard_has_its_reset_and_its_end",),
    ),
)
