# SPDX-License-Identifier: Apache-2.0
"""References: what does not exist is found, with the line; what does is not."""

from __future__ import annotations

import pytest

from tests.tools.tsql.checker import Checker
from tests.tools.tsql.findings import AZURE, Finding, Job, Text
from tests.tsql.conftest import SETTINGS, Check


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select @missing;", 'Must declare the variable or parameter "@missing"'),
        ("select missing from dbo.event;", "[dbo].[event].[missing]"),
        ("update dbo.event set missing = 1;", "[dbo].[event].[missing]"),
        ("insert into dbo.event (missing) values (1);", "[dbo].[event].[missing]"),
        ("select e.id from dbo.event as e where f.id = 1;", "[dbo].[event].[f]"),
        ("select id from dbo.missing;", "[dbo].[missing]"),
        ("exec dbo.missing;", "[dbo].[missing]"),
        ("select dbo.missing(1);", "[dbo].[missing]"),
        ("select next value for dbo.missing;", "[dbo].[missing]"),
        ("exec sp_getapplock @Resorce = N'x';", "[sp_getapplock].[@Resorce]"),
        ("select missing from sys.tables;", "[sys].[tables].[missing]"),
        ("select id from #missing;", "[#missing]"),
        ("select missing from #read;", "[#read].[missing]"),
        ("select r.missing from #read as r;", "[#read].[missing]"),
        ("create table #own (a int); select missing from #own;", "[#own].[missing]"),
        ("declare @own table (a int); delete o from @own as o where o.missing = 1;", "[@own].[missing]"),
        (
            "with c as (select id from dbo.event) delete from c where missing = 1;",
            "missing could not be resolved",
        ),
        ("declare @n int;", "is already defined in this scope"),
        ("grant select on dbo.event to [missing];", "[missing]"),
    ],
)
def test_what_is_missing_is_found_with_its_line(in_procedure: Check, statement: str, message: str) -> None:
    """The finding names the file and the line of the reference, and what it refers to."""
    findings = in_procedure(f"select id from dbo.event;\n{statement}", read="(ulid binary(16) not null)")
    assert {(found.name, found.line, found.rule) for found in findings} == {("tested.sql", 4, "reference")}
    assert any(message in found.message for found in findings), findings


def test_a_syntax_error_is_found_with_its_line(in_procedure: Check) -> None:
    """What cannot be parsed is reported once, and alone."""
    findings = in_procedure("select id\nfrm dbo.event where;\nselect missing from dbo.event;")
    assert [(found.name, found.line, found.rule) for found in findings] == [("tested.sql", 4, "syntax")]


def test_a_reserved_word_as_a_name_is_a_syntax_error(check: Check) -> None:
    """What a forgotten quote leaves does not parse."""
    assert [found.rule for found in check("create table dbo.t (order int)")] == ["syntax"]


@pytest.mark.parametrize(
    "sql",
    [
        "if 1 = 1\nselect missing from dbo.event;",
        "if object_id(N'dbo.t') is null\ncreate index i on dbo.event (missing);",
        f"alter procedure dbo.t as {SETTINGS}\nselect missing from dbo.event;",
        "alter view dbo.t as\nselect missing from dbo.event",
        "create view dbo.t as\nselect missing from dbo.event",
        "create function dbo.t () returns int as begin\nreturn (select missing from dbo.event); end",
        "create function dbo.t () returns @r table (a int) as begin\ninsert @r (missing) select 1 end",
        "exec (N'create view dbo.t as\nselect missing from dbo.event')",
        "create table dbo.t (a int, foreign key (a)\nreferences dbo.missing (id))",
    ],
)
def test_every_kind_of_batch_is_looked_into(check: Check, sql: str) -> None:
    """What is conditional, altered or executed as a literal is resolved like any other."""
    findings = check(sql)
    assert {(found.name, found.line, found.rule) for found in findings} == {("tested.sql", 2, "reference")}
    assert any("missing" in found.message for found in findings)


