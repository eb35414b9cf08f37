# SPDX-License-Identifier: Apache-2.0
"""Breaks of exports, of the stores that hold them, and of what is folded from them."""

from __future__ import annotations

from tests.mutation.breaks import Break

OUTPUT = (
    Break(
        "a_start_that_may_not_be_read_is_that_of_an_attempt_that_has_ended",
        "Windows",
        "output/attempts.py",
        "read_start",
        {
            'content = store.files.read(where) or b""\n    with suppress(TerminalError):\n': (
                'with suppress(TerminalError):\n        content = store.files.read(where) or b""\n'
            )
        },
        (
            (
                "tests/unit/export/test_tries.py"
                "::test_a_start_that_may_not_be_read_is_not_that_of_an_attempt_that_has_ended"
            ),
        ),
    ),
    Break(
        "the_first_mark_of_history_counts",
        "Windows",
        "export/planner.py",
        "_plan",
        {"max(mark.number, stale.get(mark.shard, 0))": "stale.get(mark.shard, mark.number)"},
        ("tests/unit/export/test_tries.py::test_history_behind_other_history_is_written_again",),
    ),
    Break(
        "the_bytes_of_a_file_are_not_compared",
        "Windows",
        "export/verify.py",
        "_differences",
        {'            ("bytes", file.size, found.size),\n': ""},
        (
            (
                "tests/unit/export/test_verify.py"
                "::test_a_file_with_the_same_rows_that_somebody_wrote_again_is_named"
            ),
        ),
    ),
    Break(
        "a_consumer_begins_before_the_output_is_claimed",
        "Completeness",
        "export/planner.py",
        "_plan",
        {
            "    is_new = not": (
                "    feed.begin_export(request.consumer, starts, by=request.run)\n    is_new = not"
            )
        },
        (
            (
                "tests/unit/export/test_planner.py"
                "::test_a_planner_that_is_killed_before_its_claim_leaves_no_consumer"
            ),
        ),
    ),
    Break(
        "the_first_thousand_names_are_all",
        "Completeness",
        "storage/aws.py",
        "S3Objects._pages",
        {('            if not found.get("IsTruncated"):\n                return\n'): "            return\n"},
        ("tests/unit/export/test_objects.py::test_names_are_listed_to_the_last_page",),
    ),
    Break(
        "a_filter_drops_the_events_of_its_millisecond",
        "Completeness",
        "spark/datasource/filters.py",
        "_ends",
        {"return -(-microseconds // 1000) << _RANDOM_BITS": "return (microseconds // 1000) << _RANDOM_BITS"},
        (
            (
                "tests/unit/spark/test_datasource_filters.py"
                "::test_a_time_between_two_milliseconds_leaves_out_no_event_of_the_first"
            ),
        ),
    ),
    Break(
        "purged_events_are_passed_over_at_the_end",
        "Completeness",
        "spark/datasource/ranges.py",
        "last_event",
        {"max(status.head or Ulid.MIN, status.purged_upto)": "status.head or Ulid.MIN"},
        ("tests/unit/spark/test_datasource.py::test_a_purge_is_an_error_wherever_it_comes",),
    ),
    Break(
        "a_stream_takes_the_feeds_seal_for_that_of_each_shard",
        "Stream",
        "spark/datasource/stream.py",
        "ChangefeedStreamReader._sealed",
        {"            min(times),\n": "            times[0],\n"},
        (
            (
                "tests/unit/spark/test_datasource_stream.py"
                "::test_a_shard_that_a_seal_has_not_reached_is_not_read_as_sealed"
            ),
        ),
    ),
    Break(
        "a_stream_forgets_where_it_began",
        "Stream",
        "spark/datasource/stream.py",
        "StreamOffset.start",
        {"return self.starts.get(shard_text(shard), self.begin)": "return self.begin"},
        ("tests/unit/spark/test_datasource_stream.py::test_latest_is_not_lost_with_the_first_batch",),
    ),
    Break(
        "uploads_are_aborted_last",
        "Export unit",
        "output/store.py",
        "ExportStore.clean",
        {
            "        self.abort_uploads(units, attempt)\n": "",
            ('                    self.files.remove_file(f"{folder}/{name}")'): (
                '                    self.files.remove_file(f"{folder}/{name}")\n'
                "        self.abort_uploads(units, attempt)"
            ),
        },
        (
            (
                "tests/unit/export/test_commit.py"
                "::test_what_is_uploaded_while_a_newer_attempt_cleans_up_does_not_stay"
            ),
        ),
    ),
    Break(
        "a_file_that_is_not_whole_is_placed",
        "Export unit",
        "output/store.py",
        "ExportStore._move_in",
        {
            ("return {name for name, _ in wanted - set(self.files.sizes(placed).items())}"): (
                "return {name for name, _ in wanted if name not in self.files.sizes(placed)}"
            )
        },
        (
            (
                "tests/unit/export/test_commit.py"
                "::test_a_file_that_was_cut_since_its_task_wrote_it_is_not_committed"
            ),
        ),
    ),
    Break(
        "a_reader_does_not_look_again",
        "Export unit",
        "output/read.py",
        "_unit",
        {"if manifest.attempt == attempt:": "if True:"},
        (
            (
                "tests/unit/export/test_dataset.py"
                "::test_a_unit_that_is_replaced_behind_its_manifest_is_read_from_the_newer_one"
            ),
        ),
    ),
    Break(
        "a_file_is_looked_for_once",
        "Export unit",
        "output/manifests.py",
        "ManifestStore.find_file",
        {"for _ in range(2):": "for _ in range(1):"},
        (
            (
                "tests/unit/export/test_dataset.py"
                "::test_a_file_is_found_though_its_unit_is_placed_between_two_looks"
            ),
        ),
    ),
    Break(
        "a_manifest_counts_under_any_date",
        "Export unit",
        "output/manifests.py",
        "ManifestStore._collect",
        {' and date == f"date={unit.date}"': ""},
        ("tests/unit/export/test_units.py::test_a_manifest_that_lies_elsewhere_is_none",),
    ),
    Break(
        "a_manifest_of_another_attempt_counts",
        "Export unit",
        "output/manifests.py",
        "ManifestStore._read_manifest",
        {
            ("(manifest.feed, manifest.unit, manifest.attempt) != (self.feed, unit, attempt)"): (
                "(manifest.feed, manifest.unit) != (self.feed, unit)"
            )
        },
        ("tests/unit/export/test_units.py::test_a_manifest_that_lies_elsewhere_is_none",),
    ),
    Break(
        "one_committed_batch_is_found_again",
        "Export unit",
        "export/planner.py",
        "_batches",
        {
            "            cursor = unit.range.upto\n": (
                "            cursor = unit.range.upto\n            break\n"
            )
        },
        (
            (
                "tests/unit/export/test_planner.py"
                "::test_each_batch_that_is_ahead_of_its_cursor_is_exported_again_under_its_own_name"
            ),
        ),
    ),
    Break(
        "a_unit_has_events_of_the_next_one",
        "Export unit",
        "export/parts.py",
        "_end",
        {"if last <= upto:": "if True:"},
        ("tests/unit/export/test_parts.py::test_units_that_adjoin_are_one_read",),
    ),
    Break(
        "a_read_goes_over_a_gap_between_units",
        "Export unit",
        "export/parts.py",
        "_joined",
        {"(part.shard, part.range.after) != (joined[-1].shard, joined[-1].range.upto)": "False"},
        ("tests/unit/export/test_parts.py::test_what_does_not_adjoin_is_read_apart",),
    ),
    Break(
        "a_task_reports_files_of_other_tasks",
        "Export unit",
        "export/parts.py",
        "gather",
        {("if not {file.unit for file in files} <= set(units):"): "if False:"},
        (
            (
                "tests/unit/export/test_parts.py"
                "::test_a_task_that_reports_a_file_of_another_unit_is_not_believed"
            ),
        ),
    ),
    Break(
        "an_upload_that_another_one_replaced_counts",
        "Export unit",
        "storage/remote.py",
        "RemoteFiles.complete",
        {"return self.objects.size(path) == size": "return self.objects.size(path) is not None"},
        (
            (
                "tests/unit/export/test_objects.py"
                "::test_an_upload_that_is_gone_counts_only_where_all_of_its_file_is_there"
            ),
        ),
    ),
    Break(
        "a_copy_that_is_not_whole_counts",
        "Export unit",
        "storage/remote.py",
        "RemoteFiles._copy",
        {"if (copied := self.size(target)) == size:": "if (copied := self.size(target)) is not None:"},
        ("tests/unit/export/test_objects.py::test_a_copy_counts_once_all_of_it_is_there",),
    ),
    Break(
        "uploads_of_a_second_page_are_listed_from_the_key",
        "Export unit",
        "storage/aws.py",
        "S3Objects.uploads",
        {'                more["UploadIdMarker"] = marker': "                pass"},
        ("tests/unit/export/test_objects.py::test_uploads_of_one_file_may_be_on_two_pages",),
    ),
    Break(
        "manifests_are_read_before_the_table",
        "Export unit",
        "formats/publish.py",
        "publish.once",
        {
            (
                "        seen = table.look()\n"
                "        manifests = store.list() if chosen is None else "
                "_committed(store, chosen)\n"
            ): (
                "        manifests = store.list() if chosen is None else "
                "_committed(store, chosen)\n"
                "        seen = table.look()\n"
            )
        },
        (
            (
                "tests/unit/formats/test_published.py"
                "::test_a_unit_that_is_replaced_while_it_is_published_is_no_older_one"
            ),
        ),
    ),
    Break(
        "a_unit_of_another_database_counts_as_done",
        "Nothing is done twice",
        "output/attempts.py",
        "committed_before",
        {"            and manifest.database == database\n": ""},
        ("tests/unit/export/test_tries.py::test_what_may_differ_is_written_again",),
    ),
    Break(
        "tokens_of_specs_are_drawn_again",
        "The receipt decides",
        "output/manifests.py",
        "ManifestStore.highest_attempt",
        {", *self.specs()]": "]"},
        ("tests/unit/export/test_tries.py::test_a_token_that_a_spec_has_is_not_drawn_again",),
    ),
    Break(
        "a_spec_sends_files_elsewhere",
        "The receipt decides",
        "export/job_spec.py",
        "read_spec",
        {"return store, replace(plan, path=root)": "return store, plan"},
        ("tests/unit/export/test_tries.py::test_a_spec_is_run_where_it_lies_whatever_path_it_says",),
    ),
    Break(
        "a_job_names_specs_of_elsewhere",
        "The receipt decides",
        "export/job_spec.py",
        "read_job",
        {"if parse_spec(spec)[0] != root:": "if False:"},
        ("tests/unit/export/test_tries.py::test_a_job_that_names_a_spec_of_elsewhere_is_refused",),
    ),
    Break(
        "the_page_drops_exports",
        "Cursor",
        "plugins/actions.py",
        "consumer_dropped",
        {"        source.consumer(consumer, feed)\n": ""},
        ("tests/unit/airflow/test_page_moves.py::test_an_export_is_neither_created_nor_dropped",),
    ),
    Break(
        "a_restore_is_looked_for_after_the_seal",
        "Cursor",
        "export/planner.py",
        "_plan",
        {
            "    check_not_restored(source, store, feed.info.sealed_until)\n": "",
            "    if on_sealed is not None:\n": (
                "    check_not_restored(source, store, feed.info.sealed_until)\n"
                "    if on_sealed is not None:\n"
            ),
        },
        ("tests/unit/export/test_restored.py::test_an_output_beyond_the_seal_stops_the_next_export",),
    ),
    Break(
        "a_shard_may_always_have_come_later",
        "Nothing silent",
        "output/coverage.py",
        "find_missing",
        {"unit.range.after < wanted.after for": "False for"},
        ("tests/unit/export/test_dataset.py::test_a_shard_that_has_earlier_units_did_not_come_later",),
    ),
    Break(
        "data_of_an_earlier_day_is_not_found",
        "Nothing silent",
        "export/orphans.py",
        "orphans",
        {"dates[max(begin - 1, 0) : end + 1]": "dates[begin:end]"},
        (
            (
                "tests/unit/export/test_verify.py"
                "::test_a_missing_manifest_of_a_unit_that_begins_a_day_earlier_is_named"
            ),
        ),
    ),
    Break(
        "quiet_windows_of_a_recreated_capture_go_on_from_an_old_base",
        "Base",
        "lake/fold_plan.py",
        "_find",
        {"if since is not None and since != base.facts.shape.begun_at:": "if False:"},
        ("tests/unit/lake/test_quiet_captures.py::test_quiet_hours_of_a_recreated_capture_are_not_merged",),
    ),
    Break(
        "a_snapshot_is_used_before_it_is_exact",
        "Base",
        "lake/bases.py",
        "_find_bases",
        {"if one.exact_from <= end]": "if one.begin <= end]"},
        (
            (
                "tests/unit/lake/test_newest.py"
                "::test_a_snapshot_is_no_base_of_a_time_at_which_it_is_not_exact_yet"
            ),
        ),
    ),
    Break(
        "a_capture_has_its_rows_at_its_begin",
        "Base",
        "lake/fold_plan.py",
        "_unknown",
        {"if end <= begun:": "if end < begun:"},
        ("tests/unit/export/test_folding.py::test_an_export_that_began_after_its_capture_is_not_whole",),
    ),
    Break(
        "the_clean_up_takes_files_of_running_merges",
        "Current table",
        "lake/current.py",
        "CurrentOutput.clean",
        {
            (
                "            if match and begun_at(int(match[1])) < before:\n"
                "                self.files.remove_file("
            ): ("            if match:\n                self.files.remove_file(")
        },
        ("tests/unit/formats/test_current.py::test_a_merge_that_was_killed_is_tried_again",),
    ),
    Break(
        "rows_that_others_wrote_are_not_noticed",
        "Current table",
        "lake/merge.py",
        "_record",
        {") != record.rows:": ") < record.rows:"},
        (
            (
                "tests/unit/formats/test_others.py"
                "::test_rows_that_others_added_in_a_lost_part_of_the_log_are_seen"
            ),
        ),
    ),
    Break(
        "readings_that_wait_are_cleaned",
        "Comparison",
        "lake/snapshots.py",
        "SnapshotFiles.clean",
        {"if reading is None or not _is_kept(reading):": "if True:"},
        (
            (
                "tests/unit/lake/test_newest.py"
                "::test_a_reading_that_waits_to_be_compared_stays_beside_a_new_snapshot"
            ),
        ),
    ),
    Break(
        "a_reading_is_compared_with_itself",
        "Comparison",
        "lake/bases.py",
        "_known",
        {" and one.token != choice.without": ""},
        (
            (
                "tests/unit/lake/test_newest.py"
                "::test_a_reading_that_became_a_snapshot_is_not_compared_with_itself"
            ),
        ),
    ),
    Break(
        "a_secret_that_holds_another_is_half_shown",
        "Secrets",
        "storage/errors.py",
        "harmless",
        {"key=len, reverse=True)": "key=len)"},
        (
            (
                "tests/unit/export/test_remote.py"
                "::test_a_secret_that_begins_with_another_one_is_masked_as_a_whole"
            ),
        ),
    ),
    Break(
        "others_may_write_programs",
        "Secrets",
        "spark/archive.py",
        "_own_folder",
        {"found.st_mode & 0o022": "found.st_mode & 0o002"},
        (
            (
                "tests/unit/airflow/test_program_path.py"
                "::test_a_folder_of_archives_that_others_can_write_to_is_refused"
            ),
        ),
    ),
)
