# SPDX-License-Identifier: Apache-2.0
"""
Our T-SQL as Babelfish executes it: the product is written for SQL Server, and only the tests know Babelfish.

Each :class:`Form` replaces words in the files of the installation while they are loaded. Nothing else needs
it: a database that is installed in this way takes the same statements as one on SQL Server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import mssql_python
from airflow.sdk import Connection

from airflow_changefeed.connections.connection import describe_mssql
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sql import fill, load_sql, mssql
from tests.integration.contract.engines import MSSQL_VARIABLE


@dataclass(frozen=True)
class Form:
    """
    Words of our T-SQL that Babelfish does not execute, or not as SQL Server does.

    :param files: beginning of the names of the files that have them.
    """

    why: str
    files: str
    plain: str
    rewritten: str


_ALL = "mssql/"
_INSTALL = f"{_ALL}install/"
FORMS = (
    Form(
        "it is edition 2 with version 12, and may have any compatibility level",
        "mssql/install/check_server",
        "serverproperty('EngineEdition')",
        "5",
    ),
    Form("likewise", "mssql/install/check_server", "@level = d.compatibility_level", "@level = 130"),
    Form(
        "object_name gives names in lower case",
        _INSTALL,
        "object_name(",
        "<<schema>>.[declared_name](",
    ),
    Form(
        "sys.columns has names in lower case", _INSTALL, "sys.columns as", "<<schema>>.[declared_columns] as"
    ),
    Form("quotename doubles every kind of quote", _INSTALL, "quotename(", "<<schema>>.[quoted]("),
    Form(
        "a hint cannot name an index",
        _INSTALL,
        "forceseek ([unique:dead_letters.number] (number))",
        "forceseek",
    ),
    Form("likewise", _INSTALL, "index ([unique:feeds.name]), ", ""),
    Form(
        "no output parameter is nvarchar(max)",
        "mssql/install/fill_template",
        "(@body nvarchar(max) output)",
        "(@body nvarchar(max))",
    ),
    Form(
        "likewise: the filled template goes by way of #tokens",
        "mssql/install/fill_template",
        "set @body = @sql + @body;",
        "delete from #tokens where token = ''; insert into #tokens (token, value) values ('', @sql + @body);",
    ),
    Form(
        "likewise",
        _INSTALL,
        "exec <<schema>>.[fill_template] @body = @body output;",
        "exec <<schema>>.[fill_template] @body = @body; select @body = value from #tokens where token = '';",
    ),
    # As it lists what waits is no matter of locks there: it ignores hints.
    Form(
        "a function of several statements that gives a table has no colon in its name",
        "mssql/feed/outbox/waiting_shards",
        "returns @waiting table (shard_id <<shard_type>> not null primary key)\nas\nbegin",
        "returns table as return select distinct o.shard_id from <<schema>>.[outbox:<<name>>] as o; /*",
    ),
    Form("likewise", "mssql/feed/outbox/waiting_shards", "    return;\nend", "*/"),
    Form(
        "triggers have no order",
        "mssql/install/create_capture_objects",
        "exec sys.sp_settriggerorder @triggername = @full, @order = 'First', @stmttype = @operation;",
        "set @last = @place;",
    ),
    Form(
        "there is no right to view a definition",
        "mssql/install/create_capture_objects",
        "grant view definition on ",
        "declare @none int; -- ",
    ),
    Form(
        "users have logins; the guard is never created, as its trigger is refused first",
        "mssql/install/guard_schema",
        "create user [<<schema_name>>.guard] without login;",
        "throw 77140, N'changefeed 77140: no triggers on DDL', 1;",
    ),
    Form(
        "no trigger is not for replication; a comment shows which would be",
        "mssql/install/create_capture_objects",
        "then N' not for replication'",
        "then N' /* not for replication */'",
    ),
    Form(
        "it lists no files of a database",
        "mssql/install/check_storage",
        "and exists (select 1 from sys.database_files as f where f.data_space_id = g.data_space_id)",
        "",
    ),
    Form("likewise", "mssql/install/guard_schema", "grant view definition to [<<schema_name>>.guard];", ""),
    Form("it never waits", "mssql/install/pause_setup", "waitfor delay '00:00:01'", "return"),
    Form(
        "its catalog has estimates only",
        "mssql/capture/capture_rows",
        "@rows = sum(p.rows) from sys.partitions as p "
        "where p.object_id = <<object_id>> and p.index_id in (0, 1)",
        "@rows = count_big(*) from <<table>>",
    ),
    Form(
        "what dbo makes belongs to db_owner, and is one chain",
        "mssql/install/check_captured",
        "if @other <> @owner",
        "if isnull(nullif(user_name(@other), N'db_owner'), N'dbo') "
        "<> isnull(nullif(user_name(@owner), N'db_owner'), N'dbo')",
    ),
    Form(
        "likewise",
        "mssql/install/check_captured_tables",
        "and objectproperty(t.object_id, 'OwnerId') <> ",
        "and 1 = 0 and 1 <> ",
    ),
    Form("it has no graph tables", "mssql/install/check_captured", "1 in (t.is_node, t.is_edge)", "1 = 0"),
    Form(
        "datalength counts the bytes of UTF-8",
        "mssql/install/check_captured",
        "datalength(u.name) / 2",
        "len(u.name + N'.') - 1",
    ),
    *(
        Form(
            "convert reads no hexadecimal digits",
            _ALL,
            f"convert(binary(16), {digits}, 2)",
            f"convert(binary(16), <<schema>>.[unhex]({digits}))",
        )
        for digits in ("j.after", "j.upto", "max(j.upto)", "lag(j.upto) over (order by j.after)")
    ),
)

#: What the forms above use. PostgreSQL's catalog has the names as declared, as an option of each column.
_OBJECTS = """
create or alter function <<schema>>.[quoted](@name nvarchar(128)) returns nvarchar(258)
as
begin
    return N'[' + replace(@name, N']', N']]') + N']';
