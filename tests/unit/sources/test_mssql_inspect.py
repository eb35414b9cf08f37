# SPDX-License-Identifier: Apache-2.0
"""
What ``doctor`` makes of a catalog: rows as SQL Server's documentation describes them.

Below the driver, for what Babelfish's catalog does not have; what it has is made and found in
``tests/integration/mssql/test_doctor.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_changefeed import __version__
from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.feed import FeedInfo, FeedKind
from airflow_changefeed.sources.mssql.doctor import faults as told
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.rights import (
    capture_objects,
    feed_objects,
    feed_roles,
    installed_objects,
    rights,
)
from airflow_changefeed.sql import load_sql
from tests.examples import DOCS
from tests.unit.export.ailments import APART, FAULTS
from tests.unit.sources.mssql_captures import BROKEN as BROKEN_CAPTURES

FEED, SCHEMA = "myservice.MyEvent", "changefeed"
OUTBOX = f"outbox:{FEED}"

# ---- rows of a healthy installation, and what may differ in them


def module(**other: Any) -> dict[str, Any]:
    """A row of sys.objects with sys.sql_modules."""
    return {"name": f"shards:{FEED}", "uses_quoted_identifier": 1, "uses_ansi_nulls": 1, **other}


def table(**other: Any) -> dict[str, Any]:
    """A row of sys.tables; 1 is DISABLE, 0 TABLE, 2 AUTO."""
    return {"name": OUTBOX, "lock_escalation": 1, **other}


def index(**other: Any) -> dict[str, Any]:
    """A row of sys.indexes; a clustered index has the id 1."""
    return {
        "table_name": OUTBOX,
        "name": f"pk:{OUTBOX}",
        "index_id": 1,
        "allow_page_locks": 0,
        "is_primary_key": 1,
        **other,
    }


def sequence(**other: Any) -> dict[str, Any]:
    """A row of sys.sequences."""
    return {"name": "sequence", "is_cycling": 0, "is_cached": 1, **other}


def modules(*rows: dict[str, Any]) -> list[Fault]:
    """Judge modules."""
    return list(told.module_faults(SCHEMA, rows))


def locks(*rows: dict[str, Any]) -> list[Fault]:
    """Judge tables and indexes."""
    tables = [row for row in rows if "lock_escalation" in row]
    return list(told.lock_faults(SCHEMA, [FEED], tables, [row for row in rows if "index_id" in row]))


def sequences(*rows: dict[str, Any]) -> list[Fault]:
    """Judge sequences."""
    return list(told.sequence_faults(SCHEMA, rows))


def session(**other: Any) -> dict[str, Any]:
    """A row of the question for open transactions."""
    return {
        "session_id": 57,
        "login_name": "shoe_service",
        "host_name": "app1",
        "program_name": "ShoeService",
        "age": 7300,
        **other,
    }


Make = Callable[[], list[Fault]]
BROKEN: dict[str, tuple[FaultKind, Make, str]] = {
    "quoted_identifier": (
        FaultKind.MODULE_SETTINGS,
        lambda: modules(module(uses_quoted_identifier=0)),
        f"changefeed.shards:{FEED}: the object was created with quoted_identifier off",
    ),
    "both settings": (
        FaultKind.MODULE_SETTINGS,
        lambda: modules(module(uses_quoted_identifier=0, uses_ansi_nulls=0)),
        "the object was created with quoted_identifier and ansi_nulls off",
    ),
    "page locks": (
        FaultKind.PAGE_LOCKS,
        lambda: locks(index(allow_page_locks=1)),
        f"alter index [pk:outbox:{FEED}] on [changefeed].[outbox:{FEED}] set (allow_page_locks = off)",
    ),
    "second index": (
        FaultKind.OUTBOX_INDEX,
        lambda: locks(index(name="by]time", index_id=2, is_primary_key=0)),
        f"drop index [by]]time] on [changefeed].[outbox:{FEED}]",
    ),
    "escalation of the outbox": (
        FaultKind.LOCK_ESCALATION,
        lambda: locks(table(lock_escalation=0)),
        f"alter table [changefeed].[outbox:{FEED}] set (lock_escalation = disable)",
    ),
    "escalation of the feed": (
        FaultKind.LOCK_ESCALATION,
        lambda: locks(table(name=f"feed:{FEED}", lock_escalation=2)),
        f"table changefeed.feed:{FEED}: row locks may escalate",
    ),
    "escalation of a table that feeds share": (
        FaultKind.LOCK_ESCALATION,
        lambda: locks(table(name="dead_letters", lock_escalation=0)),
        "alter table [changefeed].[dead_letters] set (lock_escalation = disable)",
    ),
    "cycling sequence": (
        FaultKind.SEQUENCE_CYCLES,
        lambda: sequences(sequence(is_cycling=1)),
        "alter sequence [changefeed].[sequence] no cycle",
    ),
    "sequence without cache": (
        FaultKind.SEQUENCE_NOT_CACHED,
        lambda: sequences(sequence(is_cached=0)),
        "sequence changefeed.sequence: the sequence is not cached, so each number is written to disk",
    ),
    "allowed durability": (
        FaultKind.DELAYED_DURABILITY,
        lambda: list(told.durability_faults("shop", 1)),
        "database shop: the database allows delayed durability",
    ),
    "forced durability": (
        FaultKind.DELAYED_DURABILITY,
        lambda: list(told.durability_faults("shop", 2)),
        "database shop: the database forces delayed durability",
    ),
    "owner of the schema": (
        FaultKind.SCHEMA_OWNER,
        lambda: told.owner_faults("changefeed", "anna"),
        "alter authorization on schema::[changefeed] to dbo; then run the install script again",
    ),
    "open transaction": (
        FaultKind.OPEN_TRANSACTION,
        lambda: told.open_transaction_faults([session()]),
        "session 57: the transaction has written, and has been open for 2 hours (login shoe_service, "
        "host app1, program ShoeService)",
    ),
    "transaction without a session": (
        FaultKind.OPEN_TRANSACTION,
        lambda: told.open_transaction_faults(
            [session(session_id=None, login_name=None, host_name=None, program_name=None)]
        ),
        "a transaction: the transaction has written",
    ),
    "deleted rows": (
        FaultKind.OUTBOX_KEEPS_DELETED,
        lambda: told.kept_row_faults("changefeed", [{"name": OUTBOX, "kept": 250_000}]),
        f"table changefeed.{OUTBOX}: the server still keeps about 250000 rows",
    ),
    "denied right": (
        FaultKind.PERMISSION_MISSING,
        lambda: [
            told.no_right(
                "me", FEED, ["execute a"], f"changefeed.readers:{FEED}", "exec upgrade", is_reader=True
            )
        ],
        "Remove the deny, or: exec upgrade",
    ),
    "right of an operator": (
        FaultKind.PERMISSION_MISSING,
        lambda: [
            told.no_right("me", FEED, ["execute a"], f"changefeed.operators:{FEED}", None, is_reader=False)
        ],
        f"alter role [changefeed.operators:{FEED}] add member [me]; or, if this login never exports: "
        "airflow-changefeed doctor --role readers --conn-id",
    ),
    "hanging row": (
        FaultKind.OUTBOX_HANGS,
        lambda: [told.hanging(FEED, "0", 7, f"[changefeed].[{OUTBOX}]")],
        f"Delete the row from [changefeed].[outbox:{FEED}]",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_in_the_catalog_is_told_with_its_remedy(name: str) -> None:
    """One fault of one kind for one thing that is wrong."""
    kind, make, text = BROKEN[name]
    (fault,) = make()
    assert fault.kind is kind
    assert text in str(fault)


def test_a_healthy_catalog_has_no_fault() -> None:
    """Nor have objects of other feeds, heaps, and what is no module."""
    foreign = index(table_name="outbox:other.Table", allow_page_locks=1)
    assert modules(module(), module(name="state", uses_quoted_identifier=None, uses_ansi_nulls=None)) == []
    assert locks(table(), index(), foreign, index(name=None, index_id=0, allow_page_locks=1)) == []
    assert sequences(sequence()) == []
    assert list(told.durability_faults("shop", 0)) == []
    assert told.open_transaction_faults([]) == []
    assert told.kept_row_faults("changefeed", []) == []
    assert [told.owner_faults("changefeed", owner) for owner in ("dbo", None)] == [[], []]


def test_a_feed_that_could_not_be_upgraded_is_told_with_the_reason() -> None:
    """Also where its version is the installed one, as readers refuse it."""
    reasons = {FEED: "changefeed 77119: another key"}
    for version in (__version__[:20], "0.0.1"):
        (fault,) = told.version_faults(__version__[:20], {FEED: version}, reasons)
        assert fault.kind is FaultKind.FEED_VERSION_DIFFERS
        assert "refused until it is upgraded: changefeed 77119" in fault.what
        assert "Fix that" in fault.remedy
    assert told.version_faults(__version__[:20], {FEED: __version__[:20]}) == []


def test_a_primary_key_that_a_server_counts_as_second_is_no_extra_index() -> None:
    """Not every server has clustered indexes."""
    assert locks(index(index_id=2, allow_page_locks=1)) == []


# ---- what is expected to be there


def test_the_objects_of_a_feed_are_those_of_its_kind() -> None:
    """As the templates make them."""
    outbox, serialized = feed_objects(FEED, FeedKind.OUTBOX), feed_objects(FEED, FeedKind.SERIALIZED)
    assert outbox[f"outbox:{FEED}"] == "table"
    assert outbox[f"type:read:{FEED}"] == "type"
    assert outbox[f"inspect_outbox:{FEED}"] == serialized[f"inspect_outbox:{FEED}"] == "procedure"
    assert serialized[f"feed:{FEED}"] == "view"
    assert serialized[f"lock:{FEED}"] == "procedure"
    assert not any("options" in name or "grants" in name for name in (*outbox, *serialized))


def test_a_capture_has_objects_and_rights_of_its_own() -> None:
    """Those of an outbox, what checks the capture, and what each of its tables needs."""
    plain = feed_objects(FEED, FeedKind.OUTBOX)
    found = feed_objects(FEED, FeedKind.OUTBOX, is_capture=True)
    assert plain.items() < found.items()
    assert found[f"check_capture:{FEED}"] == "procedure"
    assert found[f"balance:{FEED}"] == "table"
    tables = capture_objects(FEED, range(2))
    assert tables[f"capture_rows.1:{FEED}"] == tables[f"capture_table:{FEED}"] == "procedure"
    assert not any("guard" in name or "capture_insert" in name for name in tables)
    more = {right.object for right in rights("operators", is_capture=True)} - {
        right.object for right in rights("operators")
    }
    assert more == {
        "check_capture",
        "compare_capture",
        "resolve_capture",
        "record_rows",
    }


def test_the_objects_of_an_installation_are_those_of_its_script() -> None:
    """Those that batches make, too."""
    found = installed_objects()
    assert found["setup_feed"] == "procedure"
    assert found["templates"] == found["version"] == "function"
    captures = {"captures", "capture_tables", "capture_columns", "capture_gaps"}
    plain = {"feeds", "dropped_feeds", "consumers", "dropped_consumers", "cursor_history", "stale_marks"}
    plain |= {"writer_locks", "consumer_settings", "lease_waiters", "dead_letters", "invocations"}
    plain |= {"database_identity", "snapshots", "snapshot_marks", "acknowledged", "output_checks"}
    assert {name for name, kind in found.items() if kind == "table"} == plain | captures
    assert {name for name, kind in found.items() if kind == "sequence"} == {"sequence", "fencing_token"}


def test_the_page_counts_what_is_added_to_a_database() -> None:
    """Of each kind, as the script and the templates make them."""
    capture, one = feed_objects(FEED, FeedKind.OUTBOX, is_capture=True), capture_objects(FEED, range(1))
    shared = {name: kind for name, kind in one.items() if name.startswith("capture_table:")}
    roles = dict.fromkeys(feed_roles(SCHEMA, FEED), "role")
    events, guard = {"events": "table"}, {"guard": "table"}
    added = {
        "an installation": installed_objects() | {"users": "role"},
        "an outbox feed": feed_objects(FEED, FeedKind.OUTBOX) | roles,
        "a feed of serialized writers": feed_objects(FEED, FeedKind.SERIALIZED) | roles,
        "a capture": capture | shared | events | roles,
        "each table of a capture": {name: one[name] for name in one.keys() - shared.keys()} | guard,
    }
    kinds = ("table", "view", "procedure", "function", "type", "sequence", "role")
    page = (DOCS / "reference/sql-server.md").read_text(encoding="utf-8")
    for what, objects in added.items():
        counts = Counter(objects.values())
        assert counts.keys() <= set(kinds)
        assert f"| {what} | {' | '.join(str(counts[kind]) for kind in kinds)} |\n" in page


def test_the_rights_of_a_role_are_those_that_are_granted() -> None:
    """Read from the grants themselves, of which none to these roles is overlooked."""
    text = load_sql("mssql/install/grants.batch.sql") + load_sql("mssql/feed/grants.batch.sql")
    granted = re.findall(r"^grant .* to \[<<schema_name>>\.", text, re.MULTILINE)
    assert len(rights("operators")) == len(granted)
    assert {right.role for right in rights("operators")} == {"readers", "operators"}
    assert {right.role for right in rights("readers")} == {"readers"}
    common = {
        (right.permission, right.full(SCHEMA, FEED)) for right in rights("readers") if not right.is_feed
    }
    assert {("SELECT", "[changefeed].[feeds]"), ("EXECUTE", "[changefeed].[list_cursors]")} <= common
    names = {right.full("my]s", FEED) for right in rights("operators")}
    assert f"[my]]s].[seal_feed:{FEED}]" in names


def test_names_are_compared_without_their_case() -> None:
    """Some servers fold it."""
    there = [f"OUTBOX:{FEED.lower()}"]
    assert told.missing_objects(SCHEMA, {OUTBOX: "table"}, there, "do something") == []
    (fault,) = told.missing_objects(SCHEMA, {"a": "procedure"}, there, "do something")
    assert (fault.kind, fault.remedy) == (FaultKind.OBJECT_MISSING, "do something")


@pytest.mark.parametrize(("schema", "last"), [("changefeed", "role:"), ("my's", "my's.role:")])
def test_a_role_that_is_gone_is_told(schema: str, last: str) -> None:
    """There are four for each feed."""
    expected = feed_roles(schema, FEED)
    assert expected[-1] == f"{last}{FEED}"
    assert told.missing_roles(expected, expected, "do something") == []
    (fault,) = told.missing_roles(expected, expected[1:], "do something")
    assert (fault.kind, fault.place) == (FaultKind.OBJECT_MISSING, f"role {schema}.readers:{FEED}")


@pytest.mark.parametrize(
    ("kind", "table_name", "statement"),
    [
        (FeedKind.OUTBOX, "[my'service].[MyEvent]", "@table_name = N'[my''service].[MyEvent]', @outbox = 1"),
        (FeedKind.SERIALIZED, None, f"@table_name = N'{FEED}', @blocking = 1"),
    ],
)
def test_the_upgrade_of_a_feed_is_a_statement(kind: FeedKind, table_name: str | None, statement: str) -> None:
    """Which can be run as it is."""
    info = FeedInfo(FEED, kind, "int", (), ())
    feed = MssqlFeed(SCHEMA, 1, FEED, kind, "int", table_name, None, None, info, {})
    assert feed.upgrade_statement == f"exec [changefeed].[upgrade_feed] {statement}"


# ---- nothing is left out


def test_each_fault_that_is_named_is_tried() -> None:
    """Made on a file, in an export, or here; those of a server are in ``tests/integration/mssql``, too."""
    here = [kind for kind, _, _ in (*BROKEN.values(), *BROKEN_CAPTURES.values())]
    assert {*FAULTS, *APART, *here} == set(FaultKind)


def test_the_page_has_each_fault_with_its_severity() -> None:
    """So that a person finds it by its code."""
    text = (DOCS / "reference/faults.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z][a-z-]+)` \| (error|warning|note) \|", text, re.MULTILINE)
    assert sorted(rows) == sorted((kind.code, kind.severity.value) for kind in FaultKind)
