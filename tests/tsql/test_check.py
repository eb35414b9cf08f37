# SPDX-License-Identifier: Apache-2.0
"""The check cannot pass without having run, and its tables are what they are meant to be."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.mssql_types import CASES
from tests.tools.tsql.assemblies import (
    NAMES,
    PROJECT,
    WHEEL_FOLDER,
    AssembliesMissingError,
    missing,
    unpack,
)
from tests.tools.tsql.captures import CAPTURED_TYPES, captures
from tests.tools.tsql.checker import Checker, CompilerError
from tests.tools.tsql.findings import Job, Text
from tests.tools.tsql.tables import KEY_TYPES, LONGEST_NAME, SHARD_TYPES, cases, quoted


def _wheel(folder: Path) -> Path:
    path = folder / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in NAMES:
            archive.writestr(f"{WHEEL_FOLDER}/{name}.dll", b"not an assembly")
    return path


def test_a_missing_folder_fails(tmp_path: Path) -> None:
    """Without the assemblies there is no checker that could find nothing."""
    with pytest.raises(AssembliesMissingError, match=r"lacks .*ScriptDom\.dll"):
        Checker(tmp_path / "nowhere")


def test_one_missing_assembly_fails(tmp_path: Path) -> None:
    """A folder that is not whole is not used."""
    for name in NAMES[1:]:
        (tmp_path / f"{name}.dll").touch()
    assert missing(tmp_path) == [f"{NAMES[0]}.dll"]
    with pytest.raises(AssembliesMissingError, match=NAMES[0]):
        Checker(tmp_path)


def test_another_wheel_is_not_unpacked(tmp_path: Path) -> None:
    """What does not have the pinned hash leaves nothing behind."""
    with pytest.raises(AssembliesMissingError, match="SHA-256"):
        unpack(_wheel(tmp_path), tmp_path / "assemblies")
    assert not (tmp_path / "assemblies").exists()


def test_a_compiler_that_dies_fails(tmp_path: Path) -> None:
    """The first job says what the process said before it ended."""
    wheel = _wheel(tmp_path)
    unpack(wheel, tmp_path / "assemblies", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with Checker(tmp_path / "assemblies") as checker, pytest.raises(CompilerError, match="ScriptDom"):
        checker.check(Job((Text("t.sql", "select 1"),)))


def test_the_command_fails_without_mono(tmp_path: Path) -> None:
    """A machine without Mono does not pass: the command says what to install and ends with 1."""
    absent = "def load(runtime): raise RuntimeError('Could not find libmono')\n"
    (tmp_path / "pythonnet.py").write_text(absent, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.tsql"],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "FAILED: the T-SQL was not compiled" in done.stdout
    assert "apt-get install libmono" in done.stdout
    assert "Could not find libmono" in done.stdout


def test_the_tables_are_every_kind() -> None:
    """Each shard type in both modes, 1, 3 and 32 key columns, the longest name, another schema."""
    chosen = cases()
    assert {(case.shard_type, case.serialized) for case in chosen} >= {
        (shard_type, serialized) for shard_type in SHARD_TYPES for serialized in (False, True)
    }
    assert {len(case.key) for case in chosen} >= {1, 3, 32}
    assert len(KEY_TYPES) == 32
    assert max(len(case.name) for case in chosen) == LONGEST_NAME
    assert len({case.installed_in for case in chosen}) > 1


def test_the_captures_are_every_kind() -> None:
    """Each type, both rules for keys, no key and 32 columns of it, 1,000 columns, another schema."""
    chosen = captures()
    tables = [table for one in chosen for table in one.tables]
    assert {one.key_change for one in chosen} == {"new_only", "delete_insert"}
    assert {len(table.key) for table in tables} >= {0, 1, 3, 32}
    for chosen_of in ("inserts", "updates", "deletes"):
        assert max(len(table.chosen(getattr(table, chosen_of))) for table in tables) == 1000
    assert {column.type for table in tables for column in table.captured()} >= set(CAPTURED_TYPES)
    assert {one.shard_type for one in chosen} >= {"int", "bigint", "uniqueidentifier"}
    assert {one.installed_in for one in chosen} > {"changefeed"}
    assert any(len(one.tables) > 1 and one.with_feed for one in chosen)
    # What cannot be captured is refused.
    every = {case.type.partition("(")[0] for case in CASES} - {"timestamp", "text", "ntext", "image", "json"}
    assert every <= {of.partition("(")[0] for of in CAPTURED_TYPES}


def test_the_event_tables_compile(checker: Checker) -> None:
    """The tables that stand for our users' are right themselves."""
    for case in cases():
        texts = [Text(f"{case.name} {number}", sql) for number, sql in enumerate(case.event_table())]
        texts.append(Text("installed", f"create schema {quoted(case.installed_in)}"))
        reader = (
            "select r.ulid, h.changefeed_place, h.changefeed_time from #read as r cross join #history as h"
        )
        texts.append(Text("reader", f"create procedure dbo.reader as {reader}"))
        assert checker.check(Job(tuple(texts), case.temporary(), rules=False)).findings == ()
