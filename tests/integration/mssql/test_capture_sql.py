# SPDX-License-Identifier: Apache-2.0
"""Captures as their T-SQL users call them: awkward names, another schema, what is refused and guarded."""

from __future__ import annotations

import pytest

from airflow_changefeed.sql import fill, load_sql
from airflow_changefeed.sql.mssql import install_tokens
from tests.integration.babelfish import rewrite
from tests.integration.mssql.server import Client, Database, Rows

# Its guard of the schema is one for the database, which Babelfish refuses.
QUIETLY = "@guard_schema = 0"
# Closing brackets are the compile check's: Babelfish does not take them. Short, as it cuts the names of
# triggers at 63 bytes.
SCHEMA, NAME, ACROSS = 'it\'s "a" schema', "'x' \"y\" ñ 事件", "their 'feeds"


def _events(client: Client, table: str, columns: str) -> Rows:
    return client.rows(
        f"select changefeed_op, changefeed_image, {columns} from {table} "
        "order by changefeed_statement, changefeed_row, changefeed_image"
    )


def test_awkward_names_in_another_schema(empty_database: Database) -> None:
    """Quotes and letters of other scripts in every name: recorded, ordered, sealed, refreshed, dropped."""
    with empty_database.client() as client:
        # Babelfish quotes no schema where it asks a sequence for its next number.
        across = "their_feeds" if client.is_babelfish else ACROSS
        empty_database.install(across)
        own, table, events = f"[{across}]", f"[{SCHEMA}].[{NAME}]", f"[{SCHEMA}].[changes of {NAME}]"
        capture, given = (text.replace("'", "''") for text in (f"{SCHEMA}.changes of {NAME}", table))
        client.results(f"create schema [{SCHEMA}]")
        client.results(f"create table {table} ([i'd] int not null primary key, [it's ~] nvarchar(9) null)")
        client.results(
            f"exec {own}.enable_capture N'{given}', @capture = N'{capture}', "
            f"@shard = N'[i''d] % 2', {QUIETLY}"
        )
        client.results(f"insert into {table} values (1, N'a'), (2, N'b')")
        client.results(f"update {table} set [it's ~] = N'ü' where [i'd] = 1")
        client.results(f"delete from {table} where [i'd] = 2")
        assert _events(client, events, "changefeed_shard, [i'd], [it's ~]") == [
            ("i", 1, 0, 2, "b"),
            ("i", 1, 1, 1, "a"),
            ("u", 0, 1, 1, "a"),
            ("u", 1, 1, 1, "ü"),
            ("d", 0, 0, 2, "b"),
        ]
        sealed = client.rows(f"exec {own}.[seal_feed:{SCHEMA}.changes of {NAME}] '2026-01-01'")
        assert [row[0] for row in sealed] == [0, 1]
        client.results(f"exec {own}.refresh_capture N'{capture}', @without = N'[\"it''s ~\"]'")
        client.results(f"update {table} set [it's ~] = N'unseen'")
        # Nothing but the change of the columns, in both shards.
        assert _events(client, events, "changefeed_shard, [i'd]")[5:] == [
            ("c", 1, 0, None),
            ("c", 1, 1, None),
        ]
        client.results(f"exec {own}.drop_feed N'{capture}'")
        left = client.rows(
            "select name from sys.objects where name like N'%changes of%' or name like N'capture[_]%:%'"
        )
        assert left == []


def _captured(client: Client, table: str, columns: str, settings: str = QUIETLY) -> str:
    """Make a table and capture it; return the table of its events."""
    client.results(f"create table myservice.{table} ({columns})")
    client.results(f"exec changefeed.enable_capture N'myservice.{table}', {settings}")
    return f"myservice.{table}_changes"


def test_the_installation_of_a_database_with_captures_can_be_repeated(
    database: Database, client: Client
) -> None:
    """Their feeds and triggers come through it, and go on."""
    events = _captured(client, "kept", "id int not null primary key")
    client.results("insert into myservice.kept values (1)")
    database.install()
    client.results("insert into myservice.kept values (2)")
    assert _events(client, events, "id") == [("i", 1, 1), ("i", 1, 2)]
    assert client.rows(f"exec [changefeed].[drain_feed:{events}]") == [(0, 2)]


