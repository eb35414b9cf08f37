# SPDX-License-Identifier: Apache-2.0
"""Every type of the table in docs/reference/types.md at its limits, from a server to Parquet and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.mssql.server import Client, Database
from tests.mssql_types import CASES

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
#: Those that Babelfish has, too, with the number of their column.
HERE = [(f"c{number}", case) for number, case in enumerate(CASES) if case.is_everywhere]
ROWS = max(len(case.values) for case in CASES)


def _is_long(kind: str) -> bool:
    return "max" in kind or kind in ("xml", "text", "ntext", "image", "varchar(8000)")


def _feed(client: Client, feed: str, columns: str) -> None:
    client.results(f"create table {feed} (k int not null primary key, {columns})")
    client.results(f"exec changefeed.setup_feed N'{feed}', @outbox = 1")


def _write(client: Client, feed: str, key: int, values: dict[str, str]) -> None:
    names = "".join(f", {name}" for name in values)
    given = "".join(f", {value}" for value in values.values())
    client.results(
        f"insert into {feed} (k{names}) values ({key}{given}); "
        f"insert into [changefeed].[outbox:{feed}] (k) values ({key})"
    )


def _read(source: MssqlFeedSource, feed: str, folder: Path) -> pa.Table:
    """Order what waits, stream it, and bring it through a file."""
    source.seal(feed, source.now())
    table = pa.Table.from_batches(list(source.stream(feed, 0, ALL, batch_rows=2)), source.schema(feed))
    pq.write_table(table, folder / "all.parquet", version="2.6")
    return pq.read_table(folder / "all.parquet")


@pytest.fixture(scope="module")
def source(database: Database) -> Iterator[MssqlFeedSource]:
    """Two feeds: one of values of bounded length, which the driver reads in blocks, and one of the others."""
    with database.client() as client:
        for feed, is_long in (("myservice.Short", False), ("myservice.Long", True)):
            own = {name: case for name, case in HERE if _is_long(case.type) == is_long}
            _feed(client, feed, ", ".join(f"{name} {case.type} null" for name, case in own.items()))
            for row in range(ROWS):
                values = {
                    name: f"convert({case.type}, {case.values[row][0]})"
                    for name, case in own.items()
                    if row < len(case.values)
                }
                _write(client, feed, row, values)
            _write(client, feed, ROWS, {})
    with database.source() as source:
        yield source


@pytest.fixture(scope="module")
def tables(source: MssqlFeedSource, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, pa.Table]:
    """What arrived of both feeds, by whether their values are long."""
    folders = {False: tmp_path_factory.mktemp("short"), True: tmp_path_factory.mktemp("long")}
    names = {False: "myservice.Short", True: "myservice.Long"}
    return {is_long: _read(source, names[is_long], folder) for is_long, folder in folders.items()}


@pytest.mark.parametrize(("name", "case"), HERE, ids=[case.type for _, case in HERE])
def test_values_arrive_unchanged(tables: dict[bool, pa.Table], name: str, case: Any) -> None:
    """At the limits of their type, empty, and null."""
    table = tables[_is_long(case.type)]
    names = [name, *(f"{name}{suffix}" for suffix in case.suffixes)]
    nothing = (None,) * len(names)
    expected = [values for _, values in case.values]
    found = list(zip(*(table.column(column).to_pylist() for column in names), strict=True))
    assert found == expected + [nothing] * (ROWS + 1 - len(expected))


def test_a_row_version_and_a_computed_column_arrive_as_they_are(
    database: Database, source: MssqlFeedSource, tmp_path: Path
) -> None:
    """The one is the database's own, the other has the type of its expression."""
    with database.client() as client:
        if client.is_babelfish:
            # It refuses the type unless this setting allows its own numbers, which are of another kind.
            client.results("exec sp_babelfish_configure 'escape_hatch_rowversion', 'ignore'")
        _feed(client, "myservice.Made", "n int null, v rowversion, twice as convert(bigint, n) * 2")
        _write(client, "myservice.Made", 1, {"n": "2147483647"})
        _write(client, "myservice.Made", 2, {})
        stored = client.rows("select convert(binary(8), v) from myservice.Made order by k")
    table = _read(source, "myservice.Made", tmp_path)
    assert [(value,) for value in table.column("v").to_pylist()] == stored
    assert len(set(stored)) == 2
    assert table.column("twice").to_pylist() == [4294967294, None]
    assert table.schema.field("twice").type == pa.int64()


def test_an_alias_type_is_what_it_stands_for(
    database: Database, source: MssqlFeedSource, tmp_path: Path
) -> None:
    """Also where it is declared with another name than any of the server's."""
    with database.client() as client:
        client.results("create type myservice.Shoe from decimal(4,1)")
        _feed(client, "myservice.Alias", "size myservice.Shoe null")
        _write(client, "myservice.Alias", 1, {"size": "42.5"})
    table = _read(source, "myservice.Alias", tmp_path)
    assert table.schema.field("size").type == pa.decimal128(4, 1)
    assert str(table.column("size")[0]) == "42.5"


def test_a_value_beyond_the_limit_stops_the_export(
    database: Database, source: MssqlFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the length that the server tells, before anything of it is read."""
    with database.client() as client:
        _feed(client, "myservice.Large", "v varbinary(max) null, w nvarchar(max) null")
        long = "convert(varbinary(max), replicate(convert(varchar(max), 'x'), 10000))"
        _write(client, "myservice.Large", 1, {"v": long, "w": "N'short'"})
    source.seal("myservice.Large", source.now())
    monkeypatch.setattr("airflow_changefeed.sources.mssql.feed.arrow.MAX_VALUE_BYTES", 9_999)
    with pytest.raises(ColumnTypeError, match=r"'v' of type varbinary\(max\) holds a value of 10,000 bytes"):
        list(source.stream("myservice.Large", 0, ALL))


def test_batches_hold_large_values_one_by_one(database: Database, source: MssqlFeedSource) -> None:
    """Sixty-four MB of them at most, or a single one; small ones share a batch."""
    with database.client() as client:
        _feed(client, "myservice.Blob", "v varbinary(max) null")
        mega = "convert(varbinary(max), replicate(convert(varchar(max), 'x'), {}))"
        for key, size in enumerate((10, 40_000_000, 40_000_000, 10, 10)):
            _write(client, "myservice.Blob", key, {"v": mega.format(size)})
    source.seal("myservice.Blob", source.now())
    batches = list(source.stream("myservice.Blob", 0, ALL))
    assert [[len(value.as_py()) for value in batch.column("v")] for batch in batches] == [
        [10, 40_000_000],
        [40_000_000, 10, 10],
    ]
