# SPDX-License-Identifier: Apache-2.0
"""What writers tell of themselves: never of another, and never after they are done."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_changefeed.capture.session import session_variables, transaction
from airflow_changefeed.exceptions import InvalidArgumentError, LockTimeoutError
from tests.unit.sources.sqlite_captures import CaptureFile

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAME = "flight_changes"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CaptureFile]:
    """Return a file with two captures of one table."""
    file = CaptureFile(tmp_path / "feeds.db", "create table flight (id integer primary key, status text)")
    file.enable("flight", session_keys=("tenant", "user"))
    file.enable("flight", name="traced", trace_key="request")
    yield file
    file.connection.close()


def _told(file: CaptureFile, capture: str = NAME) -> list[tuple[Any, Any, Any]]:
    return [
        (event["tid"], event["session_variables"], event["trace_context"]) for event in file.events(capture)
    ]


def test_each_capture_records_what_it_has_chosen(file: CaptureFile) -> None:
    """Of all that is said, with the same number."""
    variables = {"user": 'é "q"', "request": "r-1", "tenant": "a"}
    with transaction(file.connection, session_variables=variables, traceparent=TRACE) as same:
        assert same is file.connection
        file.sql("insert into flight values (1, 'a'), (2, 'b')")
    (tid, session, trace), other = _told(file)
    assert other == (tid, session, trace)
    assert (session, trace) == ('{"tenant": "a", "user": "é \\"q\\""}', TRACE)
    assert _told(file, "traced") == [(tid, None, "r-1")] * 2


def test_a_writer_who_says_nothing_is_not_taken_for_another(file: CaptureFile) -> None:
    """Neither before a transaction of the helper's, nor between two, nor after."""
    file.sql("insert into flight values (1, 'a')")
    for key in (2, 3):
        with transaction(file.connection, session_variables={"tenant": str(key)}):
            file.sql(f"insert into flight values ({key}, 'a')")
        file.sql("update flight set status = status || 'x' where id = 1")
    with transaction(file.connection):
        file.sql("delete from flight where id = 1")
    found = _told(file)
    assert [session for _, session, _ in found] == [
        None,
        '{"tenant": "2"}',
        None,
        '{"tenant": "3"}',
        None,
        None,
    ]
    (first, second, third) = (found[number][0] for number in (1, 3, 5))
    assert first < second < third
    assert [tid for tid, _, _ in found] == [None, first, None, second, None, third]


def test_a_block_that_raises_leaves_nothing_behind(file: CaptureFile) -> None:
    """Neither rows, nor events, nor variables; and the connection can be used again."""
    with (
        pytest.raises(sqlite3.IntegrityError),
        transaction(file.connection, session_variables={"tenant": "a"}),
    ):
        file.sql("insert into flight values (1, 'a')", "insert into flight values (1, 'again')")
    assert not file.connection.in_transaction
    file.sql("insert into flight values (2, 'b')")
    assert _told(file) == [(None, None, None)]


def test_a_part_that_was_rolled_back_is_not_recorded(file: CaptureFile) -> None:
    """The rest is one transaction's."""
    with transaction(file.connection, session_variables={"tenant": "a"}):
        file.sql("insert into flight values (1, 'a')", "savepoint here", "insert into flight values (2, 'b')")
        file.sql("rollback to here", "release here", "insert into flight values (3, 'c')")
    found = file.events(NAME)
    assert [event["new"]["id"] for event in found] == [1, 3]
    assert len({event["tid"] for event in found} - {None}) == 1
    assert {event["session_variables"] for event in found} == {'{"tenant": "a"}'}


@pytest.mark.parametrize("again", [(), ("begin",), ("begin immediate", "insert into flight values (9, 'z')")])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_block_that_ends_its_own_transaction_is_told_so(
    file: CaptureFile, end: str, again: tuple[str, ...]
) -> None:
    """What it said is recorded for nobody, even if it began another one."""
    with (
        pytest.raises(InvalidArgumentError, match="committed or rolled back inside its block"),
        transaction(file.connection, session_variables={"tenant": "a"}),
    ):
        file.sql("insert into flight values (1, 'a')", end, *again)
    assert not file.connection.in_transaction
    assert _told(file) == ([(None, None, None)] if end == "commit" else [])


def test_a_connection_that_is_in_a_transaction_is_refused(file: CaptureFile) -> None:
    """It may have recorded events already; and what it did is left to it."""
    file.sql("begin", "insert into flight values (1, 'a')")
    with pytest.raises(InvalidArgumentError, match="already in a transaction"), transaction(file.connection):
        pass
    file.sql("commit")
    assert file.sql("select id from flight") == [(1,)]


def test_another_writer_is_waited_for_as_long_as_the_connection_says(file: CaptureFile) -> None:
    """Then it is a lock timeout, which a retry may help."""
    file.sql("begin immediate")
    other = sqlite3.connect(file.path, timeout=0, isolation_level=None)
    with pytest.raises(LockTimeoutError) as caught, transaction(other):
        pass
    assert caught.value.transient
    other.close()


