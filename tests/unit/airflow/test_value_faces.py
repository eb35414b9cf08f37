# SPDX-License-Identifier: Apache-2.0
"""A value means the same in every face that takes one: an option, an argument, a command, a connection."""

from __future__ import annotations

import json
import uuid
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import pytest
from airflow.sdk import Connection

from airflow_changefeed.cli import options as command
from airflow_changefeed.connections.connection import describe_mssql
from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import Backoff
from airflow_changefeed.consumers.settings import DefaultOptions, Pace, checked_options
from airflow_changefeed.core.codec import decode
from airflow_changefeed.core.consumer import ConsumerSpec, parse_position
from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.core.feed import parse_shards
from airflow_changefeed.core.values import Fields
from airflow_changefeed.exceptions import ChangefeedError, InvalidArgumentError
from airflow_changefeed.lake.states import parse_base
from airflow_changefeed.lake.take_snapshot import SnapshotRequest
from airflow_changefeed.operators.changefeed import ChangefeedFreshnessOperator, ChangefeedVerifyOperator
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.output.coverage import Interval
from airflow_changefeed.sensors.changefeed import ChangefeedSensor
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.mssql.connection.options import DRIVER_OPTIONS, read_options
from airflow_changefeed.spark.datasource.ranges import parse_options
from airflow_changefeed.storage import aws, azure, google
from airflow_changefeed.storage.cloud import read_extra
from airflow_changefeed.tasks.arguments import parse_at, parse_unit
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from tests.unit.airflow.conftest import START

#: Takes a value, returns what it was read as, and raises where it means nothing.
Face: TypeAlias = Callable[[Any], Any]
REFUSED = "refused"
SPARK = {"type": "sqlite", "path": "/data/feeds.db", "feed": "shop.order"}
UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def read(face: Face, value: Any) -> Any:
    """What a face makes of a value."""
    try:
        return face(value)
    except (ChangefeedError, ArgumentTypeError):
        return REFUSED


def spark(name: str) -> Face:
    """An option of the data source."""

    def face(value: Any) -> Any:
        found = parse_options({**SPARK, name: value})
        return found.connection[name] if name in found.connection else getattr(found, name)

    return face


def driver(name: str) -> Face:
    """A field of the extra of a connection to SQL Server."""

    def face(value: Any) -> Any:
        options, problems = read_options({name: value}, among=" in its extra")
        if problems:
            raise ChangefeedError(problems[0])
        return getattr(options, name)

    return face


def made(kind: Callable[..., Any], name: str, **others: Any) -> Face:
    """An attribute of a dataclass."""
    return lambda value: getattr(kind(**others, **{name: value}), name)


def task(kind: Callable[..., Any], name: str, **others: Any) -> Face:
    """An argument of an operator."""
    return made(kind, name, task_id="task", feed="shop.order", **others)


def cloud(kind: str, name: str, fields: Fields, **others: Any) -> Face:
    """A field of the extra of a connection to an object store."""

    def face(value: Any) -> Any:
        extra = json.dumps({**others, name: value})
        return read_extra(Connection(conn_id="store", conn_type=kind, extra=extra), fields)[name]

    return face


