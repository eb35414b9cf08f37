# SPDX-License-Identifier: Apache-2.0
"""Removes files that a table no longer needs: of replaced attempts, and of those that failed."""

from __future__ import annotations

from airflow_changefeed.output.layout import parse_file
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.tables.base import LakeTable

#: Readers of older versions have this long, by default.
KEPT_HOURS = 168.0


def clean(store: ExportStore, table: LakeTable, older_than_hours: float = KEPT_HOURS) -> list[str]:
    """
    Let go of versions of a table, and remove the files that neither a later version nor a manifest names.

    Files of attempts that have not ended stay.

    :param older_than_hours: versions that are older can no longer be read, except the newest; longer than any
        reader takes.
    :return: the removed files, relative to the table's folder.
    """
    unused = table.unused(older_than_hours)
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