def test_a_file_without_captures_takes_transactions_too(tmp_path: Path) -> None:
    """So that writers need not know."""
    file = CaptureFile(tmp_path / "plain.db", "create table t (id integer primary key)")
    with transaction(file.connection, session_variables={"tenant": "a"}):
        file.sql("insert into t values (1)")
    assert file.sql("select id from t") == [(1,)]
    file.connection.close()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"session_variables": {"": "x"}}, "the name '' is not a text of 1 to 128 characters"),
    "a long name": ({"session_variables": {"n" * 129: "x"}}, "is not a text of 1 to 128 characters"),
    "a name of ours": ({"session_variables": {"Changefeed.ulid_high": "x"}}, "reserved prefix 'changefeed.'"),
    "a number": ({"session_variables": {"tenant": 7}}, "the value of 'tenant' is not a text"),
    "nothing": ({"session_variables": {"tenant": None}}, "the value of 'tenant' is not a text"),
    "a long value": (
        {"session_variables": {"tenant": "x" * 4001}},
        "is not a text of at most 4000 characters",
    ),
    "half a character": ({"session_variables": {"tenant": "\ud83d"}}, "the value of 'tenant' is not a text"),
    "a null": ({"session_variables": {"tenant": "a\0b"}}, "the value of 'tenant' is not a text"),
    "too many": ({"session_variables": {f"n{n}": "x" for n in range(33)}}, "33 given"),
    "twice": (
        {"session_variables": {"traceparent": TRACE}, "traceparent": TRACE},
        "traceparent is given twice",
    ),
    "upper case": ({"traceparent": TRACE.upper()}, "is not a W3C trace context"),
    "another version": ({"traceparent": f"01{TRACE[2:]}"}, "is not a W3C trace context"),
    "zeros": ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, "is not a W3C trace context"),
    "more": ({"traceparent": f"{TRACE}-x"}, "is not a W3C trace context"),
    "bytes": ({"traceparent": TRACE.encode()}, "is not a W3C trace context"),
}


def test_names_and_values_that_cannot_be_are_refused_before_anything_is_done(file: CaptureFile) -> None:
    """With the reason; a value is not repeated, as it may be a secret."""
    server = Server("qmark")
    for options, reason in BAD.values():
        with pytest.raises(InvalidArgumentError) as caught, transaction(file.connection, **options):
            pass
        assert reason in caught.value.message
        assert not file.connection.in_transaction
        given = options.get("session_variables")
        with (
            pytest.raises(InvalidArgumentError),
            session_variables(server.connection, given, traceparent=options.get("traceparent")),
        ):
            pass
        assert server.calls == []


# ---- SQL Server's sessions, by a driver that writes down what it is asked


class Server:
    """
    A driver whose module is known by its name.

    :param style: how its parameters are written.
    """

    def __init__(self, style: str, *, fails_at: int | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.is_closed = False
        self.module = ModuleType(f"driver_of_{style}")
        self.module.__dict__["paramstyle"] = style
        sys.modules[self.module.__name__] = self.module
        self._fails_at = fails_at
        kind = type("Connection", (), {"cursor": lambda _: self, "close": lambda _: self.end()})
        kind.__module__ = f"{self.module.__name__}.inner"
        self.connection = kind()

    def execute(self, statement: str, values: Any) -> None:
        """Note a statement, or fail."""
        if len(self.calls) == self._fails_at:
            raise ConnectionError("gone")
        self.calls.append((statement, values))

    def close(self) -> None:
        """End a cursor."""

    def end(self) -> None:
        """Close the connection."""
        self.is_closed = True


def _both(key: str, value: str) -> tuple[str, str]:
    return (
        f"exec sys.sp_set_session_context @key = {key}, @value = {value}",
        f"exec sys.sp_set_session_context @key = {key}, @value = null",
    )


@pytest.mark.parametrize(
    ("style", "statements"),
    [("qmark", _both("?", "?")), ("format", _both("%s", "%s")), ("pyformat", _both("%(key)s", "%(value)s"))],
)
def test_session_variables_are_set_as_parameters_and_cleared(style: str, statements: tuple[str, str]) -> None:
    """In the driver's own style; also when the block raises."""
    server = Server(style)
    with (
        pytest.raises(ZeroDivisionError),
        session_variables(server.connection, {"tenant": "a'b"}, traceparent=TRACE),
    ):
        1 / (len(server.calls) - 2)
    setting, clearing = statements
    said = [(statement, [*values]) for statement, values in server.calls]
    if style == "pyformat":
        said = [(statement, [*values.values()]) for statement, values in server.calls]
    assert said == [
        (setting, ["tenant", "a'b"]),
        (setting, ["traceparent", TRACE]),
        (clearing, ["tenant"]),
        (clearing, ["traceparent"]),
    ]
    assert not server.is_closed


@pytest.mark.parametrize("fails_at", [0, 1, 2, 3])
def test_a_session_that_cannot_be_cleared_is_closed(fails_at: int) -> None:
    """Nobody else gets it from a pool with what was set."""
    server = Server("qmark", fails_at=fails_at)
    with pytest.raises(ConnectionError), session_variables(server.connection, {"tenant": "a", "user": "b"}):
        pass
    assert server.is_closed


def test_a_connection_of_an_unknown_driver_is_refused(file: CaptureFile) -> None:
    """SQLite has no sessions; and whose parameters are written otherwise is none that we know."""
    for connection in (Server("named").connection, object()):
        with (
            pytest.raises(InvalidArgumentError, match="use mssql-python"),
            session_variables(connection),
        ):
            pass
    with (
        pytest.raises(InvalidArgumentError, match=r"transaction\(\)"),
        session_variables(file.connection, {"tenant": "a"}),
    ):
        pass
