# SPDX-License-Identifier: Apache-2.0
"""Folders of a disk that others prune at this moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_changefeed.exceptions import OutputNotWritableError
from tests.unit.export.faults import local_files


def test_a_folder_is_made_again_when_it_is_pruned_as_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt removes an empty folder between our finding it and our looking what it is."""
    files, folder = local_files(tmp_path), tmp_path / "target"
    (tmp_path / "source").write_bytes(b"content")
    folder.mkdir()
    is_folder, pruned = os.path.isdir, []

    def prune_first(path: str) -> bool:
        if not pruned and Path(path) == folder:
            folder.rmdir()
            pruned.append(path)
        return is_folder(path)

    monkeypatch.setattr(os.path, "isdir", prune_first)
    assert files.move(str(tmp_path / "source"), str(folder / "file"))
    assert pruned
    assert (folder / "file").read_bytes() == b"content"


def test_a_file_where_a_folder_is_needed_is_told(tmp_path: Path) -> None:
    """It is not taken for a folder that is pruned again and again."""
    files = local_files(tmp_path)
    (tmp_path / "source").write_bytes(b"content")
    (tmp_path / "target").write_bytes(b"somebody's")
    with pytest.raises(OutputNotWritableError, match="target"):
        files.move(str(tmp_path / "source"), str(tmp_path / "target" / "file"))
    assert (tmp_path / "target").read_bytes() == b"somebody's"
