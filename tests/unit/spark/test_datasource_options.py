# SPDX-License-Identifier: Apache-2.0
"""Options of the data source: texts in, values out, and all that is wrong in one error."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources import SOURCES, open_source
from airflow_changefeed.spark.datasource.ranges import CONNECTIONS, READING, parse_options
from tests.unit.export.flights import START

SQLITE = {"type": "sqlite", "path": "/data/feeds.db", "feed": "nyc.Flight"}
MSSQL = {
    "type": "mssql",
    "host": "server",
    "database": "shop",
    "user": "reader",
    "password": " hunter2=;{} ",
    "feed": "dbo.Order",
}
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def problems_of(options: dict[str, str]) -> list[str]:
    """What is wrong with options."""
    with pytest.raises(InvalidArgumentError) as caught:
        parse_options(options)
    problems: list[str] = caught.value.facts["problems"]
    return problems


def test_the_fewest_options_read_all_that_is_sealed() -> None:
    """A connection and a feed are enough; names may be in any case."""
    found = parse_options({"Type": "SQLite", "PATH": "/data/feeds.db", "Feed": "nyc.Flight"})
    assert dict(found.connection) == {"type": "sqlite", "path": "/data/feeds.db", "lock_timeout": 60.0}
    assert parse_options({**SQLITE, "path": " /data/feeds.db "}).connection == found.connection
    assert (found.feed, found.shards, found.after, found.upto) == ("nyc.Flight", None, Ulid.MIN, None)
    assert (found.unsealed, found.seal, found.partitions) == ("fail", None, None)
    assert (found.batch_rows, found.on_missing) == (65_536, "fail")


def test_every_type_of_connection_can_be_described() -> None:
    """Each source has its options, and its class takes what they become."""
    assert set(CONNECTIONS) == set(SOURCES)
    assert open_source(parse_options(SQLITE).connection).describe()["path"] == "/data/feeds.db"
    given = {"port": "1444", "encrypt": "TRUE", "trust_server_certificate": "yes", "schema": "cf"}
    described = open_source(parse_options({**MSSQL, **given, "lock_timeout": "2.5"}).connection).describe()
    assert described == {
        **{name: MSSQL[name] for name in ("type", "host", "database", "user", "password")},
        **{"port": 1444, "schema": "cf", "encrypt": "yes", "trust_server_certificate": True},
        "read_only_replica": False,
        "driver_options": {},
        "lock_timeout": 2.5,
    }


def test_a_named_instance_is_found_by_the_driver() -> None:
    r"""For host\instance the port is left to the driver, unless it is given."""
    assert parse_options(MSSQL).connection["port"] == 1433
    assert parse_options({**MSSQL, "host": "server\\sales"}).connection["port"] is None
    assert parse_options({**MSSQL, "host": "server\\sales", "port": "1500"}).connection["port"] == 1500


def test_a_relative_path_is_that_of_the_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks may run in another folder, so the path is made absolute where the frame is made."""
    monkeypatch.chdir(tmp_path)
    assert parse_options({**SQLITE, "path": "feeds.db"}).connection["path"] == str(tmp_path / "feeds.db")


def test_times_and_ulids_say_where_a_range_begins_and_ends() -> None:
    """A start is inclusive, an end exclusive, after exclusive and upto inclusive; both kinds may be mixed."""
    found = parse_options({**SQLITE, "start": "2013-01-01T01:00:00+01:00", "upto": f" {ULID.lower()} "})
    assert found.after == Ulid.floor(START).previous()
    assert found.upto == Ulid.parse_text(ULID)
    found = parse_options({**SQLITE, "after": str(Ulid.floor(START)), "end": "2013-01-01T00:00:00.001Z"})
    assert (found.after, found.upto) == (Ulid.floor(START), Ulid.of_int((1_356_998_400_001 << 80) - 1))
    assert parse_options({**SQLITE, "after": ULID, "upto": ULID}).upto == Ulid.parse_text(ULID)


def test_shards_are_numbers_or_uuids() -> None:
    """Shards stand with commas between them."""
    one = uuid.uuid4()
    assert parse_options({**SQLITE, "shards": "3, -1 ,2"}).shards == (3, -1, 2)
    assert parse_options({**SQLITE, "shards": str(one).upper()}).shards == (one,)