@pytest.mark.parametrize("owner", ["strangers", "db_owner"])
def test_tables_and_captures_of_other_owners_are_refused(client: Client, owner: str) -> None:
    """Their writers would need rights on our tables; dbo and the role db_owner are two owners."""
    if owner == "db_owner" and client.is_babelfish:
        pytest.skip("there what dbo makes belongs to db_owner")
    if owner == "strangers":
        client.results("create role strangers")
    client.results(f"create schema of_{owner} authorization {owner}")
    client.results(f"create table of_{owner}.theirs (id int not null primary key)")
    client.results(f"create table myservice.ours_{owner} (id int not null primary key)")
    call = f"exec changefeed.enable_capture N'of_{owner}.theirs', {QUIETLY}"
    client.fails(77140, call, f"it is owned by {owner} and changefeed by dbo", "alter authorization")
    call = (
        f"exec changefeed.enable_capture N'myservice.ours_{owner}', @capture = N'of_{owner}.ours', {QUIETLY}"
    )
    client.fails(77140, call, f"and the schema of the capture by {owner}", "@capture")


def test_rows_too_wide_to_be_paired_are_refused_for_delete_insert(client: Client) -> None:
    """Old and new must fit into one row of the server's own, unless they are sorted before."""
    client.results("create table myservice.broad (id int not null primary key, a char(4000) null)")
    call = f"exec changefeed.enable_capture N'myservice.broad', {QUIETLY}"
    client.fails(77140, f"{call}, @key_change = 'delete_insert'", "do not fit", "new_only")
    client.results(call)
    client.results("insert into myservice.broad values (1, 'a'); update myservice.broad set a = 'b'")
    events = _events(client, "myservice.broad_changes", "convert(char(1), a)")
    assert events == [("i", 1, "a"), ("u", 0, "a"), ("u", 1, "b")]


def test_columns_that_are_not_captured_do_not_matter(client: Client) -> None:
    """A column that triggers cannot see may be there, as long as it is not asked for."""
    client.results(
        "create table myservice.old (id int not null primary key, name varchar(9) null, note ntext null)"
    )
    call = f"exec changefeed.enable_capture N'myservice.old', {QUIETLY}"
    client.fails(77140, call, "note has a type that triggers cannot see")
    lists = ", ".join(f"@{operation}_columns = N'[\"name\"]'" for operation in ("insert", "update", "delete"))
    client.results(f"{call}, {lists}")
    client.results("insert into myservice.old values (1, 'a', null); update myservice.old set name = 'b'")
    assert _events(client, "myservice.old_changes", "name") == [("i", 1, "a"), ("u", 0, "a"), ("u", 1, "b")]


def test_a_column_that_does_not_pad_is_recorded_as_it_is(client: Client) -> None:
    """Made with ``ansi_padding off``, a column keeps short values, which one that pads would lengthen."""
    client.results(
        "set ansi_padding off; create table myservice.unpadded "
        "(id int not null primary key, a char(5) null, b binary(5) null, c varchar(5) null, d nchar(5) null)"
    )
    client.results("set ansi_padding on")
    client.results(f"exec changefeed.enable_capture N'myservice.unpadded', {QUIETLY}")
    client.results("insert into myservice.unpadded values (1, 'a ', 0x01, 'a ', N'a ')")
    lengths = "datalength(a), datalength(b), datalength(c), datalength(d)"
    (stored,) = client.rows(f"select {lengths} from myservice.unpadded")
    assert _events(client, "myservice.unpadded_changes", lengths) == [("i", 1, *stored)]


