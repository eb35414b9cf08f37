# SPDX-License-Identifier: Apache-2.0
"""The options of ``spark.read.format("changefeed")``: all problems are reported at once, before any I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from airflow_changefeed.core.feed import Shard, parse_shards
from airflow_changefeed.core.plan import BATCH_ROWS, ON_MISSING, PARTITIONS, Shape
from airflow_changefeed.core.times import parse_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import Reader, flag, one_of, read_each
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.mssql.connection import options as mssql
from airflow_changefeed.sources.sqlite import connection as sqlite

#: Options of a connection, by its type, and how they are read.
CONNECTIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "sqlite": (("path", "lock_timeout"), sqlite.read_connection),
    "mssql": ((*mssql.CONNECTION, "password", *mssql.DRIVER_OPTIONS), mssql.read_connection),
}
UNSEALED = ("fail", "read")
_READ: dict[str, Reader] = {
    "start": parse_time,
    "end": parse_time,
    "after": lambda text: Ulid.parse_text(text.strip()),
    "upto": lambda text: Ulid.parse_text(text.strip()),
    "shards": parse_shards,
    "unsealed": one_of(UNSEALED),
    "seal": flag,
    "partitions": PARTITIONS,
    "batch_rows": BATCH_ROWS,
    "on_missing": one_of(ON_MISSING),
    "shape": one_of(tuple(Shape)),
}
#: Options of what is read, whatever the connection.
READING = ("feed", *_READ, "lock_timeout")


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


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """
    Read and check all options, without any I/O.

    :param options: names in any case, values as Spark hands them over: texts.
    :raises InvalidArgumentError: names everything that is wrong, and nothing of a password.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    connection, problems = _connection(given)
    feed = given.get("feed", "").strip()
    if not feed:
        problems.append("feed is missing: give the name of the table whose feed is read")
    for time, ulid, does in (("start", "after", "begins"), ("end", "upto", "ends")):
        if time in given and ulid in given:
            problems.append(f"{time} and {ulid} both say where the range {does}: give one of them")
    read, wrong = read_each({name: given[name] for name in _READ if name in given}, _READ)
    start, end = read.pop("start", None), read.pop("end", None)
    if start is not None:
        read["after"] = Ulid.floor(start).previous()
    if end is not None:
        read["upto"] = Ulid.floor(end).previous()
    found = ReadOptions(connection, feed, **read)
    if not wrong and found.upto is not None:
        if start is not None and end is not None and start >= end:
            wrong.append("start must lie before end: start is inclusive, end exclusive")
        elif found.upto < found.after:
            wrong.append(f"the range ({found.after}, {found.upto}] is reversed: it ends before it begins")
    if found.seal and found.unsealed == "read":
        wrong.append(
            "seal=true and unsealed=read contradict each other: a range that is sealed first needs no "
            "unsealed=read; leave one out"
        )
    InvalidArgumentError.collect("options of the changefeed data source", problems + wrong)
    return found


def _connection(given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    kind = given.get("type", "").strip().lower()
    if kind not in CONNECTIONS:
        known = ", ".join(CONNECTIONS)
        missing = f"type is missing: give one of {known}"
        wrong = f"type {kind!r} holds no feeds: use one of {known}" if kind else missing
        return {}, [wrong, *_wrong_names(given, None)]
    names, read_connection = CONNECTIONS[kind]
    fields: dict[str, Any] = {name: given[name] for name in names if name in given}
    if "path" in fields:
        fields["path"] = fields["path"].strip()
    fields["driver_options"] = {name: fields[name] for name in mssql.DRIVER_OPTIONS if name in fields}
    described, missing, problems = read_connection(fields)
    lacks = [f"{name} is missing: give it, type {kind} needs it" for name in missing]
    return {"type": kind, **described}, [*_wrong_names(given, kind), *lacks, *problems]


def _wrong_names(given: Mapping[str, str], kind: str | None) -> Iterator[str]:
    """Yield unknown names, and those of another type; shows no values, because one may be a secret."""
    of_type = {
        name: each for each, (names, _) in CONNECTIONS.items() for name in names if name not in READING
    }
    known = ["type", *READING, *of_type]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}" if near else f"known are {', '.join(known)}"
            yield f"option {name!r} is unknown: {hint}"
        elif kind is not None and of_type.get(name, kind) != kind:
            yield f"{name} belongs to type {of_type[name]}, not to {kind}: leave it out"
