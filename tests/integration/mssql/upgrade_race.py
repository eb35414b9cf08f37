# SPDX-License-Identifier: Apache-2.0
"""Threads that write and read a database of mssql-changefeed v2 as its guides say, while it is upgraded."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import mssql_python

from airflow_changefeed.core.ulid import Ulid
from tests.integration.contract.oracles import History, Reading, Transaction
from tests.integration.mssql.participants import Participant
from tests.integration.mssql.server import Client, Database
from tests.integration.mssql.upstream import BLOCKING, OUTBOX

START = bytes(16)


class Writer(Participant):
    """Commits two events in each transaction; each fifth one rolls back."""

    def __init__(self, database: Database, name: str, number: int) -> None:
        super().__init__(database, name, number)
        self.versions = itertools.count(1)
        self.transactions: list[Transaction] = []

    def step(self, client: Client) -> None:
        """Run one transaction and note when."""
        if not self.ending.is_set():
            self.new_events.acquire()
        keys = [(self.number, next(self.versions)) for _ in range(2)]
        is_rolled_back = self.steps % 5 == 4
        transaction = Transaction(
            f"{self.name} {keys[0][1]}",
            time.monotonic_ns(),
            None,
            tuple((0, key) for key in keys),
            is_rolled_back,
        )
        try:
            given = self.write(client, keys)
        except mssql_python.Error:
            self.transactions.append(replace(transaction, is_rolled_back=True))
            raise
        client.results("rollback transaction" if is_rolled_back else "commit transaction")
        acknowledged = None if is_rolled_back else time.monotonic_ns()
        self.transactions.append(replace(transaction, acknowledged=acknowledged, given=given))

    @abstractmethod
    def write(self, client: Client, keys: list[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        """Begin a transaction and write the events; return ULIDs that are known by then."""


class OutboxWriter(Writer):
    """Writes as OUTBOX.md says."""

    def write(self, client: Client, keys: list[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        """Insert into the table and the outbox, one after the other."""
        client.results("begin transaction")
        for aggregate, version in keys:
            client.results(
                f"insert into {OUTBOX} (AggregateID, Version, ChosenShoeSize) "
                f"values ({aggregate}, {version}, 38); "
                f"insert into [changefeed].[outbox:{OUTBOX}] (shard_id, time_hint, AggregateID, Version) "
                f"values (0, sysutcdatetime(), {aggregate}, {version})"
            )
        return {}


class BlockingWriter(Writer):
    """Writes as BLOCKING.md and upstream's tests say."""

    def write(self, client: Client, keys: list[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        """Lock, then insert with ULIDs by index; two batches, as a client-side transaction has."""
        client.results(f"begin transaction; exec [changefeed].[lock:{BLOCKING}] @shard_id = 0")
        values = ", ".join(
            f"([changefeed].[ulid:{BLOCKING}]({index}), '{aggregate} {version}')"
            for index, (aggregate, version) in enumerate(keys)
        )
        rows = client.rows(
            f"insert into {BLOCKING} (EventID, Data) values {values}; "
            f"select convert(binary(16), [changefeed].[ulid:{BLOCKING}](0)), "
            f"convert(binary(16), [changefeed].[ulid:{BLOCKING}](1))"
        )
        return {key: str(Ulid.of_bytes(raw)) for key, raw in zip(keys, rows[0], strict=True)}


class Reader(Participant):
    """Reads pages of 10 from its cursor on; ends at the head of the feed."""

    def __init__(self, database: Database, name: str, number: int) -> None:
        super().__init__(database, name, number)
        self.content: list[tuple[str, tuple[int, int]]] = []
        self.cursor = START
        self.is_at_head = False

    def is_done(self) -> bool:
        """Whether it was told to end before a look that found nothing."""
        was_told = self.ending.is_set() and self.is_at_head
        self.is_at_head = False
        return was_told

    def step(self, client: Client) -> None:
        """Read a page and go on behind it."""
        if not self.ending.is_set():
            self.new_events.acquire()
        was_ending = self.ending.is_set()
        page = self.read(client)
        self.content += page
        self.is_at_head = was_ending and not page
        if page:
            self.cursor = Ulid.parse(page[-1][0]).bytes

    @abstractmethod
    def read(self, client: Client) -> list[tuple[str, tuple[int, int]]]:
        """Read a page as the guide says."""

    def reading(self) -> Reading:
        """Return all that it read."""
        return Reading(self.name, 0, tuple(self.content))


class OutboxReader(Reader):
    """Reads as OUTBOX.md says."""

    page_size = 10

    def read(self, client: Client) -> list[tuple[str, tuple[int, int]]]:
        """Call read_feed."""
        rows = client.rows(
            "drop table if exists #read; "
            "create table #read "
            "(ulid binary(16) not null, AggregateID bigint not null, Version int not null); "
            f"declare @cursor binary(16) = 0x{self.cursor.hex()}; "
            f"exec changefeed.[read_feed:{OUTBOX}] @shard_id = 0, @cursor = @cursor, "
            f"@pagesize = {self.page_size}; "
            f"select r.ulid, e.AggregateID, e.Version from #read as r join {OUTBOX} as e "
            "on r.AggregateID = e.AggregateID and r.Version = e.Version order by r.ulid"
        )
        return [(str(Ulid.of_bytes(raw)), (aggregate, version)) for raw, aggregate, version in rows]


class BlockingReader(Reader):
    """Reads as BLOCKING.md says."""

    def read(self, client: Client) -> list[tuple[str, tuple[int, int]]]:
        """Query the table by ULID."""
        return _events(
            client.rows(
                f"select top (10) EventID, Data from {BLOCKING} "
                f"where EventID > 0x{self.cursor.hex()} order by EventID"
            )
        )


class FeedReader(Reader):
    """Reads the blocking feed by our read_feed."""

    def read(self, client: Client) -> list[tuple[str, tuple[int, int]]]:
        """Call read_feed, which v2 has not in this mode."""
        return _events(
            client.rows(
                "drop table if exists #read; "
                "create table #read (ulid binary(16) not null, EventID binary(16) not null); "
                f"exec changefeed.[read_feed:{BLOCKING}] 0, 0x{self.cursor.hex()}, 1000; "
                f"select r.ulid, e.Data from #read as r join {BLOCKING} as e "
                "on e.EventID = r.EventID order by r.ulid"
            )
        )


class StateWatcher(Participant):
    """Looks at the clocks again and again."""

    def __init__(self, database: Database, name: str, number: int) -> None:
        super().__init__(database, name, number)
        self.seen: dict[str, list[bytes]] = {OUTBOX: [], BLOCKING: []}

    def step(self, client: Client) -> None:
        """Note the next ULID of each feed."""
        self.new_events.acquire()
        for table, seen in self.seen.items():
            seen.append(client.value(f"select ulid from [changefeed].[state:{table}] where shard_id = 0"))


def _events(rows: list[tuple[bytes, str]]) -> list[tuple[str, tuple[int, int]]]:
    return [(str(Ulid.of_bytes(raw)), tuple(int(part) for part in data.split())) for raw, data in rows]


def history(
    writers: list[Writer], readers: list[Reader], feed: Reader, rows: list[tuple[int, int]]
) -> History:
    """Return what happened to a feed; ``feed`` read all of it at the end."""
    return History(
        transactions=tuple(transaction for writer in writers for transaction in writer.transactions),
        rows=frozenset(rows),
        feed={0: tuple(feed.content)},
        readings=tuple(reader.reading() for reader in readers),
        failures=tuple(failure for one in [*writers, *readers, feed] for failure in one.failures),
    )