def test_what_does_not_pad_is_declared_with_its_own_length(client: Client) -> None:
    """As the catalog describes columns made with ``ansi_padding off``, which not every server can make."""
    client.results(
        "create table myservice.told_of (id int not null, a char(5) null, b binary(6), c varchar(7))"
    )
    file, catalog = "mssql/install/captured_columns.function.sql", "sys.columns"
    text = load_sql(file)
    if client.is_babelfish:
        text, catalog = rewrite(file, text), "[changefeed].[declared_columns]"
    of_it = "object_id = object_id(N'myservice.told_of')"
    client.results(f"select * into myservice.told from {catalog} where {of_it}")
    client.results("update myservice.told set is_ansi_padded = 0")
    text = fill(text, install_tokens("changefeed")).replace(f"{catalog} as", "myservice.told as")
    client.results(text.replace("[captured_columns]", "[told_columns]"))
    found = client.rows(
        "select replace(left(definition, 12), ' collate', '') from "
        "changefeed.told_columns(object_id(N'myservice.told_of')) order by place"
    )
    assert [one.partition(" ")[0] for (one,) in found] == ["int", "varchar(5)", "varbinary(6)", "varchar(7)"]


@pytest.mark.parametrize("year", ["19", "29"])
def test_a_trigger_with_another_date_is_noticed(client: Client, year: str) -> None:
    """Also with an earlier one: the server's local time goes back every autumn, and when a clock is set."""
    name = f"dated{year}"
    _captured(client, name, "id int not null primary key")
    client.results(f"exec changefeed.[check_capture:myservice.{name}_changes]")
    client.results(
        "update changefeed.capture_tables set "
        f"trigger_modified = replace(trigger_modified, '@20', '@{year}') where table_name = N'{name}'"
    )
    client.fails(77142, f"exec changefeed.[check_capture:myservice.{name}_changes]", "was altered")


def test_a_capture_goes_on_after_an_import_that_made_all_objects_anew(client: Client) -> None:
    """The number of its table is written again, and its objects, which have the number in them."""
    events = _captured(client, "imported", "id int not null primary key")
    number = "object_id = object_id(N'changefeed.[check_capture:myservice.imported_changes]')"
    client.results(f"update changefeed.capture_tables set {number} where table_name = N'imported'")
    client.fails(77142, "exec changefeed.[check_capture:myservice.imported_changes]", "renamed")
    client.results("exec changefeed.upgrade_feeds; exec changefeed.upgrade_captures")
    client.results("insert into myservice.imported values (1)")
    assert _events(client, events, "id") == [("i", 1, 1)]
    resolve = "exec changefeed.[resolve_capture:myservice.imported_changes] @note = N'seen', @by = N'test'"
    client.results(f"{resolve}; exec changefeed.[check_capture:myservice.imported_changes]")


def test_the_guard_of_the_schema_keeps_what_writers_need(client: Client) -> None:
    """It refuses changes of captured columns and of the table of events, where that was asked for."""
    _captured(client, "watched", "id int not null primary key, name varchar(9) null, note int null")
    _captured(client, "unwatched", "id int not null primary key, name varchar(9) null")
    client.results("update changefeed.captures set guard_schema = 1 where name like N'%.watched%'")
    client.results("exec changefeed.check_captured_tables")
    client.results("alter table myservice.unwatched drop column name")
    client.results("exec changefeed.check_captured_tables")
    client.results("begin transaction; alter table myservice.watched drop column note")
    client.fails(
        77144,
        "exec changefeed.check_captured_tables",
        'column "note" of table myservice.watched',
        "refresh_capture",
    )
    client.results("begin transaction; alter table myservice.watched_changes drop column note")
    client.fails(
        77144, "exec changefeed.check_captured_tables", "holds the recorded changes of myservice.watched"
    )
    client.results("exec changefeed.check_captured_tables")


def test_the_guard_looks_only_at_the_table_that_was_altered(client: Client) -> None:
    """However many captures there are; at all of them when something was dropped or renamed."""
    for name in ("mine", "yours"):
        _captured(client, name, "id int not null primary key, name varchar(9) null")
        client.results(f"update changefeed.captures set guard_schema = 1 where name like N'%.{name}%'")
    altered = (
        "exec changefeed.check_captured_tables @event = N'{}', @table_schema = N'myservice', "
        "@table_name = N'{}'"
    )
    client.results("begin transaction; alter table myservice.mine drop column name")
    client.results(altered.format("ALTER_TABLE", "yours"))
    client.fails(77144, altered.format("ALTER_TABLE", "mine"), 'column "name" of table myservice.mine')
    client.results("begin transaction; alter table myservice.mine_changes drop column name")
    client.results(altered.format("ALTER_TABLE", "yours"))
    client.fails(77144, altered.format("ALTER_TABLE", "mine_changes"), "changes of myservice.mine")
    client.results("begin transaction; alter table myservice.mine drop column name")
    client.fails(77144, altered.format("DROP_TABLE", "yours"), 'column "name" of table myservice.mine')


