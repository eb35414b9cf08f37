# SPDX-License-Identifier: Apache-2.0
"""
Probes: what a server answers where Microsoft's documentation leaves a question open (ADR 0005).

Each races or kills something, and an oracle decides. They are small, but for ``make test-mssql FULL=1``.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import mssql_python
import pytest

from airflow_changefeed.core.capture import CaptureSpec, OnDdl, TableCapture
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.sources.mssql.connection.errors import thrown
from airflow_changefeed.sql import fill
from airflow_changefeed.sql.mssql import install_script
from tests.clocks import after_now
from tests.integration.contract.bench import set_up
from tests.integration.contract.capture_oracles import judge_captures
from tests.integration.contract.capture_race import CapturePlan, run_capture_race
from tests.integration.contract.engines import MSSQL_VARIABLE, Table, open_engine
from tests.integration.contract.oracles import judge
from tests.integration.contract.race import Plan, run_race
from tests.integration.mssql.probes import (
    COARSE,
    CONTAINED,
    IS_ORPHAN,
    LOCK_MEMORY,
    MEMORY,
    ORPHAN,
    SIZES,
    Beside,
    Probe,
    again,
    await_database,
    beside,
    complain,
    fill_table,
    sealed_ids,
)
from tests.integration.mssql.server import Client, Database, new_database
from tests.tools.mssql import CONTAINER, kill_server

pytestmark = [pytest.mark.ci, pytest.mark.timeout(6 * 3600)]
TABLE, CAPTURE = "myservice.probed", "myservice.probed_changes"
SPEC = CaptureSpec((TableCapture(TABLE),), guard_schema=False)
COUNT = f"select count(*) from {TABLE}"
KEYS = (("Stream", "integer"), ("Version", "integer"))
RACE, CAPTURE_RACE = Plan(0), CapturePlan(0)
if not SIZES.seconds:
    RACE = Plan(0, writers=2, readers=1, sealers=1, kills=2)
    CAPTURE_RACE = CapturePlan(0, rounds=2, writers=2, transactions=20, kills=2, alters=1)
AT_ONCE = "with rollback immediate"
VERSIONS = {"without row versions": "off", "with row versions": "on"}


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Probe:
    """Give what says what the server answered: in the report, as a property of the test."""
    # As record_property does, which refuses the reports of today's form.
    return Probe(lambda name, value: request.node.user_properties.append((name, value)))


def _ids(client: Client, above: int = 0) -> list[int]:
    return [number for (number,) in client.rows(f"select id from {TABLE} where id > {above}")]


@pytest.mark.parametrize(
    "setting",
    ["read_committed_snapshot off", "read_committed_snapshot on", "accelerated_database_recovery = on"],
)
def test_a_kill_without_a_checkpoint_makes_no_gap(probe: Probe, setting: str) -> None:
    """What was reported as committed is there and recorded, whatever ``sys.partitions.rows`` says by then."""
    with probe.database("", f"{setting} {AT_ONCE}") as database:
        with database.source() as source, database.client() as client:
            fill_table(client, TABLE, 1000)
            source.enable_capture(SPEC)
            probe.ask(client, "checkpoint")
        writer = Beside(database, "writer", f"insert into {TABLE} (id, note) values (10000 + {{n}}, 0)")
        late = Client(database.description)
        late.results(f"begin transaction; delete from {TABLE} where id <= 500")
        writer.start()
        writer.await_steps(50)
        if not kill_server():
            probe.lacks("this server is not ours to kill")
        # Whatever a driver says of a line that is dead.
        with suppress(Exception):
            late.close()
        writer.ending.set()
        writer.join(60)
        await_database(database)
        with database.client() as client, database.source() as source:
            catalog = client.value(
                "select sum(p.rows) from sys.partitions as p "
                f"where p.object_id = object_id(N'{TABLE}') and p.index_id in (0, 1)"
            )
            rows, events = _ids(client, above=9999), sealed_ids(source, CAPTURE)
            assert complain(range(10000, 10000 + writer.steps), rows, events) == []
            count = client.value(COUNT)
            assert count == 1000 + len(rows)
    probe.end(f"{setting}: sys.partitions has {catalog} rows, a count {count}")


@pytest.mark.parametrize("setting", VERSIONS)
def test_enabling_a_capture_of_a_big_table_stops_nobody(probe: Probe, setting: str) -> None:
    """Neither writers nor readers, for ten seconds; and what was written meanwhile makes no gap."""
    insert = f"insert into {TABLE} (id, note) values ({{n}} * 2 + %d, 0)"
    read = f"select top (1) note from {TABLE}"
    versions = f"allow_snapshot_isolation {VERSIONS[setting]}"
    committed = f"read_committed_snapshot {VERSIONS[setting]} {AT_ONCE}"
    with probe.database("", committed, versions) as database:
        with database.client() as client:
            fill_table(client, TABLE, SIZES.rows)
            is_versioned = VERSIONS[setting] == "on" and not client.is_babelfish
        level = "set transaction isolation level snapshot; " if is_versioned else ""
        writer = Beside(database, "writer", insert % 10**12)
        slow = Beside(database, "slow writer", insert % (10**12 + 1), hold=1)
        reader = Beside(database, "reader", f"{level}{read} where id = {{n}} + 1")
        dirty = Beside(database, "nolock reader", f"{read} with (nolock) where id = {{n}} + 1")
        with database.source() as source:
            with beside(writer, slow, reader, dirty):
                began = time.monotonic()
                _, refused = again(lambda: source.enable_capture(SPEC))
                took, enabled = time.monotonic() - began, writer.steps + 1
                writer.await_steps(enabled + 20)
            events = sealed_ids(source, CAPTURE)
        with database.client() as client:
            rows = _ids(client, above=10**12 - 1)
        acknowledged = {10**12 + 2 * number for number in range(enabled, writer.steps)}
        assert acknowledged <= set(events) <= set(rows)
    waits = ", ".join(map(str, (writer, slow, reader, dirty)))
    probe.end(f"{setting}: {SIZES.rows} rows, {took:.1f} s, refused {refused} times; longest waits: {waits}")


def test_an_upgrade_passes_a_table_with_an_open_writer(probe: Probe) -> None:
    """All others are upgraded, it is named, others are not held up, and repeating ends it."""
    pending = "select count(*) from changefeed.captures where version <> changefeed.version()"
    with probe.database() as database, database.source() as source, database.client() as client:
        for table in ("myservice.busy", "myservice.quiet"):
            client.results(f"create table {table} (id bigint not null primary key)")
            source.enable_capture(CaptureSpec((TableCapture(table),), guard_schema=False))
        client.results("update changefeed.captures set version = '0.0.1'")
        others = [
            Beside(database, f"writer of {name}", f"insert into myservice.{name} (id) values ({{n}})")
            for name in ("busy", "quiet")
        ]
        with database.client() as writer, database.client() as upgrade:
            upgrade.results("set lock_timeout 2000")
            with beside(*others):
                writer.results("begin transaction; insert into myservice.busy (id) values (1000000)")
                refused = [str(thrown(error) or error) for error in _upgrade(upgrade, database)]
                left = client.value(pending)
                writer.results("commit transaction")
            if client.is_babelfish:
                probe.lacks(f"no try catches its lock timeouts: {refused}")
            else:
                assert (len(refused), left) in ((0, 0), (1, 1)), refused
                assert all("myservice.busy" in one and "quiet" not in one for one in refused), refused
            assert (list(_upgrade(upgrade, database)), client.value(pending)) == ([], 0)
        for other, table in zip(others, ("busy", "quiet"), strict=True):
            rows = [number for (number,) in client.rows(f"select id from myservice.{table}")]
            events = sealed_ids(source, f"myservice.{table}_changes")
            assert complain(range(other.steps), rows, events) == []
    waits = ", ".join(map(str, others))
    probe.end(f"{'it was named' if refused else 'it did not have to wait'}; longest waits: {waits}")


def _upgrade(client: Client, database: Database) -> Iterator[mssql_python.Error]:
    """Run the script to its end, as sqlcmd does; give its errors."""
    for batch in install_script(sequence_cache=database.sequence_cache):
        try:
            client.results(batch)
        except mssql_python.Error as error:
            yield error


def test_one_statement_may_update_many_rows(probe: Probe) -> None:
    """Nobody else gets error 1204 or waits for ten seconds, and a drain takes it whole."""
    with probe.database() as database, database.source() as source, database.client() as client:
        fill_table(client, TABLE, SIZES.updates)
        client.results("create table myservice.other (id int not null primary key)")
        source.enable_capture(SPEC)
        source.enable_capture(CaptureSpec((TableCapture("myservice.other"),), guard_schema=False))
        memory = probe.ask(client, MEMORY)
        shows = bool(probe.ask(client, LOCK_MEMORY))
        other = Beside(database, "another writer", "insert into myservice.other (id) values ({n})")
        locks = Beside(database, "locks", LOCK_MEMORY if shows else "select 0")
        with beside(other, locks):
            client.results(f"begin transaction; update {TABLE} set note = note + 1")
            coarse = [name for (name,) in client.rows(COARSE)] if shows else []
            client.results("if @@trancount > 0 commit transaction")
            source.drain(CAPTURE)
        counted = source.count(CAPTURE, 0, [UlidRange(Ulid.MIN, Ulid.MAX)])
        assert counted == [SIZES.updates]
        assert len(sealed_ids(source, "myservice.other_changes")) >= other.steps
    mb = memory[0][0] if memory else "?"
    probe.end(
        f"{SIZES.updates} rows at {mb} MB: locks took {locks.highest:.0f} MB; "
        f"table locks: {coarse or 'none'}; longest waits: {other}"
    )


@pytest.mark.parametrize("setting", VERSIONS)
def test_races_for_long(probe: Probe, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the contract suite, each with dice of its own, until the time is over."""
    ended, races = time.monotonic() + SIZES.seconds, 0
    with probe.database("", f"read_committed_snapshot {VERSIONS[setting]} {AT_ONCE}") as database:
        parts = urlsplit(os.environ[MSSQL_VARIABLE])
        monkeypatch.setenv(MSSQL_VARIABLE, urlunsplit(parts._replace(path=database.description["database"])))
        while races < 3 or time.monotonic() < ended:
            folder = tmp_path / str(races)
            folder.mkdir()
            with open_engine("mssql", folder) as engine:
                if races % 3 == 2:
                    captured = run_capture_race(engine, replace(CAPTURE_RACE, seed=races), folder)
                    complaints = judge_captures(captured)
                else:
                    bench = set_up(engine, Table(keys=KEYS, kind=list(FeedKind)[races % 3]))
                    complaints = judge(run_race(bench, replace(RACE, seed=races), folder))
            assert complaints == [], "\n".join([f"race {races}", *complaints[:20]])
            races += 1
    probe.end(f"{setting}: {races} races")