EXPORT = {"path": "/out", "consumer": "lake"}
WHOLE: dict[str, Face] = {
    "Spark option": spark("partitions"),
    "connection": driver("connect_retry_interval"),
    "aws": cloud("aws", "max_concurrency", aws._KNOWN),
    "azure": cloud("wasb", "max_concurrency", azure._KNOWN),
    "export options": made(ExportOptions, "batch_rows"),
    "settings of a consumer": made(ConsumerSpec, "max_attempts", consumer="lake", feed="shop.order"),
    "batch": made(Batch, "events"),
    "pace": made(Pace, "page_size"),
    "snapshot": made(SnapshotRequest, "tasks", feed="f", table=None, path="/out", run="me"),
    "verify": task(ChangefeedVerifyOperator, "sample_days", path="/out"),
    "local_below": task(ChangefeedToParquetOperator, "local_below", **EXPORT),
    "command": command.count,
    "resource version": command.version,
    "consume": task(ChangefeedConsumeOperator, "batch", consumer="lake", handler=print),
}
NUMBER: dict[str, Face] = {
    "Spark option": spark("lock_timeout"),
    "batch": made(Batch, "seconds"),
    "backoff": made(Backoff, "longest"),
    "default consumer": made(DefaultOptions, "emit_timeout"),
    "handler": task(ChangefeedConsumeOperator, "handler_timeout", consumer="lake", handler=print),
    "sensor": task(ChangefeedSensor, "lock_timeout", consumer="lake"),
    "export": task(ChangefeedToParquetOperator, "lock_timeout", **EXPORT),
}
FLAG: dict[str, Face] = {
    "Spark option": spark("seal"),
    "connection": driver("trusted_connection"),
    "aws": cloud("aws", "requester_pays", aws._KNOWN),
    "azure": cloud("wasb", "anon", azure._KNOWN),
    "google": cloud("google_cloud_platform", "is_anonymous", google._KNOWN),
    "default consumer": made(DefaultOptions, "with_tid"),
}
DURATION: dict[str, Face] = {
    "unit": parse_unit,
    "wait_timeout": task(ChangefeedToParquetOperator, "wait_timeout", **EXPORT),
    "freshness": task(ChangefeedFreshnessOperator, "max_age"),
    "snapshot": made(SnapshotRequest, "max_age", feed="f", table=None, path="/out", run="me"),
}
SHARDS: dict[str, Face] = {
    "Spark option": spark("shards"),
    "argument": parse_shards,
    "export": lambda value: Interval.of(None, None, value).shards,
}
TIME: dict[str, Face] = {
    "Spark option": lambda value: parse_options({**SPARK, "start": value}).after.next().time,
    "argument": parse_at,
    "command": command.time,
    "export": lambda value: Interval.of(value, None, None).start,
    "base of a fold": parse_base,
    "document": lambda value: decode(datetime, value, named="document"),
    "beginning": parse_position,
}
HOUR = timedelta(hours=1)
KINDS: dict[str, tuple[Mapping[str, Face], dict[str, Any]]] = {
    "whole": (
        WHOLE,
        {" 1": 1, "+7": 7, "1e1": REFUSED, "1.0": REFUSED, "1_0": REFUSED, "yes": REFUSED, "٣": REFUSED},
    ),
    "number": (
        NUMBER,
        {" 1": 1, "1e1": 10.0, "2.5": 2.5, "yes": REFUSED, "1_0": REFUSED, "٣": REFUSED, "-1": REFUSED},
    ),
    "flag": (
        FLAG,
        {"yes": True, "TRUE ": True, " 1": True, "Off": False, "0": False, "1e0": REFUSED, "-0": REFUSED},
    ),
    "duration": (
        DURATION,
        {
            "1h": HOUR,
            " PT1H": HOUR,
            "01:00:00": HOUR,
            "3600": HOUR,
            "36e2": HOUR,
            "P1M": REFUSED,
            "٣s": REFUSED,
        },
    ),
}
KINDS["shards"] = (
    SHARDS,
    {
        " 1": (1,),
        "-1, 2,": (-1, 2),
        "{01234567-89AB-CDEF-0123-456789ABCDEF}": (UUID,),
        "1,01": REFUSED,
        "": REFUSED,
        " , ": REFUSED,
        "1_0": REFUSED,
        "0123_4567-89AB-CDEF-0123-456789ABCDE": REFUSED,
        "٣": REFUSED,
    },
)
KINDS["time"] = (
    TIME,
    {
        "2013-01-01T00:00:00Z": START,
        " 2013-01-01 01:00:00,000+0100": START,
        "2013-01-01T00:00:00": REFUSED,
        "2013-01-01": REFUSED,
        "2013-01-01T00:00:00.0001Z": REFUSED,
        "20130101T000000Z": REFUSED,
        "2013-01-01T00:00:00.0000001Z": REFUSED,
        "٣013-01-01T00:00:00Z": REFUSED,
        "-0": REFUSED,
    },
)
#: What means nothing anywhere.
NOTHING: dict[str, Any] = {
    "inf": "inf",
    "nan": "nan",
    "infinite": float("inf"),
    "control": "1\0",
    "list": "[1]",
    "most": "9" * 400,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_face_reads_the_same(kind: str) -> None:
    """The table has the value of each text; what differs is named with its face."""
    faces, table = KINDS[kind]
    for text, expected in [*table.items(), *((value, REFUSED) for value in NOTHING.values())]:
        found = {name: read(face, text) for name, face in faces.items()}
        assert found == dict.fromkeys(faces, expected), text


def test_a_command_asks_for_the_unit_of_a_length() -> None:
    """Who means 30 days and writes 30 must not have all but 30 seconds purged; else it is as elsewhere."""
    _, table = KINDS["duration"]
    plain = ("3600", "36e2")
    found = {text: read(command.duration, text) for text in table}
    assert found == {**table, **dict.fromkeys(plain, REFUSED)}
    assert command.max_hold("forever") == timedelta.max


@pytest.mark.parametrize("kind", ["whole", "number", "duration"])
def test_a_flag_is_no_number(kind: str) -> None:
    """Python counts True as 1. Spark's options are texts: there it is a word."""
    faces, _ = KINDS[kind]
    assert {name: read(face, True) for name, face in faces.items()} == dict.fromkeys(faces, REFUSED)


@pytest.mark.parametrize("name", ["", "  ", "a:b", "a\n", "x" * 129, 5, None])
def test_what_is_no_name_of_a_consumer_is_none_anywhere(name: Any) -> None:
    """Also where a consumer is made or run by Python."""
    faces = {
        "settings": made(ConsumerSpec, "consumer", feed="shop.order"),
        "process": lambda value: checked_options(value, "shop.order"),
        "sensor": task(ChangefeedSensor, "consumer"),
        "export": task(ChangefeedToParquetOperator, "consumer", path="/out"),
        "consume": task(ChangefeedConsumeOperator, "consumer", handler=print),
    }
    assert {face: read(take, name) for face, take in faces.items()} == dict.fromkeys(faces, REFUSED)


SECRET = "hunter2;{}"


def of_airflow(name: str, value: Any) -> dict[str, Any]:
    """A connection to SQL Server of Airflow with a field in its extra."""
    extra = {"changefeed_schema" if name == "schema" else name: value}
    login: dict[str, Any] = {"host": "db", "schema": "shop", "login": "me", "password": SECRET}
    return describe_mssql(Connection(conn_id="c", conn_type="mssql", extra=json.dumps(extra), **login))


def of_spark(name: str, value: Any) -> dict[str, Any]:
    """The same as options of the data source."""
    login = {"host": "db", "database": "shop", "user": "me", "password": SECRET}
    found = dict(parse_options({"type": "mssql", **login, "feed": "shop.order", name: value}).connection)
    del found["type"]
    return found


def of_source(name: str, value: Any) -> dict[str, Any]:
    """The same as arguments of the source."""
    given = {"driver_options": {name: value}} if name in DRIVER_OPTIONS else {name: value}
    login = {"host": "db", "database": "shop", "user": "me", "password": SECRET}
    found = open_source({"type": "mssql", **login, **given}).describe()
    del found["type"]
    return dict(found)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("encrypt", ["TRUE ", "no", " Strict", "0", "", "maybe"]),
        ("trust_server_certificate", ["yes", "off", "", "2"]),
        ("lock_timeout", [" 7.5", "1e3", "", "inf", "-1", "1_0"]),
        ("schema", ["feeds of us", "", "a\0b"]),
        ("packet_size", ["8000", "", "1", "4k", "٣"]),
        ("trusted_connection", ["on", "", "SSPI"]),
        ("application_name", ["hourly", "", "ü" * 65]),
        ("authentication", ["activedirectorymsi", "", "ActiveDirectoryInteractive"]),
    ],
)
def test_a_connection_means_the_same_from_airflow_spark_and_the_source(name: str, values: list[str]) -> None:
    """A blank field is not given; what means nothing is named in the same words, without the password."""
    texts = ""
    for value in values:
        found: list[Any] = []
        for read_connection in (of_airflow, of_spark, of_source):
            try:
                found.append(read_connection(name, value))
            except InvalidArgumentError as error:
                texts += f"{error} {error.facts}"
                label = f"changefeed_{name}" if name == "schema" else name
                problems = [problem.replace(" in its extra", "") for problem in error.facts["problems"]]
                found.append([problem.replace(label, name) for problem in problems])
        assert found[0] == found[1] == found[2], value
    assert SECRET not in texts
    assert of_spark(name, "") == of_source("encrypt", "yes")


def test_a_password_is_never_shown() -> None:
    """Not even one that is no text."""
    with pytest.raises(InvalidArgumentError, match="password must be a text") as caught:
        of_source("password", SECRET.encode())
    assert SECRET not in f"{caught.value} {caught.value.facts}"
