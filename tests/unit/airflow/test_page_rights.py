# SPDX-License-Identifier: Apache-2.0
"""What each route of the page needs of Airflow's permissions, and what it tells to whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from fastapi import Request
from fastapi.routing import APIRoute

from airflow_changefeed import exceptions as errors
from airflow_changefeed.core.consumer import LONGEST_RUN, ConsumerSpec
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.plugins import actions
from airflow_changefeed.plugins.access import HIDDEN_RUN, RunNames
from airflow_changefeed.plugins.connections import message_of
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.page import CONN_ID, Visitor
from tests.unit.airflow.test_operator import HOUR, operator
from tests.unit.airflow.test_page_owasp import APIS, ROUTES, send, stored

__all__ = ["stored"]  # a fixture
pytestmark = since("3.1", "the page")

#: What Airflow is asked: a method, and a kind of thing.
Permission = tuple[str, str]
VIEW, DAG, VARIABLE, CONNECTION = ("GET", "view"), ("GET", "dag"), ("PUT", "variable"), ("PUT", "connection")
#: The one permission that each route needs of those who may see the page and the DAG.
NEEDS: dict[str, Permission] = {
    "GET /": VIEW,
    "GET /static/{name}": VIEW,
    "GET /api/connections": VIEW,
    "GET /api/feeds": VIEW,
    "GET /api/feed": VIEW,
    "GET /api/waiters": VIEW,
    "GET /api/reasons": VIEW,
    "GET /api/waiting": VIEW,
    "GET /api/troubles": VIEW,
    "GET /api/tables": VIEW,
    "GET /api/history": VIEW,
    "GET /api/windows": VIEW,
    "GET /api/window": VIEW,
    "GET /api/chart": VIEW,
    "GET /api/backfill": ("POST", "run"),
    "GET /api/move": VARIABLE,
    "POST /api/move": VARIABLE,
    "POST /api/accept_beginning": VARIABLE,
    "POST /api/check_files": VARIABLE,
    "POST /api/revoke": VARIABLE,
    "POST /api/create_consumer": VARIABLE,
    "POST /api/drop_consumer": VARIABLE,
    "POST /api/resolve_dead_letter": VARIABLE,
    "POST /api/resolve_gaps": CONNECTION,
    "POST /api/refresh_capture": CONNECTION,
}
#: A DAG that the user may not see: that of tests' contexts, which exports into the same output.
HIDDEN = "dag"
RUN = f"{HIDDEN}/run/"
HOLDER, WAITER = f"{RUN}consume/1@host:1:01A", f"{RUN}consume/2@host:2:01B"
MAILER = "mailer"


def named(route: APIRoute) -> str:
    """Return method and path of a route."""
    (method,) = route.methods
    return f"{method} {route.path}"


def answer(monkeypatch: pytest.MonkeyPatch, granted: Callable[[Permission, str | None], bool]) -> None:
    """Let Airflow grant what is asked by method, kind of thing, and id."""

    def dag(*_: Any, method: str, access_entity: Any = None, details: Any = None, **__: Any) -> bool:
        kind = "dag" if access_entity is None else access_entity.name.lower()
        return granted((method, kind), details and details.id)

    def of(kind: str) -> Callable[..., bool]:
        return lambda *_, method="GET", **__: granted((method, kind), None)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", dag)
    for kind in ("view", "variable", "connection"):
        monkeypatch.setattr(SimpleAuthManager, f"is_authorized_{kind}", of(kind))


def test_each_route_needs_one_permission(monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    """Without it nothing else helps; with it, who may see the page and the DAG needs no more."""
    assert sorted(NEEDS) == sorted(named(route) for route in ROUTES)
    before = Path(database).read_bytes()
    for route in ROUTES:
        need = NEEDS[named(route)]
        answer(monkeypatch, lambda asked, _, need=need: asked != need)
        assert send(Visitor("OP"), route).status_code == 403, route.path
    assert Path(database).read_bytes() == before
    for route in ROUTES:
        need = NEEDS[named(route)]
        answer(monkeypatch, lambda asked, _, need=need: asked in (VIEW, DAG, need))
        assert send(Visitor("OP"), route).status_code not in (401, 403), route.path


@pytest.mark.parametrize("allowed", ["POST", "PUT"])
def test_who_is_offered_a_new_consumer_may_create_it(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page and its server ask Airflow for the same permission: to edit Variables, not to add them."""
    answer(monkeypatch, lambda asked, _: asked != ("PUT" if allowed == "POST" else "POST", "variable"))
    is_offered = Visitor("OP").ask("connections")["may_create_consumers"]
    assert is_offered == (allowed == "PUT")
    (route,) = (one for one in APIS if one.path == "/api/create_consumer")
    is_refused = send(Visitor("OP"), route, start="latest").status_code == 403
    assert is_refused != is_offered


