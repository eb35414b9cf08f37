# SPDX-License-Identifier: Apache-2.0
"""
The page's server against OWASP's ten risks of APIs, for each route: a new one without a guard fails.

What a route may be asked is known here by the names of its values; a new name needs a value in ``GOOD``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.sdk import DAG
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Mount

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.plugins import connections
from airflow_changefeed.plugins.access import reading, same_origin
from airflow_changefeed.plugins.actions import changing, changing_capture, changing_export
from airflow_changefeed.plugins.changefeed import URL_PREFIX
from airflow_changefeed.plugins.connections import visible
from airflow_changefeed.plugins.page import _HEADERS, page
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags
from tests.unit.hostile.mutation import NAMES, ROUNDS_VARIABLE, VALUES

pytestmark = since("3.1", "the page")

DAG_ID, HIDDEN_DAG, HIDDEN_CONN = "page_owasp", "page_owasp_hidden", "hidden_feeds"
#: A value for each name that a route may be asked with; of a body those that it must have.
GOOD: dict[str, Any] = {
    **{"conn_id": CONN_ID, "feed": FEED, "consumer": CONSUMER, "dag_id": DAG_ID, "task_id": "export"},
    **{"shard": "0", "to": "latest", "resource_version": 1, "fencing_token": 1, "number": 1},
    **{"start": "2013-01-01T00:00:00Z", "end": "2013-01-01T04:00:00Z", "at": "2013-01-01T01:00:00Z"},
    **{"first": 0, "count": 10, "unit_seconds": 3600, "note": "test", "name": "page.js"},
    **{"max_attempts": 3, "on_poison": "park"},
}
ROUTES = [route for route in page().routes if isinstance(route, APIRoute)]
APIS = [route for route in ROUTES if route.path.startswith("/api/")]
CHANGES = [route for route in APIS if route.methods == {"POST"}]


@pytest.fixture(autouse=True)
def stored(server: None, source: SqliteFeedSource, tmp_path: Path) -> None:
    """Give a DAG that the users may see, and one that they may not, with a connection of its own."""
    with DAG(DAG_ID, schedule=None) as dag:
        _export(tmp_path)
    with DAG(HIDDEN_DAG, schedule=None) as hidden:
        _export(tmp_path)
        ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER, changefeed_conn_id=HIDDEN_CONN)
    store_dags(dag, hidden)
    source.drain(FEED)
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN, 1: Ulid.MIN}, by="test")


def _export(path: Path) -> None:
    ChangefeedToParquetOperator(
        task_id="export", feed=FEED, consumer=CONSUMER, path=str(path / "out"), conn_id="spark"
    )


@pytest.fixture(autouse=True)
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody see the other DAG."""
    real = SimpleAuthManager.get_authorized_dag_ids

    def without(self: SimpleAuthManager, **arguments: Any) -> set[str]:
        return set(real(self, **arguments)) - {HIDDEN_DAG}

    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", without)