end
go
create or alter function <<schema>>.[unhex](@digits varchar(32)) returns varbinary(16)
as
begin
    declare @bytes varbinary(16) = pg_catalog.decode(@digits, 'hex');
    return @bytes;
end
go
create or alter function <<schema>>.[declared_name](@object_id int) returns nvarchar(128)
as
begin
    return isnull((
        select i.TABLE_NAME from INFORMATION_SCHEMA.TABLES as i
        where i.TABLE_SCHEMA = object_schema_name(@object_id) and i.TABLE_NAME = object_name(@object_id)
    ), object_name(@object_id));
end
go
create or alter view <<schema>>.[declared_columns]
as
select
    c.object_id,
    isnull(
        convert(nvarchar(128), substring(pg_catalog.array_to_string(a.attoptions, ''), 19, 128))
            collate database_default,
        c.name
    ) as name,
    c.column_id, c.system_type_id, c.user_type_id, c.max_length, c.precision, c.scale, c.collation_name,
    c.is_nullable, c.is_ansi_padded, c.is_computed,
    c.default_object_id, c.encryption_type, c.is_masked, c.is_filestream,
    c.is_column_set
from sys.columns as c
left join pg_catalog.pg_attribute as a on a.attrelid = c.object_id and a.attnum = c.column_id;
go
grant execute on <<schema>>.[quoted] to public;
grant execute on <<schema>>.[declared_name] to public;
grant execute on <<schema>>.[unhex] to public;
grant select on <<schema>>.[declared_columns] to public;
"""


def rewrite(name: str, text: str) -> str:
    """
    Return what Babelfish executes instead of a file.

    :param name: of the file.
    """
    for form in FORMS:
        if name.startswith(form.files):
            text = text.replace(form.plain, form.rewritten)
    if name == "mssql/install/schema.batch.sql":
        text += _made()
    return text


def rewrite_script(batches: Sequence[str]) -> list[str]:
    """
    Return what Babelfish executes instead of the script of a released version, whose files are not there.

    :param batches: of a script for the schema ``changefeed``.
    """
    tokens = mssql.install_tokens(mssql.DEFAULT_SCHEMA)

    def filled(text: str) -> str:
        return fill(text, tokens)

    found = []
    templates = (f"{_ALL}feed/", f"{_ALL}capture/")
    for batch in batches:
        made = re.search(r"create or alter \w+ \[changefeed\]\.\[(\w+)\]", batch)
        name = f"{_INSTALL}{made[1] if made else ''}"
        text = batch
        for form in FORMS:
            if name.endswith("templates"):
                # They are filled later, by the database.
                if form.files == _ALL or form.files.startswith(templates):
                    text = text.replace(form.plain, form.rewritten)
            # Words of a batch without a name are those of one file only.
            elif (name.startswith(form.files) or not made) and not form.files.startswith(templates):
                text = text.replace(filled(form.plain), filled(form.rewritten))
        found.append(text + filled(_made()) if "create schema" in batch else text)
    return found


def _made() -> str:
    """Return a batch that makes what the forms use."""
    made = (f"exec (N'{one.strip().replace(chr(39), chr(39) * 2)}');" for one in _OBJECTS.split("\ngo\n"))
    return "\n".join(made).replace("<<schema>>", "<<schema_in_text>>")


@cache
def is_babelfish(uri: str) -> bool:
    """
    Ask a server.

    :param uri: of an Airflow connection.
    """
    connection = Connection.from_uri(uri, conn_id="mssql_under_test")
    keywords = MssqlFeedSource(**describe_mssql(connection)).database.server.keywords()
    mssql_python.pooling(enabled=False)
    with mssql_python.connect(autocommit=True, **keywords) as asked, asked.cursor() as cursor:
        return bool(cursor.execute("select cast(serverproperty('Babelfish') as int)").fetchval() == 1)


@contextmanager
def rewriting() -> Iterator[None]:
    """
    Load the installation's files as the server under test executes them; unchanged for SQL Server.

    Once is enough, where a fixture of a module and an engine ask for it.
    """
    whole = mssql.load_sql
    if is_babelfish(os.environ[MSSQL_VARIABLE]) and whole is load_sql:
        mssql.load_sql = lambda name: rewrite(name, whole(name))  # type: ignore[assignment]
    try:
        yield
    finally:
        mssql.load_sql = whole
