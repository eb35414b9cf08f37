# SPDX-License-Identifier: Apache-2.0
"""
One way to export the month from SQL Server, in a process of its own.

``python -m tests.benchmarks.mssql_child floor|jdbc|pymssql|export ROWS OUTPUT``, with the JSON description of
the source in ``CHANGEFEED_BENCHMARK_SOURCE``.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_changefeed.export.parts import PART_ROWS
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.benchmarks.export_child import BATCH_ROWS, COMPRESSION, PAGE_ROWS
from tests.benchmarks.mssql_orders import COLUMNS, feed_name, object_name, table_name
from tests.benchmarks.orders import SHARD, month
from tests.benchmarks.spark_ways import export, spark_session, warm_up
from tests.benchmarks.watch import measured

SOURCE_VARIABLE = "CHANGEFEED_BENCHMARK_SOURCE"
#: From Maven Central, where Spark finds it by itself.
JDBC_DRIVER = "com.microsoft.sqlserver:mssql-jdbc:12.10.2.jre11"


class Way(ABC):
    """
    A way to export all rows.

    :param modules: that are imported before the clock runs.
    """

    modules: tuple[str, ...] = ()

    def __init__(self, description: dict[str, Any], rows: int, output: Path) -> None:
        self.description = description
        self.rows = rows
        self.output = output
        for name in self.modules:
            import_module(name)

    def source(self) -> MssqlFeedSource:
        """Open our source."""
        return MssqlFeedSource(**self.description)

    def select(self, *where: str, top: str = "") -> str:
        """Write the statement that everybody writes: the feed, joined with the events."""
        columns = ", ".join(f"e.[{name}]" for name in COLUMNS)
        feed = object_name(self.description["schema"], "feed", self.rows)
        return (
            f"select {top}f.ulid, {columns} from {feed} f join {table_name(self.rows)} e on e.id = f.id "
            f"where {' and '.join([f'f.shard_id = {SHARD}', *where])}"
        )

    @abstractmethod
    def run(self) -> None:
        """Export."""

    def close(self) -> None:  # noqa: B027 - most ways open nothing
        """Give back what was opened."""


class Floor(Way):
    """Streams the driver's batches into one Parquet file, and does nothing else to them."""

    modules = ("mssql_python",)

    def run(self) -> None:
        import mssql_python

        range_ = month().range
        within = (f"f.ulid > 0x{range_.after.bytes.hex()}", f"f.ulid <= 0x{range_.upto.bytes.hex()}")
        keywords: Any = self.source().database.server.keywords()
        with mssql_python.connect(**keywords) as connection, connection.cursor() as cursor:
            cursor.execute(f"{self.select(*within)} order by f.ulid")
            reader = cursor.arrow_reader(BATCH_ROWS)
            file = self.output / "all.parquet"
            with pq.ParquetWriter(file, reader.schema, compression=COMPRESSION) as writer:
                for batch in reader:
                    writer.write_batch(batch)


class Pymssql(Way):
    """Turns pages of 1,000 into pandas frames, and each into a file; the loop that people write."""

    modules = ("pymssql", "pandas")

    def run(self) -> None:
        import pandas
        import pymssql

        server, rows = self.source().database.server, 0
        cursor: Any = month().range.after.bytes
        upto = month().range.upto.bytes
        statement = self.select("f.ulid > %s", "f.ulid <= %s", top=f"top ({PAGE_ROWS}) ") + " order by f.ulid"
        connection = pymssql.connect(
            server=server.host,
            port=str(server.port or 1433),
            user=server.user,
            password=server.password,
            database=server.database,
            autocommit=True,
        )
        names = ["ulid", *COLUMNS]
        with closing(connection), connection.cursor() as reader:
            while True:
                reader.execute(statement, (cursor, upto))
                page = reader.fetchall()
                if not page:
                    return
                frame = pandas.DataFrame(page, columns=names)
                frame.to_parquet(self.output / f"{rows:08d}.parquet", compression=COMPRESSION)
                cursor, rows = page[-1][0], rows + len(page)


class Jdbc(Way):
    """Reads by Spark's own JDBC source, in the ranges that our plan has, and writes by Spark's own writer."""

    def __init__(self, description: dict[str, Any], rows: int, output: Path) -> None:
        super().__init__(description, rows, output)
        self._spark = spark_session(
            {"spark.jars.packages": JDBC_DRIVER, "spark.sql.session.timeZone": "UTC"}, is_javas_work=True
        )
        warm_up(self._spark)
        with closing(self.source()) as source, source.open(feed_name(rows)) as found:
            parts = found.split(SHARD, month().range, -(-rows // PART_ROWS))
        self._ranges = [
            f"ulid > 0x{part.range.after.bytes.hex()} and ulid <= 0x{part.range.upto.bytes.hex()}"
            for part in parts
        ]

    def run(self) -> None:
        server = self.source().database.server
        url = f"jdbc:sqlserver://{server.host}:{server.port or 1433};databaseName={server.database}"
        properties = {
            "driver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
            "user": server.user,
            "password": server.password,
            "encrypt": {"yes": "true", "no": "false"}.get(server.encrypt, server.encrypt),
            "trustServerCertificate": str(server.trust_server_certificate).lower(),
        }
        frame = self._spark.read.jdbc(
            url, f"({self.select()}) as t", predicates=self._ranges, properties=properties
        )
        frame.write.option("compression", COMPRESSION).parquet(str(self.output / "all"))

    def close(self) -> None:
        self._spark.stop()


class Export(Way):
    """Our export: seal, plan, job and commit."""

    def __init__(self, description: dict[str, Any], rows: int, output: Path) -> None:
        super().__init__(description, rows, output)
        warm_up(spark_session())

    def run(self) -> None:
        export(self.source(), feed_name(self.rows), self.output, month())

    def close(self) -> None:
        spark_session().stop()


WAYS: dict[str, Callable[[dict[str, Any], int, Path], Way]] = {
    "floor": Floor,
    "jdbc": Jdbc,
    "pymssql": Pymssql,
    "export": Export,
}


def main(way: str, rows: str, output: str) -> None:
    """Warm up, and measure."""
    found = WAYS[way](json.loads(os.environ[SOURCE_VARIABLE]), int(rows), Path(output))
    with closing(found), measured(way):
        found.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
