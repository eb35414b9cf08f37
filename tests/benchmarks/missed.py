# SPDX-License-Identifier: Apache-2.0
"""
Rows that readers miss or read twice while eight programs write to a table of a T-SQL server.

Each transaction takes its numbers and times when it inserts, and commits a little later, so that rows appear
behind others that a reader has seen. The same rows go into a feed.
"""

from __future__ import annotations

import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.store import ExportStore
from tests.benchmarks.drain import mssql
from tests.benchmarks.environments import python_of
from tests.benchmarks.figures import Chapter, tell
from tests.benchmarks.mssql_child import SOURCE_VARIABLE
from tests.benchmarks.watch import watch
from tests.integration.contract.engines import MSSQL_VARIABLE, Engine, open_engine

TITLE = "Rows missed under parallel writers"
FEED = "shop.Event"
SECONDS, WRITERS, MOST_ROWS, MOST_PAUSE = 30, 8, 5, 0.2
#: Of how many transactions one rolls back.
ROLLED_BACK = 10
#: Longer than a transaction here takes.
OVERLAP = timedelta(seconds=1)
WINDOW = timedelta(seconds=5)
_TABLE = "[shop].[Event]"
_BEGINNING = datetime(2013, 1, 1)
_LOOPS: dict[str, dict[str, Any]] = {
    "loop: `where id > @last order by id`": {},
    "loop: `where updated_at > @last`": {"column": "updated_at", "last": _BEGINNING},
    "the same, reading the last second again": {
        "column": "updated_at",
        "last": _BEGINNING,
        "overlap": OVERLAP,
    },
}
#: By the name of its pipeline.
_DLT = {
    "append": "dlt, `incremental` by `updated_at`, append",
    "merge": "the same with `lag` of a second, merge by key",
}
_INSERT = (
    f"insert into {_TABLE} (updated_at) values (?); "
    # Not within `values`: Babelfish takes the outbox's own number for it there.
    "declare @id bigint = scope_identity(); "
    f"insert into [changefeed].[outbox:{FEED}] (id) values (@id)"
)


@dataclass(frozen=True)
class Outcome:
    """
    What a reader had read when all was written and read.

    :param ids: of the rows, each as often as it was read.
    :param completeness: whether the reader can say that an interval is complete.
    """

    what: str
    reads: int
    ids: Sequence[int]
    completeness: str = "no"

    def missed(self, committed: set[int]) -> int:
        """Return how many rows were not read."""
        return len(committed - set(self.ids))

    def doubled(self) -> int:
        """Return how many rows were read more than once."""
        return sum(count > 1 for count in Counter(self.ids).values())


@dataclass
class Reader(ABC):
    """Reads what is new, and keeps the ids."""

    what: str
    completeness: str = "no"
    ids: list[int] = field(default_factory=list)

    @abstractmethod
    def read(self) -> None:
        """Read what is new."""

    def finish(self) -> None:
        """Read a last time, after all writers have ended."""
        self.read()


@dataclass
class Loop(Reader):
    """
    The loop that people write.

    :param last: highest value that was read, of the column.
    :param overlap: how much is read again each time.
    """

    connection: Any = None
    column: str = "id"
    last: Any = 0
    overlap: timedelta | None = None

    def read(self) -> None:
        after = self.last - self.overlap if self.overlap else self.last
        statement = f"select id, {self.column} from {_TABLE} where {self.column} > ? order by {self.column}"
        with closing(self.connection.cursor()) as cursor:
            rows = cursor.execute(statement, (after,)).fetchall()
        self.ids += [number for number, _ in rows]
        if rows:
            self.last = rows[-1][1]


@dataclass
class Pages(Reader):
    """Ours: pages of the feed after a cursor."""

    source: Any = None
    cursor: Ulid = Ulid.MIN

    def read(self) -> None:
        while page := self.source.read_feed(FEED, 0, self.cursor):
            self.ids += [event.key[0] for event in page]
            self.cursor = page.last


@dataclass
class Export(Reader):
    """Ours: an export of each window when it is over, sealed by its plan; no window is written twice."""

    source: Any = None
    path: str = ""
    start: datetime | None = None
    end: datetime | None = None

    def read(self) -> None:
        now = self.source.now()
        if self.start is None or self.end is None:
            self.start = self.end = Window.containing(now, WINDOW).start
        while self.end + WINDOW <= now:
            window = Window(self.end, self.end + WINDOW)
            store = ExportStore(self.path, FEED)
            request = ExportRequest(FEED, self.path, "benchmark", "benchmark", windows=[window], unit=WINDOW)
            run_here(self.source, store, make_plan(self.source, store, request), lambda line: None)
            self.end = window.end

    def finish(self) -> None:
        """Export on until the window of the present is over, and read all that was written."""
        end = Window.containing(self.source.now(), WINDOW).end
        while self.end is None or self.end < end:
            self.read()
            time.sleep(0.2)
        # Which fails if a part of the interval is not complete.
        dataset = export_dataset(self.path, FEED, self.start, end)
        self.ids = dataset.to_table(columns=["id"]).column("id").to_pylist()


