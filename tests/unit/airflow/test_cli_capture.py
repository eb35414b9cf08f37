# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed capture``, on the embedded source."""

from __future__ import annotations

import io
import json
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_changefeed.core.capture import (
    CaptureSpec,
    TableCapture,
)
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources import SOURCES
from airflow_changefeed.sources.base import Capabilities
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.examples import DOCS, section
from tests.unit.airflow.commands import Commands

CAPTURE = "shop.Order_changes"


class TriggersOfStatements(SqliteFeedSource):
    """A source that says of itself what SQL Server's does."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of SQLite but for that."""
        return replace(super().capabilities, set_triggers=True)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SQLite file with two tables, and the connection to it."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "shop.Order" (Id integer primary key, Status text, PaidAt text)')
        connection.execute('create table "shop.OrderLine" (Id integer primary key, Amount integer)')
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(path)})
    )
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return path


@pytest.fixture
def commands(path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Give the commands on that connection."""
    return Commands(capsys)


@pytest.fixture
def source(path: Path) -> Iterator[SqliteFeedSource]:
    """What the commands work on."""
    with closing(SqliteFeedSource(str(path))) as source:
        yield source


def execute(path: Path, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def asked_for(commands: Commands, *options: str) -> CaptureSpec:
    """Return the capture that options ask for, as a dry run prints it."""
    assert commands.run("capture enable", *options, "--dry-run") == 0, commands.err
    return decode(CaptureSpec, json.loads(commands.out), named="output")


def open_a_gap(path: Path) -> None:
    """Let a change pass unseen: the capture's triggers are gone meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name, table in list(
            connection.execute("select name, tbl_name from sqlite_master where type = 'trigger'")
        ):
            if table == "shop.Order":
                connection.execute(f'drop trigger "{name}"')
        connection.execute("""insert into "shop.Order" values (99, 'lost', null)""")


def test_a_capture_records_from_now_on(commands: Commands, path: Path, source: SqliteFeedSource) -> None:
    """Its feed has the changes; enabling it again is harmless; it is listed."""
    (row,) = commands.rows("capture enable", "--table", "shop.Order")
    assert (row["capture"], row["is_enabled"], row["open_gaps"]) == (CAPTURE, True, [])
    assert row["whole_tables"] == ["shop.Order"]
    assert f"recorded from now on, in feed {CAPTURE}." in commands.err
    execute(path, """insert into "shop.Order" values (1, 'new', null)""", 'delete from "shop.Order"')
    assert source.drain(CAPTURE) == {0: 2}
    assert commands.rows("capture enable", "--table", "shop.Order") == [row]
    assert commands.rows("capture list") == [row]
    assert "Captures: 1" in commands.err
    assert decode(CaptureSpec, row["spec"], named="row") == source.capture(CAPTURE).spec
    assert commands.run("capture list", "-o", "plain") == 0
    head, line = commands.out.splitlines()
    assert head.split() == ["capture", "tables", "enabled", "since", "version", "drift", "open", "gaps"]
    assert line.split()[:3] == [CAPTURE, "shop.Order", "yes"]


def test_a_capture_of_a_table_with_rows_is_told_to_be_no_whole_one(commands: Commands, path: Path) -> None:
    """Unless the rows are recorded, too."""
    execute(path, """insert into "shop.Order" values (1, 'new', null)""")
    (row,) = commands.rows("capture enable", "--table", "shop.Order")
    assert row["whole_tables"] == []
    assert "existing rows are not recorded (--record-rows)" in commands.err
    folds = ("--name", "shop.All", "--record-rows", "--key-change", "delete_insert")
    (row,) = commands.rows("capture enable", "--table", "shop.Order", *folds)
    assert row["whole_tables"] == ["shop.Order"]
    assert "To fold" not in commands.err


