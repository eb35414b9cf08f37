# SPDX-License-Identifier: Apache-2.0
"""
What the probes share: their sizes, what they say in the end, databases, sessions beside, and oracles.

A probe asks a server what Microsoft's documentation leaves open. It ends by saying what the server answered,
or what it could not ask and why; ``tests/tools/settled.py`` makes the table of both.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import mssql_python
import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.clocks import after_now
from tests.integration.mssql.participants import Participant
from tests.integration.mssql.server import Client, Database, Rows, new_database
from tests.tools.mssql import FULL, PATIENCE

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Sizes:
    """
    How much the probes do.

    :param rows: of the table that gets a capture.
    :param updates: rows that one statement updates.
    :param captures: in the database whose tables are altered.
    :param seconds: of races, for each setting of the database; 0 runs each race once.
    """

    rows: int
    updates: int
    captures: int
    seconds: int


SIZES = Sizes(50_000_000, 5_000_000, 500, 3600) if os.environ.get(FULL) else Sizes(20_000, 20_000, 5, 0)
#: What the stand-in does not execute; ``make tsql`` compiles it.
ORPHAN = """
declare @me sysname = suser_sname(), @sql nvarchar(max);
create login <<login>> with password = N'<<password>>', check_policy = off;
alter authorization on database::<<database>> to <<login>>;
backup database <<database>> to disk = N'<<database>>.bak' with init, format;
set @sql = concat(N'alter authorization on database::<<database>> to ', quotename(@me));
exec sys.sp_executesql @sql;
drop login <<login>>;
alter database <<database>> set single_user with rollback immediate;
restore database <<database>> from disk = N'<<database>>.bak' with replace;
alter database <<database>> set multi_user;
"""
IS_ORPHAN = (
    "select case when exists (select 1 from sys.server_principals as s "
    "inner join sys.database_principals as d on d.sid = s.sid where d.name = N'dbo') then 0 else 1 end"
)
LOCK_MEMORY = (
    "select sum(m.pages_kb) / 1024 from sys.dm_os_memory_clerks as m "
    "where m.type = N'OBJECTSTORE_LOCK_MANAGER'"
)
MEMORY = "select committed_target_kb / 1024 from sys.dm_os_sys_info"
CONTAINED = "exec sys.sp_configure N'contained database authentication', 1; reconfigure"
COARSE = (
    "select distinct concat(l.request_mode, N' on ', object_name(l.resource_associated_entity_id)) "
    "from sys.dm_tran_locks as l where l.request_session_id = @@spid and l.resource_type = N'OBJECT' "
    "and l.request_mode in (N'S', N'U', N'X', N'SIX')"
)


@dataclass
class Probe:
    """
    What a probe has to say.

    :param record: takes the answer for the test's report.
    """

    record: Callable[[str, object], None]
    _missing: list[str] = field(default_factory=list)

    def lacks(self, why: object) -> None:
        """Go on without something that the server does not do."""
        text = " ".join(str(why).rpartition("[SQL Server]")[2].split())[:200]
        if text not in self._missing:
            self._missing.append(text)

    def end(self, answer: str) -> None:
        """Say what the server answered; where it lacked something, that this is not what was asked."""
        if self._missing:
            pytest.skip(f"{'; '.join(self._missing)} (without that: {answer})")
        self.record("answer", answer)

    def ask(self, client: Client, sql: str) -> Rows:
        """Ask for what not every server shows."""
        try:
            return client.rows(sql)
        except mssql_python.Error as error:
            self.lacks(error)
            return []

    @contextmanager
    def database(self, create: str = "", *settings: str) -> Iterator[Database]:
        """Make a database with changefeed; what the server does not know of its options it lacks."""
        with ExitStack() as stack:
            try:
                database = stack.enter_context(new_database(create))
            except mssql_python.Error as error:
                self.lacks(error)
                database = stack.enter_context(new_database())
            with closing(Client(database.description | {"database": "master"})) as master:
                for setting in settings:
                    self.ask(master, f"alter database {database.description['database']} set {setting}")
            database.install()
            yield database
            MssqlFeedSource(**database.description).close()


def fill_table(client: Client, table: str, rows: int) -> None:
    """Make a table of two numbers with so many rows."""
    client.results(f"create table {table} (id bigint not null primary key, note int not null)")
    client.results(
        "with n as (select 1 as i union all select 1), "
        "m as (select a.i from n a, n b, n c, n d, n e, n f, n g) "
        f"insert into {table} (id, note) select top ({rows}) "
        "row_number() over (order by (select null)), 0 from m a, m b, m c, m d"
    )


class Beside(Participant):
    """
    A session that repeats a batch, and knows how long it took at most.

    :param sql: with ``{n}`` for the number of the step; the highest number that it selects is remembered.
    :param hold: seconds that its transaction stays open.
    """

    def __init__(self, database: Database, name: str, sql: str, hold: float = 0) -> None:
        super().__init__(database, name, 0)
        self._sql, self._hold = sql, hold
        self.longest = self.highest = 0.0

    def step(self, client: Client) -> None:
        """Run it once; ten seconds are more than anybody may be made to wait."""
        before = "set lock_timeout 10000; " + ("begin transaction; " if self._hold else "")
        began = time.monotonic()
        rows = client.rows(before + self._sql.format(n=self.steps))
        self.longest = max(self.longest, time.monotonic() - began)
        self.highest = max([self.highest, *(float(row[0] or 0) for row in rows)])
        if self._hold:
            time.sleep(self._hold)
            client.results("commit transaction")
        self.ending.wait(0.01)

    def __str__(self) -> str:
        return f"{self.name} {self.longest:.1f} s"


@contextmanager
def beside(*sessions: Beside) -> Iterator[None]:
    """Let sessions work before, during and after the block; none may fail."""
    for one in sessions:
        one.start()
    try:
        for one in sessions:
            one.await_steps(2)
        yield
        for one in sessions:
            one.await_steps(one.steps + 2)
    finally:
        for one in sessions:
            one.ending.set()
        for one in sessions:
            one.join(60)
    assert not [failure for one in sessions for failure in one.failures]


def again(call: Callable[[], Answer], seconds: float = 600) -> tuple[Answer, int]:
    """Call until it is not refused as transient; return also how often it was."""
    deadline = time.monotonic() + seconds
    refused = 0
    while True:
        try:
            return call(), refused
        except TransientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        refused += 1


def await_database(database: Database) -> None:
    """Wait until a database can be used again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with database.client() as client:
                client.results("select 1")
            return
        except mssql_python.Error:
            assert time.monotonic() < deadline, "the database did not come back"
            time.sleep(0.5)


def sealed_ids(source: MssqlFeedSource, capture: str, column: str = "id") -> list[int]:
    """Seal a capture, which throws if it finds a gap, and return what was inserted, in its order."""
    again(lambda: source.seal(capture, after_now(source)))
    batches = source.stream(capture, 0, UlidRange(Ulid.MIN, Ulid.MAX))
    events = [event for batch in batches for event in batch.to_pylist()]
    return [event["new"][column] for event in events if event["type"] == "add"]


def complain(acknowledged: Collection[int], rows: Sequence[int], events: Sequence[int]) -> list[str]:
    """
    Compare what a writer knows, what a table has and what was recorded; return what is wrong.

    :param acknowledged: ids whose insert was reported as committed.
    """
    found = {
        "reported as committed, and not in the table": set(acknowledged) - set(rows),
        "in the table, and not recorded": set(rows) - set(events),
        "recorded, and not in the table": set(events) - set(rows),
        "recorded twice": {one for one, times in Counter(events).items() if times > 1},
    }
    return [f"{what}: {sorted(ids)[:5]} of {len(ids)}" for what, ids in found.items() if ids]