@contextmanager
def _login(client: Client, master: Client, name: str) -> Iterator[dict[str, str]]:
    """Create a login with a user of the same name, who has no rights."""
    password = f"Aa1!{secrets.token_hex(12)}"
    master.results(f"create login {name} with password = '{password}'")
    try:
        client.results(f"create user {name} for login {name}")
        yield {"user": name, "password": password}
    finally:
        client.results(f"drop user if exists {name}")
        master.results(f"drop login {name}")


def test_a_db_owner_installs_and_writers_need_no_rights(probe: Probe) -> None:
    """Who is not dbo makes objects of dbo, so that triggers record for all who may write the table."""
    owner, user = f"owner_{os.getpid()}", f"writer_{os.getpid()}"
    with ExitStack() as stack:
        database = stack.enter_context(new_database())
        client = stack.enter_context(database.client())
        master = stack.enter_context(closing(Client(database.description | {"database": "master"})))
        installer = stack.enter_context(_login(client, master, owner))
        writer = stack.enter_context(_login(client, master, user))
        client.results("create table dbo.orders (id bigint not null primary key)")
        client.results(f"grant insert on dbo.orders to {user}")
        stack.callback(client.results, f"revoke insert on dbo.orders from {user}")
        try:
            client.results(f"alter role db_owner add member {owner}")
            installed = Database(database.description | installer, database.sequence_cache)
        except mssql_python.Error as error:
            probe.lacks(error)
            installed = database
        installed.install()
        spec = CaptureSpec((TableCapture("dbo.orders"),), guard_schema=False)
        with installed.source() as source:
            source.enable_capture(spec)
            assert FaultKind.SCHEMA_OWNER not in {one.kind for one in examine(source).faults}
            with Database(database.description | writer, 1).client() as other:
                try:
                    other.results("insert into dbo.orders (id) values (1)")
                except mssql_python.Error as error:
                    if not client.is_babelfish:
                        raise
                    probe.lacks(error)
                    client.results("insert into dbo.orders (id) values (1)")
            assert sealed_ids(source, "dbo.orders_changes") == [1]
        found = client.value(
            "select user_name(s.principal_id) from sys.schemas as s where s.name = N'changefeed'"
        )
        if installed is not database:
            installed.install()
    probe.end(f"the schema belongs to {found}")


