# SPDX-License-Identifier: Apache-2.0
"""What a distribution must hold, and must not."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.tools import check_wheel
from tests.tools.check_wheel import PROJECT, declared_version, foreign_files, main, missing_files


def test_a_file_that_the_wheel_lacks_is_named(tmp_path: Path) -> None:
    """Python, SQL, and what the page shows."""
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(PROJECT / "airflow_changefeed/__init__.py", "airflow_changefeed/__init__.py")
    missing = missing_files(wheel)
    assert "airflow_changefeed/__init__.py" not in missing
    assert {"airflow_changefeed/py.typed", "airflow_changefeed/plugins/static/page.html"} <= set(missing)


def test_a_file_that_is_not_of_the_clone_is_named(tmp_path: Path) -> None:
    """Notes, secrets and outputs that lie about do not go to strangers."""
    source = tmp_path / "x.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        archive.add(PROJECT / "README.md", "x-1/README.md")
        archive.add(PROJECT / "README.md", "x-1/docs/my-password.md")
    assert foreign_files(source) == ["docs/my-password.md"]


def test_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an earlier build left is not released."""
    for name in ("airflow_changefeed-0.0.9-py3-none-any.whl", "airflow_changefeed-0.0.9.tar.gz"):
        (tmp_path / name).touch()
    assert main(tmp_path) == 1
    assert f"distribution of {declared_version()} were expected" in capsys.readouterr().out


def test_a_wheel_that_does_not_import_is_refused(tmp_path: Path) -> None:
    """With the error that Python gives."""
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("airflow_changefeed/__init__.py", "raise RuntimeError('broken')")
    assert "broken" in check_wheel.import_error(wheel)
