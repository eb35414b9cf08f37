# SPDX-License-Identifier: Apache-2.0
"""Files on a disk: folders that others prune at this moment, mistyped paths, disks that are full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.exceptions import ChangefeedError, OutputNotWritableError, TransientError
from airflow_changefeed.storage.files import open_files
from airflow_changefeed.storage.local import LocalFiles
from tests.unit.export.faults import local_files


def test_what_others_prune_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An empty folder between our opening it and our moving a file into it; a temporary file that a newer
    attempt cleans up before it gets its name.
    """
    files, folder = local_files(tmp_path), tmp_path / "target"
    (tmp_path / "source").write_bytes(b"content")
    folder.mkdir()
    rename, pruned = os.rename, []

    def prune_first(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if target not in pruned:
            pruned.append(target)
            if target == "file":
                folder.rmdir()
            else:
                os.unlink(source, dir_fd=src_dir_fd)
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", prune_first)
    assert files.move(str(tmp_path / "source"), str(folder / "file"))
    assert (folder / "file").read_bytes() == b"content"
    files.write(f"{tmp_path}/a.json", b"whole")
    assert (tmp_path / "a.json").read_bytes() == b"whole"
    assert pruned == ["file", "a.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "target"]


def test_a_file_where_a_folder_is_needed_is_told(tmp_path: Path) -> None:
    """It is not taken for a folder that is pruned again and again."""
    files = local_files(tmp_path)
    (tmp_path / "source").write_bytes(b"content")
    (tmp_path / "target").write_bytes(b"somebody's")
    with pytest.raises(OutputNotWritableError, match="target"):
        files.move(str(tmp_path / "source"), str(tmp_path / "target" / "file"))
    assert (tmp_path / "target").read_bytes() == b"somebody's"


@pytest.mark.parametrize(
    ("path", "package", "extra"),
    [
        ("s3://lake/feeds", "s3fs", "s3"),
        ("abfss://feeds@lake.dfs.core.windows.net", "adlfs", "azure"),
        ("gs://lake/feeds", "gcsfs", "gcs"),
    ],
)
def test_a_path_whose_extra_is_missing_says_how_to_install_it(
    path: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the output is opened, which is before anything is sealed."""
    monkeypatch.setitem(sys.modules, package, None)
    # Another test may have loaded it. fsspec has the module's name for a mapping, too.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, path.partition("://")[0], raising=False)
    with pytest.raises(OutputNotWritableError, match=rf"; run pip install 'airflow-changefeed\[{extra}\]'"):
        open_files(path, {})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3:/lake/feeds", "did you mean 's3://lake/feeds'"),
        ("abfss:lake/feeds", "did you mean 'abfss://lake/feeds'"),
        ("", "the output path is empty"),
        (" ", "the output path is empty"),
    ],
)
def test_a_mistyped_path_says_what_is_wrong_with_it(path: str, message: str) -> None:
    """It would be a folder of whatever the process is in; other paths with colons are no mistakes."""
    with pytest.raises(OutputNotWritableError, match=message):
        open_files(path)
    for right in ("/data/a:b", "file:///data", "file:/data", "memory://x", "data"):
        open_files(right)


def test_a_file_system_that_takes_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one where disks are mounted: before a run, and where it begins only then."""
    files = LocalFiles(str(tmp_path / "lake" / "feeds"))

    def refused(path: str, *_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "mkdir", refused)
    where = f"a folder cannot be created in {tmp_path}"
    for act in (files.check_writable, lambda: files.write(f"{files.root}/a", b"")):
        with pytest.raises(OutputNotWritableError, match=f"{where}.*Check the path and its mounts"):
            act()


def test_a_check_leaves_no_trace(tmp_path: Path) -> None:
    """Neither the folder nor the trial."""
    LocalFiles(str(tmp_path / "lake" / "feeds")).check_writable()
    assert list(tmp_path.iterdir()) == []


def _full(number: int) -> Callable[..., Any]:
    def refuse(path: Any, *_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number), path)

    return refuse


def _write_on(files: LocalFiles, number: int) -> None:
    with files.writer(f"{files.root}/new"):
        raise OSError(number, os.strerror(number))


#: Calls that need space, and where the operating system refuses it.
NEEDS_SPACE: dict[str, tuple[str, Callable[[LocalFiles], object]]] = {
    "write": ("rename", lambda files: files.write(f"{files.root}/a", b"x")),
    "write to a new folder": ("mkdir", lambda files: files.write(f"{files.root}/b/a", b"x")),
    "move": ("rename", lambda files: files.move(f"{files.root}/a", f"{files.root}/b")),
    "swap in": ("rename", lambda files: files.swap_in(f"{files.root}/a", f"{files.root}/b")),
    "remove a folder": ("mkdir", lambda files: files.remove(f"{files.root}/folder")),
    "check": ("mkdir", lambda files: LocalFiles(f"{files.root}/none").check_writable()),
    "look": ("listdir", lambda files: files.names(files.root)),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", NEEDS_SPACE)
def test_a_full_disk_is_transient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Somebody frees space, and a retry goes on; the error says so. So is a quota that is used up."""
    files = local_files(tmp_path)
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "folder").mkdir()
    where, act = NEEDS_SPACE[call]
    with monkeypatch.context() as patched:
        patched.setattr(os, where, _full(number))
        with pytest.raises(
            TransientError, match=rf"has no space left: .*{os.strerror(number)}.*; free space"
        ):
            act(files)
    act(files)


def test_a_file_that_fills_the_disk_is_transient(tmp_path: Path) -> None:
    """Whether Python or a library says it."""
    files = local_files(tmp_path)
    with pytest.raises(TransientError, match="has no space left"):
        _write_on(files, errno.ENOSPC)
    with pytest.raises(TransientError, match="has no space left"), files.writer(f"{tmp_path}/new"):
        raise OSError("Generic error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EIO, TransientError),
        (errno.ESTALE, TransientError),
        (errno.EMFILE, TransientError),
        (errno.EACCES, OutputNotWritableError),
        (errno.EROFS, OutputNotWritableError),
        (errno.EFBIG, OutputNotWritableError),
        (errno.EXDEV, OutputNotWritableError),
    ],
)
def test_what_a_retry_may_mend_is_transient(tmp_path: Path, number: int, kind: type[ChangefeedError]) -> None:
    """A disk or a mount that fails for a while is; one that refuses is not."""
    with pytest.raises(kind, match="cannot be written"):
        _write_on(local_files(tmp_path), number)