def test_rows_that_are_not_recorded_are_read_by_the_printed_command(commands: Commands, path: Path) -> None:
    """It names the capture, the table and the connection; it is not shown where changes are missing, too."""
    execute(path, """insert into "shop.Order" values (1, 'new', null)""")
    assert commands.run("capture enable", "--table", "shop.Order", *FOLDS) == 0
    page = (DOCS / "tutorial" / "live-copy.md").read_text(encoding="utf-8")
    assert commands.err.replace("shop.Order", "shop.shoes") in page
    found = re.search(r"Read these rows:\n  airflow-changefeed (.+)\nOr enable", commands.err)
    assert found
    words = shlex.split(found[1])
    words[words.index("...")] = str(path.parent / "lake")
    assert commands.run_bare(" ".join(words[:2]), *words[2:], "-o", "json") == 0, commands.err
    (snapshot,) = json.loads(commands.out)
    assert (snapshot["feed"], snapshot["table"], snapshot["rows"]) == (CAPTURE, "shop.Order", 1)
    partial = ("--name", "shop.Partial", "--delete", "none")
    assert commands.run("capture enable", "--table", "shop.Order", *FOLDS, *partial) == 0
    assert "Enable a capture with these options under another --name." in commands.err


FOLDS = ("--key-change", "delete_insert")


NO_FOLDS = {
    "an update of a key records only the new row (--key-change delete_insert)": (),
    "deletes are not recorded (--delete)": (*FOLDS, "--delete", "none"),
    "different columns (--insert, --update)": (*FOLDS, "--update", "Id,Status"),
}


@pytest.mark.parametrize("reason", NO_FOLDS)
def test_what_cannot_be_folded_is_said_with_the_option(commands: Commands, reason: str) -> None:
    """By a dry run already, and only what was asked for wrongly; standard output is the result's."""
    for more in (("--dry-run",), ("-o", "json")):
        assert commands.run("capture enable", "--table", "shop.Order", *NO_FOLDS[reason], *more) == 0
        assert json.loads(commands.out)
        said = commands.err.splitlines()
        # What was done comes first.
        done = "is enabled: changes of shop.Order are recorded from now on, in feed shop.Order_changes."
        assert said[0].endswith(done) is ("--dry-run" not in more)
        assert reason in commands.err
        begin = "To fold these events into a current table of shop.Order, "
        assert any(one.startswith(begin) for one in said)
        assert commands.err.count("(--") == reason.count("(--")
    columns = ("--insert", "Status", "--update", "Status", "--delete", "Status")
    name = ("--name", "shop.Keyless")
    assert commands.run("capture enable", "--table", "shop.Order", *FOLDS, *columns, *name) == 0
    assert "key columns are left out: Id" in commands.err