PLAN = (
    "create table #plan (page bigint not null, highest bigint not null, order_sequence bigint not null, "
    "primary key (page, highest, order_sequence)); declare @events bigint; begin transaction; "
    "exec [changefeed].[plan_drain:{feed}] @shard_id = 0, @bound = {bound}, @pagesize = {size}, "
    "@events = @events output; commit; select @events; select page, order_sequence from #plan order by 1, 2"
)
PAGE = (
    "declare @count int; begin transaction; exec [changefeed].[order_page:{feed}] @shard_id = 0, "
    "@page = {page}, @count = @count output; commit; select @count"
)


def _numbers(client: Client, events: str) -> list[int]:
    return [
        number
        for (number,) in client.rows(
            f"select order_sequence from [changefeed].[outbox:{events}] order by order_sequence"
        )
    ]


def _ordered(client: Client, events: str) -> Rows:
    return client.rows(
        f"select f.changefeed_sequence, e.id from [changefeed].[feed:{events}] as f "
        f"inner join {events} as e on e.changefeed_statement = f.changefeed_statement "
        "and e.changefeed_row = f.changefeed_row order by f.ulid"
    )


def test_a_transaction_is_never_taken_in_parts(client: Client) -> None:
    """One with a row at the bound waits with all of them, and one larger than a page makes it larger."""
    events = _captured(client, "whole", "id int not null primary key")
    client.results("insert into myservice.whole values (1)")
    two = "insert into myservice.whole values (2); insert into myservice.whole values (3)"
    client.results(f"begin transaction; {two}; commit")
    client.results("insert into myservice.whole values (4)")
    first, second, third, last = _numbers(client, events)
    plan = client.results(PLAN.format(feed=events, bound=third, size=10))[-2:]
    assert plan == [[(1,)], [(0, first)]]
    client.results("drop table #plan")
    plan = client.results(PLAN.format(feed=events, bound=last + 1, size=1))[-2:]
    assert plan == [[(4,)], [(0, first), (1, second), (1, third), (3, last)]]
    for page, count in ((0, 1), (1, 2), (3, 1), (3, 0)):
        assert client.value(PAGE.format(feed=events, page=page)) == count
    assert _ordered(client, events) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_plan_holds_for_all_pages_of_a_drain(database: Database, client: Client) -> None:
    """What is committed or drained by others between two pages neither comes twice, nor is torn, nor lost."""
    events = _captured(client, "planned", "id int not null primary key")
    for number in range(1, 5):
        client.results(f"insert into myservice.planned values ({number})")
    numbers = _numbers(client, events)
    client.results(PLAN.format(feed=events, bound=numbers[-1] + 1, size=1))
    assert client.value(PAGE.format(feed=events, page=0)) == 1
    with database.client() as other:
        other.results("insert into myservice.planned values (5)")
        other.results("insert into myservice.planned values (6)")
        other.results(f"exec [changefeed].[drain_feed:{events}]")
        other.results("insert into myservice.planned values (7)")
    assert [client.value(PAGE.format(feed=events, page=page)) for page in (1, 2, 3)] == [0, 0, 0]
    client.results(f"exec [changefeed].[drain_feed:{events}]")
    assert _ordered(client, events) == [(number, number) for number in range(1, 8)]


def test_a_transaction_larger_than_any_page_is_ordered_whole(client: Client) -> None:
    """In one page, as fewer are: each event once, in order, and all at one time."""
    _captured(client, "giant", "id int not null primary key")
    two = "select 1 as i union all select 1"
    client.results(
        f"with n as ({two}), m as (select a.i from n a, n b, n c, n d, n e, n f, n g, n h, n i) "
        "insert into myservice.giant (id) "
        "select top (100001) row_number() over (order by (select null)) from m a, m b"
    )
    name = "myservice.giant_changes"
    (drained,) = client.rows(f"exec changefeed.[drain_feed:{name}] @pagesize = 1000")
    assert drained == (0, 100001)
    found = client.rows(
        "select count(*), min(changefeed_row - changefeed_sequence), "
        "max(changefeed_row - changefeed_sequence), count(distinct substring(ulid, 1, 6)) "
        f"from [changefeed].[feed:{name}]"
    )
    assert found == [(100001, 0, 0, 1)]


