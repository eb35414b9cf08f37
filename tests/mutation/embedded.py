# SPDX-License-Identifier: Apache-2.0
"""Breaks of the embedded source, and of all that is the same for every source."""

from __future__ import annotations

from tests.mutation.breaks import Break

_CONTRACT = "tests/integration/contract"
_RACES = "tests/unit/sources/test_sqlite_races.py"
_CONTROL = "sources/sqlite/feed/control.py"
_LOST = f"{_CONTRACT}/test_consumer_examples.py::test_whoever_lost_its_shard_writes_nothing[sqlite]"
_COMMIT = "tests/unit/export/test_commit.py"
_NEWEST = "tests/unit/lake/test_newest.py"

EMBEDDED = (
    # ---- order
    Break(
        "drain_without_the_lock",
        "Order",
        _CONTROL,
        "SqliteControl",
        {
            "write(connection):\n            tables = load_feed(connection, feed)\n            while": (
                "connect():\n            tables = load_feed(connection, feed)\n            while"
            ),
            "write(tables.connection):\n            # Again,": "connect():\n            # Again,",
        },
        (
            f"{_CONTRACT}/test_races.py::test_no_promise_breaks_while_all_race_and_some_are_killed[sqlite-outbox]",
        ),
        # A reader that finds itself beyond the feed ends the race, sometimes before any other harm is done.
        says="feed_is_complete|readers_skip_nothing|ulids_ascend|UNIQUE|CursorBeyondFeed",
    ),
    Break(
        "random_order_within_a_millisecond",
        "Order",
        "core/ulid.py",
        "HighWater.give",
        {"self.last + 1 if self.last >= first else first | self.randomness()": "first | self.randomness()"},
        (f"{_CONTRACT}/test_order.py::test_one_transactions_events_keep_their_order",),
    ),
    Break(
        "a_hint_far_in_the_future_is_taken",
        "Order",
        "core/ulid.py",
        "HighWater.give",
        {"if hint_ms > self.now_ms + self.tolerance_ms:": "if False:"},
        (
            f"{_CONTRACT}/test_time.py::test_a_hint_beyond_the_tolerance_takes_the_present_and_poisons_nothing",
        ),
    ),
    # ---- seal
    Break(
        "seal_without_raising_the_clocks",
        "Seal",
        _CONTROL,
        "SqliteControl._seal",
        {"self.raise_high_water(tables, until_ms)": "pass"},
        (f"{_CONTRACT}/test_seal.py::test_a_late_hint_lands_above_the_seal",),
    ),
    Break(
        "seal_without_a_floor_for_new_shards",
        "Seal",
        _CONTROL,
        "SqliteControl.raise_high_water",
        {"set floor_ms = max(floor_ms, ?)": "set floor_ms = min(floor_ms, ?)"},
        (f"{_CONTRACT}/test_seal.py::test_a_shard_first_used_after_a_seal_starts_above_it",),
    ),
    Break(
        "an_overtaken_sealer_takes_the_floor_back",
        "Seal",
        _CONTROL,
        "SqliteControl.raise_high_water",
        {"set floor_ms = max(floor_ms, ?)": "set floor_ms = ?"},
        (f"{_RACES}::test_two_sealers_step_by_step_keep_what_each_has_promised",),
    ),
    Break(
        "a_late_hint_takes_the_clock_back",
        "Seal",
        "core/ulid.py",
        "HighWater.give",
        {"if hint_ms > self.ms:": "if True:"},
        (f"{_CONTRACT}/test_seal.py::test_a_late_hint_lands_above_the_seal",),
    ),
    Break(
        "the_future_is_sealed",
        "Seal",
        _CONTROL,
        "SqliteControl._check_past",
        {"if until_ms <= now_ms:": "if True:"},
        (f"{_CONTRACT}/test_seal.py::test_the_future_is_not_sealed",),
    ),
    # ---- windows, and what of them may go
    Break(
        "history_above_the_seal",
        "Windows",
        "sources/sqlite/feed/history.py",
        "_problems",
        {"late = [ms for ms, _ in timed if ms >= tables.floor_ms]": "late: list[int] = []"},
        (f"{_CONTRACT}/test_history.py::test_history_at_or_above_the_seal_is_refused",),
    ),
    Break(
        "history_marks_too_little",
        "Windows",
        "sources/sqlite/feed/history.py",
        "SqliteHistory",
        {"min(given).previous()": "max(given).previous()"},
        (f"{_CONTRACT}/test_history.py::test_the_mark_covers_what_was_inserted",),
    ),
    Break(
        "purge_past_the_seal",
        "Completeness",
        _CONTROL,
        "_purge_bound",
        {"bound = min(wanted, Ulid.floor_milliseconds(tables.floor_ms).previous())": "bound = wanted"},
        (f"{_CONTRACT}/test_purge.py::test_an_unsealed_window_is_never_purged",),
    ),
    Break(
        "purge_past_acks",
        "Completeness",
        _CONTROL,
        "_purge_bound",
        {"kept = min(bound, *held)": "kept = bound"},
        (f"{_CONTRACT}/test_purge.py::test_the_lowest_ack_holds_the_purge_back",),
    ),
    # ---- export unit
    Break(
        "manifest_before_data",
        "Export unit",
        "output/commit.py",
        "Commit._commit_unit",
        {
            "            if staged:\n                store.place(unit, attempt, staged)\n": "",
            "            store.write(manifest)\n": (
                "            store.write(manifest)\n"
                "            if staged:\n                store.place(unit, attempt, staged)\n"
            ),
        },
        (f"{_COMMIT}::test_killed_anywhere_and_retried_gives_the_same",),
    ),
    Break(
        "an_older_attempt_commits",
        "Export unit",
        "output/commit.py",
        "Commit._check",
        {"if attempts and attempts[-1] > self._plan.attempt:": "if False:"},
        (f"{_COMMIT}::test_a_zombie_does_no_harm_at_any_step",),
    ),
    Break(
        "batches_among_windows",
        "Export unit",
        "output/claims.py",
        "_check_cut",
        {"if claimed.mode != wanted.mode:": "if False:"},
        ("tests/unit/export/test_planner.py::test_an_output_is_of_windows_or_of_batches",),
    ),
    Break(
        "another_unit_than_the_claims",
        "Export unit",
        "output/claims.py",
        "_check_cut",
        {"if misfit is not None or wanted.unit not in (None, unit):": "if False:"},
        ("tests/unit/export/test_planner.py::test_an_output_keeps_the_unit_of_its_first_export",),
    ),
    Break(
        "a_commit_does_not_ask_whose_the_output_is",
        "Export unit",
        "output/store.py",
        "ExportStore.check_claimed",
        {"if claim is None:": "if claim is None or claim.database == plan.database:"},
        (
            (
                "tests/unit/export/test_identity.py"
                "::test_a_commit_into_an_output_that_another_claimed_meanwhile_leaves_nothing"
            ),
        ),
    ),
    Break(
        "units_of_two_cuts_are_committed",
        "Export unit",
        "output/commit.py",
        "Commit._check_again",
        {"others.check_again([manifest.unit for manifest in manifests.values()])": "others.found"},
        ("tests/unit/export/test_overlap.py::test_two_cuts_interleaved_anywhere_are_never_both_committed",),
    ),
    # ---- nothing is done twice
    Break(
        "a_unit_without_its_files_counts_as_done",
        "Nothing is done twice",
        "output/attempts.py",
        "committed_before",
        {"            and store.is_whole(manifest)\n": ""},
        ("tests/unit/export/test_tries.py::test_what_may_differ_is_written_again",),
    ),
    Break(
        "a_unit_of_before_history_counts_as_done",
        "Nothing is done twice",
        "output/attempts.py",
        "committed_before",
        {"            and manifest.stale_seen >= units[unit]\n": ""},
        ("tests/unit/export/test_tries.py::test_what_may_differ_is_written_again",),
    ),
    Break(
        "a_retry_does_everything_again",
        "Nothing is done twice",
        "output/attempts.py",
        "committed_before",
        {"if start is not None and start.does_the_same(ours):": "if False:"},
        ("tests/unit/export/test_tries.py::test_a_retry_does_what_is_left",),
    ),
    Break(
        "failures_are_not_counted_anew_after_a_lost_lease",
        "Cursor",
        "consumers/event.py",
        "Attempts._counts",
        {"if known != token:": "if known is None:"},
        ("tests/unit/consumers/test_run.py::test_failures_are_counted_over_all_that_held_the_shard",),
    ),
    # ---- the receipt decides
    Break(
        "the_launcher_decides",
        "The receipt decides",
        "transfers/changefeed_to_parquet.py",
        "ChangefeedToParquetOperator._run",
        {"if result is None:": "if result is None or failure is not None:"},
        ("tests/unit/airflow/test_operator.py::test_the_jobs_own_error_comes_back",),
    ),
    Break(
        "the_last_receipt_counts_though_an_earlier_start_succeeded",
        "The receipt decides",
        "export/job_spec.py",
        "read_receipt",
        {"reversed(done or found)": "reversed(found)"},
        ("tests/unit/export/test_tries.py::test_of_several_receipts_one_that_succeeded_counts",),
    ),
    Break(
        "a_second_start_takes_the_token_of_the_first",
        "The receipt decides",
        "export/job_spec.py",
        "start_plan",
        {"draw(plan, store.highest_attempt(units))": "plan.attempt"},
        ("tests/unit/export/test_tries.py::test_a_second_start_leaves_out_what_the_first_has_committed",),
    ),
    # ---- cursor
    Break(
        "consume_without_the_fence",
        "Cursor",
        "sources/sqlite/consumer_session.py",
        "SqliteConsumerSession._consume",
        {
            "            expected_version=step.expected_version,\n"
            "            fencing_token=step.fencing_token,\n": ""
        },
        (_LOST,),
        says="DID NOT RAISE",
    ),
    Break(
        "work_before_consumption",
        "Cursor",
        "sources/sqlite/consumer_session.py",
        "SqliteConsumerSession.consume",
        {"        try:\n": "        self._say(_COMMIT)\n        self._say(_BEGIN)\n        try:\n"},
        (_LOST,),
        says=r"assert \[\(.*== \[\]",
    ),
    Break(
        "move_without_a_version_check",
        "Cursor",
        "sources/sqlite/cursors.py",
        "SqliteCursors._update",
        {"            expected_version=move.expected_version,\n": ""},
        (f"{_CONTRACT}/test_cursor_race.py::test_no_move_of_many_at_once_is_lost[sqlite-10]",),
        says="moves were lost",
    ),
    Break(
        "live_leases_are_free",
        "Cursor",
        "sources/sqlite/consumers.py",
        "_Request.held_until",
        {"not row.is_held(now)": "True"},
        (f"{_CONTRACT}/test_leases.py::test_a_lease_is_exclusive",),
    ),
    Break(
        "cursor_before_manifest",
        "Cursor",
        "transfers/changefeed_to_parquet.py",
        "ChangefeedToParquetOperator.execute",
        {
            "            result = self._run(context, run, store, plan)\n": (
                "            from airflow_changefeed.cursors.cursors import advance\n"
                "            done: dict[Any, list[Any]] = {}\n"
                "            for each in plan.units:\n"
                "                done.setdefault(each.unit.shard, []).append(each.unit.range)\n"
                "            advance(run.source, run.variables, plan.consumer, plan.feed, done, by='')\n"
                "            result = self._run(context, run, store, plan)\n"
            ),
        },
        ("tests/unit/airflow/test_operator.py::test_a_retry_after_a_crash_anywhere_gives_the_same_result",),
    ),
    # ---- nothing silent
    Break(
        "nothing_is_kept_for_a_beginning",
        "Nothing silent",
        _CONTROL,
        "_purge_bound",
        {"uncovered(UlidRange(after, before), known) if after < before else []": "[]"},
        (f"{_CONTRACT}/test_beginnings.py::test_what_lies_before_a_beginning_that_nobody_chose_is_kept",),
    ),
    Break(
        "what_a_dropped_consumer_acknowledged_is_forgotten",
        "Nothing silent",
        "sources/sqlite/consumers.py",
        "SqliteConsumers.drop_consumer",
        {"            remember_acknowledged(connection, feed, rows)\n": ""},
        (f"{_CONTRACT}/test_beginnings.py::test_what_a_dropped_consumer_had_acknowledged_goes",),
    ),
    Break(
        "the_cursor_stands_for_the_files",
        "Nothing silent",
        "core/completeness.py",
        "judge",
        {"shard.by_cursor if shard.files is None else shard.files": "shard.by_cursor"},
        ("tests/unit/core/test_completeness.py::test_what_the_output_has_counts_and_not_the_cursor",),
    ),
    Break(
        "nothing_lies_before_a_beginning",
        "Nothing silent",
        "core/completeness.py",
        "judge",
        {"if piece.after < shard.begin:": "if False:"},
        ("tests/unit/core/test_completeness.py::test_cursors_alone_say_what_was_exported",),
    ),
    # ---- base
    Break(
        "a_fold_from_the_beginning_inside_a_gap",
        "Base",
        "lake/fold_plan.py",
        "_last_gap",
        {"if after < end": "if found < end"},
        ("tests/unit/export/test_folding.py::test_a_gap_makes_unsure_what_was_not_sealed_when_it_was_found",),
    ),
    Break(
        "another_databases_snapshot_is_usable",
        "Base",
        "lake/take_snapshot.py",
        "usable_snapshot",
        {
            "(files.feed, files.database, where)": "(files.feed, where)",
            "(one.feed, one.database, one.where)": "(one.feed, one.where)",
        },
        ("tests/unit/lake/test_losses.py::test_one_of_another_database_is_not_usable",),
    ),
    Break(
        "another_databases_snapshot_is_a_base",
        "Base",
        "lake/bases.py",
        "_known",
        {"(one.feed, one.database) == (store.feed, database)": "one.feed == store.feed"},
        (f"{_NEWEST}::test_a_snapshot_of_another_database_is_no_base",),
    ),
    Break(
        "a_gap_that_was_found_after_a_base_does_not_end_it",
        "Base",
        "lake/bases.py",
        "Base.missed",
        {"if after < end and": "if self.begin <= after < end and"},
        ("tests/unit/export/test_fold_bases.py::test_a_gap_that_a_state_could_not_know_ends_it",),
    ),
    Break(
        "states_go_before_a_later_snapshot",
        "Base",
        "lake/bases.py",
        "Base.is_before",
        {"self.facts.origin < snapshot": "False"},
        (f"{_NEWEST}::test_a_snapshot_goes_before_states_that_go_back_to_an_earlier_one",),
    ),
    # ---- current table
    Break(
        "files_of_a_commit_without_an_answer_go_once_others_have_rewritten_them",
        "Current table",
        "lake/merge.py",
        "_commit",
        {"other is not None and other.begin == new.begin and has_none": "other is not None and has_none"},
        (
            "tests/unit/formats/test_current.py"
            "::test_a_commit_whose_answer_was_lost_keeps_its_files_though_others_went_on",
        ),
    ),
    Break(
        "files_keep_their_type_where_a_column_widens",
        "Current table",
        "spark/merge.py",
        "touched",
        {"source.unknown or widened or special.recordings": "source.unknown or special.recordings"},
        (
            "tests/integration/spark/test_merge.py::test_a_wider_column_is_taken_where_the_format_widens[iceberg]",
        ),
    ),
    Break(
        "a_commit_without_an_answer_is_not_recognised",
        "Current table",
        "lake/merge.py",
        "_commit",
        {"if there.marks == new.marks:": "if False:"},
        ("tests/unit/formats/test_current.py::test_a_commit_whose_answer_was_lost_is_recognised",),
    ),
    # ---- comparison
    Break(
        "a_comparison_does_not_wait_for_what_comes_into_sight",
        "Comparison",
        "lake/take_snapshot.py",
        "settle",
        {"if first is None or first >= bound:": "if True:"},
        ("tests/unit/lake/test_settle.py::test_what_comes_into_sight_while_it_seals_is_waited_for",),
    ),
    Break(
        "a_comparison_takes_null_for_a_value",
        "Comparison",
        "spark/reconcile.py",
        "_checksums",
        {"parts += [value, value.isNull()]": "parts += [value]"},
        ("tests/integration/spark/test_reconcile.py::test_the_only_difference_is_found",),
    ),
    # ---- recorded rows
    Break(
        "rows_are_recorded_without_a_reset",
        "Recorded rows",
        "sources/sqlite/capture/record.py",
        "begin_recording",
        {"        record_reset(tables, number, now_ms)\n": ""},
        (f"{_CONTRACT}/test_recording.py::test_rows_follow_a_reset_and_an_event_says_when_all_have",),
    ),
    Break(
        "rows_are_recorded_more_than_once",
        "Recorded rows",
        "sources/sqlite/capture/record.py",
        "_record_some",
        {
            "    move_to(connection, mine, _END if": (
                "    if upto is None:\n        move_to(connection, mine, _END if"
            )
        },
        (f"{_CONTRACT}/test_recording.py::test_rows_follow_a_reset_and_an_event_says_when_all_have",),
    ),
    # ---- types
    Break(
        "values_of_another_class_are_exported",
        "Types",
        "sources/sqlite/feed/arrow.py",
        "check_rows",
        {"if not wrong.any():": "if True:"},
        ("tests/unit/sources/test_sqlite_types.py::test_every_value_is_exported_as_it_is_stored_or_refused",),
    ),
    Break(
        "a_wider_type_is_the_first_one",
        "Types",
        "output/schemas.py",
        "wider_type",
        {"max(one, other, key=lambda kind: kind.precision)": "one"},
        ("tests/unit/export/test_schemas.py::test_a_wider_type_holds_every_value_of_both",),
    ),
    # ---- secrets
    Break(
        "passwords_of_connections_are_shown",
        "Secrets",
        "sources/mssql/connection/options.py",
        "read_connection",
        {"must be a text": "must be a text, not {given['password']!r}"},
        ("tests/unit/airflow/test_value_faces.py::test_a_password_is_never_shown",),
    ),
    Break(
        "errors_of_a_store_show_secrets",
        "Secrets",
        "storage/errors.py",
        "harmless",
        {'text = text.replace(secret, "***")': "pass"},
        ("tests/unit/export/test_remote.py::test_a_secret_is_not_told_however_it_is_written",),
    ),
    Break(
        "secrets_of_an_extra_are_not_masked",
        "Secrets",
        "connections/connection.py",
        "_secrets",
        {"is_secret=is_secret or bool(_SECRET_NAME.search(str(name)))": "is_secret=is_secret"},
        ("tests/unit/airflow/test_secrets.py::test_secrets_of_an_extra_are_masked",),
    ),
    Break(
        "a_container_is_taken_for_a_login",
        "Secrets",
        "observability/lineage.py",
        "output_dataset",
        {"scheme in AZURE_SCHEMES": "False"},
        ("tests/unit/airflow/test_lineage.py::test_an_output_is_named_by_the_conventions",),
    ),
    Break(
        "lineage_shows_logins",
        "Secrets",
        "observability/lineage.py",
        "output_dataset",
        {"scheme in AZURE_SCHEMES": "True"},
        ("tests/unit/airflow/test_lineage.py::test_an_output_is_named_by_the_conventions",),
    ),
)
