# SPDX-License-Identifier: Apache-2.0
"""The script for SQL Server Agent; that it compiles is ``make tsql``'s matter."""

from __future__ import annotations

import re
from datetime import time, timedelta
from pathlib import Path

import pytest

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.mssql.install.agent import agent_script
from tests.unit.airflow.commands import run

DAY = timedelta(days=1)


def test_both_jobs_run_as_the_login_in_the_database() -> None:
    """What maintains all feeds; names are quoted as their place in the script asks."""
    script = agent_script("My [odd] 'Db'", "a's\\agent", keep=DAY * 7, purge_at=time(23, 5))
    assert script.startswith("-- airflow_changefeed ")
    assert "\nuse [My [odd]] 'Db'];\ngo\n" in script
    assert "@database sysname = N'My [odd] ''Db''', @owner sysname = N'a''s\\agent'" in script
    assert "(N'changefeed drain My [odd] ''Db''', " in script
    assert "N'exec [changefeed].[maintain_feeds];', 4, 1, 0)" in script
    assert "dateadd(minute, -10080, [changefeed].[now]())" in script
    assert re.search(r"@purge_before = @before;',\s+1, 0, 230500\)", script)
    assert "<<" not in script
    assert script.isascii()
    assert "$" not in script
    assert script.endswith("\ngo\n")


def test_an_error_of_msdb_leaves_no_half_of_a_job() -> None:
    """Its procedures use raiserror, which ends neither batch nor transaction outside of a try block."""
    script = agent_script("Db", "agent")
    (tried,) = re.findall(
        r"begin try\s+begin transaction;(.*?)commit;\s+end try\s+begin catch", script, re.DOTALL
    )
    calls = re.findall(r"exec msdb\.dbo\.\w+", script)
    assert re.findall(r"exec msdb\.dbo\.\w+", tried) == calls != []
    assert re.search(r"begin catch\s+if @@trancount > 0 rollback;\s+throw;", script)


def test_it_works_on_another_schema() -> None:
    """By its procedures, its roles and the names of the jobs."""
    script = agent_script("Db", "agent", schema="cf")
    assert "[cf].[maintain_feeds]" in script
    assert "N'cf.operators:'" in script
    assert "N'cf purge Db'" in script
    assert "[changefeed]" not in script


@pytest.mark.parametrize(
    ("every", "kind", "interval"), [(10, 2, 10), (90, 2, 90), (60, 4, 1), (5400, 4, 90), (7200, 8, 2)]
)
def test_the_schedule_has_the_longest_unit_that_fits(every: int, kind: int, interval: int) -> None:
    """Seconds, minutes or hours."""
    script = agent_script("Db", "agent", drain_every=timedelta(seconds=every))
    assert f"[maintain_feeds];', {kind}, {interval}, 0)" in script


def test_all_that_cannot_be_is_named_at_once() -> None:
    """With what may be."""
    keep = timedelta(minutes=1, seconds=1)
    with pytest.raises(InvalidArgumentError) as caught:
        agent_script("d" * 120, "", schema="a$b", drain_every=timedelta(seconds=9), keep=keep)
    for words in (
        "owner must be 1 to 128 printable characters, not ''",
        "schema 'a$b' contains $",
        "is too long by 2 characters for the name of a job",
        "drain_every must be 10 seconds to 12 hours, in whole seconds, not 0:00:09",
        "keep must be 1 minute to 36525 days, in whole minutes, not 0:01:01",
    ):
        assert words in caught.value.message


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or writes it to a file; without an owner, or with no time of day, it does neither."""
    options = ("--database", "Db", "--owner", "agent", "--drain-every", "30s", "--keep", "12h")
    assert run("agent-jobs", *options, "--purge-at", "03:30") == 0
    expected = agent_script(
        "Db", "agent", drain_every=timedelta(seconds=30), keep=timedelta(hours=12), purge_at=time(3, 30)
    )
    assert capsys.readouterr().out == expected
    assert "up to 12h ago" in expected
    assert "up to 30 days ago" in agent_script("Db", "agent")
    path = tmp_path / "jobs.sql"
    assert run("agent-jobs", "--database", "Db", "--owner", "agent", "--output-file", str(path)) == 0
    assert path.read_text() == agent_script("Db", "agent")
    for wrong, words in (
        (("--database", "Db"), "--owner"),
        ((*options, "--purge-at", "25:00"), "'25:00' is not a time of day; expected HH:MM"),
    ):
        with pytest.raises(SystemExit):
            run("agent-jobs", *wrong)
        assert words in capsys.readouterr().err