def test_each_way_of_counting_a_captured_table_gives_its_rows(client: Client) -> None:
    """Behind a lock, without one, and in one statement with what was recorded."""
    events = _captured(client, "counted", "id int not null primary key")
    client.results(
        "insert into myservice.counted values (1), (2), (3); delete from myservice.counted where id = 2"
    )
    client.results(f"exec [changefeed].[drain_feed:{events}]")
    client.results("insert into myservice.counted values (4), (5)")
    count = (
        "declare @rows bigint, @gained bigint; begin transaction; exec [changefeed].[capture_rows.0:{feed}] "
        "@how = '{how}', @rows = @rows output, @gained = @gained output; commit; select @rows, @gained"
    )
    for how, gained in (("locked", None), ("dirty", None), ("committed", 4)):
        assert client.rows(count.format(feed=events, how=how)) == [(4, gained)], how
    found = client.rows(f"exec [changefeed].[compare_capture:{events}]")
    assert found == [("myservice", "counted", 4, 4)]


BASES = "select base_rows, base_catalog from [changefeed].[capture_tables] where table_name = '{table}'"
CHECK = "exec [changefeed].[check_capture:{feed}]"


def _bases(client: Client, table: str, rows: int = 3) -> str:
    """Capture a table with rows, which nothing guards; return the name of the capture."""
    values = ", ".join(f"({number})" for number in range(rows))
    client.results(f"create table myservice.{table} (id int not null primary key)")
    client.results(f"insert into myservice.{table} values {values}")
    client.results(
        f"exec [changefeed].[enable_capture] N'myservice.{table}', @guard_schema = 0, @guard_table = 0"
    )
    return f"myservice.{table}_changes"


def _unseen(client: Client, table: str, sql: str) -> None:
    """Change a table behind the triggers of its capture, as a bulk load would, and leave no other trace."""
    trigger = f"[myservice].[capture_{sql.split(maxsplit=1)[0]}.0:myservice.{table}_changes]"
    client.results(
        f"disable trigger {trigger} on myservice.{table}; {sql}; "
        f"enable trigger {trigger} on myservice.{table}"
    )
    client.results(
        "update t set trigger_modified = (select string_agg(convert(nvarchar(max), r.stamp), N',') "
        "from [changefeed].[capture_triggers] as r where r.capture_id = t.capture_id) "
        f"from [changefeed].[capture_tables] as t where t.table_name = '{table}'"
    )


COMPARE = "mssql/feed/capture/compare_table.procedure.sql"


def _unversioned(client: Client, feed: str, **replaced: str) -> None:
    """Have a capture compare its tables as in a database without row versions."""
    text = fill(load_sql(COMPARE), {"schema": "[changefeed]", "name": feed, "name_text": feed})
    for old in ("then 'committed'", "then 'versions'", *replaced):
        assert old in text
        text = text.replace(old, replaced.get(old, "then null"))
    client.results(text)


def test_rows_that_were_there_are_counted_when_a_table_is_enabled(client: Client) -> None:
    """And the server's own number of them is the base of what is compared with that number."""
    _bases(client, "based")
    assert client.rows(BASES.format(table="based")) == [(3, 3)]
    _bases(client, "unbased", rows=1)
    client.results("delete from myservice.unbased")
    assert client.rows(BASES.format(table="unbased")) == [(1, 1)]


@pytest.mark.parametrize("versions", [True, False], ids=["versions", "none"])
@pytest.mark.parametrize("off", [-2, 5])
def test_a_number_of_the_servers_that_is_off_is_no_gap(client: Client, off: int, versions: bool) -> None:
    """A count that agrees with what was recorded excuses it, once: from then on it is compared from there."""
    table = f"off_{abs(off)}_{versions}"
    feed = _bases(client, table)
    if not versions:
        _unversioned(client, feed)
    client.results(
        f"update [changefeed].[capture_tables] set base_catalog = base_catalog + {off} "
        f"where table_name = '{table}'"
    )
    client.results(f"insert into myservice.{table} values (10)")
    client.results(CHECK.format(feed=feed))
    assert client.rows(BASES.format(table=table)) == [(3, 3)]