def test_leave_to_move_is_leave_to_edit_the_variable_of_this_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever may edit that of another database with the same names may only look here."""
    allowed: list[str] = []

    def is_allowed(self: object, *, details: Any = None, **_: Any) -> bool:
        return details is not None and details.key in allowed

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_variable", is_allowed)
    values = {"conn_id": CONN_ID, "feed": FEED, "consumer": CONSUMER, "shard": "0", "to": "latest"}
    allowed[:] = [variable_key("91bc0d22-0000-4000-8000-c0ffee000002", CONSUMER, FEED)]
    assert KEY in Visitor("OP").ask("move", 403, **values, resource_version=1)["detail"]
    allowed[:] = [KEY]
    Visitor("OP").ask("move", **values, resource_version=1)


@pytest.fixture
def shared(source: SqliteFeedSource, tmp_path: Path) -> SqliteFeedSource:
    """A feed whose cursors, leases and manifests name runs of a DAG of others."""
    operator(str(tmp_path / "out"), local_below=1000).execute(context(START, START + 6 * HOUR))
    source.create_consumer(ConsumerSpec(MAILER, FEED), begin=Ulid.MIN, starts={0: Ulid.MIN}, by=HOLDER)
    for holder in (HOLDER, WAITER):
        source.acquire_leases(MAILER, FEED, [0, 1], holder=holder, seconds=600)
    return source


def texts(source: SqliteFeedSource) -> dict[str, str]:
    """Return what all routes answer, some of them also to what is stale."""
    (row, *_) = source.cursors(FEED, MAILER)
    values: tuple[dict[str, Any], ...] = (
        {},
        {"consumer": MAILER},
        {"consumer": MAILER, "resource_version": row.resource_version, "fencing_token": 99},
    )
    visitor = Visitor("OP")
    return {
        f"{named(route)} {number}": send(visitor, route, **one).text
        for route in APIS
        for number, one in enumerate(values)
    }


@pytest.mark.parametrize("is_hidden", [False, True])
def test_runs_are_named_only_to_who_may_see_them(
    is_hidden: bool, shared: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who moved a cursor, holds or waits for a lease, or wrote a file, in answers and in refusals."""
    monkeypatch.setattr(actions, "_HELD_TIMEOUT", 0.02)
    if is_hidden:
        answer(monkeypatch, lambda _, dag_id: dag_id != HIDDEN)
    found = texts(shared)
    naming = {name.rpartition(" ")[0] for name, text in found.items() if RUN in text}
    if is_hidden:
        assert naming == set()
        assert sum(HIDDEN_RUN in text for text in found.values()) > 5
    else:
        assert naming >= {
            *("GET /api/feed", "GET /api/history", "GET /api/waiters", "GET /api/window"),
            *("POST /api/move", "POST /api/revoke"),
        }