def test_conditional_objects_exist_for_others(check: Check) -> None:
    """A repeatable installation makes its objects under `if` and in literals."""
    installation = Text(
        "install.sql",
        """
        if schema_id(N'feeds') is null exec (N'create schema feeds');
        if object_id(N'feeds.t') is null begin create table feeds.t (a int not null); end;
        if object_id(N'feeds.s') is null create sequence feeds.s as bigint;
        if object_id(N'feeds.p') is null exec (N'create procedure feeds.p as return 0');
        if database_principal_id(N'readers') is null create role [readers];
        alter table feeds.t set (lock_escalation = disable);
        """,
    )
    procedure = Text("p.sql", f"alter procedure feeds.p (@n int) as {SETTINGS} return 0;")
    sql = "grant select on feeds.t to readers; exec feeds.p @n = 1;"
    sql += "select a, next value for feeds.s from feeds.t"
    assert not check(sql, installation, procedure)


def test_a_literal_with_parameters_needs_no_declaration(check: Check) -> None:
    """What sp_executesql is given as parameters is not reported as undeclared."""
    assert not check("exec sys.sp_executesql N'select @x', N'@x int', @x = 1")


def test_temporary_tables_reach_the_called_procedure(check: Check) -> None:
    """A procedure may use the columns of a temporary table that another one makes, and no others."""
    maker = Text(
        "maker.sql", "create procedure dbo.maker as create table #page (a int not null); exec dbo.tested;"
    )
    assert not check("create procedure dbo.tested as delete from #page where a = 1", maker, rules=False)
    findings = check("create procedure dbo.tested as\ndelete from #page where b = 1", maker, rules=False)
    assert [(found.name, found.line) for found in findings] == [("tested.sql", 2)]


def test_system_procedures_and_catalog_views_are_known(in_procedure: Check) -> None:
    """What SQL Server brings along needs no exception in the list of unresolved names."""
    assert not in_procedure(
        """
        declare @result int;
        exec @result = sp_getapplock @Resource = N'r', @LockMode = N'Exclusive', @LockTimeout = 1;
        exec sys.sp_set_session_context @key = N'k', @value = 1;
        exec sp_executesql @stmt = N'select @x', @params = N'@x int', @x = 1;
        exec sys.sp_executesql N'select @x', N'@x int', @x = @n;
        exec sys.sp_flush_log;
        select name from tempdb.sys.columns where object_id = object_id(N'tempdb..#read');
        select s.name, t.name, c.max_length from sys.schemas as s
        join sys.tables as t on t.schema_id = s.schema_id
        join sys.columns as c on c.object_id = t.object_id where t.is_memory_optimized = 0;
        """
    )


def test_names_with_every_kind_of_character_keep_their_lines(checker: Checker) -> None:
    """Brackets, quotes and characters beyond 16 bits neither hide a finding nor move it."""
    table = Text("🦆.sql", "create table dbo.[a]]🦆'\"] ([ü🦆] int not null)")
    sql = "create view dbo.[v 🦆] as -- 🦆\nselect N'🦆' as x, [ü🦆] from dbo.[a]]🦆'\"]\nwhere [🦆] = 1"
    findings = checker.check(Job((table, Text("v🦆.sql", sql)))).findings
    assert {(found.name, found.line, found.rule) for found in findings} == {("v🦆.sql", 3, "reference")}


def test_one_process_serves_many_databases(checker: Checker) -> None:
    """Nothing of one job is left for the next."""
    made = Text("t.sql", "create table dbo.only_here (a int)")
    used = Text("v.sql", "create view dbo.v as select a from dbo.only_here")
    assert not checker.check(Job((made, used))).findings
    assert {found.name for found in checker.check(Job((used,))).findings} == {"v.sql"}


def test_what_azure_lacks_is_found(checker: Checker) -> None:
    """The same database can be compiled as one of Azure SQL Database."""
    sql = "create table dbo.t (\na uniqueidentifier rowguidcol unique not null, b varbinary(max) filestream)"
    assert not checker.check(Job((Text("t.sql", sql),))).findings
    (found,) = checker.check(Job((Text("t.sql", sql),), server=AZURE)).findings
    assert "IsFileStream" in found.message


def test_an_error_is_one_finding(in_procedure: Check) -> None:
    """Two parsers and two passes of the model tell the same thing once."""
    findings = in_procedure("exec dbo.missing;")
    message = "SqlProcedure: [dbo].[tested] has an unresolved reference to object [dbo].[missing]."
    assert findings == [Finding("tested.sql", 3, "reference", message)]