@pytest.mark.parametrize("base", ["3", "null"], ids=["counted", "counting"])
@pytest.mark.parametrize("off", [0, 5], ids=["right", "off"])
@pytest.mark.parametrize("versions", [True, False], ids=["versions", "none"])
def test_a_number_of_the_servers_excuses_no_lost_row(
    client: Client, off: int, base: str, versions: bool
) -> None:
    """Also where it is off, and where nobody has counted yet; nothing moves until a person resolves it."""
    table = f"lost_{off}_{base}_{versions}"
    feed = _bases(client, table)
    if not versions:
        _unversioned(client, feed)
    client.results(
        f"update [changefeed].[capture_tables] set base_catalog = base_catalog + {off}, base_rows = {base} "
        f"where table_name = '{table}'"
    )
    before = client.rows(BASES.format(table=table))
    _unseen(client, table, f"delete from myservice.{table} where id = 1")
    client.fails(77142, CHECK.format(feed=feed), "its rows do not agree", "it has 2 rows")
    assert client.rows(BASES.format(table=table)) == before
    client.results(f"exec [changefeed].[resolve_capture:{feed}] @note = N'seen', @by = N'me'")
    client.results(CHECK.format(feed=feed))
    assert client.rows(BASES.format(table=table)) == [(2, 2)]


def test_rows_that_were_not_counted_yet_are_counted_on_demand(client: Client) -> None:
    """By whoever compares in full, or enables again; seals compare the server's number until then."""
    feed = _bases(client, "uncounted")
    for counts in (
        f"exec [changefeed].[compare_capture:{feed}]",
        "exec [changefeed].[enable_capture] N'myservice.uncounted', @guard_schema = 0, @guard_table = 0",
    ):
        client.results(
            "update [changefeed].[capture_tables] set base_rows = null where table_name = 'uncounted'"
        )
        client.results("insert into myservice.uncounted select max(id) + 1 from myservice.uncounted")
        client.results(CHECK.format(feed=feed))
        assert client.rows(BASES.format(table="uncounted")) == [(None, 3)]
        client.results(counts)
        assert client.rows(BASES.format(table="uncounted")) == [(3, 3)]


@pytest.mark.parametrize("base", ["3", "null"], ids=["counted", "counting"])
def test_a_statement_that_has_not_recorded_its_rows_yet_is_no_gap(client: Client, base: str) -> None:
    """
    Without row versions, while the table cannot be locked: the seal is to be tried again.

    The rows of a statement whose triggers still run are in the table and in the server's number.
    """
    table = f"half_{base}"
    feed = _bases(client, table)
    uncounted = f"update [changefeed].[capture_tables] set base_rows = {base} where table_name = '{table}'"
    client.results(uncounted)
    _unversioned(client, feed, **{"if error_number() <> 1222 throw;": ""})
    client.results(
        f"create or alter procedure [changefeed].[capture_table:{feed}] ("
        "@table_no smallint, @what varchar(10), @rows bigint = null output, @gained bigint = null output, "
        "@statement bigint = null output, @row int = null output, @is_last bit = null output) as begin "
        "if @what = 'locked' throw 51222, N'held', 1; set @rows = 5; end"
    )
    before = client.rows(BASES.format(table=table))
    client.fails(77101, CHECK.format(feed=feed), "statements are changing it", "allow_snapshot_isolation")
    assert client.rows(BASES.format(table=table)) == before
    found = client.rows(
        "select g.reason from [changefeed].[capture_gaps] as g inner join [changefeed].[capture_tables] as t "
        f"on t.capture_id = g.capture_id where t.table_name = '{table}'"
    )
    assert found == []
    ((_, _, rows, _),) = client.rows(f"exec [changefeed].[compare_capture:{feed}]")
    assert rows is None