def values_of(route: APIRoute, **others: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return good values of a route's query and body, some of them replaced."""
    flat = get_flat_dependant(route.dependant, skip_repeats=True)
    given = {**GOOD, **others}
    query = {field.alias: given[field.alias] for field in flat.query_params}
    body = {field.alias: given[field.alias] for field in flat.body_params}
    return query, body


def send(visitor: Visitor, route: APIRoute, **others: Any) -> Any:
    """Ask a route as the page does."""
    query, body = values_of(route, **others)
    (method,) = route.methods
    path = f"{URL_PREFIX}{route.path.format(**GOOD)}"
    if method == "GET":
        return visitor.client.get(path, params=query)
    headers = {"Sec-Fetch-Site": "same-origin"}
    return visitor.client.post(path, params=query, json=body, headers=headers)


def calls(route: APIRoute) -> set[Any]:
    """Return the functions that a route depends on, at any depth."""

    def inner(dependant: Any) -> Iterator[Any]:
        for each in dependant.dependencies:
            yield each.call
            yield from inner(each)

    return set(inner(route.dependant))


def test_there_is_no_way_around_the_routes() -> None:
    """API9, inventory: nothing is mounted beside them, no documentation is served, each has one method."""
    assert len(CHANGES) > 5
    assert len(APIS) - len(CHANGES) > 10
    assert not [route for route in page().routes if isinstance(route, Mount)]
    assert {type(route) for route in page().routes} == {APIRoute}
    assert all(route.methods in ({"GET"}, {"POST"}) for route in ROUTES)


def test_who_is_not_logged_in_gets_nothing() -> None:
    """API2, authentication: no token, a wrong one, and one that is signed by nobody."""
    for token in (None, "", "x.y.z", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."):
        visitor = Visitor(None)
        if token is not None:
            visitor.client.cookies.set("_token", token)
        for route in ROUTES:
            answer = send(visitor, route)
            assert answer.status_code in (401, 403), (route.path, token)
            assert FEED not in answer.text, (route.path, token)
            assert ("Log in to" in answer.text) is (route.path == "/" and answer.status_code == 401)
    assert all(reading in calls(route) for route in ROUTES)


def test_what_is_not_ones_own_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """API1, objects: a connection or a DAG, whether it exists or not; no database is opened for it."""
    op = Visitor("OP")
    for route in APIS:
        query, _ = values_of(route)
        assert HIDDEN_DAG not in send(op, route).text, route.path
        if "dag_id" in query:
            answers = [send(op, route, dag_id=dag_id) for dag_id in (HIDDEN_DAG, "there_is_none")]
            texts = {one.text.replace(HIDDEN_DAG, "it").replace("there_is_none", "it") for one in answers}
            assert ({one.status_code for one in answers}, len(texts)) == ({404}, 1), route.path
    monkeypatch.setattr(connections, "opened", lambda conn_id: pytest.fail(f"opened {conn_id}"))
    for route in APIS:
        if "conn_id" not in values_of(route)[0]:
            assert route.path in ("/api/connections", "/api/backfill")
            continue
        assert visible in calls(route), route.path
        answers = [send(op, route, conn_id=conn_id) for conn_id in (HIDDEN_CONN, "there_is_none")]
        texts = {one.text.replace(HIDDEN_CONN, "it").replace("there_is_none", "it") for one in answers}
        assert ({one.status_code for one in answers}, len(texts)) == ({404}, 1), route.path


def test_who_may_only_read_changes_nothing(database: str) -> None:
    """API5, functions: refused by a permission of the route itself, which stands before the audit log."""
    before = Path(database).read_bytes()
    for route in CHANGES:
        assert {changing, changing_capture, changing_export} & calls(route), route.path
        # Before anything is looked at, be the request right or wrong.
        for values in ({}, {"to": 5, "note": 5, "start": 5, "resource_version": "x", "fencing_token": "x"}):
            answer = send(Visitor("VIEWER"), route, **values)
            assert (answer.status_code, "read-only" in answer.text) == (403, True), route.path
        assert "log_action" in {getattr(call, "__name__", "") for call in calls(route)}, route.path
    assert Path(database).read_bytes() == before


def test_what_another_site_sends_is_refused(database: str) -> None:
    """CSRF: a form, a text, another origin, or a sandbox, with this user's cookie."""
    visitor, before = Visitor("OP"), Path(database).read_bytes()
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "")
    origins = ("https://evil.example", "null", "http://testserver.evil.example")
    for route in CHANGES:
        assert same_origin in calls(route), route.path
        (query, body), path = values_of(route), f"{URL_PREFIX}{route.path}"
        foreign = [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none", "")]
        for headers in (*foreign, *({"Origin": origin} for origin in origins)):
            answer = visitor.client.post(path, params=query, json=body, headers=headers)
            assert answer.status_code == 403, (route.path, headers)
        for kind in kinds:
            headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": kind}
            answer = visitor.client.post(path, params=query, content=b"{}", headers=headers)
            assert answer.status_code in (415, 422), (route.path, headers)
    assert Path(database).read_bytes() == before


def test_reading_changes_nothing(database: str) -> None:
    """CSRF: so that a link or a picture of another site does no harm."""
    before = Path(database).read_bytes()
    for route in ROUTES:
        if route.methods == {"GET"}:
            assert send(Visitor("OP"), route).status_code < 500, route.path
    assert Path(database).read_bytes() == before


def test_more_than_a_page_is_refused() -> None:
    """API4, consumption: counts have an end, and so have bodies, also of those who are not logged in."""
    headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
    for route in APIS:
        query, body = values_of(route)
        if "count" in query:
            assert send(Visitor("VIEWER"), route, count=10**6).status_code == 422, route.path
        for visitor in (Visitor("OP"), Visitor(None)) if body else ():
            # With a length, and in pieces without one.
            for content in (b" " * 10**6, (b" " * 10**5 for _ in range(10))):
                path = f"{URL_PREFIX}{route.path}"
                answer = visitor.client.post(path, params=query, content=content, headers=headers)
                assert answer.status_code == 413, route.path


def test_every_answer_says_what_browsers_may_do_with_it() -> None:
    """API8, configuration: refused ones, too; no type is guessed, nothing is kept, nobody may frame it."""
    wrong = ({}, {"conn_id": "nothing"}, {"feed": "<b>"}, {"count": -1, "shard": "x", "to": "y"})
    for visitor in map(Visitor, (None, "VIEWER", "OP")):
        for route, values in product(APIS, wrong):
            answer = send(visitor, route, **values)
            assert {name: answer.headers[name] for name in _HEADERS} == _HEADERS, route.path
            assert answer.headers["content-type"] == "application/json", route.path
            assert not {"access-control-allow-origin", "server"} & set(answer.headers), route.path


def test_no_script_makes_markup_of_what_it_was_told() -> None:
    """API8, injection: the page's scripts write texts, never HTML, and run nothing that is a text."""
    folder = files("airflow_changefeed.plugins") / "static"
    scripts = [each for each in folder.iterdir() if each.name.endswith((".js", ".html"))]
    assert len(scripts) > 5
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:"
        r"|createContextualFragment|DOMParser|setHTML|\son\w+=|<script(?![^>]*\bsrc=)"
    )
    found = {each.name: ways.findall(each.read_text(encoding="utf-8")) for each in scripts}
    assert not any(found.values()), found


#: A soak asks each route as often as it does everything else.
ROUNDS = int(os.environ.get(ROUNDS_VARIABLE, "0")) * len(APIS) or 200
hostile_each = settings(
    max_examples=ROUNDS, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
_NAMED = st.sampled_from(NAMES).map(lambda name: name.encode(errors="replace").decode())


@hostile_each
@given(data=st.data())
def test_whatever_is_asked_is_answered(data: st.DataObject) -> None:
    """Injection: names, numbers and bodies of every kind get an answer, never an error of the server."""
    route = data.draw(st.sampled_from(APIS))
    query, body = values_of(route)
    for name in data.draw(st.sets(st.sampled_from(sorted(query) or ["none"]), max_size=2)) & query.keys():
        query[name] = data.draw(_NAMED.filter(lambda text: len(text) < 5000))
    for name in data.draw(st.sets(st.sampled_from(sorted(body) or ["none"]), max_size=2)) & body.keys():
        body[name] = data.draw(VALUES)
    visitor = Visitor("OP")
    if route.methods == {"GET"}:
        answer = visitor.client.get(f"{URL_PREFIX}{route.path}", params=query)
    else:
        headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        answer = visitor.client.post(
            f"{URL_PREFIX}{route.path}", params=query, content=json.dumps(body), headers=headers
        )
    assert answer.status_code < 500, (route.path, answer.text)
    assert isinstance(answer.json(), dict)