def test_all_that_is_wrong_is_named_at_once() -> None:
    """One error names every wrong option with its remedy, so that nobody corrects them one by one."""
    problems = problems_of(
        {
            "type": "sqlite",
            "host": "server",
            "fed": "nyc.Flight",
            "shards": "1,1",
            "start": "2013-01-01",
            "after": "nothing",
            "partitions": "0",
            "batch_rows": "many",
            "on_missing": "skip",
            "unsealed": "maybe",
            "seal": "perhaps",
            "lock_timeout": "nan",
        }
    )
    expected = [
        "host belongs to type mssql, not to sqlite: omit it",
        "option 'fed' is unknown: did you mean feed",
        "path is missing: type sqlite needs it",
        "lock_timeout must be a number of seconds, 0 to 86400, not 'nan'",
        "feed is missing: give the name of the table whose feed to read",
        "start and after both say where the range begins: give only one of them",
        "start: time 2013-01-01T00:00:00 has no time zone; add a zone, for example UTC",
        "after: 'nothing' is not a ULID: ",
        "shards: a shard is named twice",
        "unsealed must be one of fail, read, not 'maybe'",
        "seal must be true or false, not 'perhaps'",
        "partitions must be a whole number, 1 to 10000, not '0'",
        "batch_rows must be a whole number, 1 to 1000000, not 'many'",
        "on_missing must be one of fail, keys_only, not 'skip'",
    ]
    assert len(problems) == len(expected)
    for problem, beginning in zip(problems, expected, strict=True):
        assert problem.startswith(beginning)


def test_each_wrong_option_says_what_to_do() -> None:
    """A wrong option is the one problem, with a remedy."""
    for options, problem in (
        ({"type": ""}, "type is missing: give one of sqlite, mssql"),
        ({"type": "oracle"}, "type 'oracle' cannot hold feeds: use one of sqlite, mssql"),
        ({"paths": "x"}, "option 'paths' is unknown: did you mean path"),
        ({"zzz": "x"}, "option 'zzz' is unknown: known are type, feed, start, end, "),
        ({"shards": " , "}, "shards: no shard is named: name at least one, or omit shards for all"),
        ({"shards": "1,a"}, "shards: 'a' is not a shard; expected a whole number or a UUID"),
        ({"end": "soon"}, "end: 'soon' is not a time; expected ISO 8601 with a zone"),
        (
            {"start": "2013-01-01T00:00:00Z", "end": "2013-01-01T00:00:00Z"},
            "start must lie before end: start is inclusive, end exclusive",
        ),
        ({"after": str(Ulid.MAX), "end": "2013-01-01T00:00:00Z"}, "the range (7ZZZZZZZZZZZZZZZZZZZZZZZZZ, "),
        ({"upto": ULID, "end": "2013-01-01T00:00:00Z"}, "end and upto both say where the range ends"),
        ({"seal": "true", "unsealed": "read"}, "seal=true and unsealed=read contradict each other"),
    ):
        (found,) = problems_of({**SQLITE, **options})
        assert found.startswith(problem)


def test_each_wrong_option_of_sql_server_says_what_to_do() -> None:
    """The same for the other type of connection."""
    for options, problem in (
        ({"port": "0"}, "port must be a whole number, 1 to 65535, not '0'"),
        ({"encrypt": "maybe"}, "encrypt must be one of yes, no, strict, not 'maybe'"),
        ({"trust_server_certificate": "x"}, "trust_server_certificate must be true or false, not 'x'"),
        ({"schema": "a\0b"}, "schema must be a text of printable characters, not 'a\\x00b'"),
        ({"path": "/data/feeds.db"}, "path belongs to type sqlite, not to mssql: omit it"),
        ({"user": ""}, "user is missing: type mssql needs it"),
    ):
        assert problems_of({**MSSQL, **options}) == [problem]


def test_options_of_the_driver_are_handed_on() -> None:
    """As texts, as Spark has them; who needs no login gives none."""
    options = {name: value for name, value in MSSQL.items() if name not in ("user", "password")}
    more = {"authentication": "ActiveDirectoryMSI", "packet_size": "8000", "read_only_replica": "true"}
    connection = parse_options({**options, **more}).connection
    assert connection["driver_options"] == {"authentication": "ActiveDirectoryMSI", "packet_size": 8000}
    assert connection["read_only_replica"] is True
    assert (connection["user"], connection["password"]) == ("", "")
    (problem,) = problems_of({**MSSQL, "packet_size": "1"})
    assert problem == "packet_size must be a whole number of bytes, 512 to 32767, not '1'"


def test_a_password_is_nowhere_to_be_seen() -> None:
    """Neither the options' text nor an error says a password, even where its name is misspelt."""
    assert "hunter2" not in repr(parse_options(MSSQL))
    wrong = {**MSSQL, "pasword": "hunter2", "sqlpassword": "hunter2", "port": "x", "feed": ""}
    assert "hunter2" not in " ".join(problems_of(wrong))
    assert "hunter2" not in " ".join(problems_of({**MSSQL, "type": "sqlite"}))


def test_the_guide_names_every_option() -> None:
    """What the code knows stands in the guide."""
    guide = (Path(__file__).parents[3] / "docs/how-to/read-a-feed-with-spark.md").read_text(encoding="utf-8")
    names = {
        "type",
        *READING,
        *(name for names, _ in CONNECTIONS.values() for name in names),
    }
    assert {name for name in names if f"`{name}`" not in guide} == set()
