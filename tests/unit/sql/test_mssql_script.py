# SPDX-License-Identifier: Apache-2.0
"""The install script for SQL Server; that it compiles is ``make tsql``'s matter."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_changefeed import __version__
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import (
    CAPTURE,
    FEED,
    INSTALL,
    capture_templates,
    feed_templates,
    install_script,
    script,
)

FOLDER = Path(str(files("airflow_changefeed.sql"))) / "mssql"
TOKEN = re.compile(r"<<\w+>>")


def test_every_file_is_installed() -> None:
    """A file that nobody lists would be an object that nobody has."""
    made = ("templates", "capture_templates")
    listed = {f"install/{name}.sql" for name in INSTALL if name not in made}
    listed |= {f"feed/{name}.sql" for name in FEED} | {f"capture/{name}.sql" for name in CAPTURE}
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.sql")} == listed
    assert len(set(INSTALL)) == len(INSTALL)
    assert len(set(FEED)) == len(FEED)
    assert len(set(CAPTURE)) == len(CAPTURE)


def test_lists_are_joined_as_long_texts_and_temporary_texts_compare_as_the_database_does() -> None:
    """``string_agg`` of other texts fails beyond 8,000 bytes; ``tempdb`` has the collation of the server."""
    found = []
    for path in FOLDER.rglob("*.sql"):
        text = path.read_text(encoding="utf-8")
        found += re.findall(r"string_agg\((?!convert\(nvarchar\(max\))[^\n]{,40}", text)
        for columns in re.findall(r"create table #\w+ \((.*?)\);", text, re.DOTALL):
            found += re.findall(r"\w+ n?varchar\(\w+\) (?!collate database_default)", columns)
    assert found == []


def test_tokens_are_filled_except_in_the_templates() -> None:
    """Those are filled on the server, by the table they are for."""
    batches = install_script()
    templates = _templates(batches)
    assert len(templates) == 2
    assert all(TOKEN.search(template) for template in templates)
    assert not [batch for batch in batches if batch not in templates and TOKEN.search(batch)]


def test_a_template_is_a_text_that_gives_the_file_back() -> None:
    """Quotes are doubled in the literal, and nothing else is changed."""
    feed, capture = _templates(install_script())
    for function, folder, templates, names in (
        (feed, "feed", feed_templates(), FEED),
        (capture, "capture", capture_templates(), CAPTURE),
    ):
        for template, name in zip(templates, names, strict=True):
            body = load_sql(f"mssql/{folder}/{name}.sql")
            assert template.body == body
            assert f"'{template.type}'" in function
            assert "N'" + body.replace("'", "''") + "')" in function


def test_what_an_upgrade_replaces_says_so() -> None:
    """Procedures, functions and views are created again over what is there, and keep their grants."""
    own = [(f"install/{name}", f"[{name.partition('.')[0]}]") for name in INSTALL if "." in name]
    own += [(f"feed/{name}", f"[{name.rpartition('/')[2].partition('.')[0]}:<<name>>]") for name in FEED]
    own += [(f"capture/{name}", f"[{name.partition('.')[0]}") for name in CAPTURE]
    for name, title in own:
        kind = name.rpartition(".")[2]
        if kind in ("procedure", "function", "view"):
            created = re.search(r"^create .*", load_sql(f"mssql/{name}.sql"), flags=re.MULTILINE)
            assert created is not None, name
            assert created[0].startswith(f"create or alter {kind} <<schema>>.{title}"), name


def test_another_schema_takes_the_place_of_changefeed_everywhere() -> None:
    """Quoted as a name where it is one, and as a text where it is one."""
    text = script("it's [mine]")
    assert "create schema [it''s [mine]]]" in text
    assert "[it's [mine]]].[setup_feed]" in text
    assert "[changefeed]." not in text


@pytest.mark.parametrize("schema", ["", "x" * 16, "a\nb"])
def test_a_schema_that_is_no_name_is_refused(schema: str) -> None:
    """With the length that role names leave it."""
    with pytest.raises(InvalidArgumentError, match="schema must be 1 to 15"):
        install_script(schema)


def test_a_cache_below_one_is_refused() -> None:
    """Both problems are named at once."""
    with pytest.raises(InvalidArgumentError, match=r"schema.*sequence_cache must be at least 1"):
        install_script("", sequence_cache=0)


def test_the_script_is_written_for_dbas() -> None:
    """One text with ``go`` between its batches, by a command that needs no Airflow."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow_changefeed.sql.mssql", "feeds", "--sequence-cache", "50"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == script("feeds", sequence_cache=50)
    assert done.stdout.count("\ngo\n") == len(install_script("feeds")) + 2
    assert "cache 50" in done.stdout
    assert re.search(r"throw 77160, @message, 1;\ngo\s*set noexec off;\s*go\s*$", done.stdout)
    feeds, captures = (done.stdout.index(f"    exec [feeds].[upgrade_{of}];") for of in ("feeds", "captures"))
    assert feeds < captures


def test_a_script_that_is_refused_executes_nothing_more() -> None:
    """
    SSMS, and sqlcmd without ``-b``, go on after an error: the check ends execution.

    ``throw`` would end the batch before that. The next run begins it again.
    """
    first, _, check, *_, last, after = script().split("\ngo\n")
    code = [line.strip() for line in check.splitlines() if line.strip() and not line.startswith("--")]
    assert code[-3:] == ["raiserror(N'%s', 16, 1, @message);", "set noexec on;", "end;"]
    assert first.endswith("\nset noexec off;")
    assert (last.strip(), after.strip()) == ("set noexec off;", "")


