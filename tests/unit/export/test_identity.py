# SPDX-License-Identifier: Apache-2.0
"""Names alone never join two things: two databases with the same feed and consumer, and one Airflow."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_changefeed.core.codec import dump, encode
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.feed import DatabaseIdentity
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors.recovery import rebuild
from airflow_changefeed.exceptions import (
    CursorEditedError,
    ForeignOutputError,
    ManifestError,
    OutputError,
)
from airflow_changefeed.export.completed import CompletedExport
from airflow_changefeed.output import attempts, claims
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.storage.local import LocalFiles
from tests.exports import verify
from tests.identity import DATABASE, name_database
from tests.unit.export.consumers import (
    CONSUMER,
    FEED,
    KEY,
    Variables,
    Warehouse,
    advance,
    begin,
    hour,
    make_source,
)
from tests.unit.export.faults import plain_rows
from tests.unit.export.flights import Flights, hours

OTHER = "91bc0d22-0000-4000-8000-c0ffee000002"


# ---- Variables


def other_database(tmp_path: Path) -> SqliteFeedSource:
    """The same feed, consumer and hours in another database."""
    folder = tmp_path / "us"
    folder.mkdir()
    us = make_source(folder)
    name_database(folder / "feeds.db", OTHER)
    begin(us)
    return us


def test_two_databases_with_the_same_names_do_not_meet(warehouse: Warehouse, tmp_path: Path) -> None:
    """EU and US: each has its own Variable, and neither is refused for what the other publishes."""
    warehouse.begin()
    us = other_database(tmp_path)
    for number in range(3):
        warehouse.advance(number)
        advance(us, warehouse.variables, number, number + 1)
        assert warehouse.resolve() == warehouse.rows
        assert cursors.resolve(us, warehouse.variables, CONSUMER, FEED) == us.cursors(FEED, CONSUMER)
    assert sorted(warehouse.variables.values) == [
        f"changefeed:3f2a9c1e:{CONSUMER}:{FEED}",
        f"changefeed:91bc0d22:{CONSUMER}:{FEED}",
    ]


def test_a_variable_of_another_database_under_this_name_is_refused(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    """As where two identities begin with the same digits: the value tells them apart."""
    warehouse.begin()
    us = other_database(tmp_path)
    advance(us, warehouse.variables, 0)
    warehouse.variables.values = {KEY: warehouse.variables.values.popitem()[1]}
    with pytest.raises(CursorEditedError, match=f"of database 91bc0d22-.* this is database {DATABASE}"):
        warehouse.resolve()


def set_fork(monkeypatch: pytest.MonkeyPatch, fork: str | None) -> None:
    """Let the database have a recovery fork; None where it cannot be seen."""
    monkeypatch.setattr(SqliteFeedSource, "identity", lambda self: DatabaseIdentity(DATABASE, fork))


def test_a_restore_is_found_by_the_recovery_fork(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although rows and Variable agree; where the fork cannot be seen, nothing is compared."""
    warehouse.begin()
    set_fork(monkeypatch, "fork one")
    warehouse.advance(0)
    set_fork(monkeypatch, None)
    warehouse.resolve()
    set_fork(monkeypatch, "fork two")
    with pytest.raises(CursorEditedError, match=r"restored.*was fork one and is now fork two"):
        warehouse.advance(1)
    assert {row.ulid for row in warehouse.rows} == {hour(0).range.upto}
    warehouse.publish()
    warehouse.advance(1)


def test_a_login_that_cannot_see_the_fork_keeps_the_one_that_was_seen(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moves would else hide a restore from those who can see it; a person's decision forgets."""
    warehouse.begin()
    set_fork(monkeypatch, "fork one")
    warehouse.advance(0)
    set_fork(monkeypatch, None)
    warehouse.advance(1)
    assert warehouse.published.recovery_fork == "fork one"
    earlier = dict(warehouse.variables.values)
    warehouse.advance(2)
    warehouse.variables.values = earlier
    warehouse.resolve()
    assert warehouse.published.recovery_fork == "fork one"
    set_fork(monkeypatch, "fork two")
    with pytest.raises(CursorEditedError, match="was fork one and is now fork two"):
        warehouse.advance(3)
    set_fork(monkeypatch, None)
    warehouse.publish()
    assert warehouse.published.recovery_fork is None


# ---- outputs


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Flights, ExportStore]:
    """Three hours of a feed, exported."""
    flights = Flights.create(tmp_path / "eu.db")
    flights.add(30, 0, length=3)
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 3))
    return flights, store


