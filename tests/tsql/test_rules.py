# SPDX-License-Identifier: Apache-2.0
"""The static rules: each finds its violation, with the line, and nothing else."""

from __future__ import annotations

import pytest

from tests.tools.tsql.checker import Checker
from tests.tools.tsql.findings import Finding, Job, Text
from tests.tsql.conftest import SETTINGS, Check

CALLED = Text(
    "called.sql",
    f"create procedure dbo.called (@a int, @b int = null, @c int = 0 output) as {SETTINGS} return 0;",
)
CONSUMERS = Text(
    "consumers.table.sql",
    "create table dbo.consumers (feed_id int not null, consumer nvarchar(9), ulid binary(16), "
    "index [by name] (consumer))",
)


@pytest.mark.parametrize(
    ("rule", "statement", "message"),
    [
        ("insert_exec", "insert into dbo.event (id, data) exec dbo.called @a = 1;", "`insert ... exec`"),
        ("dirty_read", "select id from dbo.event with (nolock);", "table hint `nolock`"),
        ("dirty_read", "delete e from dbo.event as e with (rowlock, readuncommitted);", "`readuncommitted`"),
        (
            "dirty_read",
            "set transaction isolation level read uncommitted;",
            "isolation level read uncommitted",
        ),
        (
            "database_number",
            "select @n = d.recovery_model from sys.databases as d where d.database_id = db_id();",
            "`sys.databases` is searched with `db_id()`",
        ),
        (
            "taken_by_key",
            "select e.id from dbo.event as t "
            "inner join dbo.event as e with (updlock, readpast, forceseek) on e.id = t.id;",
            "no `loop join` with `forceseek`",
        ),
        (
            "taken_by_key",
            "select e.id from dbo.event as t "
            "inner loop join dbo.event as e with (updlock, readpast) on e.id = t.id;",
            "no `loop join` with `forceseek`",
        ),
        (
            "shared_table",
            "select c.ulid from dbo.consumers as c where c.consumer = N'a';",
            "`consumers` is searched without `feed_id`",
        ),
        ("shared_table", "delete from dbo.consumers;", "`consumers` is searched without `feed_id`"),
        (
            "shared_table",
            "select c.ulid from dbo.consumers as c with (forceseek) where c.consumer = N'a';",
            "`consumers` is searched without `feed_id`",
        ),
        (
            "lock_by_update",
            "update dbo.event set data = data where id = 1;",
            "without `updlock` and `rowlock`",
        ),
        (
            "lock_by_update",
            "update e set e.data = e.data from dbo.event as e with (updlock) where e.id = 1;",
            "without `updlock` and `rowlock`",
        ),
        ("throw", "throw @n, N'changefeed 77101: no', 0;", "the number of a throw is not a literal"),
        ("throw", "throw 77101, N'changefeed 77102: no', 0;", "does not begin with 'changefeed 77101: '"),
        (
            "throw",
            "declare @m nvarchar(9) = N'no'; throw 77101, @m, 0;",
            "no literal in the batch begins with",
        ),
        (
            "catch",
            "begin try select @n = 1; end try begin catch throw; end catch;",
            "a catch that only throws",
        ),
        ("executed_literal", "exec (N'select id frm dbo.event where');", "Incorrect syntax"),
        ("executed_literal", "exec sys.sp_executesql N'select top @n id';", "Incorrect syntax"),
        ("function", "select greatest(1, @n);", "`greatest` is not on the list of built-in functions"),
        ("function", "select sysutcdattime();", "`sysutcdattime` is not on the list"),
        # Of 'insert' it is no INSERT where the database is Turkish.
        ("function", "select upper('insert');", "`upper` is not on the list"),
        (
            "insert_columns",
            "insert into dbo.event (id, data) select id from dbo.event;",
            "2 columns and gives 1",
        ),
        ("insert_columns", "insert into dbo.event (id) values (1), (1, 2);", "1 columns and gives 2"),
        (
            "insert_columns",
            "insert into dbo.event select id, data from dbo.event;",
            "without a list of columns",
        ),
        ("select_list", f"select {', '.join(['@n'] * 4097)};", "a select of 4097 columns"),
        ("call", "exec dbo.called 1;", "the call of dbo.called does not name every argument"),
        ("call", "exec dbo.called @b = 1;", "the call of dbo.called leaves out @a"),
        ("call", "exec dbo.called @a = 1, @b = @n output;", "takes @b as output, which it is not"),
        ("token", "select 1 as [<<name>>];", "<<name>> is not filled"),
        ("token", "select N'<<name>>';", "<<name>> is not filled"),
        ("token", "-- <<name>>", "<<name>> is not filled"),
    ],
)
def test_a_violation_is_found_with_its_line(
    in_procedure: Check, rule: str, statement: str, message: str
) -> None:
    """The rule names the file and the line of what breaks it, and no other rule minds."""
    findings = in_procedure(f"declare @i int = 0;\n{statement}", CALLED, CONSUMERS)
    assert [(found.name, found.line, found.rule) for found in findings] == [("tested.sql", 4, rule)]
    assert message in findings[0].message