@pytest.mark.parametrize("asked", ["feeds", "reasons"])
def test_a_backfill_does_not_name_a_dag_that_the_user_may_not_see(
    asked: str, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it moved the cursor is known to the database; its name is Airflow's to show."""
    source.drop_consumer(CONSUMER, FEED)
    others = "payroll_of_others"
    by = f"{others}/a run/export/1"
    first, hole, back, last = (Ulid.floor(START + hours * HOUR).previous() for hours in (0, 1, 3, 6))
    source.begin_consumer(CONSUMER, FEED, dict.fromkeys((0, 1), first), by=by)
    source.seal(FEED, START + 6 * HOUR)
    done = [UlidRange(first, hole), UlidRange(back, last)]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by=by)
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda _, dag_id: dag_id != others)
    found = Visitor("OP").ask(asked, conn_id=CONN_ID, **({"feed": FEED} if asked == "reasons" else {}))
    assert "window-missing" in str(found)
    assert others not in str(found)


def test_a_name_of_a_run_is_known_as_one() -> None:
    """Also where it was cut; in a sentence only the name goes. People and processes are named to all."""
    for name in (
        f"{HIDDEN}/run/export/1",
        HOLDER,
        # Cut in the run's id, or in the DAG's.
        f"{HIDDEN}/{'r' * LONGEST_RUN}"[:LONGEST_RUN] + "@host:1:01A",
        f"{'d' * LONGEST_RUN}@host:1:01A",
        f"{HIDDEN}/scheduled__2026-01-01T00:00:00+00:00/exp",
    ):
        names = RunNames(lambda dag_id: False)
        assert names.shown(name) == HIDDEN_RUN, name
        assert RunNames(lambda dag_id: True).shown(name) == name
        shown = f"it is held by '{HIDDEN_RUN if '/' in name else name}' until noon"
        assert names.in_text(f"it is held by '{name}' until noon") == shown
    for name in ("anna", "anna@example.org", "host:17:01A", "", None):
        assert RunNames(lambda dag_id: False).shown(name) == name


def test_an_error_has_no_path_for_who_may_only_see_the_page() -> None:
    """Whatever its class; who may see the connection sees all of it."""
    cases: list[tuple[Exception, str | None]] = [
        (errors.LockTimeoutError("feeds.db: busy; retry", path="feeds.db"), "...: busy; retry"),
        (errors.UnsupportedVersionError("/mnt/my lake/a b/m.json is of version 9"), "... is of version 9"),
        (
            errors.UnsupportedVersionError("manifest s3://lake/my feed/m.json: upgrade"),
            "manifest ...: upgrade",
        ),
        (errors.FoldError("feed 'f' in C:\\lake\\out has no events"), "feed 'f' in ... has no events"),
        (errors.InvalidArgumentError("to: '2026-01-01T00:00:00Z' is late"), None),
        (errors.StaleVersionError("cursor is at 2 (readers and/or writers)"), None),
    ]
    for error, shown in cases:
        for sees_errors in (True, False):
            state = {"sees_errors": sees_errors, "runs": RunNames(lambda dag_id: True)}
            told = message_of(Request({"type": "http", "query_string": b"", "state": state}), error)
            assert told == (str(error) if sees_errors or shown is None else shown)


@pytest.mark.parametrize("path", ["window", "chart"])
def test_a_manifest_of_a_newer_version_is_told_without_its_path(
    path: str, shared: SqliteFeedSource, tmp_path: Path
) -> None:
    """As all errors of an output, to who may only see the page."""
    for each in (tmp_path / "out").rglob("*.json"):
        if "/manifests/" in str(each):
            each.write_text(each.read_text().replace('"schema_version": ', '"schema_version": 99'))
    (route,) = (one for one in APIS if one.path == f"/api/{path}")
    told = {role: send(Visitor(role), route) for role in ("OP", "VIEWER")}
    assert {one.status_code for one in told.values()} == {409}
    assert {role: str(tmp_path) in one.json()["detail"] for role, one in told.items()} == {
        "OP": True,
        "VIEWER": False,
    }