def other_flights(tmp_path: Path) -> Flights:
    """The same feed with the same rows in another database."""
    flights = Flights.create(tmp_path / "us.db")
    name_database(tmp_path / "us.db", OTHER)
    flights.add(30, 0, length=3)
    return flights


def test_two_databases_cannot_write_into_one_output(
    exported: tuple[Flights, ExportStore], tmp_path: Path
) -> None:
    """The refusal names both, and nothing is changed: neither the output nor the second database."""
    _, store = exported
    us = other_flights(tmp_path)
    with pytest.raises(
        ForeignOutputError, match=f"database {DATABASE}, but the connection leads to .* {OTHER}.*another path"
    ):
        us.plan(store, hours(0, 3))
    assert us.source.feed(FEED).sealed_until is None
    assert store.database() == DATABASE
    assert {manifest.database for manifest in store.list()} == {DATABASE}


def test_of_two_databases_that_begin_an_output_at_once_one_gets_it(tmp_path: Path) -> None:
    """Both found the path free. The one that then reads the other's claim has changed nothing else."""
    eu, us = Flights.create(tmp_path / "eu.db"), other_flights(tmp_path)
    eu.add(30, 0, length=3)
    late = ExportStore(str(tmp_path / "out"), FEED)

    class Overtaken(LocalFiles):
        """Files where the other one claims the output right behind our claim."""

        def write(self, path: str, content: bytes) -> None:
            super().write(path, content)
            if path == late.layout.claim:
                text = content.decode().replace(DATABASE, OTHER)
                claim = {name: json.loads(text)[name] for name in ("database", "feed", "mode")}
                late.files.write(path, dump(claims.Claim.KIND, 1, claim).encode())

    store = ExportStore(late.path, FEED, files=Overtaken(late.path))
    with pytest.raises(ForeignOutputError, match=f"{OTHER}, but the connection leads to .* {DATABASE}"):
        eu.plan(store, hours(0, 3))
    assert eu.source.cursors(FEED) == []
    assert late.list() == []
    us.export(late, hours(0, 3))


@pytest.mark.usefixtures("commits_at_once")
@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"database": OTHER}, f"{OTHER}, but the connection leads to .* {DATABASE}"),
        ({"mode": "batch"}, "by batches, and windows were requested"),
        ({"unit": timedelta(hours=2)}, "in windows of 2:00:00, but window .* was requested"),
        ({"table_format": "delta"}, "as delta, but the task writes parquet"),
    ],
    ids=["database", "mode", "unit", "format"],
)
def test_a_commit_into_an_output_that_another_claimed_meanwhile_leaves_nothing(
    tmp_path: Path, claim: dict[str, Any], message: str
) -> None:
    """
    It was planned and written while the claim was still its own.

    Two first exports may find the path free at the same moment, and the last to write the claim owns it.
    """
    eu = Flights.create(tmp_path / "eu.db")
    eu.add(30, 0, length=3)
    store = ExportStore(str(tmp_path / "out"), FEED)
    plan = eu.plan(store, hours(0, 3))
    attempts.begin(store, plan)
    written = list(eu.write(store, plan))
    commit = Commit(store, plan)
    store.files.remove_file(store.layout.claim)
    other = claims.Claim(FEED, **{"database": DATABASE, "mode": "window", **claim})
    claims.write(store.files, store.layout, other)
    with pytest.raises(OutputError, match=message):
        commit.add(written[0])
    attempts.end(store, plan, committed=False)
    assert store.list() == []
    assert plain_rows(store.files, FEED) == []
    assert claims.read(store.files, store.layout) == other