def run(folder: Path) -> Chapter:
    """
    Write and read at the same time, once.

    :raises RuntimeError: one of our ways missed a row, or read it twice.
    """
    if not os.environ.get(MSSQL_VARIABLE):
        return Chapter(TITLE, note=f"Not measured: `{MSSQL_VARIABLE}` names no server.")
    python = python_of("dlt")
    with open_engine("mssql", folder) as engine:
        _set_up(engine)
        outcomes, longest = _measure(engine, folder, python)
        committed = {number for (number,) in engine.rows(f"select id from {_TABLE}")}
    lines = [
        f"{WRITERS} writers committed {len(committed):,} rows in {SECONDS} s; "
        f"the longest transaction took {longest:.2f} s.",
        "",
        "| | reads | missed | doubled | says when an interval is complete |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for each in outcomes:
        missed, doubled = each.missed(committed), each.doubled()
        lines.append(f"| {each.what} | {each.reads} | {missed:,} | {doubled:,} | {each.completeness} |")
        if each.completeness != "no" and (missed or doubled):
            raise RuntimeError(f"{each.what}: {missed} rows missed, {doubled} read twice")
    return Chapter(TITLE, note="\n".join(lines))


def _set_up(engine: Engine) -> None:
    execute = mssql(engine)
    execute("create schema shop")
    columns = "id bigint identity(1,1) not null primary key, updated_at datetime2(6) not null"
    execute(f"create table {_TABLE} ({columns})")
    engine.source().set_up_feed(FEED)


def _measure(engine: Engine, folder: Path, python: str) -> tuple[list[Outcome], float]:
    """Start the readers and write; return what was read, and the seconds of the longest transaction."""
    output = folder / "missed"
    (output / "dlt").mkdir(parents=True)
    stop = threading.Event()
    with ExitStack() as stack:
        server: Any = engine.source()
        keywords = server.database.server.keywords()
        loops = [
            Loop(what, connection=stack.enter_context(closing(_connect(keywords))), **options)
            for what, options in _LOOPS.items()
        ]
        pages = Pages("`read_feed`, pages after a cursor", "yes, of what is sealed", source=engine.source())
        export = Export(
            "export of windows of 5 s",
            "yes, each window",
            source=engine.source(),
            path=str(output / "export"),
        )
        readers: list[Reader] = [*loops, pages, export]
        pool = stack.enter_context(ThreadPoolExecutor(WRITERS + len(readers) + 1))
        dlt = pool.submit(_dlt, server, output / "dlt", python)
        try:
            while not (output / "dlt" / "ready").exists():
                if dlt.done():
                    dlt.result()
                time.sleep(0.1)
            for reader in readers:
                reader.read()
            tell(f"{WRITERS} writers")
            reads = [pool.submit(_follow, reader, stop) for reader in readers]
            until = time.monotonic() + SECONDS
            writers = [pool.submit(_write, engine, seed, until) for seed in range(WRITERS)]
            longest = max(writer.result() for writer in writers)
        finally:
            stop.set()
            (output / "dlt" / "stop").touch()
        outcomes = [
            Outcome(reader.what, count.result(), reader.ids, reader.completeness)
            for reader, count in zip(readers, reads, strict=True)
        ]
        loaded = dlt.result()
    peers = [Outcome(what, loaded["reads"], loaded[way]) for way, what in _DLT.items()]
    return [*outcomes[: len(loops)], *peers, *outcomes[len(loops) :]], longest


def _connect(keywords: Any) -> Any:
    import mssql_python

    return mssql_python.connect(autocommit=True, **keywords)


def _write(engine: Engine, seed: int, until: float) -> float:
    """Write transactions until a time; return the seconds of the longest."""
    chance, longest = random.Random(seed), 0.0
    with closing(engine.changer()) as changer:
        while (begun := time.monotonic()) < until:
            changer.begin()
            for _ in range(chance.randint(1, MOST_ROWS)):
                changer.execute(_INSERT, datetime.now(timezone.utc).replace(tzinfo=None))
            time.sleep(chance.uniform(0, MOST_PAUSE))
            if chance.randrange(ROLLED_BACK):
                changer.commit()
            else:
                changer.rollback()
            longest = max(longest, time.monotonic() - begun)
    return longest


def _follow(reader: Reader, stop: threading.Event) -> int:
    """Read every second until all is written, and a last time; return how often, with the time before."""
    reads = 2
    while not stop.wait(1):
        reader.read()
        reads += 1
    reader.finish()
    return reads


def _dlt(source: Any, folder: Path, python: str) -> dict[str, Any]:
    """Read by dlt until there is a file ``stop``; the URL holds a password, so it goes by the environment."""
    from sqlalchemy import URL

    server = source.database.server
    options = {
        name: value
        for name, value in server.keywords().items()
        if name not in ("Server", "Database", "UID", "PWD")
    }
    url = URL.create(
        "mssql+mssqlpython",
        server.user,
        server.password,
        server.host,
        server.port or 1433,
        server.database,
        options,
    )
    environment = {**os.environ, SOURCE_VARIABLE: url.render_as_string(hide_password=False)}
    arguments = [str(folder), FEED]
    reading = watch("tests.benchmarks.missed_child", arguments, environment=environment, python=python)
    result: dict[str, Any] = reading["dlt"].result
    return result