def test_the_guard_under_many_captures_and_without_an_owner(probe: Probe) -> None:
    """It refuses and allows as ever after a restore whose dbo has no login, and other tables stay free."""
    tables = [f"myservice.guarded{number}" for number in range(SIZES.captures)]
    with ExitStack() as stack:
        database = stack.enter_context(probe.database())
        with database.client() as client, database.source() as source:
            is_babelfish = client.is_babelfish
            client.results("create table myservice.free (id int not null primary key)")
            for number, table in enumerate(tables):
                client.results(f"create table {table} (id int not null primary key, note int null)")
                policy = OnDdl.PAUSE if number or is_babelfish else OnDdl.EVOLVE
                source.enable_capture(
                    CaptureSpec((TableCapture(table),), guard_schema=not is_babelfish, on_ddl=policy)
                )
            if is_babelfish:
                probe.lacks("no triggers on DDL: the guard's procedure was called instead")
                client.results("update changefeed.captures set guard_schema = 1")
            took = _alter(client, tables, "a", is_babelfish=is_babelfish)
        if CONTAINER in os.environ:
            name = database.description["database"]
            tokens = {"database": name, "login": f"orphan_{os.getpid()}", "password": secrets.token_hex(16)}
            with closing(Client(database.description | {"database": "master"})) as master:
                master.results(fill(ORPHAN, tokens))
            await_database(database)
        else:
            probe.lacks("this server is not ours, and a restore would leave a file on it")
        with database.client() as client, database.source() as source:
            if CONTAINER in os.environ:
                assert client.value(IS_ORPHAN) == 1
            after = _alter(client, tables, "b", is_babelfish=is_babelfish)
            client.results(f"insert into {tables[0]} (id) values (1)")
            assert sealed_ids(source, f"{tables[0]}_changes") == [1]
    probe.end(f"{len(tables)} captures: an alter table took {took:.2f} s, after the restore {after:.2f} s")


