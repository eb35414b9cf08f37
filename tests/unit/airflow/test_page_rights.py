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
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.plugins.access import HIDDEN_RUN, RunNames
from airflow_changefeed.plugins.connections import message_of
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import since
from tests.unit.airflow.conftest import FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.page import Visitor
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
each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)

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


def test_each_route_is_in_the_table() -> None:
    """A new one needs its row."""
    assert sorted(NEEDS) == sorted(named(route) for route in ROUTES)


@each_route
def test_who_lacks_the_one_permission_is_refused(
    route: APIRoute, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    """Whatever else is granted: to see the connection is not to resolve its gaps. Nothing is changed."""
    before = Path(database).read_bytes()
    answer(monkeypatch, lambda asked, _: asked != NEEDS[named(route)])
    assert send(Visitor("OP"), route).status_code == 403
    assert Path(database).read_bytes() == before


@each_route
def test_the_one_permission_is_enough(route: APIRoute, monkeypatch: pytest.MonkeyPatch) -> None:
    """For who may see the page and the DAG."""
    answer(monkeypatch, lambda asked, _: asked in (VIEW, DAG, NEEDS[named(route)]))
    assert send(Visitor("OP"), route).status_code not in (401, 403)


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


def test_runs_of_hidden_dags_are_not_named(shared: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """By no route, neither in what it shows nor in what it refuses."""
    answer(monkeypatch, lambda _, dag_id: dag_id != HIDDEN)
    found = texts(shared)
    assert [name for name, text in found.items() if RUN in text] == []
    assert sum(HIDDEN_RUN in text for text in found.values()) > 5


def test_runs_are_named_to_who_may_see_them(shared: SqliteFeedSource) -> None:
    """Who moved a cursor, holds or waits for a lease, or wrote a file; also where a page was stale."""
    naming = {name.rpartition(" ")[0] for name, text in texts(shared).items() if RUN in text}
    assert naming >= {
        "GET /api/feed",
        "GET /api/history",
        "GET /api/waiters",
        "GET /api/window",
        "POST /api/move",
        "POST /api/revoke",
    }


@pytest.mark.parametrize(
    "name",
    [
        f"{HIDDEN}/run/export/1",
        HOLDER,
        # Cut in the run's id, or in the DAG's.
        f"{HIDDEN}/{'r' * LONGEST_RUN}"[:LONGEST_RUN] + "@host:1:01A",
        f"{'d' * LONGEST_RUN}@host:1:01A",
        f"{HIDDEN}/scheduled__2026-01-01T00:00:00+00:00/exp",
    ],
)
def test_a_name_of_a_run_is_known_as_one(name: str) -> None:
    """Also where it was cut; in a sentence only the name goes."""
    names = RunNames(lambda dag_id: False)
    assert names.shown(name) == HIDDEN_RUN
    assert RunNames(lambda dag_id: True).shown(name) == name
    if "/" in name:
        assert (
            names.in_text(f"it is held by '{name}' until noon") == f"it is held by '{HIDDEN_RUN}' until noon"
        )


@pytest.mark.parametrize("name", ["anna", "anna@example.org", "host:17:01A", "", None])
def test_a_person_or_process_is_named(name: str | None) -> None:
    """To everybody who may see the page."""
    assert RunNames(lambda dag_id: False).shown(name) == name


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (errors.LockTimeoutError("feeds.db: busy; retry", path="feeds.db"), "...: busy; retry"),
        (
            errors.UnsupportedVersionError("/mnt/my lake/a b/m.json is of version 9; upgrade"),
            "... is of version 9; upgrade",
        ),
        (
            errors.UnsupportedVersionError("manifest s3://lake/my feed/m.json: upgrade"),
            "manifest ...: upgrade",
        ),
        (
            errors.FoldError("feed 'f' in C:\\lake\\out has no events yet"),
            "feed 'f' in ... has no events yet",
        ),
        (errors.InvalidArgumentError("to: '2026-01-01T00:00:00Z' is late"), None),
        (errors.StaleVersionError("cursor is at 2 (readers and/or writers)"), None),
    ],
)
def test_an_error_has_no_path_for_who_may_only_see_the_page(error: Exception, shown: str | None) -> None:
    """Whatever its class; who may see the connection sees all of it."""

    def told(*, sees_errors: bool) -> str:
        state = {"sees_errors": sees_errors, "runs": RunNames(lambda dag_id: True)}
        return message_of(Request({"type": "http", "query_string": b"", "state": state}), error)

    assert told(sees_errors=True) == str(error)
    assert told(sees_errors=False) == (str(error) if shown is None else shown)


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
