# SPDX-License-Identifier: Apache-2.0
"""The options of ``spark.read.format("changefeed")``: all problems are reported at once, before any I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from airflow_changefeed.core.feed import Shard, parse_shards
from airflow_changefeed.core.plan import BATCH_ROWS, ON_MISSING, PARTITIONS, SHAPES, Shape
from airflow_changefeed.core.times import parse_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import flag, one_of
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.mssql.connection import options as mssql
from airflow_changefeed.sources.sqlite import connection as sqlite

#: Options of a connection, by its type, and how they are read.
CONNECTIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "sqlite": (("path", "lock_timeout"), sqlite.read_connection),
    "mssql": ((*mssql.CONNECTION, "password", *mssql.DRIVER_OPTIONS), mssql.read_connection),
}
#: Options of what is read, whatever the connection.
READING = (
    "feed",
    "shards",
    "after",
    "upto",
    "start",
    "end",
    "unsealed",
    "seal",
    "partitions",
    "batch_rows",
    "on_missing",
    "lock_timeout",
    "shape",
)
UNSEALED = ("fail", "read")

_Value = TypeVar("_Value")
_Default = TypeVar("_Default")


@dataclass(frozen=True)
class ReadOptions:
    """
    What somebody wants read.

    :param connection: for ``open_source``; may hold a password.
    :param shards: None for all.
    :param after: exclusive; ``Ulid.MIN`` is the start of the feed.
    :param upto: inclusive; None for all that is sealed, or there.
    :param unsealed: ``fail`` to refuse what is not sealed, ``read`` to read what is there.
    :param seal: whether to seal first.
    :param partitions: of Spark, at most; None lets the number of rows decide.
    :param batch_rows: rows that a task holds at once, at most.
    :param shape: of a capture's events.
    """

    connection: Mapping[str, Any] = field(repr=False)
    feed: str
    shards: tuple[Shard, ...] | None = None
    after: Ulid = Ulid.MIN
    upto: Ulid | None = None
    unsealed: str = "fail"
    seal: bool = False
    partitions: int | None = None
    batch_rows: int = 65_536
    on_missing: str = "fail"
    shape: Shape = Shape.TYPED


class _Reader:
    """Reads options one by one, and collects their problems."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = {name.lower(): str(value) for name, value in options.items()}
        self.problems: list[str] = []

    def take(self, name: str, read: Callable[[str], _Value], default: _Default) -> _Value | _Default:
        """Read an optional option."""
        if name not in self.options:
            return default
        try:
            return read(self.options[name].strip())
        except InvalidArgumentError as problem:
            self.problems += problem.facts.get("problems", [f"{name}: {problem.message}"])
        except ValueError as problem:
            self.problems.append(f"{name} must be {problem.args[0]}, not {self.options[name]!r}")
        return default

    def needs(self, name: str, what: str) -> str:
        """Read a required option."""
        if not self.options.get(name, "").strip():
            self.problems.append(f"{name} is missing: give {what}")
        return self.options.get(name, "").strip()


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """
    Read and check all options, without any I/O.

    :param options: names in any case, values as Spark hands them over: texts.
    :raises InvalidArgumentError: names everything that is wrong, and nothing of a password.
    """
    reader = _Reader(options)
    connection = _connection(reader)
    feed = reader.needs("feed", "the name of the table whose feed is read")
    after, upto = _range(reader)
    found = ReadOptions(
        connection=connection,
        feed=feed,
        shards=reader.take("shards", parse_shards, None),
        after=after,
        upto=upto,
        unsealed=reader.take("unsealed", one_of(UNSEALED), "fail"),
        seal=reader.take("seal", flag, False),
        partitions=reader.take("partitions", PARTITIONS, None),
        batch_rows=reader.take("batch_rows", BATCH_ROWS, 65_536),
        on_missing=reader.take("on_missing", one_of(ON_MISSING), "fail"),
        shape=Shape(reader.take("shape", one_of(SHAPES), Shape.TYPED)),
    )
    if found.seal and found.unsealed == "read":
        reader.problems.append(
            "seal=true and unsealed=read contradict each other: a range that is sealed first needs no "
            "unsealed=read; leave one out"
        )
    InvalidArgumentError.collect("options of the changefeed data source", reader.problems)
    return found


def _connection(reader: _Reader) -> dict[str, Any]:
    kind = reader.needs("type", f"one of {', '.join(CONNECTIONS)}").lower()
    if kind and kind not in CONNECTIONS:
        reader.problems.append(f"type {kind!r} holds no feeds: use one of {', '.join(CONNECTIONS)}")
    _check_names(reader, kind if kind in CONNECTIONS else None)
    if kind not in CONNECTIONS:
        return {"type": kind}
    names, read_connection = CONNECTIONS[kind]
    given: dict[str, Any] = {name: reader.options[name] for name in names if name in reader.options}
    given["driver_options"] = {name: given[name] for name in mssql.DRIVER_OPTIONS if name in given}
    described, missing, problems = read_connection(given)
    reader.problems += [f"{name} is missing: give it, type {kind} needs it" for name in missing] + problems
    return {"type": kind, **described}


def _check_names(reader: _Reader, kind: str | None) -> None:
    """Refuse unknown names, and those of another type; shows no values, because one may be a secret."""
    of_type = {
        name: each for each, (names, _) in CONNECTIONS.items() for name in names if name not in READING
    }
    known = ["type", *READING, *of_type]
    for name in reader.options:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
            reader.problems.append(f"option {name!r} is unknown: {hint}")
        elif kind is not None and of_type.get(name, kind) != kind:
            reader.problems.append(f"{name} belongs to type {of_type[name]}, not to {kind}: leave it out")


def _range(reader: _Reader) -> tuple[Ulid, Ulid | None]:
    """Return both ends as ULIDs; a time becomes the ULID before its first one."""
    for time, ulid, does in (("start", "after", "begins"), ("end", "upto", "ends")):
        if time in reader.options and ulid in reader.options:
            reader.problems.append(f"{time} and {ulid} both say where the range {does}: give one of them")
    before = len(reader.problems)
    start, end = reader.take("start", parse_time, None), reader.take("end", parse_time, None)
    after = reader.take("after", Ulid.parse_text, Ulid.MIN)
    upto: Ulid | None = reader.take("upto", Ulid.parse_text, None)
    if start is not None:
        after = Ulid.floor(start).previous()
    if end is not None:
        upto = Ulid.floor(end).previous()
    if len(reader.problems) == before and upto is not None:
        if start is not None and end is not None and start >= end:
            reader.problems.append("start must lie before end: start is inclusive, end exclusive")
        elif upto < after:
            reader.problems.append(f"the range ({after}, {upto}] is reversed: it ends before it begins")
    return after, upto