def _alter(client: Client, tables: list[str], column: str, *, is_babelfish: bool) -> float:
    """Alter a free and a captured table, and be refused; return the seconds of the free one."""
    call = "; exec changefeed.check_captured_tables" if is_babelfish else ""
    began = time.monotonic()
    client.results(f"alter table myservice.free add {column} int null{call}")
    took = time.monotonic() - began
    client.results(f"alter table {tables[0]} add {column} int null{call}")
    client.fails(77144, f"begin transaction; alter table {tables[-1]} drop column note{call}", "note")
    return took


#: What ``create database`` is given, and whether the server's own collation must tell case apart.
COLLATIONS = {
    "Danish": "collate Danish_Norwegian_CI_AS",
    "Turkish": "collate Turkish_CI_AS",
    "binary": "collate Latin1_General_BIN2",
    "UTF-8": "collate Latin1_General_100_CI_AS_SC_UTF8",
    "contained": "containment = partial",
    "case-sensitive server": "",
}


@pytest.mark.parametrize("collation", COLLATIONS)
def test_each_collation(probe: Probe, collation: str) -> None:
    """Names, values and keys that collations take for equal: recorded, ordered, sealed, examined."""
    table, capture = "myservice.Ilik_Aaben", "myservice.Ilik_Aaben_changes"
    values = ["i", "İ", "I", "\u0131", "aa", "å", "Å", "a ", "ü東"]
    if collation == "contained" and CONTAINER in os.environ:
        with new_database() as database, database.client() as client:
            client.results(CONTAINED)
    with ExitStack() as stack:
        database = stack.enter_context(probe.database(COLLATIONS[collation]))
        with database.client() as client, database.source() as source:
            server = str(client.value("select convert(nvarchar(128), serverproperty('Collation'))"))
            if collation.startswith("case") and "_CS_" not in server and "_BIN" not in server:
                probe.lacks(f"this server has {server}; run again with MSSQL_COLLATION=Latin1_General_CS_AS")
            client.results(
                f"create table {table} (Id int not null primary key, INSERT_id nvarchar(20) not null, "
                "Ligin varchar(20) null)"
            )
            client.results("create table myservice.Keyed (Kode nvarchar(20) not null primary key)")
            client.results("exec changefeed.setup_feed N'myservice.Keyed', @outbox = 1")
            source.enable_capture(CaptureSpec((TableCapture(table),), guard_schema=False))
            client.results(f"insert into {table} (Id, INSERT_id, Ligin) values (1, N'', null)")
            for value in values:
                client.results(f"update {table} set INSERT_id = N'{value}'")
            client.results(f"delete from {table}")
            client.results("insert into [changefeed].[outbox:myservice.Keyed] (Kode) values (N'aa'), (N'I')")
            for feed in (capture, "myservice.Keyed"):
                again(partial(source.seal, feed, after_now(source)))
            batches = source.stream(capture, 0, UlidRange(Ulid.MIN, Ulid.MAX))
            events = [event for batch in batches for event in batch.to_pylist()]
            found = [(event["type"], (event["new"] or {}).get("INSERT_id")) for event in events]
            assert found == [("add", ""), *(("upd", value) for value in values), ("del", None)]
            page = source.read_feed("myservice.Keyed", 0, Ulid.MIN)
            assert sorted(event.key[0] for event in page.events) == ["I", "aa"]
            source.begin_consumer("lIke", capture, {0: Ulid.MIN}, by="a probe")
            assert [row.shard for row in source.cursors(capture, "lIke")] == [0]
            faults = examine(source).faults
            assert [one for one in faults if one.kind is not FaultKind.NOT_CHECKED] == []
            database.install()
    probe.end(f"{collation}: the server has {server}")