def test_only_shards_of_v2_can_be_locked_by_everybody() -> None:
    """Each application lock names the role whose members may take it; feeds of v2 are locked as v2 does."""
    texts = [
        load_sql(f"mssql/install/{name}.sql") for name in INSTALL if "templates" not in name or "." in name
    ]
    code = "\n".join([*texts, *(template.body for template in feed_templates())])
    calls = re.findall(r"exec (?:@\w+ = )?sp_(?:get|release)applock.*?;", code, flags=re.DOTALL)
    principals = [re.search(r"@DbPrincipal = (N'.*?')", call) for call in calls]
    assert len(calls) == 6
    assert {found[1] for found in principals if found} == {
        "N'<<schema_text>>.users'",
        "N'<<lock_principal>>'",
    }
    assert None not in principals
    assert "applock_mode(N'public'" not in code


def test_nothing_runs_as_the_owner_of_the_database() -> None:
    """
    After a restore the owner may have no login, and all that runs as dbo fails (15517).

    Only the guard of captured tables runs as somebody else, a user without login, which cannot lose one.
    """
    found = re.findall(r"\b(?:execute|exec) as ('+)([^']+)", script(), flags=re.IGNORECASE)
    assert [user for _, user in found] == ["changefeed.guard"]
    assert "create user [changefeed.guard] without login" in script()


def test_the_script_says_its_version() -> None:
    """At the top, and to whoever asks the database."""
    assert script().startswith(f"-- airflow_changefeed {__version__}: installs or upgrades schema changefeed")
    assert f"return '{__version__}';" in script()


def test_no_tool_finds_a_variable_in_the_script() -> None:
    """The ``$(x)`` of sqlcmd, ``${x}`` of Flyway and ``$x$`` of DbUp need a sign that is nowhere in it."""
    assert "$" not in script()
    assert "{{" not in script()
    with pytest.raises(InvalidArgumentError, match="sqlcmd, Flyway and DbUp"):
        script("a$b")


def test_no_code_page_spoils_the_script() -> None:
    """On Windows sqlcmd reads a file without a mark in the machine's own."""
    assert script().isascii()


def test_no_line_is_a_command_of_sqlcmd() -> None:
    """Lines that begin with a colon, two exclamation marks, or one of its old words are commands there."""
    command = re.compile(r"\s*(:|!!|\$|(quit|exit|reset|ed|list|connect|go)\b)", re.IGNORECASE)
    found = {line for line in script().splitlines() if command.match(line)}
    assert found == {"go"}


def test_every_tool_finds_the_same_batches() -> None:
    """
    SSMS and sqlcmd split at each line ``go``, wherever it stands; Flyway and DbUp at each word ``go`` outside
    of texts, names and comments.
    """
    text = script()
    batches = ["set noexec off;", *(batch.rstrip() for batch in install_script()), "set noexec off;"]
    by_line = re.split(r"^[ \t]*go[ \t]*$", text, flags=re.MULTILINE | re.IGNORECASE)
    by_word = re.split(r"(?<!\S)go(?=[\s;]|$)", _code(text), flags=re.IGNORECASE)
    assert len(by_line) == len(by_word) == len(batches) + 1
    assert [_code(batch).strip() for batch in by_line] == [batch.strip() for batch in by_word]
    assert [batch.strip() for batch in by_line[1:-1]] == batches[1:]


def test_flyway_may_run_the_script_in_a_transaction() -> None:
    """It refuses statements that cannot be, and these are what it knows them by."""
    words = re.findall(r"[a-z_]+", _code(script()).lower())
    alone = {
        "backup",
        "restore",
        "reconfigure",
        *(f"sp_{name}" for name in ("serveroption", "addlinkedserver")),
    }
    assert not alone & set(words)
    pairs = set(pairwise(words))
    assert (
        not {(verb, kind) for verb in ("create", "alter", "drop") for kind in ("database", "fulltext")}
        & pairs
    )
    assert ("create", "schema") in pairs or "schema_id" in words


def test_nothing_counts_or_waits_while_a_captured_table_is_locked() -> None:
    """Its triggers come last, and behind them one `exists` and a look at the catalog."""
    text = load_sql("mssql/install/enable_capture.procedure.sql")
    before, _, locked = text.rpartition("exec <<schema>>.[create_capture_objects]")
    locked, _, after = locked.partition("commit;")
    assert set(re.findall(r"@how = ''(\w+)''", locked)) == {"any", "catalog"}
    assert not {"applock", "lock_setup", "set_up", "set_capture_columns", "compare_table"} & set(
        re.findall(r"\w+", locked)
    )
    assert "capture_rows" not in before
    assert "compare_table" in after
    counts = re.findall(
        r"count[^;]*?from <<table>>[^;]*", load_sql("mssql/capture/capture_rows.procedure.sql")
    )
    assert len(counts) == 2
    assert not [count for count in counts if "lock" in count.replace("nolock", "")]


def _code(text: str) -> str:
    """Leave out texts, names and comments; their line ends stay out, too."""
    literal = r"'(?:[^']|'')*'"
    name = r"\[(?:[^\]]|\]\])*\]"
    return re.sub(rf"--[^\n]*|/\*.*?\*/|{literal}|{name}", " ", text, flags=re.DOTALL)


def _templates(batches: list[str]) -> list[str]:
    functions = ("[templates]()", "[capture_templates]()")
    return [
        batch
        for batch in batches
        if any(f"function [changefeed].{name} returns" in batch for name in functions)
    ]
