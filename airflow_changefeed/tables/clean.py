# SPDX-License-Identifier: Apache-2.0
"""Removes files that a table no longer needs: of replaced attempts, and of those that failed."""

from __future__ import annotations

from datetime import timedelta

from airflow_changefeed.core.plan import KEEP_FOR
from airflow_changefeed.output.layout import parse_file
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.tables.base import LakeTable


def clean(store: ExportStore, table: LakeTable, keep_for: timedelta = KEEP_FOR) -> list[str]:
    """
    Let go of versions of a table, and remove the files that neither a later version nor a manifest names.

    Files of attempts that have not ended stay.

    :param keep_for: replaced versions that are older can no longer be read; longer than any reader takes.
    :return: the removed files, relative to the table's folder.
    """
    unused = table.unused(keep_for)
    # Behind the table: who commits in between has a manifest by then, or is still under way.
    running = set(store.begun_attempts())
    named = {
        (manifest.unit, manifest.attempt, file.name) for manifest in store.list() for file in manifest.files
    }
    removed = []
    for path in unused:
        found = parse_file(path)
        if found is None or found in named or found[1] in running:
            continue
        store.files.remove_file(f"{store.layout.data}/{path}")
        store.files.prune(f"{store.layout.data}/{path.rpartition('/')[0]}", store.layout.data)
        removed.append(path)
    return removed