@pytest.mark.parametrize("damage", [None, b"", b"{", b'{"kind": "changefeed output"}'])
def test_a_claim_that_is_lost_is_written_again_by_the_next_export(
    exported: tuple[Flights, ExportStore], caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    """As ``verify`` says: by what the manifests say. A damaged one is removed first, as it says as well."""
    flights, store = exported
    claim = Path(store.layout.claim)
    before = claim.read_bytes()
    claim.unlink()
    if damage is not None:
        claim.write_bytes(damage)
    (fault,) = verify(store, source=flights.source)
    assert fault.kind is (FaultKind.CLAIM_MISSING if damage is None else FaultKind.CLAIM_DAMAGED)
    assert "again, from the manifests" in fault.remedy
    if damage is not None:
        with pytest.raises(
            ManifestError, match="Restore or remove the document; the next export writes it again"
        ):
            flights.plan(store, hours(3, 4))
    claim.unlink(missing_ok=True)
    with pytest.raises(ManifestError, match="run an export, which writes the document again"):
        store.claimed()
    assert store.database() == DATABASE
    flights.export(store, hours(3, 4))
    assert claim.read_bytes() == before
    assert caplog.text.count(f"{claim} is lost") == 1
    assert verify(store, source=flights.source) == []
    assert sum(manifest.rows for manifest in store.list()) == 30


def test_a_claim_that_is_lost_of_batches_lets_no_windows_in(flights: Flights, tmp_path: Path) -> None:
    """The manifests say what it is of, also on an object store; the next batch writes that again."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, None)
    before = store.claimed()
    memory, root = MemoryFileSystem(), f"/{uuid.uuid4().hex}"
    memory.put(store.path, root, recursive=True)
    remote = ExportStore(f"memory://{root}", FEED)
    for place in (store, remote):
        place.files.remove_file(place.layout.claim)
        with pytest.raises(OutputError, match="by batches, and windows were requested"):
            flights.plan(place, hours(30, 31))
        flights.plan(place, None)
        assert place.claimed() == before
    memory.rm(root, recursive=True)


def test_a_lost_claim_makes_an_output_nobody_elses(
    exported: tuple[Flights, ExportStore], tmp_path: Path
) -> None:
    """Manifests say whose it is; where they do not agree, or say nothing, nobody gets it."""
    flights, store = exported
    us = other_flights(tmp_path)
    Path(store.layout.claim).unlink()
    with pytest.raises(
        ForeignOutputError, match=f"of database {DATABASE}, but the connection leads to .* {OTHER}"
    ):
        us.plan(store, hours(0, 3))
    assert not Path(store.layout.claim).exists()
    (first, *rest) = store.list()
    for manifest in rest:
        Path(store.layout.manifest(manifest.unit, manifest.attempt)).write_text("damaged")
    flights.plan(store, hours(0, 3))
    Path(store.layout.claim).unlink()
    later = replace(first, database=OTHER, unit=ExportUnit.of_window(0, hours(30, 31)[0]))
    store.write(later)
    for mine in (flights, us):
        with pytest.raises(ForeignOutputError, match="must not be mixed"):
            mine.plan(store, hours(0, 3))
    store.remove_manifest(later.unit, later.attempt)
    store.remove_manifest(first.unit, first.attempt)
    with pytest.raises(ForeignOutputError, match=r"is missing, and no other document names"):
        flights.plan(store, hours(0, 3))


def test_what_reads_an_output_beside_a_database_notices_another_one(
    exported: tuple[Flights, ExportStore], tmp_path: Path
) -> None:
    """Verify names the claim, a rebuild takes no cursor from it, and a told export does not read it."""
    _, store = exported
    us = other_flights(tmp_path)
    (fault,) = [one for one in verify(store, source=us.source) if one.kind is FaultKind.CLAIM_FOREIGN]
    assert OTHER in fault.what
    with pytest.raises(ForeignOutputError, match=DATABASE):
        rebuild(us.source, Variables(), "tests", FEED, store, by="me")
    assert us.source.cursors(FEED) == []
    window = hours(0, 1)[0]
    told = CompletedExport(FEED, store.path, window.start, window.end, 0, (), (0,), database=OTHER)
    with pytest.raises(ForeignOutputError, match=OTHER):
        told.files()
    assert CompletedExport.from_extra(encode(told)) == told


def test_a_task_that_comes_to_another_database_reads_nothing(
    exported: tuple[Flights, ExportStore], tmp_path: Path
) -> None:
    """As where a name means another server on an executor."""
    flights, store = exported
    flights.add(3, 3)
    plan = replace(flights.plan(store, hours(3, 4)), database=OTHER)
    with pytest.raises(RuntimeError, match=r"planned for database 91bc0d22.* leads to 3f2a9c1e"):
        list(flights.write(store, plan))