def test_options_say_what_a_capture_is(
    commands: Commands, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them, without a question to the database; a file also says columns of several tables."""
    before = path.read_bytes()
    assert asked_for(commands, "--table", "shop.Order") == CaptureSpec((TableCapture("shop.Order"),))
    options = """
        --table shop.Order --insert all --update 'Status, PaidAt' --delete none --shard 'Id % 4'
        --name shop.Changes --shard-key-type bigint --key-change delete_insert --keep-unchanged
        --session-key a --session-key b --trace-key trace --with-sequence --no-guard-table
        --no-guard-schema --on-ddl pause --not-for-replication
    """
    columns = {"insert": [], "update": ["Status", "PaidAt"], "delete": None, "shard": "Id % 4"}
    assert encode(asked_for(commands, *shlex.split(options))) == {
        "tables": [{"table": "shop.Order", **columns}],
        "name": "shop.Changes",
        "shard_key_type": "bigint",
        "key_change": "delete_insert",
        "keep_unchanged": True,
        "session_keys": ["a", "b"],
        "trace_key": "trace",
        "with_sequence": True,
        "guard_table": False,
        "guard_schema": False,
        "on_ddl": "pause",
        "not_for_replication": True,
    }
    options = "--table a.b --table a.c --name a.d --trace-key none --delete none"
    spec = asked_for(commands, *options.split())
    assert [(table.table, table.delete) for table in spec.tables] == [("a.b", None), ("a.c", None)]
    assert spec.trace_key is None
    tables = (TableCapture("shop.Order", insert=("Status",)), TableCapture("shop.OrderLine", update=None))
    spec = CaptureSpec(tables, name="shop.Changes")
    text, file = json.dumps(encode(spec)), tmp_path / "capture.json"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert asked_for(commands, "--spec", str(file)) == asked_for(commands, "--spec", "-") == spec
    assert path.read_bytes() == before


#: Options of a capture that cannot be, and what is said of them; ``{tmp}`` is a folder of files.
WRONG = {
    "": "no table given; pass --table, or a file with --spec",
    "--spec x --table a.b --with-sequence": "--spec cannot be combined with --table, --with-sequence",
    "--table a.b --update a,,b": "'a,,b' is not a list of columns; expected a,b,c, all",
    "--table a --table b --name c --insert d": "--insert cannot be used with more than one --table",
    "--table a.b --table a.c": "a capture of several tables needs a name",
    "--spec {tmp}/gone.json": "No such file or directory: '{tmp}/gone.json'",
    "--spec {tmp}/wrong.json": "{tmp}/wrong.json is not valid JSON: Expecting value",
    "--spec {tmp}/list.json": "{tmp}/list.json: [] is not an object",
    "--table shop.Missing": "FeedSetupError: ",
    "--table shop.order": "did you mean 'shop.Order' or 'shop.OrderLine'",
    "--table Order": "did you mean 'shop.Order'",
    "--table dbo.OrderLines": "did you mean 'shop.OrderLine'",
    "--table zzz": "table 'zzz' not found; create the table first",
    "--table shop.Order --update Colour": "Colour",
    "--table shop.Order --not-for-replication": "SQLite has no replication; omit it",
    "--table shop.Order --filegroup FEEDS": "SQLite keeps all tables in one file",
}


def test_a_capture_that_cannot_be(commands: Commands, tmp_path: Path) -> None:
    """Status 2, one line that says why, and nothing is made."""
    (tmp_path / "wrong.json").write_text("tables:", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for options, message in WRONG.items():
        told = commands.fails("capture enable", *options.replace("{tmp}", str(tmp_path)).split())
        assert message.replace("{tmp}", str(tmp_path)) in told
    assert commands.rows("capture list") == []


def test_a_capture_that_is_not_there_is_an_error_that_names_those_there_are(commands: Commands) -> None:
    """In every command that takes a name."""
    commands.rows("capture enable", "--table", "shop.Order")
    for name in ("disable", "refresh", "check", "resolve", "gaps"):
        more = ("--note", "x") if name == "resolve" else ()
        message = commands.fails(f"capture {name}", "shop.Nothing", *more)
        assert message.startswith("CaptureNotFoundError: ")
        assert CAPTURE in message


def test_a_disabled_capture_is_enabled_after_asking(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what changed meanwhile is a gap; enabling one that is enabled is harmless."""
    commands.rows("capture enable", "--table", "shop.Order")
    commands.rows("capture disable", CAPTURE, "--yes")
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert commands.run("capture enable", "--table", "shop.Order") == 1
    assert f"Resource version 2. Capture {CAPTURE} is disabled" in commands.err
    assert not source.capture(CAPTURE).is_enabled
    stale = ("--resource-version", "900")
    assert "StaleVersionError: " in commands.fails("capture enable", "--table", "shop.Order", *stale)
    commands.rows("capture enable", "--table", "shop.Order", "--yes")
    commands.rows("capture enable", "--table", "shop.Order")
    assert source.capture(CAPTURE).is_enabled


def test_whoever_uses_output_is_warned_where_triggers_forbid_it(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, before anything is made; not on a source without such a rule."""
    assert commands.run("capture enable", "--table", "shop.Order") == 0
    assert "output" not in commands.err
    monkeypatch.setitem(SOURCES, "sqlite", f"{__name__}.{TriggersOfStatements.__name__}")
    assert commands.run("capture enable", "--table", "shop.OrderLine") == 0
    warning, _, rest = commands.err.partition("Capture shop.OrderLine_changes is enabled")
    assert rest
    for word in (
        "shop.OrderLine",
        "334",
        "UseSqlOutputClause(false)",
        "HasTrigger",
        "implicit_returning=False",
    ):
        assert word in warning


def test_refresh_takes_the_present_columns(commands: Commands, path: Path) -> None:
    """All of them, or all but some; what differs is shown before."""
    commands.rows("capture enable", "--table", "shop.Order")
    execute(path, 'alter table "shop.Order" add column Colour text')
    (row,) = commands.rows("capture list")
    assert any("Colour" in words for words in row["drift"])
    (row,) = commands.rows("capture refresh", CAPTURE, "--yes")
    assert row["drift"] == []
    (row,) = commands.rows("capture refresh", CAPTURE, "--without", "Colour", "--without", "PaidAt", "--yes")
    assert commands.err.startswith(f"Refreshed capture {CAPTURE} to the current columns")


def test_a_gap_is_found_resolved_and_remembered(commands: Commands, path: Path) -> None:
    """Status 1 while it is open; afterwards it is known who resolved it, and why."""
    commands.rows("capture enable", "--table", "shop.Order")
    commands.rows("capture enable", "--table", "shop.OrderLine")
    assert commands.run("capture check") == 0
    assert "Captures: 2; open gaps: 0" in commands.err
    open_a_gap(path)
    assert commands.run("capture check", "-o", "json") == 1
    (gap, *_) = found = json.loads(commands.out)
    assert {one["capture"] for one in found} == {CAPTURE}
    assert (gap["table"], gap["resolved_at"], gap["note"]) == ("shop.Order", None, None)
    assert "capture resolve" in commands.err
    assert commands.rows("capture check", "shop.OrderLine_changes") == []
    assert [row["open_gaps"] for row in commands.rows("capture list")] == [[], found]
    commands.rows("capture resolve", CAPTURE, "--note", "seen", "--resync", "--yes")
    assert f"Resolved {counted(len(found), 'gap')} of capture" in commands.err
    (resolved, *_) = commands.rows("capture gaps")
    assert resolved["note"] == "seen"
    assert resolved["resolved_by"]
    assert {**resolved, "resolved_at": None, "resolved_by": None, "note": None} == gap
    commands.rows("capture resolve", CAPTURE, "--note", "again", "--resync", "--yes")
    assert "Resolved" not in commands.err
    assert "Recorded the existing rows" in commands.err
    assert commands.rows("capture gaps", "shop.OrderLine_changes") == []


def test_a_resync_needs_no_gap(commands: Commands, path: Path, source: SqliteFeedSource) -> None:
    """It records all rows, after asking: of a table that had some when it was first captured."""
    execute(path, "insert into \"shop.Order\" values (1, 'new', null)")
    commands.rows("capture enable", "--table", "shop.Order")
    commands.rows("capture resolve", CAPTURE, "--note", "seen")
    assert "has no open gaps; nothing was resolved" in commands.err
    assert commands.run("capture resolve", CAPTURE, "--note", "to fold", "--resync") != 0
    assert "has no open gaps. Record all rows of its tables again? [y/N]" in commands.err
    commands.rows("capture resolve", CAPTURE, "--note", "to fold", "--resync", "--yes")
    assert "Recorded the existing rows" in commands.err
    source.drain(CAPTURE)
    events = source.stream(CAPTURE, 0, UlidRange(Ulid.MIN, Ulid.MAX))
    assert [row["type"] for batch in events for row in batch.to_pylist()] == ["reset", "add", "ready"]
    commands.rows("capture disable", CAPTURE, "--yes")
    assert commands.run("capture resolve", CAPTURE, "--note", "to fold", "--resync", "--yes") != 0
    assert "is disabled and cannot record rows; enable it first" in commands.err


def test_the_page_has_each_field_of_a_dry_run(commands: Commands) -> None:
    """As an option in Python; also those that nobody gave, which are empty."""
    assert commands.run("capture enable", "--table", "shop.Order", "--dry-run") == 0
    spec = json.loads(commands.out)
    (table,) = spec["tables"]
    options = section("reference/capture.md#options").partition("| only when enabling |")[0]
    rows = [line.split("|")[1] for line in options.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+)`", "".join(rows))) - {"CaptureSpec", "TableCapture"}
    assert named == {*spec, *table}
