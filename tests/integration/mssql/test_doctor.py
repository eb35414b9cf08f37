# SPDX-License-Identifier: Apache-2.0
"""
``doctor`` on a T-SQL server: faults are made, found, and where the remedy is a statement, cured by it.

They are made together, as looking takes seconds on some servers. What a server does not show (Babelfish has
no ``sys.dm_tran_*``, no lock escalation, no sequences in its catalog) must be reported as not checked; what
it would be is in ``tests/unit/sources/test_mssql_inspect.py``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from airflow_changefeed.core.fault import Fault, FaultKind, Limits
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors, recovery
from airflow_changefeed.doctor.doctor import examine
from tests.integration.mssql.ailments import (
    CONSUMER,
    FAULTS,
    FEED,
    GONE,
    OUTBOX,
    SERIALIZED,
    Patient,
    is_unseen,
    run_batch,
)
from tests.integration.mssql.server import Client, Database
from tests.unit.export.ailments import ListedVariables


@pytest.fixture(scope="module")
def well(database: Database) -> Database:
    """Set up the feeds, and export what is in the first."""
    with database.client() as client:
        client.results(f"create table {FEED} (EventID int not null primary key, Data nvarchar(20) null)")
        client.results(f"create table {GONE} (EventID int not null primary key)")
        client.results(f"create table {SERIALIZED} (EventID binary(16) not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        client.results(f"exec changefeed.setup_feed N'{GONE}', @outbox = 1")
        client.results(f"exec changefeed.setup_feed N'{SERIALIZED}', @blocking = 1")
        client.results(f"insert into {FEED} (EventID) values (1), (2)")
        client.results(f"insert into {OUTBOX} (EventID) values (1), (2)")
    return database


def _patient(well: Database, client: Client) -> Patient:
    """All is well: what there is was exported."""
    variables = ListedVariables()
    with well.source() as source:
        source.drain(FEED)
        (status,) = source.shards(FEED)
        assert status.head is not None
        source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN}, by="test")
        done = {0: [UlidRange(Ulid.MIN, status.head)]}
        cursors.advance(source, variables, CONSUMER, FEED, done, by="test")
    return Patient(well, client, variables)


@pytest.fixture
def patient(well: Database, client: Client) -> Patient:
    """All is well."""
    return _patient(well, client)


def test_a_healthy_installation_has_no_fault_at_all(patient: Patient) -> None:
    """But what this server does not tell is said, and nothing else is."""
    found = patient.examine()
    assert found.is_clean
    assert [fault for fault in found.faults if not is_unseen(fault)] == []
    assert found.facts["changefeed"]
    assert found.facts["read committed snapshot"] in ("on", "off")


@dataclass
class Course:
    """What was found while all was broken, and after it was cured."""

    sick: list[Fault]
    cured: list[Fault]


@pytest.fixture(scope="module")
def course(well: Database) -> Course:
    """Break all, look, do what the remedies say, look again."""
    with well.client() as client:
        patient = _patient(well, client)
        for _, make, _, _ in FAULTS.values():
            make(patient)
        sick = patient.faults()
        for name, (_, _, undo, _) in FAULTS.items():
            if undo is None:
                client.results(_found(sick, name).remedy)
            else:
                undo(patient)
        with well.source() as source:
            recovery.publish(source, patient.variables, CONSUMER, FEED)
        return Course(sick, patient.faults())


def _found(faults: list[Fault], name: str) -> Fault:
    kind, _, _, text = FAULTS[name]
    # Some servers tell names in lower case.
    (fault,) = (each for each in faults if each.kind is kind and text.lower() in str(each).lower())
    return fault


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(course: Course, name: str) -> None:
    """Once, with a remedy."""
    assert _found(course.sick, name).remedy


def test_nothing_else_is_found(course: Course) -> None:
    """Nothing that is whole is called broken."""
    assert len(course.sick) == len(FAULTS)


def test_the_remedies_cure(course: Course) -> None:
    """After what they say was done, all is well."""
    assert course.cured == []


def test_another_version_is_told(patient: Patient) -> None:
    """Of the database, and of the feeds in it."""
    patient.client.results("drop function [changefeed].[version]")
    old = "create function [changefeed].[version]() returns varchar(20) as begin return '0.0.1'; end"
    patient.client.results(old)
    try:
        installed, feed = patient.faults(FEED)
    finally:
        patient.client.results("drop function [changefeed].[version]")
        run_batch(patient.client, patient.database, "version", "function")
    assert installed.kind is FaultKind.VERSION_DIFFERS
    assert "version 0.0.1 is installed, but this package is version" in installed.what
    assert feed.kind is FaultKind.FEED_VERSION_DIFFERS


def test_a_database_without_changefeed_is_told(well: Database) -> None:
    """Or a wrong schema in the connection, which is the same to see."""
    for schema in ("nowhere", "myservice"):
        with well.source(schema) as source:
            (fault,) = examine(source).faults
        assert fault.kind is FaultKind.NOT_INSTALLED
        assert f"not installed in schema '{schema}'" in fault.what


# ---- what a login may not do


def _member(patient: Patient, *roles: str) -> AbstractContextManager[Database]:
    """Make a login with roles of the feed; give the database as it sees it."""
    return patient.database.login(
        *(f"alter role [changefeed.{role}:{FEED}] add member {{user}}" for role in roles)
    )


def _inspect(seen: Database, role: str = "operators") -> tuple[list[Fault], list[Fault]]:
    """Return what the login may not do, and what else there is."""
    with seen.source() as source:
        found = source.inspect(FEED, Limits(role=role)).faults
    lacks = [fault for fault in found if fault.kind is FaultKind.PERMISSION_MISSING]
    return lacks, [fault for fault in found if fault not in lacks]


def test_a_right_that_its_role_has_lost_is_told(patient: Patient) -> None:
    """To be its member would not help, so the remedy is another; so is that of the event table."""
    right, role = f"execute on [changefeed].[shards:{FEED}]", f"[changefeed.readers:{FEED}]"
    with _member(patient, "readers") as seen:
        patient.client.results(f"revoke {right} from {role}")
        try:
            (lost, table), _ = _inspect(seen, "readers")
        finally:
            patient.client.results(f"grant {right} to {role}")
    assert lost.what.endswith(f"lacks: execute changefeed.shards:{FEED}")
    assert "but a right of the role was revoked or denied" in lost.remedy
    assert table.place == f"table {FEED}"


def test_a_reader_who_should_seal_is_told_the_role(patient: Patient) -> None:
    """What it may not do, by object; the remedies are statements, and cure it."""
    with _member(patient, "readers") as seen:
        (role, table), others = _inspect(seen)
        assert role.place == f"feed {FEED}"
        for procedure in ("drain_feed", "seal_feed", "purge_feed", "insert_history"):
            assert f"execute changefeed.{procedure}:{FEED}" in role.what
        assert "read_feed" not in role.what
        assert role.remedy.startswith(f"alter role [changefeed.operators:{FEED}] add member [login_")
        assert {fault.kind for fault in others} == {FaultKind.NOT_CHECKED}
        (hidden,) = (fault for fault in others if fault.place.startswith("whether all objects"))
        assert "grant view definition on schema::[changefeed]" in hidden.remedy
        patient.client.results(role.remedy.partition(";")[0])
        patient.client.results(table.remedy.partition(":")[0])
        assert _inspect(seen)[0] == []


def test_who_may_nothing_is_told_the_role(patient: Patient) -> None:
    """And that nothing else was looked at."""
    with _member(patient) as seen:
        (fault,), _ = _inspect(seen)
    assert "may not list the feeds" in fault.what
    assert f"alter role [changefeed.operators:{FEED}] add member" in fault.remedy


def test_feeds_that_a_login_may_not_read_are_one_note(patient: Patient) -> None:
    """It reads one feed, and all that is wrong with it is found; the others are not faults."""
    with _member(patient, "readers") as seen, seen.source() as source:
        found = source.inspect(None, Limits(role="readers"))
    lacks = [fault for fault in found.faults if fault.kind is not FaultKind.NOT_CHECKED]
    assert [(fault.kind, fault.place) for fault in lacks] == [(FaultKind.PERMISSION_MISSING, f"table {FEED}")]
    (note,) = (fault for fault in found.faults if SERIALIZED in fault.place)
    assert f"feed {SERIALIZED}" in note.place.split("; ")
    assert note.remedy.startswith("Name the feeds that this login reads with --feed")
    assert SERIALIZED in found.closed_feeds
    assert FEED not in found.closed_feeds