def test_dirty_reads_that_give_no_row_are_allowed(in_procedure: Check, check: Check) -> None:
    """Rows may be taken away from our own by one; and the procedure that compares numbers may add up so."""
    dirty = "select id from dbo.event with (nolock)"
    assert not in_procedure(f"declare @page table (id int); delete from @page where id in ({dirty});")
    assert not in_procedure(f"create table #page (id int); delete from #page where id in ({dirty});")
    compares = f"(@n int) as begin {SETTINGS} select @n = count(*) from dbo.event with (nolock); end"
    assert not check(f"create procedure dbo.[capture_unordered:a.b] {compares}")
    assert [one.rule for one in check(f"create procedure dbo.[order_page:a.b] {compares}")] == ["dirty_read"]


def test_an_undefined_token_outside_a_name_is_a_syntax_error(in_procedure: Check) -> None:
    """A token where no quotes are does not parse."""
    findings = in_procedure("select <<name>>;")
    assert findings[0].line == 3
    assert {found.rule for found in findings} == {"syntax"}


def test_templates_keep_their_tokens_in_literals_only(checker: Checker) -> None:
    """An installation holds templates as literals; a token elsewhere was forgotten."""
    sql = "create function dbo.t () returns table as return\nselect N'a\n<<name>>' as b, 1 as [<<name>>]"
    text = Text("install.sql", sql, holds_templates=True)
    assert checker.check(Job((text,))).findings == (
        Finding("install.sql", 3, "token", "<<name>> is not filled"),
    )


@pytest.mark.parametrize(
    ("options", "body", "is_found"),
    [
        ("", "return 1", True),
        ("with schemabinding", "return 1", False),
        ("", "return (select count(*) from dbo.event)", False),
        ("", "return dbo.other()", False),
    ],
)
def test_a_scalar_function_that_reads_nothing_is_bound(
    check: Check, options: str, body: str, is_found: bool
) -> None:
    """What reads a table, or calls what may, is not."""
    other = Text(
        "other.sql", "create function dbo.other() returns int with schemabinding as begin return 1 end"
    )
    findings = check(f"create function dbo.tested() returns int {options} as begin {body}; end", other)
    assert [found.rule for found in findings] == ["schemabinding"] * is_found


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ("set nocount on; set transaction isolation level read committed;", ["set xact_abort on"]),
        ("set xact_abort on; set transaction isolation level read committed;", ["set nocount on"]),
        ("set xact_abort, nocount on;", ["set transaction isolation level read committed"]),
        (
            "set nocount on; set xact_abort off; set transaction isolation level snapshot;",
            ["set transaction isolation level read committed", "set xact_abort on"],
        ),
        (
            "set xact_abort, nocount on; if (select count(*) from dbo.event) = 5 "
            "throw 77100, N'changefeed 77100: ', 0;"
            "set transaction isolation level read committed;",
            ["set transaction isolation level read committed"],
        ),
        # The session's own settings may be asked for before they are changed.
        (
            "set xact_abort, nocount on; if (select count(*) from sys.dm_exec_sessions) = 5 "
            "throw 77100, N'changefeed 77100: ', 0; set transaction isolation level read committed;",
            [],
        ),
        # Set after the first read, which a caller's own isolation level has ruled.
        (
            "set nocount on; declare @i int = (select max(id) from dbo.event); set xact_abort on;"
            "set transaction isolation level read committed;",
            ["set transaction isolation level read committed", "set xact_abort on"],
        ),
    ],
)
@pytest.mark.parametrize("verb", ["create", "alter"])
def test_a_procedure_begins_with_its_settings(
    check: Check, verb: str, settings: str, missing: list[str]
) -> None:
    """Each setting that a procedure does not begin with is reported at the procedure."""
    findings = check(f"-- purpose\n{verb} procedure dbo.tested as begin\n{settings}\nselect 1; end")
    expected = [f"the procedure does not begin with `{setting}`" for setting in missing]
    assert findings == [Finding("tested.sql", 2, "settings", message) for message in expected]


def test_what_keeps_the_rules_passes(in_procedure: Check) -> None:
    """Nothing is found in a procedure that throws, inserts, calls and reads as it should."""
    assert not in_procedure(
        """
        declare @message nvarchar(2048) = concat(N'changefeed 77101: ', @n), @c int;
        begin try
            insert into dbo.event (id, data)
            select id + 1, lower(data) from dbo.event with (readpast, rowlock);
            exec dbo.called @a = 1, @c = @c output;
            update dbo.consumers set ulid = 0x00 where feed_id = @n;
            update dbo.consumers with (updlock, rowlock) set ulid = ulid where feed_id = @n;
            update dbo.event set data = data, id = id + 1;
            update e set data = f.data from dbo.event as e inner join dbo.event as f on f.id = e.id + 1;
            select @n = c.feed_id from dbo.consumers as c with (forceseek ([by name] (consumer)))
            where c.consumer = N'a';
            if @n > 0 throw 77102, N'changefeed 77102: not yet', 0;
            throw 77101, @message, 0;
        end try
        begin catch
            if @@trancount > 0 rollback;
            throw;
        end catch
        """,
        CALLED,
        CONSUMERS,
    )
