# SPDX-License-Identifier: Apache-2.0
"""
What is told of a capture that somebody broke: by ``doctor``, and to who lists captures.

What Babelfish's catalog does not have (the order of triggers, triggers of the database) is in
``tests/unit/sources/test_mssql_captures.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_changefeed.core.capture import CaptureInfo, Operation
from airflow_changefeed.core.fault import Fault, FaultKind, Limits
from airflow_changefeed.sources.mssql.capture.info import load_captures
from tests.integration.mssql.server import Database

TABLE, NAME = "myservice.watched", "myservice.watched_changes"
HOW = (
    f"exec [changefeed].[enable_capture] @table = N'{TABLE}', @delete_columns = N'[\"id\"]', "
    "@session_keys = N'[\"user\"]', @with_sequence = 1, @guard_schema = 0"
)


@dataclass(frozen=True)
class Seen:
    """What was told before and after."""

    faults: list[Fault]
    info: CaptureInfo


def _inspect(database: Database) -> Seen:
    with database.source() as source, source.database.connect() as session:
        faults = source.inspect(NAME, Limits()).faults
        (info,) = load_captures(session, "changefeed")
    return Seen([fault for fault in faults if fault.kind is not FaultKind.NOT_CHECKED], info)


@pytest.fixture(scope="module")
def before(database: Database) -> Seen:
    """Look at a capture as it was enabled."""
    with database.client() as client:
        client.results(
            f"create table {TABLE} (id int not null primary key, state nvarchar(10) null, gone int null)"
        )
        client.results(HOW)
    return _inspect(database)


@pytest.fixture(scope="module")
def after(database: Database, before: Seen) -> Seen:
    """Break it in every way that this server knows, and look again."""
    with database.client() as client:
        for sql in (
            "insert into [changefeed].[capture_gaps] (capture_id, table_no, reason, found_at) "
            "select capture_id, 0, N'somebody said so', '2026-11-21' from [changefeed].[captures]",
            f"drop trigger [myservice].[capture_update.0:{NAME}]",
            f"disable trigger [myservice].[capture_insert.0:{NAME}] on {TABLE}",
            f"drop table [changefeed].[guard.0:{NAME}]",
            f"alter table {TABLE} add more int null",
        ):
            client.results(sql)
    return _inspect(database)


def test_a_healthy_capture_has_no_fault(before: Seen) -> None:
    """All its objects are there, and all that its readers may do."""
    assert before.faults == []
    assert before.info.drift == ()
    assert before.info.gaps == ()


def test_a_capture_is_listed_as_it_was_enabled(before: Seen) -> None:
    """With the columns that are captured now."""
    spec = before.info.spec
    (table,) = spec.tables
    assert (spec.full_name, table.table) == (NAME, TABLE)
    assert table.operations == {
        Operation.INSERT: ("id", "state", "gone"),
        Operation.UPDATE: ("id", "state", "gone"),
        Operation.DELETE: ("id",),
    }
    assert (spec.session_keys, spec.with_sequence, spec.guard_schema) == (("user",), True, False)
    assert before.info.is_enabled
    assert before.info.shape.tables[TABLE].key_columns == ("id",)
    assert before.info.shape.tables[TABLE].is_whole


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FaultKind.CAPTURE_GAP, "somebody said so (gap 1, found at 2026-11-21T00:00:00Z)"),
        (FaultKind.CAPTURE_TRIGGER, f"capture_update.0:{NAME} on {TABLE}: the trigger is missing"),
        (FaultKind.CAPTURE_TRIGGER, f"capture_insert.0:{NAME} on {TABLE}: the trigger is disabled"),
        (FaultKind.CAPTURE_GUARD, f"guard.0:{NAME}, or its foreign key, is missing"),
        (FaultKind.CAPTURE_DRIFT, f"capture {NAME}, table {TABLE}: column more is not recorded"),
    ],
    ids=["gap", "no trigger", "disabled trigger", "guard", "drift"],
)
def test_what_was_broken_is_found(after: Seen, kind: FaultKind, text: str) -> None:
    """Once, with a remedy."""
    (found,) = (fault for fault in after.faults if fault.kind is kind and text in str(fault))
    assert found.remedy


def test_nothing_else_is_found(after: Seen) -> None:
    """Nothing that is whole is called broken."""
    assert len(after.faults) == 5


def test_whoever_lists_captures_sees_drift_and_gaps(after: Seen) -> None:
    """Without looking for faults."""
    assert after.info.drift == (f"{TABLE}: column more is not recorded",)
    (gap,) = after.info.gaps
    assert (gap.capture, gap.table, gap.reason) == (NAME, TABLE, "somebody said so")


CHAINED = (
    "execute on changefeed.columns_print",
    "select on changefeed.captures",
    "select on changefeed.capture_tables",
    "update on changefeed.feeds",
)


def test_a_reader_of_a_capture_may_read_what_it_is(database: Database, before: Seen) -> None:
    """Its role selects the registry and the capture's table, so it needs no right of its own."""
    with database.client() as client:
        # What SQL Server's procedures reach by ownership chaining, which Babelfish does not have.
        for right in CHAINED if client.is_babelfish else ():
            client.results(f"grant {right} to [changefeed.readers:{NAME}]")
    member = f"alter role [changefeed.readers:{NAME}] add member {{user}}"
    with database.login(member) as seen, seen.source() as reader:
        assert reader.schema(NAME).names[-2:] == ["old", "new"]
        unseen = [fault.place for fault in reader.inspect(NAME, Limits(role="readers")).faults]
        assert any(f"triggers of {TABLE}" in where for where in unseen)
        assert not any(where.startswith("trigger ") for where in unseen)
        keys = [column.name for column in reader.feed(NAME).key_columns]
    assert keys == ["changefeed_statement", "changefeed_row"]


def test_who_is_no_reader_of_a_capture_needs_the_role_only(database: Database, before: Seen) -> None:
    """The role has the right on the table of events, so doctor must not ask anybody to grant it."""
    rights = (
        f"alter role [changefeed.writers:{NAME}] add member {{user}}",
        # Only members of the readers list feeds.
        "grant select on [changefeed].[feeds] to {user}",
    )
    with database.login(*rights) as seen, seen.source() as outsider:
        faults = outsider.inspect(NAME, Limits(role="readers")).faults
    (lacks,) = (fault for fault in faults if fault.kind is FaultKind.PERMISSION_MISSING)
    assert lacks.remedy == f"alter role [changefeed.readers:{NAME}] add member [{seen.user}]"


def test_who_has_rights_on_the_schema_is_sent_to_the_role_of_the_capture(
    database: Database, before: Seen
) -> None:
    """Who executes everything, but does not see the capture's table, needs its role and no grant."""
    rights = [f"grant {right} on schema::[changefeed] to {{user}}" for right in ("select", "execute")]
    with database.login(*rights) as seen, seen.source() as login:
        faults = login.inspect(NAME, Limits()).faults
    lacks = [fault for fault in faults if fault.kind is FaultKind.PERMISSION_MISSING]
    assert not [str(fault) for fault in lacks if "no role has this right" in str(fault)]
    assert [fault.remedy for fault in lacks if f"select {NAME}" in fault.what] == [
        f"alter role [changefeed.readers:{NAME}] add member [{seen.user}]"
    ]
